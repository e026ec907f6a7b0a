"""`siloflow` itself: help that imports nothing heavy, and a list of methods."""

import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from flows.compare import compare
from flows.partition import partition
from flows.project.make_partition import make
from flows.project.project import Project
from flows.run import run

COMMAND = Path(sys.executable).parent / "siloflow"
SUBCOMMANDS = ("partition", "run", "compare", "schedule", "ui", "show", "methods", "stats")
HELP_IMPORTS = """
import sys
from flows.cli import app
app(["--help"], standalone_mode=False)
assert not {"torch", "prefect", "mlflow", "dvc", "numpy"} & set(sys.modules)
"""
IMPORTS = """
import atexit, pathlib, sys
from flows.cli import main
heavy = {"torch", "prefect", "mlflow", "dvc", "sklearn", "scipy", "pandas", "matplotlib"}
atexit.register(lambda: pathlib.Path("imported").write_text(" ".join(heavy & set(sys.modules))))
main()
"""


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HELP_IMPORTS], cwd=tmp_path, capture_output=True, timeout=600, check=True)


@pytest.mark.parametrize(
    ("typed", "code", "needed"),
    [
        (("run", "fedavg", "--set", "training.epoch=2"), 2, set()),
        (("compare", "--set", "comparison.methods=[fedavgg]"), 2, set()),
        (("schedule", "0 6 * * 1", "--set", "runner.workers=0"), 2, set()),
        (("data", "log"), 2, set()),  # there is no git here
        (("show",), 0, {"matplotlib"}),
        (("methods",), 0, set()),
        (("results",), 0, set()),
        (("history",), 0, set()),
        (("partition",), 0, {"prefect", "dvc"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_imports_only_what_it_needs_and_starts_no_server_for_a_mistake(
    partitioned: Any,
    server: str,
    environment: dict[str, str],
    tmp_path: Path,
    typed: tuple[str, ...],
    code: int,
    needed: set[str],
) -> None:
    folder = partitioned[0].copy(tmp_path / "project").path
    shutil.rmtree(folder / ".prefect")
    if code == 0:
        environment = {**environment, "PREFECT_API_URL": server}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *typed],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert set((folder / "imported").read_text().split()) == needed
    assert (folder / ".prefect").exists() == ("prefect" in needed)


def test_a_forked_command_answers_as_the_console_script_does(partitioned: Any, server: str, tmp_path: Path) -> None:
    folder = partitioned[0].copy(tmp_path / "project", server)
    for typed, code in ((("show", "--json"), 0), (("run", "fedavgg"), 2)):
        script, forked = (folder.type(*typed, code=code, alone=alone) for alone in (True, False))
        assert (script.out, script.err) == (forked.out, forked.err)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_of_a_subcommand_has_an_example(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"])
    assert f"Example: siloflow {name}" in " ".join(shown.output.split())


def test_help_lists_every_subcommand(tmp_path: Path) -> None:
    done = subprocess.run([COMMAND, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)
    listed = [line.split()[0] for line in done.stdout.partition("Commands")[2].splitlines() if line.startswith("  ")]
    assert set(listed) >= set(SUBCOMMANDS)


def test_methods_lists_them_all_outside_of_any_project(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "methods", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True
    )
    found = {m["method"]: m for m in json.loads(done.stdout)["methods"]}
    pages = Path(__file__).parents[2] / "docs" / "methods"
    assert set(found) == {page.stem for page in pages.glob("*.md")}
    assert found["local_only"]["model"] == "personal"
    assert set(found["fedprox"]["options"]) == {"proximal"}
    assert list(tmp_path.iterdir()) == []


def test_a_project_is_made_of_a_table_and_a_client_of_it_tells_its_statistics(
    folder_at: Callable[..., Any], server: str, tmp_path: Path
) -> None:
    rows = [f"{('north', 'south')[at % 2]},{at},{'ill' if at > 120 else 'well'}" for at in range(200)]
    (tmp_path / "visits.csv").write_text("\n".join(["hospital,age,outcome", *rows]), encoding="utf-8")
    made = folder_at(tmp_path, server).type("init", "study", "--data", "visits.csv", alone=True).out
    assert made.split()[:2] == ["made", "study:"]
    study = folder_at(tmp_path / "study", server)
    assert study.type("partition", "--json").json["clients"] == 2
    told = study.type("stats", "north", "--json").json
    assert len(told["statistics"]) == sum(kind["length"] for kind in told["kinds"]) > 0


@pytest.mark.slow
def test_an_ascii_terminal_shows_hostile_names_as_text(tmp_path: Path, environment: dict[str, str]) -> None:
    names = np.array(["[/b]é", "_日\n", "$\\frac$\x1b[2J"]).repeat(8)
    np.savez(tmp_path / "own.npz", x=np.arange(24.0), y=names, client=names, domain=names)
    params = yaml.safe_load((Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8"))
    column = {"kind": "column", "column": "client"}
    params["data"] |= {"name": "own", "source": {"kind": "npz", "path": "own.npz"}, "scheme": [column]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    make(Project.open([], tmp_path))
    ascii_only = {**environment, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}
    for typed, code in ((("show",), 0), (("stats", "nobody"), 2)):
        done = subprocess.run(
            [COMMAND, *typed], cwd=tmp_path, env=ascii_only, capture_output=True, timeout=600, check=False
        )
        said = (done.stdout if code == 0 else done.stderr).decode("ascii")
        assert done.returncode == code, said
        assert r"[/b]\xe9" in said
        assert r"$\frac$\x1b[2J" in said
        assert done.stderr == b"" or said.startswith("error: client: got nobody, expected a client of")


@pytest.mark.parametrize("flow", [partition, run, compare], ids=lambda flow: flow.name)
def test_a_deployment_can_hold_every_parameter_of_a_flow_as_json(flow: object) -> None:
    schema = flow.parameters.model_dump()
    assert set(schema["properties"]) == set(inspect.signature(flow.fn).parameters)
    assert json.loads(json.dumps(schema)) == schema
    kinds = {kind.get("type") for p in schema["properties"].values() for kind in p.get("anyOf", [p])}
    assert kinds <= {"string", "integer", "boolean", "array", "null"}
