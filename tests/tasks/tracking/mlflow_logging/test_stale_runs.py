"""Runs that MLflow has as running are marked as killed also where their experiment was deleted and replaced."""

from pathlib import Path

import pytest

from tasks.tracking.mlflow_logging.connection import connect, mark_killed, usable_experiment
from tasks.tracking.mlflow_logging.mlflow_records import Experiment

SET = Experiment("set", "artifacts")


@pytest.mark.parametrize("deleted", [0, 1, 2])
def test_a_run_is_found_in_the_experiment_that_replaces_a_deleted_one(
    deleted: int, tmp_path: Path, databases: Path
) -> None:
    (tmp_path / "mlflow.db").write_bytes((databases / "mlflow.db").read_bytes())
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = connect(uri)
    for _ in range(deleted):
        name, _ = usable_experiment(client, SET)
        client.delete_experiment(client.create_experiment(name))
    name, number = usable_experiment(client, SET)
    assert (name, number) == ("set" if not deleted else f"set-{deleted + 1}", None)
    number = client.create_experiment(name)
    run = client.create_run(number, tags={"siloflow.run": "t"}, run_name="r").info.run_id
    others = [client.create_run(number, tags=tags).info.run_id for tags in ({"siloflow.run": "of another"}, {})]
    assert mark_killed(uri, SET, {"t": lambda: True}) == ([], True)
    assert mark_killed(uri, SET, {"t": lambda: False}) == (["r"], True)
    assert client.get_run(run).info.status == "KILLED"
    assert {client.get_run(other).info.status for other in others} == {"RUNNING"}
