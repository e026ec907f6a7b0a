"""What a process that is gone left open is closed, and nothing else is."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Running

from flows.project.project import Project
from flows.results.run_history.abandoned_runs import OPEN, close_abandoned, delete_deployment, deployment_name
from silos.io.locks import exclusive_lock, hold
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.connection import OWNER, connect, usable_experiment


@flow
def left_open() -> None:
    """Never runs."""


@pytest.fixture
def begun(prefect: Any) -> Callable[[], UUID]:
    """Creates a flow run that Prefect takes for running."""

    def create() -> UUID:
        with get_client(sync_client=True) as client:
            return client.create_flow_run(left_open, state=Running()).id

    return create


@pytest.fixture
def logged(prefect: Any, folder: Path) -> Callable[[str], tuple[Path, str]]:
    """Creates a run that MLflow takes for running, of this tag; its folder, which is of this project, and its id."""
    client = connect(os.environ["MLFLOW_TRACKING_URI"])

    def create(tag: str) -> tuple[Path, str]:
        project = Project.open(root=folder)
        name, number = usable_experiment(client, project.store.mlflow_experiment)
        owner = {OWNER: project.store.mlflow_experiment.owner}
        number = number or client.create_experiment(name, tags=owner)
        run = folder / "runs" / f"run-{tag}" / "fedavg-seed0"
        write_json(run.parent / "experiment.json", {"kind": "run", "name": run.parent.name})
        write_json(run / "run.json", {"tag": tag})
        return run, client.create_run(number, tags={"siloflow.run": tag}, run_name=tag).info.run_id

    return create


def states(*runs: UUID) -> list[str]:
    with get_client(sync_client=True) as client:
        return [client.read_flow_run(run).state.type.value for run in runs]


def test_flow_runs_that_no_process_holds_are_crashed_and_named_once(begun: Any, folder: Path, told: Any) -> None:
    gone, at_work, unknown = begun(), begun(), begun()
    hold(folder / OPEN / str(gone)).close()
    with hold(folder / OPEN / str(at_work)):
        close_abandoned(folder)
        close_abandoned(folder)
        assert states(gone, at_work, unknown) == ["CRASHED", "RUNNING", "RUNNING"]
    (line,) = told.said
    assert line.startswith("closed runs that a stopped command had left open: ")
    assert not (folder / OPEN / str(gone)).exists()
    (folder / OPEN / str(at_work)).unlink()


def test_a_file_that_is_no_flow_runs_id_is_left_alone(folder: Path, told: Any) -> None:
    (folder / OPEN).mkdir(parents=True, exist_ok=True)
    (folder / OPEN / "notes.txt").write_text("mine")
    close_abandoned(folder)
    assert (folder / OPEN / "notes.txt").read_text() == "mine"
    assert told.said == []


def test_in_a_copied_folder_what_works_in_the_first_one_is_not_closed(
    begun: Any, folder: Path, told: Any, tmp_path: Path
) -> None:
    at_work = begun()
    with hold(folder / OPEN / str(at_work)) as file:
        shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("data"))
        close_abandoned(tmp_path / "copy")
        assert states(at_work) == ["RUNNING"]
        assert told.said == []
        assert not (tmp_path / "copy" / OPEN / str(at_work)).exists()
        assert not file.closed
    (folder / OPEN).rename(folder / "moved")
    (folder / "moved").rename(folder / OPEN)
    close_abandoned(folder)
    assert states(at_work) == ["CRASHED"]


def test_the_schedule_of_another_project_at_the_same_server_is_left_alone(
    prefect: Any, folder: Path, tmp_path: Path
) -> None:
    with get_client(sync_client=True) as client:
        number = client.create_flow_from_name("compare")
        for root in (folder, tmp_path):
            client.create_deployment(number, deployment_name(root))
        assert delete_deployment(folder) == []
        client.read_deployment_by_name(f"compare/{deployment_name(tmp_path)}")
        with pytest.raises(ObjectNotFound):
            client.read_deployment_by_name(f"compare/{deployment_name(folder)}")
        delete_deployment(tmp_path)


def test_runs_of_mlflow_that_no_process_works_on_are_killed_and_named(
    begun: Any, logged: Any, folder: Path, told: Any
) -> None:
    (_, gone), (busy, at_work) = logged("gone"), logged("busy")
    (elsewhere, others) = logged("elsewhere")
    (elsewhere / "run.json").unlink()  # of another project that logs to the same store
    hold(folder / OPEN / str(begun())).close()
    # a command that tracks elsewhere closes them where they were tracked
    project = Project.open([f"tracking.uri=sqlite:///{folder}/elsewhere.db"], folder)
    with exclusive_lock(busy):
        close_abandoned(folder, project)
    client = connect(os.environ["MLFLOW_TRACKING_URI"])
    status = [client.get_run(run).info.status for run in (gone, at_work, others)]
    assert status == ["KILLED", "RUNNING", "RUNNING"]
    assert told.said[-1].endswith("; 'gone' in MLflow")


@pytest.mark.slow
def test_a_run_that_somebody_stops_is_killed_in_mlflow_and_one_that_fails_has_failed(
    play_run: Any, told: Any, folder: Path
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    told.after[2] = stop
    with pytest.raises(KeyboardInterrupt):
        play_run("fedavg", "threads", 1)
    with pytest.raises(Exception, match="no rows left"):
        play_run("own", "threads", 1, "method.own.does=raises")
    client = connect(os.environ["MLFLOW_TRACKING_URI"])
    _, number = usable_experiment(client, Project.open(root=folder).store.mlflow_experiment)
    newest = client.search_runs([number], order_by=["attributes.start_time DESC"], max_results=2)
    assert {run.info.run_name: run.info.status for run in newest} == {"fedavg-seed0": "KILLED", "own-seed0": "FAILED"}
