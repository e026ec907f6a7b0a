"""Sets of runs in runs/, found by their folder's name or a beginning of it that only one has."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.config.validation_errors import nearest_hint
from silos.errors import UserError, shown
from tasks.tracking.json_io import read_json

_KINDS = ("run", "compare", "reproduce")


@dataclass(frozen=True)
class FoundRuns:
    """A set of runs: its folder and what its first command wrote of it."""

    folder: Path
    about: dict[str, Any]

    @property
    def name(self) -> str:
        """Its folder's."""
        return self.folder.name

    @property
    def kind(self) -> str:
        """The verb that made it: run, compare or reproduce."""
        return str(self.about["kind"])

    @property
    def started(self) -> datetime:
        """When its first command began."""
        return datetime.fromtimestamp((self.folder / "experiment.json").stat().st_mtime, UTC)

    @property
    def runs(self) -> list[Path]:
        """The folders of its runs, in the order in which they began."""
        begun = {path.parent: path.stat().st_mtime_ns for path in self.folder.glob("*/run.json")}
        return sorted(begun, key=lambda folder: (begun[folder], folder.name))


def find_experiment(runs: Path) -> list[FoundRuns]:
    """All sets in this folder, the newest first; UserError where one's record is damaged. A diagnosis has no runs."""
    sets = []
    for path in sorted(runs.glob("*/experiment.json")):
        about = read_json(path, "bring it back from a copy, or delete its folder", ("kind",))
        if about["kind"] in _KINDS:
            sets.append(FoundRuns(path.parent, about))
    return sorted(sets, key=lambda one: (one.started, one.name), reverse=True)


def find_runs(runs: Path, name: str, kind: str | None = None) -> FoundRuns:
    """The one of this name, or whose name alone begins so; UserError with the nearest, or with those that it may be."""
    sets = [one for one in find_experiment(runs) if kind in (None, one.kind)]
    fits = [one for one in sets if one.name == name] or [one for one in sets if name and one.name.startswith(name)]
    if len(fits) == 1:
        return fits[0]
    what = {"compare": "comparison", "run": "run"}.get(kind or "", "run or comparison")
    if fits:
        names = ", ".join(one.name for one in fits[:5]) + (" …" if len(fits) > 5 else "")
        raise UserError(f"{shown(repr(name))} is the beginning of {len(fits)}: {names}; type more of it.")
    newest = [one.name for one in sets]
    hint = (
        nearest_hint(name, newest)
        if len(newest) <= 5
        else nearest_hint(name, newest, "; `siloflow results` lists them.")
    )
    raise UserError(f"there is no {what} {shown(repr(name))} in runs/{hint}")
