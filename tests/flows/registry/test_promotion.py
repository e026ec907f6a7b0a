"""Former champions are a stack, in a real store."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.config.params_schema import WatchParams
from flows.registry.promotion import HISTORY, decisions, promote, roll_back
from silos.errors import UserError
from tasks.tracking.mlflow_logging.connection import connect
from tasks.tracking.mlflow_logging.registry import Registry


@pytest.fixture
def project(tmp_path: Path, databases: Path) -> Any:
    """A project with four registered versions."""
    (tmp_path / "mlflow.db").write_bytes((databases / "mlflow.db").read_bytes())
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = connect(uri)
    experiment = client.create_experiment("project", artifact_location=(tmp_path / "artifacts").as_uri())
    model = f"{tmp_path.name}-digits"
    client.create_registered_model(model)
    for _ in range(4):
        run = client.create_run(experiment).info.run_id
        client.create_model_version(model, tmp_path.as_uri(), run, await_creation_for=None)
    params = SimpleNamespace(data=SimpleNamespace(name="digits"), watch=WatchParams())
    return SimpleNamespace(root=tmp_path, tracking=uri, params=params)


@pytest.mark.parametrize(
    ("promoted", "restored"),
    [
        ("123", "21"),
        ("1232", "31"),  # 2 leaves its earlier place
        ("121", "2"),  # and not 1, which the first rollback withdraws
        ("12<3", "1"),  # 2 was withdrawn
        ("123<<4", "1"),
    ],
)
def test_rollback_goes_further_back_and_never_to_a_withdrawn_version(
    project: Any, promoted: str, restored: str
) -> None:
    for number in promoted:
        if number == "<":
            roll_back(project, with_data=False)
        else:
            promote(project, number, force=True, with_data=False)
    registry = Registry(project.tracking, f"{project.root.name}-digits")
    expected = [promoted[-1], *restored]
    for withdrawn, number in pairwise(expected):
        assert registry.aliases()["previous"] == number
        decision = roll_back(project, with_data=False)
        assert (decision["champion"], decision["version"]) == (withdrawn, number)
        assert registry.aliases()["champion"] == number
    with pytest.raises(UserError, match="got no former champion"):
        roll_back(project, with_data=False)
    assert "previous" not in registry.aliases()
    made = [each["decision"] for each in decisions(project.root)]
    assert made[: len(restored)] == ["rolled back"] * len(restored)


def test_rollback_passes_over_a_version_that_was_deleted(project: Any) -> None:
    for number in "123":
        promote(project, number, force=True, with_data=False)
    connect(project.tracking).delete_model_version(f"{project.root.name}-digits", "2")
    assert roll_back(project, with_data=False)["version"] == "1"


def test_a_line_of_the_history_that_a_kill_cut_off_is_left_out_and_then_replaced(project: Any) -> None:
    promote(project, "1", force=True, with_data=False)
    with (project.root / HISTORY).open("a") as file:
        file.write('{"id": "0", "at": "20')
    assert [each["version"] for each in decisions(project.root)] == ["1"]
    promote(project, "2", force=True, with_data=False)
    assert [each["version"] for each in decisions(project.root)] == ["2", "1"]
