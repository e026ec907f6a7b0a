"""List what accumulates in a project's folder, and delete what the user confirms and no process uses.

Comparisons and their private/, the clients' ledgers, and files of running processes are never listed. Single runs and
Prefect's flow runs are, if params.yaml names an age in `retention.days`.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from flows.core.console import progress
from flows.project.project import Project
from flows.results.run_history.list_runs import FoundRuns, find_experiments, unfinished_state
from silos.client_store import OF_COORDINATOR
from silos.errors import UserError
from silos.io.locks import exclusive_lock, is_held, workers
from tasks.tracking.json_io import plain_path
from tasks.tracking.result_types.earlier_results import Cleaned, CleanedKind


def open_elsewhere(paths: Sequence[Path]) -> bool:
    """Return whether a process of this user has one of these files open."""
    names = {str(path.resolve()) for path in paths}
    for process in psutil.process_iter():
        try:
            if any(file.path in names for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue  # the process ended, or belongs to another user
    return False


@dataclass(frozen=True)
class Leftover:
    """One kind of files that can be deleted.

    Attributes:
        kind: Its name.
        lost: What the user loses.
        paths: The files and folders.
        run_of: The run whose lock protects a path.
        is_finished: Whether the runs are finished ones; else a run that has finished since it was listed is kept.
        older_than: Deletes only the flow runs of this age from the database at `paths`, which stays.
        share: The share of the files that is deleted.
    """

    kind: str
    lost: str
    paths: tuple[Path, ...]
    run_of: dict[Path, Path] = field(default_factory=dict)
    is_finished: bool = False
    older_than: timedelta | None = None
    share: float = 1.0

    @property
    def size(self) -> int:
        """Return the size in bytes, of a part of a database by its share of the flow runs."""
        return round(self.share * sum(file.lstat().st_size for path in self.paths for file in _files(path)))


def leftovers(root: Path) -> list[Leftover]:
    """Return every kind that has files, in a fixed order."""
    experiments = find_experiments(root / "runs")
    kinds = (_unfinished_runs, _orphaned_private, _orphaned_artifacts, _cache, _prefect, _logs)
    return [leftover for kind in kinds if (leftover := kind(root, experiments)).paths]


def enforce_retention(project: Project) -> Cleaned:
    """Delete what is older than `retention.days`, without a question; return what was deleted as `clean_runs` does.

    These are flow runs with their task runs, logs and events in Prefect's database of this project, single runs that
    the registry does not need, and unfinished runs.
    """
    days = project.params.retention.days
    if days is None:
        return {"kinds": []}
    before = datetime.now(UTC) - timedelta(days=days)
    old = [experiment for experiment in find_experiments(project.store.runs) if experiment.started < before]
    kinds = [_unfinished_runs(project.root, old), *_expired(project, days)]
    return {"kinds": [_clean(project.root, kind, agreed=True) for kind in kinds if kind.paths]}


def _expired(project: Project, days: float) -> list[Leftover]:
    """Return what is older than this, except unfinished runs."""
    before = datetime.now(UTC) - timedelta(days=days)
    return [_single_runs(project, before, days), _flow_runs(project.root, before, days)]


def _single_runs(project: Project, before: datetime, days: float) -> Leftover:
    """List finished runs outside of comparisons, except those that the registry needs."""
    kind, lost = f"single runs older than {days:g} days", "their results and files; MLflow keeps its own"
    busy = workers(project.store.runs / "locks")
    old = [
        experiment
        for experiment in find_experiments(project.store.runs)
        if experiment.kind == "run"
        and experiment.started < before
        and not unfinished_state(experiment)
        and experiment.name not in busy
    ]
    needed = _registered(project) if old else set()
    if needed is None:
        return Leftover(kind, lost, ())
    run_of: dict[Path, Path] = {}
    for experiment in old:
        if needed.isdisjoint(str(run.relative_to(project.root)) for run in experiment.runs):
            private = (path for path in _private_of_runs(project.root) if path.parent.name == experiment.name)
            run_of |= dict.fromkeys((*private, experiment.folder), experiment.runs[-1])  # the folder with the lock last
    return Leftover(kind, lost, tuple(run_of), run_of, is_finished=True)


def _registered(project: Project) -> set[str] | None:
    """Return the folders of runs whose versions have an alias or can be rolled back to; None if MLflow fails."""
    from flows.results.registry.promotion import needed_runs  # imports MLflow and torch: seconds
    from tasks.tracking.mlflow_logging.connection import describe_problem
    from tasks.tracking.mlflow_logging.model_registry import is_store_failure

    try:
        return needed_runs(project)
    except Exception as error:
        if not is_store_failure(error):
            raise
        progress.say(f"{describe_problem(project.store.tracking, error)}; no single run is deleted.")
        return None


def _flow_runs(root: Path, before: datetime, days: float) -> Leftover:
    """List Prefect's database if it has flow runs that ended before this time."""
    file, counts = root / ".prefect" / "prefect.db", (0, 0)
    if file.is_file():
        ended = before.strftime("%Y-%m-%d %H:%M:%S.%f")  # as Prefect stores times in SQLite
        try:
            with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
                counts = database.execute(
                    "select count(*), coalesce(sum(end_time < ?), 0) from flow_run", [ended]
                ).fetchone()
        except sqlite3.Error:
            counts = (0, 0)  # a server is creating its tables
    return Leftover(
        f"Prefect's flow runs older than {days:g} days",
        "these flow and task runs on Prefect's page",
        (file,) if counts[1] else (),
        older_than=timedelta(days=days),
        share=counts[1] / max(counts[0], 1),
    )


def _delete_flow_runs(file: Path, age: timedelta) -> None:
    """Delete old flow runs by Prefect's own functions, also while a server runs; shrink the file if none does."""
    from prefect.server.database import provide_database_interface
    from prefect.server.services import db_vacuum
    from prefect.settings import (
        PREFECT_API_DATABASE_CONNECTION_URL,
        PREFECT_SERVER_EVENTS_RETENTION_PERIOD,
        PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD,
        temporary_settings,
    )

    async def vacuum() -> None:
        database = provide_database_interface()
        for step in (
            db_vacuum.vacuum_old_flow_runs,
            db_vacuum.vacuum_old_events,
            db_vacuum.vacuum_orphaned_logs,
            db_vacuum.vacuum_orphaned_artifacts,
            db_vacuum.vacuum_stale_artifact_collections,
        ):
            await step(db=database)
        await (await database.engine()).dispose()

    changed = {
        PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{plain_path(file)}",
        PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD: age,
        PREFECT_SERVER_EVENTS_RETENTION_PERIOD: age,
    }
    with temporary_settings(changed):
        asyncio.run(vacuum())
    if not open_elsewhere([file]):
        with closing(sqlite3.connect(file)) as database:
            database.execute("vacuum")


def _unfinished_runs(root: Path, experiments: list[FoundRuns]) -> Leftover:
    """List unfinished runs; only these runs of a comparison, because a resumed comparison trains them again.

    A race of advise leaves the runs of settings that it dropped, also if it is finished.
    """
    busy = workers(root / "runs" / "locks")
    paths: list[Path] = []
    run_of: dict[Path, Path] = {}
    for experiment in experiments:
        is_left = experiment.kind == "advise" or unfinished_state(experiment)
        if not is_left or any(name.startswith(experiment.name) for name in busy):
            continue
        runs = [run for run in experiment.runs if not (run / "result.json").is_file() and not is_held(run)]
        for run in runs:
            private = [path for path in _private_of_runs(root) if path.parts[-2:] == (experiment.name, run.name)]
            folder = experiment.folder if experiment.kind == "run" and len(experiment.runs) == 1 else run
            paths_of_run = [*private, folder]  # the folder with the lock last
            paths += paths_of_run
            run_of |= dict.fromkeys(paths_of_run, run)
    return Leftover(
        "unfinished runs", "their completed rounds; --resume then starts these runs again", tuple(paths), run_of
    )


def _orphaned_private(root: Path, experiments: list[FoundRuns]) -> Leftover:
    """List the private state of runs whose folder was deleted; it cannot be opened any more."""
    orphaned = (path for path in _private_of_runs(root) if not (root / "runs" / path.parent.name / path.name).is_dir())
    return Leftover("private/ of deleted runs", "nothing, since their runs are gone", tuple(orphaned))


def _private_of_runs(root: Path) -> list[Path]:
    """Return what silos keep of each run of this project.

    Ledgers, and what of rows was reported, lie in folders with a dot; of a coordinator's runs a place knows no end.
    """
    found = sorted((root / "private").glob("[!.]*/[!.]*/[!.]*"))
    return [path for path in found if path.is_dir() and path.parent.name != OF_COORDINATOR]


def _orphaned_artifacts(root: Path, experiments: list[FoundRuns]) -> Leftover:
    """List artifacts of runs deleted in MLflow, if the store is the one of this folder."""
    from tasks.tracking.mlflow_logging.connection import artifacts_of_deleted_runs  # imports MLflow: seconds

    lost = "their models and images in MLflow, if you restore these runs there"

    return Leftover("artifacts of runs deleted in MLflow", lost, tuple(artifacts_of_deleted_runs(root)))


def _cache(root: Path, experiments: list[FoundRuns]) -> Leftover:
    drawing = [one for one in experiments if one.kind == "reproduce" or one.about.get("partitions", 1) > 1]
    is_used = any(unfinished_state(one) == "at work" for one in drawing)
    is_used = is_used or any(is_held(root / "cache" / name) for name in ("again", "estimate"))
    # a diagnosis or a comparison may read a version from there
    is_used = is_used or bool(workers(root / "runs" / "locks"))
    paths = () if is_used else _glob(root, "cache/*")
    return Leftover("cache/", "time: partitions are made again where they are needed", paths)


def _prefect(root: Path, experiments: list[FoundRuns]) -> Leftover:
    paths = _glob(root, ".prefect/prefect.db*")
    lost = "flow and task runs on Prefect's page"
    return Leftover(_PREFECT, lost, () if open_elsewhere(paths) else paths)


_PREFECT = "Prefect's database"


def _logs(root: Path, experiments: list[FoundRuns]) -> Leftover:
    paths = tuple(path for log in (".prefect/*.log", "runs/*.log", "runs/services/*.log") for path in _glob(root, log))
    return Leftover("logs", "log files of servers", () if open_elsewhere(paths) else paths)


def _glob(root: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(sorted(root.glob(pattern)))


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if not file.is_dir()) if path.is_dir() else iter([path])


def clean_runs(project: Project, agreed: Callable[[Leftover], bool]) -> Cleaned:
    """List each kind and delete it if `agreed` returns True; return all kinds, with what was deleted.

    With `retention.days`, Prefect's database is not deleted as a whole.
    """
    kinds, days = leftovers(project.root), project.params.retention.days
    if days is not None:
        kinds = [kind for kind in kinds if kind.kind != _PREFECT]
        kinds += [kind for kind in _expired(project, days) if kind.paths]
    return {"kinds": [_clean(project.root, kind, agreed(kind)) for kind in kinds]}


def _clean(root: Path, leftover: Leftover, agreed: bool) -> CleanedKind:
    """Delete this kind if it is agreed; return a record of it."""
    record: CleanedKind = {
        "kind": leftover.kind,
        "lost": leftover.lost,
        "bytes": leftover.size,
        "deleted": agreed,
        "kept": [],
        "places": [str(path.relative_to(root)) for path in leftover.paths],
    }
    if agreed:
        record["kept"] = [str(path.relative_to(root)) for path in leftover.paths if not _delete(leftover, path)]
    return record


def _delete(leftover: Leftover, path: Path) -> bool:
    """Delete the path, and return whether it is gone; it stays if a process has begun to use it since it was listed."""
    if leftover.older_than is not None:
        _delete_flow_runs(path, leftover.older_than)
        return True
    run = leftover.run_of.get(path)
    if path.is_file() and open_elsewhere([path]):
        return False
    try:
        with exclusive_lock(run) if run is not None and run.is_dir() else nullcontext():
            if run is not None and not leftover.is_finished and (run / "result.json").is_file():
                return False
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except UserError:
        return False
    _remove_empty(path.parent)
    return True


def _remove_empty(folder: Path) -> None:
    """Remove the folder if it is empty and in private/ or among artifacts."""
    if {"private", "artifacts"} & {*folder.parts} and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
