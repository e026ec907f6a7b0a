"""A registered version says which run it is of, and from which commit that was trained."""

from pathlib import Path
from typing import Any

import pytest

from tasks.tracking.mlflow_logging.connection import connect
from tasks.tracking.mlflow_logging.model_registry import Registry, registries


@pytest.fixture
def store(tmp_path: Path, databases: Path) -> tuple[str, Any]:
    """An MLflow store, and what logs the entry of a model to a new run there, with these tags; the run's id."""
    (tmp_path / "mlflow.db").write_bytes((databases / "mlflow.db").read_bytes())
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = connect(uri)
    experiment = client.create_experiment("here", artifact_location=(tmp_path / "artifacts").as_uri())

    def log(status: str = "READY", **tags: str) -> str:
        run = client.create_run(experiment, tags=tags).info.run_id
        model = client.create_logged_model(experiment, "m", source_run_id=run)
        client.finalize_logged_model(model.model_id, status)
        return str(run)

    return uri, log


def test_the_commit_of_a_version_is_that_of_its_training_and_not_that_of_registering(store):
    uri, log = store
    registry, present = Registry(uri, "digits"), {"git_commit": "present", "score": "0.9"}
    trained, unknown = log(git_commit="trained"), log()
    first = registry.register(trained, present, "about")
    assert first.tags == {"git_commit": "trained", "score": "0.9"} == registry.find("1").tags
    again = registry.register(trained, {"git_commit": "later", "score": "0.8"}, "about")
    assert (again.number, again.tags) == ("1", {"git_commit": "trained", "score": "0.8"})
    assert registry.find("1").tags == again.tags
    assert registry.register(unknown, present, "about").tags == present
    assert [version.run_id for version in registry.versions()] == [unknown, trained]


def test_versions_are_ordered_by_number_and_not_as_text(store):
    uri, _ = store
    registry, client = Registry(uri, "digits"), connect(uri)
    client.create_registered_model("digits")
    for number in range(10):
        client.create_model_version("digits", "file:///model", f"run {number + 1}", await_creation_for=None)
    assert [version.number for version in registry.versions()] == [str(number) for number in range(10, 0, -1)]
    assert registry.find("10").run_id == "run 10"


def test_a_run_whose_model_was_not_logged_whole_is_not_registered(store):
    uri, log = store
    registry = Registry(uri, "digits")
    assert registry.register(log("FAILED"), {}, "about") is None
    assert (registry.versions(), registry.aliases()) == ([], {})


def test_aliases_move_and_those_without_a_version_go(store):
    uri, log = store
    registry = Registry(uri, "digits")
    for _ in range(2):
        registry.register(log(), {}, "about")
    registry.set_aliases({"champion": "1", "challenger": "2"})
    registry.set_aliases({"champion": "2", "previous": "1", "challenger": None, "unknown": None})
    assert registry.aliases() == {"champion": "2", "previous": "1"}


def test_models_beyond_the_first_page_are_found_and_those_of_other_projects_are_not(store):
    uri, _ = store
    client, here = connect(uri), [f"here-{number:03d}" for number in range(101)]  # MLflow's page has 100
    for name in ("aside", *here):
        client.create_registered_model(name)
    assert [registry.model for registry in registries(uri, "here-")] == here
