"""List what accumulates in a project's folder, and delete what the user agrees to and no process uses.

Finished runs and their private/, the clients' ledgers, and the files of running processes are never listed.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from flows.history.list_runs import FoundRuns, find_experiment, unfinished
from silos.errors import UserError
from silos.io.locks import exclusive_lock, is_held, workers


def open_elsewhere(places: Sequence[Path]) -> bool:
    """Whether a process of this user has one of these files open."""
    wanted = {str(place.resolve()) for place in places}
    for process in psutil.process_iter():
        try:
            if any(file.path in wanted for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue  # it ended, or is another's
    return False


@dataclass(frozen=True)
class Leftover:
    """One kind. `of`: the run whose lock guards a place, if there is one."""

    kind: str
    lost: str
    places: tuple[Path, ...]
    of: dict[Path, Path] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.lstat().st_size for place in self.places for file in _files(place))


def leftovers(root: Path) -> list[Leftover]:
    """Every kind that has something, in a fixed order."""
    sets = find_experiment(root / "runs")
    kinds = (_unfinished, _private_of_gone_runs, _artifacts, _cache, _prefect, _logs)
    return [one for kind in kinds if (one := kind(root, sets)).places]


def _unfinished(root: Path, sets: list[FoundRuns]) -> Leftover:
    """Of a comparison its unfinished runs alone: it goes on, and trains these anew."""
    busy = workers(root / "runs" / "locks")
    places: list[Path] = []
    of: dict[Path, Path] = {}
    for one in sets:
        if not unfinished(one) or any(name.startswith(one.name) for name in busy):
            continue
        runs = [run for run in one.runs if not (run / "result.json").is_file() and not is_held(run)]
        for run in runs:
            private = [place for place in (root / "private").glob(f"*/{one.name}/{run.name}") if place.is_dir()]
            mine = [*private, one.folder if one.kind == "run" and len(one.runs) == 1 else run]  # the lock's folder last
            places += mine
            of |= dict.fromkeys(mine, run)
    return Leftover("unfinished runs", "the rounds that they made; --resume begins them anew", tuple(places), of)


def _private_of_gone_runs(root: Path, sets: list[FoundRuns]) -> Leftover:
    """A run's folder was deleted; nobody can open what its clients kept."""
    there = [place for place in (root / "private").glob("*/[!.]*/[!.]*") if place.is_dir()]
    gone = [place for place in there if not (root / "runs" / place.parent.name / place.name).is_dir()]
    return Leftover("private/ of runs that are gone", "nothing that can be opened", tuple(gone))


def _artifacts(root: Path, sets: list[FoundRuns]) -> Leftover:
    """Only of the store of this folder: what another keeps is not ours."""
    pass  # which takes seconds, where there are any

    lost = "their models and pictures in MLflow, if somebody restores them"
    from tasks.tracking.mlflow_logging.connection import artifacts_of_deleted_runs  # takes seconds, where there are any

    return Leftover("artifacts of runs deleted in MLflow", lost, tuple(artifacts_of_deleted_runs(root)))


def _cache(root: Path, sets: list[FoundRuns]) -> Leftover:
    at_work = any(one.kind == "reproduce" and unfinished(one) for one in sets) or is_held(root / "cache" / "estimate")
    places = () if at_work else _there(root, "cache/*")
    return Leftover("cache/", "time: the next `siloflow reproduce` makes its partitions anew", places)


def _prefect(root: Path, sets: list[FoundRuns]) -> Leftover:
    places = _there(root, ".prefect/prefect.db*")
    lost = "flow and task runs on Prefect's page"
    return Leftover("Prefect's database", lost, () if open_elsewhere(places) else places)


def _logs(root: Path, sets: list[FoundRuns]) -> Leftover:
    places = tuple(place for log in (".prefect/*.log", "runs/*.log") for place in _there(root, log))
    return Leftover("logs", "what servers said", () if open_elsewhere(places) else places)


def _there(root: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(sorted(root.glob(pattern)))


def _files(place: Path) -> Iterator[Path]:
    return (file for file in place.rglob("*") if not file.is_dir()) if place.is_dir() else iter([place])


def clean_runs(root: Path, agreed: Callable[[Leftover], bool]) -> dict[str, Any]:
    """What there is, and what of it is gone, as plain JSON; `agreed` is asked for each kind."""
    lines = []
    for one in leftovers(root):
        line = {"kind": one.kind, "lost": one.lost, "bytes": one.size, "deleted": agreed(one), "kept": []}
        line["places"] = [str(place.relative_to(root)) for place in one.places]
        if line["deleted"]:
            line["kept"] = [str(place.relative_to(root)) for place in one.places if not _thrown(one, place)]
        lines.append(line)
    return {"kinds": lines}


def _thrown(one: Leftover, place: Path) -> bool:
    """Whether it is gone; it stays where a process has begun to work on it meanwhile: a person is asked in between."""
    run = one.of.get(place)
    if place.is_file() and open_elsewhere([place]):
        return False
    try:
        with exclusive_lock(run) if run is not None and run.is_dir() else nullcontext():
            if run is not None and (run / "result.json").is_file():
                return False
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    except UserError:
        return False
    _drop_empty(place.parent)
    return True


def _drop_empty(folder: Path) -> None:
    """Of private/ and of artifacts no empty folder stays."""
    if {"private", "artifacts"} & {*folder.parts} and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
