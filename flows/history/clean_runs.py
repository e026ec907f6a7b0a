"""List what accumulates in a project's folder, and delete what the user confirms and no process uses.

Finished runs and their private/, the clients' ledgers, and files of running processes are never listed.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows.history.list_runs import FoundRuns, find_experiments, unfinished_state
from silos.errors import UserError
from silos.io.locks import exclusive_lock, is_held, workers


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
    """One kind of files that can be deleted; `run_of` maps a path to the run whose lock protects it."""

    kind: str
    lost: str
    paths: tuple[Path, ...]
    run_of: dict[Path, Path] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return sum(file.lstat().st_size for path in self.paths for file in _files(path))


def leftovers(root: Path) -> list[Leftover]:
    """Return every kind that has files, in a fixed order."""
    experiments = find_experiments(root / "runs")
    kinds = (_unfinished_runs, _orphaned_private, _orphaned_artifacts, _cache, _prefect, _logs)
    return [leftover for kind in kinds if (leftover := kind(root, experiments)).paths]


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
            private = [path for path in (root / "private").glob(f"*/{experiment.name}/{run.name}") if path.is_dir()]
            folder = experiment.folder if experiment.kind == "run" and len(experiment.runs) == 1 else run
            paths_of_run = [*private, folder]  # the folder with the lock last
            paths += paths_of_run
            run_of |= dict.fromkeys(paths_of_run, run)
    return Leftover(
        "unfinished runs", "their completed rounds; --resume then starts these runs again", tuple(paths), run_of
    )


def _orphaned_private(root: Path, experiments: list[FoundRuns]) -> Leftover:
    """List the private state of runs whose folder was deleted; it cannot be opened any more."""
    existing = [path for path in (root / "private").glob("*/[!.]*/[!.]*") if path.is_dir()]
    orphaned = [path for path in existing if not (root / "runs" / path.parent.name / path.name).is_dir()]
    return Leftover("private/ of deleted runs", "nothing, since their runs are gone", tuple(orphaned))


def _orphaned_artifacts(root: Path, experiments: list[FoundRuns]) -> Leftover:
    """List artifacts of runs deleted in MLflow, if the store is the one of this folder."""
    from tasks.tracking.mlflow_logging.connection import artifacts_of_deleted_runs  # imports MLflow: seconds

    lost = "their models and images in MLflow, if you restore these runs there"

    return Leftover("artifacts of runs deleted in MLflow", lost, tuple(artifacts_of_deleted_runs(root)))


def _cache(root: Path, experiments: list[FoundRuns]) -> Leftover:
    drawing = [one for one in experiments if one.kind == "reproduce" or one.about.get("partitions", 1) > 1]
    is_used = any(unfinished_state(one) == "at work" for one in drawing)
    paths = () if is_used or is_held(root / "cache" / "estimate") else _glob(root, "cache/*")
    return Leftover("cache/", "time: partitions are made again where they are needed", paths)


def _prefect(root: Path, experiments: list[FoundRuns]) -> Leftover:
    paths = _glob(root, ".prefect/prefect.db*")
    lost = "flow and task runs on Prefect's page"
    return Leftover("Prefect's database", lost, () if open_elsewhere(paths) else paths)


def _logs(root: Path, experiments: list[FoundRuns]) -> Leftover:
    paths = tuple(path for log in (".prefect/*.log", "runs/*.log", "runs/services/*.log") for path in _glob(root, log))
    return Leftover("logs", "log files of servers", () if open_elsewhere(paths) else paths)


def _glob(root: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(sorted(root.glob(pattern)))


def _files(path: Path) -> Iterator[Path]:
    return (file for file in path.rglob("*") if not file.is_dir()) if path.is_dir() else iter([path])


def clean_runs(root: Path, agreed: Callable[[Leftover], bool]) -> dict[str, Any]:
    """List each kind and delete it if `agreed` returns True; return all kinds, with what was deleted, as plain JSON."""
    records = []
    for leftover in leftovers(root):
        record: dict[str, Any] = {"kind": leftover.kind, "lost": leftover.lost, "bytes": leftover.size}
        record |= {"deleted": agreed(leftover), "kept": []}
        record["places"] = [str(path.relative_to(root)) for path in leftover.paths]
        if record["deleted"]:
            record["kept"] = [str(path.relative_to(root)) for path in leftover.paths if not _delete(leftover, path)]
        records.append(record)
    return {"kinds": records}


def _delete(leftover: Leftover, path: Path) -> bool:
    """Delete the path, and return whether it is gone; it stays if a process has begun to use it since it was listed."""
    run = leftover.run_of.get(path)
    if path.is_file() and open_elsewhere([path]):
        return False
    try:
        with exclusive_lock(run) if run is not None and run.is_dir() else nullcontext():
            if run is not None and (run / "result.json").is_file():
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
