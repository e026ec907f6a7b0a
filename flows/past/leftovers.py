"""What piles up in a project's folder and may go: each kind with its places and with what is lost without it.

Finished runs and their private/, ledgers of what silos told, and what a process works with are none of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flows.past.found import Found, found
from flows.past.listed import unfinished
from flows.past.open_files import open_elsewhere
from silos.io.locks import is_held, workers


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
    sets = found(root / "runs")
    kinds = (_unfinished, _private_of_gone_runs, _artifacts, _cache, _prefect, _logs)
    return [one for kind in kinds if (one := kind(root, sets)).places]


def _unfinished(root: Path, sets: list[Found]) -> Leftover:
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


def _private_of_gone_runs(root: Path, sets: list[Found]) -> Leftover:
    """A run's folder was deleted; nobody can open what its clients kept."""
    there = [place for place in (root / "private").glob("*/[!.]*/[!.]*") if place.is_dir()]
    gone = [place for place in there if not (root / "runs" / place.parent.name / place.name).is_dir()]
    return Leftover("private/ of runs that are gone", "nothing that can be opened", tuple(gone))


def _artifacts(root: Path, sets: list[Found]) -> Leftover:
    """Only of the store of this folder: what another keeps is not ours."""
    from flows.past.deleted_in_mlflow import artifacts_of_deleted_runs  # which takes seconds, where there are any

    lost = "their models and pictures in MLflow, if somebody restores them"
    return Leftover("artifacts of runs deleted in MLflow", lost, tuple(artifacts_of_deleted_runs(root)))


def _cache(root: Path, sets: list[Found]) -> Leftover:
    at_work = any(one.kind == "reproduce" and unfinished(one) for one in sets) or is_held(root / "cache" / "estimate")
    places = () if at_work else _there(root, "cache/*")
    return Leftover("cache/", "time: the next `siloflow reproduce` makes its partitions anew", places)


def _prefect(root: Path, sets: list[Found]) -> Leftover:
    places = _there(root, ".prefect/prefect.db*")
    lost = "flow and task runs on Prefect's page"
    return Leftover("Prefect's database", lost, () if open_elsewhere(places) else places)


def _logs(root: Path, sets: list[Found]) -> Leftover:
    places = tuple(place for log in (".prefect/*.log", "runs/*.log") for place in _there(root, log))
    return Leftover("logs", "what servers said", () if open_elsewhere(places) else places)


def _there(root: Path, pattern: str) -> tuple[Path, ...]:
    return tuple(sorted(root.glob(pattern)))


def _files(place: Path) -> Iterator[Path]:
    return (file for file in place.rglob("*") if not file.is_dir()) if place.is_dir() else iter([place])
