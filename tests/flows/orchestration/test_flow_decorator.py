"""What a verb answers to a call from Python that cannot work, and to help()."""

import inspect
import pydoc
from contextlib import nullcontext
from pathlib import Path

import cloudpickle
import pytest

from flows.compare import compare
from flows.diagnose import diagnose
from flows.orchestration.flow_decorator import _entry
from flows.partition import partition
from flows.run import run
from flows.watch import watch
from publications.reproduce import reproduce
from silos.errors import UserError

VERBS = [run, compare, diagnose, partition, watch, reproduce]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, without an API of Prefect."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path


def test_an_unknown_keyword_is_named_with_the_nearest_one(outside: Path) -> None:
    with pytest.raises(TypeError, match="run: got an unknown keyword 'sed'"):
        run("fedavg", sed=1)
    with pytest.raises(TypeError, match="compare: got an unknown keyword 'colour', expected one of methods, seeds"):
        compare(colour="red")


def test_a_missing_argument_is_named(outside: Path) -> None:
    with pytest.raises(TypeError, match=r"^run: missing a required argument: 'method'; expected run\(method, seed, "):
        run()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_call_outside_of_a_project_says_so_and_leaves_nothing(verb, outside: Path) -> None:
    asked = [name for name, one in inspect.signature(verb).parameters.items() if one.default is one.empty]
    with pytest.raises(UserError, match=r"got no params\.yaml, expected a project"):
        verb(**dict.fromkeys(asked, "fedavg"))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_shows_plain_types_and_the_docstring(verb) -> None:
    shown = pydoc.plain(pydoc.render_doc(verb))
    assert "Annotated" not in shown
    assert "WithJsonSchema" not in shown
    assert f"\n{verb.name}(" in shown
    for name in inspect.signature(verb).parameters:
        assert f"\n        {name}: " in shown, name


def test_help_of_run_begins_with_its_parameters() -> None:
    assert "\nrun(method: str, seed: int = 0, overrides: " in pydoc.plain(pydoc.render_doc(run))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_can_be_pickled_as_prefect_does_for_processes_and_dask(verb) -> None:
    cloudpickle.dumps(verb)


def test_the_log_of_requests_has_overrides_as_they_are_typed_without_passwords(monkeypatch):
    asked = []
    monkeypatch.setattr("flows.orchestration.flow_decorator.open_project", lambda *_: None)
    monkeypatch.setattr("flows.orchestration.flow_decorator._begin_run", lambda _: None)
    monkeypatch.setattr(
        "flows.orchestration.flow_decorator.recording", lambda _, text: asked.append(text) or nullcontext()
    )

    def look(project):
        pass

    address = "tracking.uri=https://me:secret@mlflow.example.org"
    for overrides in ([address, "model.hidden=[3, 4]"], {"model.hidden": [3, 4]}, []):
        _entry(look)(overrides=overrides)
    assert asked == [
        "look from Python or a deployment, with tracking.uri=https://me:***@mlflow.example.org 'model.hidden=[3, 4]'",
        "look from Python or a deployment, with 'model.hidden=[3, 4]'",
        "look from Python or a deployment, with no overrides",
    ]
