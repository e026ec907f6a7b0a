"""What is older than `retention.days` goes, from real databases, and what a result or the registry needs stays."""

import os
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flows.project.project import Project
from flows.results.registry import JOURNAL
from flows.results.registry.model_finder import model_name
from flows.results.run_history.clean_runs import clean_runs, enforce_retention, leftovers
from silos.client_store import OF_COORDINATOR
from silos.errors import UserError
from silos.io.locks import exclusive_lock
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.connection import connect

LONG_AGO = "2020-01-01 00:00:00.000000"
YET_TO_END = "2999-01-01 00:00:00.000000"  # later than any day on which the test runs
OLD_RUNS = 300


@pytest.fixture
def project(tmp_path: Path, write_params: Callable[[Path], Any], databases: Path, monkeypatch: Any) -> Project:
    """A project with databases, three old single runs, one new, one old comparison, and one old unfinished comparison."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "project"
    write_params(folder)
    opened = Project.open(["retention.days=30"], folder)
    for name, source in ((".prefect/prefect.db", "prefect.db"), ("runs/mlflow.db", "mlflow.db")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((databases / source).read_bytes())
    for name in ("run-old", "run-champion", "run-former", "run-new"):
        write_run(folder, name, "run", is_finished=True)
    write_run(folder, "weekly", "compare", is_finished=True)
    write_json(folder / "runs" / "weekly" / "comparison.json", {})
    write_run(folder, "stopped", "compare", is_finished=False)
    for name in ("run-old", "run-champion", "run-former", "weekly", "stopped"):
        os.utime(folder / "runs" / name / "experiment.json", (0, 0))
    client, model = connect(opened.store.tracking), model_name(opened)
    client.create_registered_model(model)
    for number, (name, tags) in enumerate({"former": {}, "champion": {"replaced": "1"}}.items(), 1):
        tags |= {"run": f"runs/run-{name}/fedavg-seed0"}
        client.create_model_version(model, folder.as_uri(), tags=tags, await_creation_for=None)
        client.set_registered_model_alias(model, "champion", str(number))
    return opened


def write_run(folder: Path, name: str, kind: str, is_finished: bool) -> None:
    run = folder / "runs" / name / "fedavg-seed0"
    about = {"kind": kind, "name": name, "methods": ["fedavg"], "seeds": [0], "reference": "fedavg"}
    write_json(run.parent / "experiment.json", about)
    write_json(run / "run.json", {"tag": name})
    write_json(folder / "private" / "small" / name / run.name / "a.json", {})
    if is_finished:
        write_json(run / "result.json", {"rounds": 1})


def fill(file: Path) -> None:
    """Writes flow runs with tasks and logs: many old ones with a subflow each, a new one, and an old one at work."""
    runs = [(LONG_AGO, "COMPLETED")] * OLD_RUNS + [(YET_TO_END, "COMPLETED"), (None, "RUNNING")]
    with closing(sqlite3.connect(file)) as database:
        flow, task = (
            str(uuid4()),
            "insert into task_run (id, name, task_key, dynamic_key, flow_run_id) values (?, 't', 't', ?, ?)",
        )
        database.execute("insert into flow (id, name) values (?, 'compare')", [flow])
        columns = "id, name, flow_id, end_time, state_type, parent_task_run_id"
        insert = f"insert into flow_run ({columns}) values (?, 'r', ?, ?, ?, ?)"
        for end, state in runs:
            parent, child, within = str(uuid4()), str(uuid4()), str(uuid4())
            database.execute(insert, [parent, flow, end, state, None])
            database.execute(task, [within, within, parent])
            database.execute(insert, [child, flow, end, state, within])
            log = "insert into log (name, level, message, timestamp, flow_run_id) values ('l', 20, ?, ?, ?)"
            database.execute(log, ["x" * 1000, LONG_AGO, child])
        event = "insert into events (occurred, event, resource_id, resource, payload, received, recorded) values "
        for occurred in (LONG_AGO, YET_TO_END):
            database.execute(event + "(?, 'e', 'r', '{}', '{}', ?, ?)", [occurred] * 3)
        database.commit()
        database.execute("pragma wal_checkpoint(truncate)")


def counts(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(file)) as database:
        return {
            table: database.execute(f"select count(*) from {table}").fetchone()[0]
            for table in ("flow_run", "task_run", "log", "events")
        }


@pytest.mark.slow
def test_old_flow_runs_and_single_runs_go_and_what_is_needed_stays(project: Project) -> None:
    file = project.root / ".prefect" / "prefect.db"
    fill(file)
    full = file.stat().st_size
    of_coordinator = project.root / "private" / "small" / OF_COORDINATOR / "run-there" / "fedavg-seed0"
    write_json(of_coordinator / "a.json", {})
    listed = {kind["kind"]: kind for kind in clean_runs(project, lambda _: False)["kinds"]}
    assert "Prefect's database" not in listed, "it keeps what is newer"
    assert listed["single runs older than 30 days"]["places"] == [
        "private/small/run-old/fedavg-seed0",
        "runs/run-old",
    ]
    records = enforce_retention(project)["kinds"]
    assert [(record["deleted"], record["kept"]) for record in records] == [(True, [])] * 3
    assert records[0]["kind"] == "unfinished runs"
    assert counts(file) == {"flow_run": 4, "task_run": 2, "log": 2, "events": 1}
    assert file.stat().st_size < full / 2
    left = {path.name for path in project.store.runs.iterdir() if (path / "experiment.json").exists()}
    assert left == {"run-champion", "run-former", "run-new", "weekly", "stopped"}
    assert not list((project.store.runs / "stopped").glob("*/run.json"))
    assert {path.name for path in (project.root / "private" / "small").iterdir()} == left - {"stopped"} | {
        OF_COORDINATOR
    }
    assert (of_coordinator / "a.json").exists(), "a place does not know whether the coordinator's runs go on"
    assert enforce_retention(project) == {"kinds": []}


def test_champions_of_other_data_of_the_project_stay(project: Project) -> None:
    enforce_retention(Project.open(["retention.days=30", "data.name=other"], project.root))
    assert all((project.store.runs / name / "fedavg-seed0").is_dir() for name in ("run-champion", "run-former"))
    assert not (project.store.runs / "run-old").exists()


def test_while_mlflow_is_away_no_single_run_is_deleted_since_it_may_be_a_champions(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as nobody:  # bound, but not listening
        nobody.bind(("127.0.0.1", 0))
        address = f"tracking.uri=http://127.0.0.1:{nobody.getsockname()[1]}"
        away = Project.open(["retention.days=30", address], project.root)
        enforce_retention(away)
    kept = {path.name for path in project.store.runs.iterdir() if (path / "fedavg-seed0" / "result.json").exists()}
    assert kept >= {"run-old", "run-champion", "run-former", "run-new"}
    enforce_retention(project)
    assert not (project.store.runs / "run-old").exists()


def test_the_run_of_a_promotion_under_way_stays(project: Project) -> None:
    write_json(project.root / JOURNAL, {"decision": {"run": "runs/run-old/fedavg-seed0", "version": "3"}})
    enforce_retention(project)
    assert (project.store.runs / "run-old" / "fedavg-seed0" / "result.json").exists()
    (project.root / JOURNAL).unlink()
    enforce_retention(project)
    assert not (project.store.runs / "run-old").exists()


def test_without_an_age_nothing_goes_and_an_age_below_a_day_is_refused(project: Project) -> None:
    assert enforce_retention(Project.open(root=project.root)) == {"kinds": []}
    with pytest.raises(UserError, match="got 0"):
        Project.open(["retention.days=0.5"], project.root)


@pytest.mark.parametrize("scratch", ["again", "estimate"])
def test_the_cache_stays_while_a_command_runs_in_it(project, scratch):
    (project.root / "cache" / "partitions").mkdir(parents=True)
    (project.root / "cache" / "partitions" / "rows").write_text("rows")

    def kinds():
        return [found.kind for found in leftovers(project.root)]

    with exclusive_lock(project.root / "cache" / scratch):
        assert "cache/" not in kinds()
    assert "cache/" in kinds()


def test_the_cache_stays_while_a_diagnosis_may_read_a_version_from_it(project):
    (project.root / "cache" / "versions" / "v").mkdir(parents=True)
    with project.data.working("diagnose"):
        assert "cache/" not in [found.kind for found in leftovers(project.root)]
    assert "cache/" in [found.kind for found in leftovers(project.root)]
