"""README and docs tell the truth: the map, commands, keys and figures; and their examples run. `make docs` checks links."""

import dataclasses
import importlib.util
import json
import math
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, is_typeddict

import numpy as np
import pytest
import torch
import typer
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from flows.cli import app
from flows.core.config.load_config import load_params
from flows.core.config.params_schema import Params, layers_of
from flows.methods.base import find_method, method_names
from flows.methods.fedavg import FedAvg
from flows.methods.method_settings import method_of
from flows.project.make_partition import make
from flows.project.project import Project
from flows.training.fit_standardizer import fit_standardizer
from flows.training.training_setup import training_setup
from models.metrics.flops import largest_activation, network_cost
from models.networks.network_factory import build
from models.networks.resnet_vgg import Residual
from models.prng import server_stream
from models.server_state import ServerState
from models.training import engine
from models.training.objectives import CrossEntropy
from publications.published_tables import is_own, table_of
from publications.render import doc_tables
from publications.render.table_list import read_sentences
from silos.storage.manifest import schema_of
from silos.storage.partition_store import open_client, open_missing, write
from tasks import messages
from tasks.execution.task_runner import PlainRunner
from tasks.messages.message_policy import Message
from tasks.messages.round_messages import SummedMessage, WeightedMessage
from tasks.messages.sum_messages import SumMessage
from tests import json_tables

CHECKOUT = Path(__file__).resolve().parents[1]
README = CHECKOUT / "README.md"
HOW_IT_WORKS = CHECKOUT / "docs" / "how-it-works.md"
OWN_DATA = CHECKOUT / "docs" / "bring-your-data.md"
PAGES = [README, CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(CHECKOUT)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's project: params.yaml, and the method that the docs add."""
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    (tmp_path / "fedavgm.py").write_text(blocks(CHECKOUT / "docs" / "add-a-method.md", "python")[0], encoding="utf-8")
    return tmp_path


def test_the_map_has_every_tracked_entry_of_the_checkout_and_no_other():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    tracked = {f"{path.split('/')[0]}/" if "/" in path else path for path in listed.stdout.split()}
    assert {path for path in mapped() if "/" not in path.rstrip("/")} == tracked


def test_every_line_of_the_map_is_there():
    missing = [
        path for path in mapped() if not (CHECKOUT / path).exists() or (CHECKOUT / path).is_dir() != path.endswith("/")
    ]
    assert not missing


def test_every_folder_with_code_is_on_the_map():
    packages = ("publications", "benchmarks", "flows", "tasks", "models", "silos")
    folders = {
        path.parent.relative_to(CHECKOUT) for name in packages for path in CHECKOUT.glob(f"{name}/**/__init__.py")
    }
    assert {f"{folder}/" for folder in folders} <= set(mapped())


def test_every_method_is_on_the_page_that_helps_to_choose_and_no_other():
    page = CHECKOUT / "docs" / "methods.md"
    linked = re.findall(r"\[(\w+)\]\(methods/(\w+)\.md\)", page.read_text(encoding="utf-8"))
    assert {name for name, page in linked if name == page} == set(method_names())


def test_the_methods_that_train_a_deep_ensemble_are_all_listed():
    text = " ".join(HOW_IT_WORKS.read_text("utf-8").split())
    (listed,) = re.findall(r"bytes and time grow with the members\. (.*?) take an ensemble", text)
    takes = {name for name in method_names() if find_method(name).takes_members}
    assert set(re.findall(r"\w+", re.sub(r"\(.*?\)", "", listed))) - {"and"} == takes


@cache
def subcommands():
    """Return the commands by their names."""
    return typer.main.get_command(app).commands


@every_page
def test_every_command_can_be_typed(page, folder):
    targets = re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for arguments in commands(page):
        if arguments[0] == "make":
            assert set(arguments[1:]) <= set(targets), arguments
        elif len(arguments) > 1 and arguments[1] != "--help":
            subcommand = subcommands()[arguments[1]]
            only_named = len(arguments) == 2
            asked = subcommand.make_context(arguments[1], arguments[2:], resilient_parsing=only_named).params
            params = load_params(folder, asked.get("overrides") or [])
            for name in [asked.get("method"), *(asked.get("methods") or [])]:
                assert name is None or method_of(params, name)
            paper, figure = asked.get("paper"), asked.get("figure")
            table = f"figure-{figure}" if figure else asked.get("table")
            if paper and table is None and arguments[1] == "reproduce":
                assert read_sentences(paper)
            elif paper and not is_own(paper) and table != "NAME":
                assert table_of(paper, table, asked["scale"]), arguments


@pytest.mark.parametrize("page", doc_tables.pages(CHECKOUT / "docs"), ids=lambda p: p.name)
def test_every_table_of_results_is_as_the_records_have_it_now(page, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    renewed, written = (doc_tables.unmarked(text) for text in (doc_tables.renewed(page), page.read_text("utf-8")))
    assert renewed == written, f"a table of {page.name} is stale: type `make docs`"


def test_the_page_on_json_has_every_type_as_it_is_now():
    written = json_tables.PAGE.read_text("utf-8")
    assert json_tables.renewed(written) == written, "docs/json.md is stale: type `make docs`"
    folder = CHECKOUT / "tasks" / "tracking" / "result_types"
    for module in (path.stem for path in folder.glob("[!_]*.py")):
        names = vars(import_module(f"tasks.tracking.result_types.{module}"))
        for name, kind in names.items():
            if is_typeddict(kind) and kind.__module__.endswith(module) and f"\n### {name}\n" in written:
                section = written.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
                keys = re.findall(r"^\| `(\w+)`(, optional)?", section, re.MULTILINE)
                assert {key for key, _ in keys} == kind.__required_keys__ | kind.__optional_keys__, name
                assert {key for key, optional in keys if optional} == kind.__optional_keys__, name


def test_the_methods_that_take_an_ensemble_are_those_that_say_so():
    text = " ".join(HOW_IT_WORKS.read_text(encoding="utf-8").split())
    (sentence,) = re.findall(r"grow with the members\. (.*?) take an ensemble, the others refuse it", text)
    named = re.findall(r"`(\w+)`|\[(\w+)\]", sentence)
    taking = {name for name in method_names() if find_method(name).takes_members}
    assert {plain or linked for plain, linked in named} == taking


def test_every_method_has_a_page_and_every_page_a_method():
    assert sorted(p.stem for p in (CHECKOUT / "docs" / "methods").glob("*.md")) == method_names()


def test_params_yaml_or_the_page_of_sources_and_schemes_shows_every_key_that_there_is():
    pages = (CHECKOUT / "params.yaml", CHECKOUT / "docs" / "sources-and-schemes.md")
    shown = {word for page in pages for word in re.findall(r"\w+", page.read_text(encoding="utf-8"))}
    assert set(keys(Params)) - shown == set()


def test_the_method_of_the_docs_is_fedavg_with_a_velocity(folder, make_problem, play):
    params = load_params(folder, ["plugins=[fedavgm.py]", "method.fedavgm.momentum=0.5"])
    setup = make_problem({"a": 8, "b": 5})
    start = FedAvg().init(setup).tensors["weights"]
    first = play(method_of(params, "fedavgm"), setup, [1]).state
    second = play(method_of(params, "fedavgm"), setup, [2], state=first).state
    w = first.tensors["weights"]
    average = play(FedAvg(), setup, [2], state=ServerState({"weights": w})).state.tensors["weights"]
    for name in w:
        expected = w[name] - (0.5 * (start[name] - w[name]) + w[name] - average[name])
        torch.testing.assert_close(second.tensors["weights"][name], expected)


def test_the_method_of_the_docs_gives_running_statistics_no_velocity(folder, make_problem, play):
    """Momentum would carry a variance below zero, of which there is no root."""

    def rows_of(client, total):
        rng = np.random.default_rng(list(client.encode()))
        return rng.normal(0, 0.1, size=(total, 8, 8)), rng.integers(0, 3, total)

    page = method_of(load_params(folder, ["plugins=[fedavgm.py]"]), "fedavgm")
    network = Residual((8, 8), 3, (6,), 0.0, True, (4, 8))
    setup = make_problem({"a": 12, "b": 9}, network=network, silos={"rows_of": rows_of})
    state = play(page, setup, range(1, 9)).state
    average = play(FedAvg(), setup, [9], state=ServerState({"weights": state.tensors["weights"]})).state.tensors[
        "weights"
    ]
    state = play(page, setup, [9], state=state).state
    for name in network.buffers:
        assert torch.equal(state.tensors["weights"][name], average[name])
        assert not name.endswith("variance") or bool((average[name] > 0).all()), name


def test_the_networks_on_the_page_of_costs_cost_what_it_says(folder):
    """And the figures of why a Raspberry Pi failed are theirs."""
    page = (CHECKOUT / "docs" / "cost.md").read_text(encoding="utf-8")
    found, x, y = {}, torch.rand(1, 28, 28), torch.zeros(1, dtype=torch.int64)
    for name, model, *said in re.findall(
        r"^\| (\w+) \| `({.*?})` \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE
    ):
        options = layers_of(load_params(folder, [f"model={model}"]).model)
        network = found[name] = build(yaml.safe_load(model)["kind"], (28, 28), 10, options)
        counted = network_cost(network, network.init(server_stream(0, 0, "init")), {}, x, y, CrossEntropy())
        assert said == [f"{number:,}" for number in dataclasses.astuple(counted)], name
    assert list(found) == ["FC1", "C2R3", "CR3R3"]
    rows = engine._VALUES_PER_CHUNK // found["CR3R3"].max_width
    figures = [largest_activation(found["CR3R3"], 10_000) // 2, engine._VALUES_PER_CHUNK]
    assert all(f"{figure:,}" in page for figure in figures)
    assert f"{rows} rows, {largest_activation(found['CR3R3'], rows) / 1e6:.1f} MB" in page


def test_the_records_that_leave_a_client_are_all_listed():
    modules = [
        importlib.import_module(found.name) for found in pkgutil.iter_modules(messages.__path__, "tasks.messages.")
    ]
    kinds = {c for module in modules for c in vars(module).values() if isinstance(c, type) and issubclass(c, Message)}
    listed = re.findall(r"^\| `([A-Z]\w+)` \|", HOW_IT_WORKS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(
        kind.__name__ for kind in kinds if kind not in {Message, SummedMessage, SumMessage, WeightedMessage}
    )


def test_the_command_of_the_docs_prints_a_table_and_json(folder, monkeypatch):
    make(Project.open([], folder))
    monkeypatch.chdir(folder)
    (folder / "silo_list.py").write_text(block_with(HOW_IT_WORKS, "python", "print_silos"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("silo_list", folder / "silo_list.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with_command = typer.Typer()
    with_command.add_typer(module.commands)
    as_json, as_table = (CliRunner().invoke(with_command, ["silos", *given]).stdout for given in (["--json"], []))
    silos = json.loads(as_json)["silos"]
    assert len(silos) == 9
    assert as_table.split()[:3] == ["silo", "train", "test"]
    assert [line.split()[0] for line in as_table.splitlines()[1:]] == list(silos)


@pytest.mark.slow
def test_the_regression_of_the_docs_converges_at_its_rate_and_not_at_that_of_classes(folder, play):
    page = CHECKOUT / "docs" / "bring-your-data.md"
    typed(folder, sys.executable, "-c", block_with(page, "python", 'np.savez("mine.npz", x=x, y=y,'))
    said = yaml.safe_load(block_with(page, "yaml", "squared_error"))
    column = ["data.scheme=[{kind: column, column: client}]", f"data.source={json.dumps(said['data']['source'])}"]
    asked = [f"{part}.{key}={json.dumps(value)}" for part in ("model", "training") for key, value in said[part].items()]
    found = {}
    for rate in (said["training"]["optimiser"]["learning_rate"], load_params(folder).training.optimiser.learning_rate):
        project = Project.open([*column, *asked, f"training.optimiser.learning_rate={rate}"], folder, derived=True)
        raw = training_setup(project, 0)
        task = training_setup(project, 0, fit_standardizer(project.params, raw, PlainRunner(), project.ledgers).scaling)
        rounds = range(1, project.params.training.rounds + 1)
        found[rate] = play(FedAvg(), task, rounds).reports[-1].metrics["loss/train"]
    converged, diverged = found.values()
    assert converged < 0.1  # of a variance of 1
    assert not math.isfinite(diverged)


QUICK = "--set training.rounds=2 --set comparison.seeds=[0]"


@pytest.mark.slow
def test_the_own_data_of_the_readme_reach_a_comparison(folder, prefect):
    typed(folder, sys.executable, "-c", block_with(OWN_DATA, "python", "visits.csv"))
    said = typed(folder, "bash", "-c", f"set -e\n{block_with(README, 'sh', 'siloflow init')} {QUICK}")
    assert "guessed  label outcome (by its name), client hospital (by its name)" in said
    assert "local_only − fedavg" in said


@pytest.mark.slow
def test_the_arrays_of_the_docs_reach_a_comparison_and_the_lines_that_load_a_model(folder, prefect):
    script = f"set -e\n{block_with(OWN_DATA, 'sh', 'path: mine.npz')} {QUICK}"
    typed(folder, sys.executable, "-c", block_with(OWN_DATA, "python", "yew"))
    said = typed(folder, "bash", "-c", script)
    assert "data/mine: 3 clients" in said
    assert "local_only − fedavg" in said
    (result,) = folder.glob("runs/compare-*/fedavg-seed0/result.json")
    loaded = block_with(CHECKOUT / "docs" / "serve.md", "python", "load_model").replace(
        "RUN", json.loads(result.read_text())["mlflow_run_id"]
    )
    loaded = loaded.replace("sqlite:///runs/mlflow.db", os.environ["MLFLOW_TRACKING_URI"])
    answers = typed(folder, sys.executable, "-c", f"{loaded}\nprint(*model.predict(rows))")
    assert "label probability entropy probability/oak probability/pine probability/yew" in answers


def test_the_table_of_the_docs_is_partitioned_as_it_is_and_with_a_feature_described(folder):
    page = CHECKOUT / "docs" / "bring-your-data.md"
    typed(folder, sys.executable, "-c", block_with(OWN_DATA, "python", "visits.csv"))
    data = yaml.safe_load(block_with(page, "yaml", "path: visits.csv, label: outcome, client: hospital}"))["data"]
    more = yaml.safe_load(block_with(page, "yaml", "missing: drop_rows"))["data"]
    for name, said in (("plain", data), ("described", data | more)):
        params = load_params(
            folder, [f"data.{key}={json.dumps(value)}" for key, value in (said | {"name": name}).items()]
        )
        features = schema_of(write(folder / "data" / name, params.data, folder)).features
        assert [feature.name for feature in features] == ["age", "smokes", "ward=eye", "ward=heart"]
        assert features[0].low == (None if name == "plain" else -5)


def test_each_network_fits_the_rows_that_the_docs_say(folder):
    text = (CHECKOUT / "docs" / "bring-your-data.md").read_text("utf-8")
    lines = re.findall(r"^\| (?:of a table|pictures in \w+) \| \((.*?)\).*? \| (.*) \|$", text, re.MULTILINE)
    shapes = {
        "features": [(7,)],
        "height, width": [(28, 28), (32, 32)],
        "height, width, channels": [(28, 28, 3), (32, 32, 3)],
    }
    assert [axes for axes, _ in lines] == list(shapes)
    every = set(re.findall(r"`(\w+)`", lines[1][1]))
    fit = {axes: every if kinds == "the same" else set(re.findall(r"`(\w+)`", kinds)) for axes, kinds in lines}
    for kind in every:
        model = load_params(folder, [f"model={{kind: {kind}}}"]).model
        for axes, each in shapes.items():
            for shape in each:
                said = kind in fit[axes] and (kind != "vgg16_bn" or shape[0] >= 32)
                with nullcontext() if said else pytest.raises(ValueError, match="image"):
                    build(kind, shape, 3, layers_of(model))


def test_the_features_of_the_docs_are_in_the_manifest_and_what_is_missing_is_filled_in(folder):
    page = CHECKOUT / "docs" / "bring-your-data.md"
    typed(folder, sys.executable, "-c", block_with(page, "python", "patients.npz"))
    said = yaml.safe_load(block_with(page, "yaml", "patients.npz"))["data"]
    params = load_params(folder, [f"data.{key}={json.dumps(value)}" for key, value in said.items()])
    notes: list[str] = []
    manifest = write(folder / "data" / "patients", params.data, folder, notes.append)
    assert notes == []
    assert [feature.name for feature in schema_of(manifest).features] == ["age", "smokes"]
    masks = [open_missing(folder / "data" / "patients", entry, "train") for entry in manifest.clients]
    share = np.concatenate(masks).mean(axis=0)
    assert 0.05 < share[0] < 0.15
    assert share[1] == 0


def test_the_people_of_the_docs_are_clients_with_a_quarter_of_rows_to_test_and_one_rare_activity(folder):
    """On a file of the same arrays: the real one is not the project's."""
    page = CHECKOUT / "docs" / "bring-your-data.md"
    rng, y, names = np.random.default_rng(0), np.arange(1200) % 6, [f"feature {at}" for at in range(561)]
    x = rng.normal(size=(1200, 265)).astype(np.float16)
    activities = np.array(["WALKING", "UPSTAIRS", "DOWNSTAIRS", "SITTING", "STANDING", "LAYING"])
    held = {"x_time": x, "y": y.astype(np.uint8), "client": np.repeat(np.arange(1, 31, dtype=np.uint8), 40)}
    np.savez(folder / "har.npz", **held, class_names=activities, feature_names=names)
    typed(folder, sys.executable, "-c", block_with(page, "python", "har.npz"))
    said = yaml.safe_load(block_with(page, "yaml", "activities.npz"))["data"]
    params = load_params(folder, [f"data.{key}={json.dumps(value)}" for key, value in said.items()])
    manifest = write(folder / "data" / "activities", params.data, folder)
    assert [entry.name for entry in manifest.clients] == [str(number) for number in range(1, 31)]
    assert {entry.rows["test"] for entry in manifest.clients} == {10}
    assert [feature.name for feature in schema_of(manifest).features] == names[:265]
    walking = manifest.classes.index("WALKING")
    tested, trained = (
        np.concatenate([open_client(folder / "data" / "activities", entry, split)[1] for entry in manifest.clients])
        for split in ("test", "train")
    )
    assert (trained == walking).sum() == round((200 - (tested == walking).sum()) / 10)
    assert len(tested) + len(trained) + manifest.left_out == 1200


@pytest.mark.parametrize("text", ["clip: false", "kind: subsample"])
def test_the_partitions_of_the_page_of_schemes_are_read(folder, text):
    said = yaml.safe_load(block_with(CHECKOUT / "docs" / "sources-and-schemes.md", "yaml", text))["data"]
    assert load_params(folder, [f"data.{key}={json.dumps(value)}" for key, value in said.items()]).data.scheme


def typed(folder: Path, *command: str) -> str:
    """What a command prints that is typed in this folder, with the environment of these tests on the path."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: Path, language: str) -> list[str]:
    """The page's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block_with(page: Path, language: str, text: str) -> str:
    """The one block that holds this text."""
    (found,) = [block for block in blocks(page, language) if text in block]
    return found.rstrip("\n")


def mapped() -> list[str]:
    """List the paths of the map; a folder ends with a slash."""
    found, parent = [], ""
    for line in block_with(CHECKOUT / "docs" / "layout.md", "text", "params.yaml ").splitlines():
        name = line.split()[0]
        parent = parent if line.startswith("  ") else ""
        found.append(parent + name)
        parent = name if not line.startswith("  ") else parent
    return found


def commands(page: Path) -> Iterator[list[str]]:
    """What a reader would type: lines of shell blocks, and code within sentences; METHOD, NAME and N stand for any."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:siloflow|make)\b[^`\n]*)`", text)
    for line in lines:
        arguments = shlex.split(re.sub(r" N\b", " 0", line.replace("METHOD", "fedavg")), comments=True)
        if arguments and arguments[0] in ("siloflow", "make"):
            yield arguments


def keys(model: type[BaseModel]) -> Iterator[str]:
    """Every key of a section and of the sections inside."""
    for name, field in model.model_fields.items():
        yield name
        yield from (key for inner in models_in(field.annotation) for key in keys(inner))


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The pydantic models inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from models_in(part)
