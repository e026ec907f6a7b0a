"""Sets of runs in runs/, found by their folder's name or a beginning of it that only one has.

The list of what was run here: each run, comparison and sweep with its state and its first number.

What a finished run or comparison answered, once more.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.config.validation_errors import nearest_hint
from flows.experiment.project import Project
from models.metrics.task_metrics import TASK_METRICS
from silos.errors import UserError, shown
from silos.io.locks import is_held
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


def list_runs(root: Path) -> dict[str, Any]:
    """Newest first, as plain JSON."""
    return {"results": [_line(one) for one in find_experiment(root / "runs")]}


def unfinished(one: FoundRuns) -> str:
    """What of a set is not done yet, as a state: `at work`, `3 of 9 runs`, `round 12`; empty where all is."""
    if one.kind == "reproduce":
        return "at work" if _at_work(one) else ""  # what of a table is recorded is `siloflow reproduce`'s to say
    if _answer(one) is not None:
        return ""
    done = sum((run / "result.json").is_file() for run in one.runs)
    if _at_work(one):
        return "at work"
    if one.kind == "compare":
        settings = one.about.get("tune") or 1
        of = len(one.about["methods"]) * (settings + len(one.about["seeds"]) - 1)
        return f"{done} of {of} runs" + (" or more" if settings > 1 else "")
    return f"round {max((_rounds(run) for run in one.runs), default=0)}"


def _line(one: FoundRuns) -> dict[str, Any]:
    answer, state = _answer(one), unfinished(one)
    failed = len(answer.get("failed", [])) if answer else 0
    return {
        "name": one.name,
        "kind": one.kind,
        "what": _what(one),
        "data_version": str((answer or one.about).get("data_version", ""))[:10] or None,
        "started": one.started.isoformat(timespec="seconds"),
        "headline": _headline(answer) if answer else None,
        "state": state or (f"{failed} failed" if failed else "finished"),
    }


def _answer(one: FoundRuns) -> dict[str, Any] | None:
    """What a finished set answered; None of one that is not finished, and of a sweep."""
    if one.kind == "compare":
        answer: dict[str, Any] | None = read_json(one.folder / "comparison.json")
        return answer
    results = [read_json(run / "result.json") for run in one.runs] if one.kind == "run" else []
    return results[-1] if results and results[-1] else None


def _what(one: FoundRuns) -> str:
    """`fedavg, ifca; seeds 0, 1, 2`."""
    if one.kind == "reproduce":
        return str(one.about.get("about", "")).partition(". ")[0]
    methods, seeds = one.about.get("methods", []), one.about.get("seeds", [])
    tuned = f"; tuned of {one.about['tune']}" if one.about.get("tune") else ""
    return f"{', '.join(methods)}; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}{tuned}"


def _headline(answer: dict[str, Any]) -> str | None:
    """`accuracy 0.912` of a run; of a comparison its best method's too."""
    quantity = TASK_METRICS[answer["task"]]
    if "table" not in answer:
        return quantity.said(answer["metrics"])
    rows = [row for row in answer["table"] if row.get(quantity.headline) is not None]
    best = max(rows, key=quantity.score, default=None)
    return None if best is None else f"{best['method']} {quantity.number(best[quantity.headline])}"


def _at_work(one: FoundRuns) -> bool:
    return any(is_held(run) for run in one.runs)


def _rounds(run: Path) -> int:
    """Whole rounds that are written down."""
    return len(list((run / "journal").glob("*.json")))


def load_result(project: Project, name: str) -> tuple[dict[str, Any], str]:
    """The answer, and the printer of the command that gave it first.

    UserError where there is no such set of runs, and where it is not finished: with the command that goes on.
    """
    name = name.removeprefix("runs/").rstrip("/")  # as a shell completes it
    if "/" in name:
        return _of_run(project, name), "run"
    one = find_runs(project.runs, name)
    if one.kind == "reproduce":
        raise UserError(
            f"{one.name} is a sweep of a published table, which `siloflow reproduce` prints from its records."
        )
    left = unfinished(one)
    if left:
        go_on = "wait for it" if left == "at work" else f"`{_go_on(one.about, one.name)}` goes on"
        raise UserError(f"{one.name} is not finished ({left}); {go_on}.")
    if one.kind == "run":
        return _of_run(project, one.name), "run"
    answer = read_json(one.folder / "comparison.json", keys=("table", "paired", "runs", "tuning", "failed", "task"))
    return answer, "compare"


def _of_run(project: Project, name: str) -> dict[str, Any]:
    from flows.experiment.run.load_finished_run import find_run  # and torch with it

    folder = find_run(project, name)
    done = folder.finished()
    if done is None:
        raise UserError(f"{folder.path} is not finished; the command that started it, with --resume, finishes it.")
    return done


def _go_on(about: dict[str, Any], name: str) -> str:
    """The command that finishes it, with what it was asked for."""
    if about["kind"] == "run":
        return f"siloflow run {about['methods'][0]} --seed {about['seeds'][0]} --resume"
    asked = [*about["methods"], "--seeds", ",".join(map(str, about["seeds"])), "--reference", about["reference"]]
    asked += ["--set", f"comparison.tune={about['tune']}"] if about.get("tune") else []
    return " ".join(["siloflow compare", *asked, "--resume --name", name])
