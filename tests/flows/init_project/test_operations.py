"""Files for containers, CI, systemd and pre-commit, which no container engine checks here, have a sound structure."""

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from flows.cli import app
from flows.init_project.create_project import create_project, operations_texts
from flows.init_project.infer_schema import DataOptions

TEXTS = operations_texts()
CONSTRAINTS = (Path(__file__).parents[3] / "constraints.txt").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(TEXTS["ops/compose.yaml"])
SERVICES = COMPOSE["services"]
ONE_SHOT = {"buckets"}
PINNED = re.compile(r"[\w./-]+:(?=.*\d)[\w.-]+")  # a tag with a number in it, so not `latest`
SECRET = re.compile(r"\$\{[A-Z0-9_]+(:\?[^}]*)?\}")


def commands() -> list[list[str]]:
    """Every command of siloflow, MLflow or Prefect that one of the files runs or shows."""
    lines = [service["command"] for service in SERVICES.values() if "command" in service]
    for text in TEXTS.values():
        lines += [
            shlex.split(found)
            for found in re.findall(r"(?:env|run:|entry:|exec worker) ((?:siloflow|prefect) .*)", text)
        ]
    return [line for line in lines if line[0] in ("siloflow", "prefect", "mlflow")]


def test_init_writes_them_and_git_ignores_the_passwords(tmp_path: Path) -> None:
    create_project(tmp_path / "study", None, DataOptions(), ops=True)
    for place, text in TEXTS.items():
        assert (tmp_path / "study" / place).read_text(encoding="utf-8") == text
    ignored = subprocess.run(
        ["git", "check-ignore", "ops/.env", "ops/env.example"],
        cwd=tmp_path / "study",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ignored.stdout == "ops/.env\n"


def test_every_image_and_package_has_a_version() -> None:
    assert {name for name, service in SERVICES.items() if not PINNED.fullmatch(service["image"])} == set()
    dockerfile = TEXTS["ops/Dockerfile"]
    (base,) = re.findall(r"^FROM (\S+)$", dockerfile, re.MULTILINE)
    assert PINNED.fullmatch(base)
    installed = re.findall(r"pip install ((?:.|\\\n)+?)\n\n", dockerfile)[0].replace("\\\n", " ").split()
    packages = [word for word in installed if not word.startswith("--") and not {*word} & {*"/$"}]
    assert packages
    assert set(packages) <= set(CONSTRAINTS.lower().split())
    for step in re.findall(r"uses: (\S+)", TEXTS[".github/workflows/compare.yaml"]):
        assert re.fullmatch(r"[\w/-]+@v\d+\.\d+\.\d+", step)


@pytest.mark.parametrize(
    ("file", "folder"), [("ops/Dockerfile", "/install/"), (".github/workflows/compare.yaml", "ops/wheels/")]
)
def test_all_wheels_are_installed_and_siloflow_with_the_extra_of_a_coordinator(
    file: str, folder: str, tmp_path: Path
) -> None:
    wheels = {"siloflow-0.1.0-py3-none-any.whl", "plugin-1.0-py3-none-any.whl"}
    for wheel in wheels:
        (tmp_path / wheel).touch()
    (words,) = re.findall(r"pip install ((?:.|\\\n)+?)(?<!\\)\n", TEXTS[file])
    script = f"printf '%s\\n' {words}".replace(folder, f"{tmp_path}/")
    printed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\n")
    installed = {Path(word).name for word in printed if ".whl" in word}
    assert installed == {*wheels, "siloflow-0.1.0-py3-none-any.whl[coordinator]"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_checked_waits_for_those_that_it_needs_and_keeps_its_files(name: str) -> None:
    service = SERVICES[name]
    assert name in ONE_SHOT or {"test", "interval", "retries"} <= service["healthcheck"].keys()
    for needed, condition in service.get("depends_on", {}).items():
        expected = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
        assert condition == {"condition": expected}
    named = {volume.split(":")[0] for volume in service.get("volumes", [])} - {".."}
    assert named <= COMPOSE["volumes"].keys()
    assert named or name in {*ONE_SHOT, "serve"}
    for host in set(re.findall(r"[@/](\w+):\d{4}", str(service["environment"]))):
        assert host in SERVICES or host == "127"
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")
    for config in service.get("configs", []):
        assert config["source"] in COMPOSE["configs"]


def test_no_file_holds_a_secret_and_the_example_names_each_of_them() -> None:
    example = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", TEXTS["ops/env.example"], re.MULTILINE))
    used = set(re.findall(r"\$\{([A-Z0-9_]+)", TEXTS["ops/compose.yaml"]))
    assert used == example.keys()
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|ACCESS_KEY|AUTH_STRING|_URI$|CONNECTION_URL", key) and "://" not in value:
                assert SECRET.fullmatch(value), key
            for login in re.findall(r"://([^@/]*)@", value):
                assert SECRET.fullmatch(login.partition(":")[2]), key
    assert "PASSWORD" not in TEXTS[".github/workflows/compare.yaml"]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of MLflow's import
def test_every_command_of_siloflow_and_mlflow_exists() -> None:
    from mlflow.cli import server as mlflow_server_command

    known, options = get_command(app).commands, {name for one in mlflow_server_command.params for name in one.opts}  # type: ignore[attr-defined]
    seen = set()
    for program, verb, *words in commands():
        flags = {word for word in words if word.startswith("-")}
        if program == "siloflow":
            command = getattr(known[verb], "commands", {}).get(words[0] if words else "", known[verb])
            assert flags <= {name for one in command.params for name in one.opts}
        elif program == "mlflow":
            assert verb == "server"
            assert flags <= options
        seen.add(program)
    assert seen == {"siloflow", "mlflow", "prefect"}


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in commands() if line[0] == "prefect"], ids=" ".join)
def test_prefect_knows_every_option_of_its_commands(line: list[str]) -> None:
    words = [word for word in line[1:] if not word.startswith("-")][: 1 if line[1] == "deploy" else 2]
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *words, "--help"], capture_output=True, text=True, check=True
    )
    assert {word for word in line if word.startswith("--")} <= set(re.findall(r"--[\w-]+", done.stdout))


def test_the_unit_of_systemd_starts_and_ends_the_services_in_the_projects_folder() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(TEXTS["ops/siloflow@.service"])
    service: Any = unit["Service"]
    assert (service["ExecStart"], service["ExecStop"]) == ("/usr/bin/env siloflow up", "/usr/bin/env siloflow down")
    assert service["WorkingDirectory"] == "%f"
    assert unit["Install"]["WantedBy"] == "default.target"


def test_a_place_is_served_by_a_unit_and_a_container_that_open_no_port() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string(TEXTS["ops/siloflow-place@.service"])
    service: Any = unit["Service"]
    assert service["ExecStart"] == "/usr/bin/env siloflow place serve"
    assert (service["WorkingDirectory"], service["Restart"], service["SuccessExitStatus"]) == ("%f", "always", "143")
    assert service["MemoryMax"]
    (place,) = yaml.safe_load(TEXTS["ops/place.yaml"])["services"].values()
    assert place["command"] == ["siloflow", "place", "serve"]
    assert place["image"] == SERVICES["worker"]["image"]
    assert place["volumes"] == ["..:/project"]
    assert place["mem_limit"]
    assert not place.keys() & {"ports", "expose", "network_mode", "privileged"}
