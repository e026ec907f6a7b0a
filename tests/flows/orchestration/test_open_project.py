"""What reaches a flow as parameters from outside, and which names become folders."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from pydantic import BaseModel

from flows.compare import compare
from flows.core.config.load_config import ParamsFile, load_params
from flows.core.config.params_schema import Params
from flows.methods.base import find_method, method_names
from flows.methods.fedavg import FedAvg
from flows.orchestration.open_project import (
    free_text_values,
    is_free_text,
    is_from_outside,
    open_project,
    trusted_overrides,
)
from flows.partition import partition
from flows.predict import predict
from flows.run import run
from flows.training.run_records.run_folder import run_name
from publications.published_tables import table_of
from publications.reproduce import reproduce
from silos.errors import UserError
from silos.param_types import PlainText, is_plain
from silos.storage.manifest import read_manifest

CHECKOUT = Path(__file__).parents[3]
EVIL = """
from pathlib import Path

from flows.methods import fedavg
from flows.plugins import register_method

Path("been-here").touch()


@register_method("evil")
class Evil(fedavg.FedAvg):
    pass
"""
FLOWS = {
    partition: {},
    run: {"method": "fedavg", "seed": 0},
    compare: {"methods": ["fedavg"], "seeds": [0]},
    predict: {"input": "rows.csv", "output": "runs/predictions/labels.csv"},
    reproduce: {"paper": "mcmahan", "table": "2NN"},
}
PLACES = {
    "plugins=[evil.py]": "plugins",
    "tracking.uri=sqlite:///been-here": "tracking.uri",
    "tracking={uri: sqlite:///been-here}": "tracking.uri",
    "data.source={kind: npz, path: /etc/passwd}": "data.source.path",
    "data.source={kind: folder, path: /, size: 8}": "data.source.path",
    "data.source={kind: mnist, download_dir: been-here}": "data.source.download_dir",
    "model={kind: resnet18, pretrained: evil.pth}": "model.pretrained",
    "runner={kind: dask, address: tcp://127.0.0.1:9}": "runner.address",
}


NESTED = """
from flows.plugins import register_metric
from pydantic import BaseModel


class Step(BaseModel):
    path: str = "plain"
    inner: "list[list[Step]]" = []


@register_metric("nested")
def nested(logits, y, grid: list[list[Step]] = [], named: dict[str, tuple[Step, ...]] = {}):
    return y
"""


def test_free_text_is_found_in_sections_at_any_depth_of_a_plugins_section(project):
    (project / "nested.py").write_text(NESTED)
    section = "{kind: nested, grid: [[], [{path: /a}, {inner: [[{path: /b}]]}]], named: {c: [{path: /d}]}}"
    params = load_params(project, ["plugins=[nested.py]", f"evaluation.metrics=[{section}]"])
    place = "evaluation.metrics.0"
    assert dict(free_text_values(params)) == {
        "plugins": ["nested.py"],
        f"{place}.grid.1.0.path": "/a",
        f"{place}.grid.1.1.inner.0.0.path": "/b",
        f"{place}.named.c": "c",
        f"{place}.named.c.0.path": "/d",
    }


@pytest.fixture
def here(project: Path, prefect: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is the current folder, with a file that tells if it was imported."""
    (project / "evil.py").write_text(EVIL)
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def from_outside(here: Path) -> Callable[..., Any]:
    """Runs a flow as the process does that serves it, with parameters that came over Prefect's API."""

    def start(served: Any, **parameters: Any) -> Any:
        number = served.to_deployment("served", enforce_parameter_schema=False).apply()
        with get_client(sync_client=True) as client:
            made = client.create_flow_run_from_deployment(number, parameters=parameters)
        return run_flow(served, flow_run=made)

    return start


@pytest.mark.sample(3)
@pytest.mark.parametrize("served", FLOWS, ids=lambda served: served.name)
@pytest.mark.parametrize("override", ["plugins=[evil.py]", "tracking.uri=sqlite:///been-here"])
def test_parameters_of_a_flow_run_set_no_code_and_no_address(from_outside, here, served, override):
    with pytest.raises(UserError, match="got a value in a flow run's parameters, expected none, since these set no"):
        from_outside(served, **FLOWS[served], overrides=[override])
    assert not (here / "been-here").exists()


def test_parameters_of_a_flow_run_name_no_page_of_tables_by_its_file(from_outside, here):
    (here / "tiny.yaml").write_text("tables: {}")
    with pytest.raises(UserError, match=r"tiny\.yaml is a file, and a flow run's parameters name none;"):
        from_outside(reproduce, paper="tiny.yaml", table="1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("input", "output", "key"),
    [
        ("rows.csv", "runs/predictions/a.csv", "input"),
        ("runs/predictions/../../rows.csv", "runs/predictions/a.csv", "input"),
        ("runs/predictions/rows.csv", "/tmp/a.csv", "output"),
        ("runs/predictions/link/rows.csv", "runs/predictions/a.csv", "input"),
    ],
)
def test_parameters_of_a_flow_run_name_files_in_one_folder_only(from_outside, here, input, output, key):
    (here / "runs" / "predictions").mkdir(parents=True)
    (here / "runs" / "predictions" / "link").symlink_to(here)
    with pytest.raises(
        UserError, match=rf"^{key}: got .*expected a file in runs/predictions/, since these open no other"
    ):
        from_outside(predict, input=input, output=output)


def test_numbers_words_and_names_may_be_set_from_outside_over_what_the_serving_command_fixed(from_outside, here):
    np.savez(here / "my.npz", x=np.ones((8, 2), np.float32), y=[0, 1] * 4, client=["a", "b"] * 4)
    fixed = ["data.source={kind: npz, path: my.npz}", "data.scheme=[{kind: column, column: client}]", "data.seed=1"]
    more = ["data.name=mine", "data.seed=2", "data.split={validation: 0, test: 0.25}"]
    with trusted_overrides(fixed):
        made = from_outside(partition, overrides=more)
    assert (made["folder"], made["clients"], made["rows"]["test"]) == ("data/mine", 2, 2)
    assert read_manifest(here / "data" / "mine").params["seed"] == 2


def test_a_flow_run_from_outside_reads_params_once(from_outside, here, monkeypatch):
    read, folders = ParamsFile.read, []

    def count(root: Path) -> ParamsFile:
        folders.append(root.resolve())
        return read(root)

    monkeypatch.setattr(ParamsFile, "read", count)
    with trusted_overrides(["data.seed=1"]):
        from_outside(partition, overrides=["data.name=mine"])
    assert folders == [here]


def test_what_the_serving_command_fixed_cannot_be_pointed_elsewhere(from_outside, here):
    with (
        trusted_overrides(["plugins=[own.py]"]),
        pytest.raises(UserError, match="plugins: got a value in a flow run's parameters, expected none, since"),
    ):
        from_outside(partition, overrides=["plugins.0=evil.py"])


def test_overrides_are_a_list_or_a_mapping_and_say_the_same(here):
    listed = ["training.rounds=20", "model.hidden=[8, 4]", "tracking.uri=null", "data.name='1'"]
    mapped = {"training.rounds": 20, "model.hidden": [8, 4], "tracking.uri": None, "data.name": "1"}
    assert open_project(mapped).params == open_project(listed).params
    found = partition(overrides={"data.split": {"validation": 0, "test": 0.5}, "data.name": "one"})
    assert (found["name"], found["rows"]["validation"]) == ("one", 0)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            "training.rounds=20",
            r"""got 'training\.rounds=20', expected .*\. Write overrides=\["training\.rounds=20"\]\.$""",
        ),
        (20, r"""got 20, expected a list .*\. Write overrides=\["training\.rounds=20"\]\.$"""),
        (
            [("training.rounds", 20)],
            r"got \('training\.rounds', 20\), expected text\. Write it as section\.key=value, in quotes",
        ),
        (
            {"model.pretrained": Path("a")},
            r"model\.pretrained: got PosixPath\('a'\), a PosixPath, expected a number, a text",
        ),
    ],
    ids=["text", "number", "pair", "path"],
)
@pytest.mark.parametrize("served", FLOWS, ids=lambda served: served.name)
def test_other_overrides_are_refused_with_what_to_write(here, served, overrides, said):
    with pytest.raises(UserError, match=rf"^overrides:? {said}"):
        served(**FLOWS[served], overrides=overrides)


@pytest.mark.slow
def test_a_run_inside_a_run_is_no_outsider(from_outside):
    @flow
    def inner() -> bool:
        return is_from_outside()

    @flow
    def outer() -> tuple[bool, bool]:
        return is_from_outside(), inner()

    assert from_outside(outer) == (True, False)
    assert outer() == (False, False)


@pytest.mark.parametrize("override", PLACES)
def test_whatever_form_an_override_has_its_places_are_seen(project, override):
    (project / "evil.py").write_text("")
    assert PLACES[override] in dict(free_text_values(load_params(project, [override])))


def test_params_as_they_are_shipped_set_no_place():
    assert dict(free_text_values(load_params(CHECKOUT))) == {}


def test_every_text_in_params_is_a_word_of_a_list_or_marked_but_for_these_places():
    free = {
        f"{section.__name__}.{name}"
        for section in sections(Params)
        for name, field in section.model_fields.items()
        if is_free_text(field.annotation, field.metadata)
    }
    assert free == {
        *("Npz.path", "Table.path", "Folder.path", "Mnist.download_dir", "Emnist.download_dir", "Cifar.download_dir"),
        *("Gtsrb.download_dir", "VGGParams.pretrained", "ResNetParams.pretrained", "RunnerParams.address"),
        *("TrackingParams.uri", "Params.plugins", "Params.method"),
    }
    pages = [find_method(name) for name in method_names()]
    assert not [n for page in pages for n, f in page.model_fields.items() if is_free_text(f.annotation, f.metadata)]


def test_text_in_a_page_of_the_users_own_may_be_a_place_unless_it_is_marked_as_a_word():
    class Own(FedAvg):
        file: str = ""
        files: tuple[str, ...] = ()
        place: Path = Path()
        kind: Literal["a", "b"] = "a"
        shown: Annotated[str | None, PlainText()] = None
        numbers: dict[Literal["a"], list[float]] | None = None

    found = {name for name, field in Own.model_fields.items() if is_free_text(field.annotation, field.metadata)}
    assert found == {"file", "files", "place"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../../evil", "a/b", "/evil", "..", ".hidden", "", "a\n", "n" * 101])
@pytest.mark.parametrize("named", ["method", "cell", "experiment", "data", "table"])
def test_a_name_that_is_a_path_is_refused_with_a_sentence(project, monkeypatch, named, name):
    monkeypatch.chdir(project)
    (project / "evil.py").write_text(f"from flows.plugins import register_method\nregister_method({name!r})\n")
    (project / "own.yaml").write_text(yaml.safe_dump({"tables": {name: {}}}))
    asked: dict[str, Callable[[], Any]] = {
        "method": lambda: load_params(project, ["plugins=[evil.py]"]),
        "data": lambda: load_params(project, [f"data.name={json.dumps(name)}"]),
        "cell": lambda: run.fn("fedavg", experiment="e", cell=name or "/"),
        "experiment": lambda: run.fn("fedavg", experiment=name or "/"),  # an empty one is a new one
        "table": lambda: table_of("own.yaml", name, "cpu"),
    }
    before = set(project.parent.rglob("*"))
    with pytest.raises(
        UserError, match="expected at most 100 letters, digits, dots, dashes and underscores, with a letter or digit"
    ):
        asked[named]()
    assert set(project.parent.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("seed", [-1, 2**63])  # of another type Prefect refuses it itself
def test_a_seed_that_is_none_is_refused_before_anything_starts(from_outside, here, seed):
    with pytest.raises(UserError, match="expected a whole number from 0 to 9223372036854775807"):
        from_outside(compare, methods=["fedavg"], seeds=[0, seed])


def test_a_paper_is_found_by_its_name_or_as_a_yaml_file_and_by_no_path_without_its_end():
    with pytest.raises(UserError, match=r"there is no paper '\.\./papers/mcmahan'; there are "):
        table_of("../papers/mcmahan", "2NN", "cpu")


@given(st.text(), st.one_of(st.integers(), st.text()), st.text())
def test_a_runs_folder_lies_in_its_experiment_whatever_it_is_called(method, seed, cell):
    experiment = Path("/project/runs/experiment")
    try:
        name = run_name(method, seed, cell)
    except UserError:
        right = isinstance(seed, int) and 0 <= seed < 2**63
        assert not (right and is_plain(method) and is_plain(cell or "none"))
    else:
        assert Path(os.path.normpath(experiment / name)).parent == experiment
        assert len(name.encode()) < 255


def sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A section and all inside it."""
    yield section
    for field in section.model_fields.values():
        for inside in models_in(field.annotation):
            yield from sections(inside)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in models_in(each)]
