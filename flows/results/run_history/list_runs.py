"""Find sets of runs in runs/ by their folder's name or a unique prefix, list them with their state, and load results."""

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from flows.core.config.validation_errors import nearest_hint
from flows.project.project import Project
from models.metrics.client_metrics import recorded_metric
from models.metrics.task_metrics import metric_value
from silos.errors import UserError, shown
from silos.io.locks import is_held
from tasks.tracking.json_io import read_json
from tasks.tracking.result_types.comparison_result import ComparisonResult
from tasks.tracking.result_types.earlier_results import ListedResult, ResultList
from tasks.tracking.result_types.run_files import ExperimentRecord, Kind
from tasks.tracking.result_types.run_result import RunResult

_KINDS = ("run", "compare", "advise", "reproduce")


@dataclass(frozen=True)
class FoundRuns:
    """A set of runs: its folder, and the record that its first command wrote."""

    folder: Path
    about: ExperimentRecord

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.name

    @property
    def kind(self) -> Kind:
        """Return the command that created the set: run, compare, advise or reproduce."""
        return self.about["kind"]

    @property
    def started(self) -> datetime:
        """Return when the first command began."""
        return datetime.fromtimestamp((self.folder / "experiment.json").stat().st_mtime, UTC)

    @property
    def runs(self) -> list[Path]:
        """Return the folders of the runs in the order in which they began."""
        begun = {path.parent: path.stat().st_mtime_ns for path in self.folder.glob("*/run.json")}
        return sorted(begun, key=lambda folder: (begun[folder], folder.name))


def find_experiments(runs: Path) -> list[FoundRuns]:
    """Return all sets in this folder, newest first; UserError for a damaged record. A diagnosis is no set of runs."""
    found = []
    for path in sorted(runs.glob("*/experiment.json")):
        record = read_json(path, "Restore it from a copy, or delete its folder", ("kind",))
        if record["kind"] in _KINDS:
            found.append(FoundRuns(path.parent, record))
    return sorted(found, key=lambda experiment: (experiment.started, experiment.name), reverse=True)


def find_runs(runs: Path, name: str, kind: str | None = None) -> FoundRuns:
    """Return the set of this name or unique prefix; UserError with the nearest names, or with those that the prefix fits."""
    experiments = [experiment for experiment in find_experiments(runs) if kind in (None, experiment.kind)]
    prefixed = [experiment for experiment in experiments if name and experiment.name.startswith(name)]
    matches = [experiment for experiment in prefixed if experiment.name == name] or prefixed
    if len(matches) == 1:
        return matches[0]
    noun = {"compare": "comparison", "advise": "race", "run": "run"}.get(kind or "", "run or comparison")
    if matches:
        names = ", ".join(experiment.name for experiment in matches[:5]) + (" …" if len(matches) > 5 else "")
        raise UserError(
            f"{shown(repr(name))}: got a name that fits {len(matches)} results, expected one: {names}. "
            "Type more of the name."
        )
    newest = [experiment.name for experiment in experiments]
    hint = nearest_hint(name, newest, ". `siloflow results` lists them." if len(newest) > 5 else None)
    raise UserError(f"runs/: got no {noun} {shown(repr(name))}{hint}")


def list_runs(root: Path) -> ResultList:
    """Return all sets, newest first."""
    return {"results": [_summary(experiment) for experiment in find_experiments(root / "runs")]}


def unfinished_state(experiment: FoundRuns) -> str:
    """Return the state of an unfinished set: `at work`, `3 of 9 runs`, `round 12`; empty if it is finished."""
    if experiment.kind == "reproduce":
        return "at work" if _is_at_work(experiment) else ""  # `siloflow reproduce` reports what of a table is recorded
    if _finished_run(experiment) or _finished_comparison(experiment):
        return ""
    done = sum((run / "result.json").is_file() for run in experiment.runs)
    if _is_at_work(experiment):
        return "at work"
    if experiment.kind == "compare":
        settings = experiment.about.get("tune") or 1
        seeds = len(experiment.about["seeds"])
        drawn = (experiment.about.get("partitions", 1) - 1) * seeds
        total = len(experiment.about["methods"]) * (settings + seeds - 1 + drawn)
        return f"{done} of {total} runs" + (" or more" if settings > 1 else "")
    return f"round {max((_rounds(run) for run in experiment.runs), default=0)}"


def _summary(experiment: FoundRuns) -> ListedResult:
    run, comparison, state = _finished_run(experiment), _finished_comparison(experiment), unfinished_state(experiment)
    failed = len(comparison["failed"]) if comparison else 0
    about = run or comparison or experiment.about
    headline = None if run is None else recorded_metric(run).headline_text(run["metrics"])
    return {
        "name": experiment.name,
        "kind": experiment.kind,
        "what": _description(experiment),
        "data_version": str(about.get("data_version", ""))[:10] or None,
        "started": experiment.started.isoformat(timespec="seconds"),
        "headline": _best_method(comparison) if comparison else headline,
        "state": state or (f"{failed} failed" if failed else "finished"),
    }


def _finished_comparison(experiment: FoundRuns) -> ComparisonResult | None:
    """Return the result of a comparison, or of the one that proves the winner of a race; None without a finished one."""
    if experiment.kind not in ("compare", "advise"):
        return None
    comparison: ComparisonResult | None = read_json(experiment.folder / "comparison.json")
    return comparison


def _finished_run(experiment: FoundRuns) -> RunResult | None:
    """Return the result of a single run; None without a finished one."""
    if experiment.kind != "run":
        return None
    results: list[RunResult | None] = [read_json(run / "result.json") for run in experiment.runs]
    return results[-1] if results else None


def _description(experiment: FoundRuns) -> str:
    """Describe the methods and seeds, as `fedavg, ifca; seeds 0, 1, 2`."""
    if experiment.kind == "reproduce":
        return str(experiment.about.get("about", "")).partition(". ")[0]
    methods, seeds = experiment.about.get("methods", []), experiment.about.get("seeds", [])
    tuned = f"; tuned of {experiment.about['tune']}" if experiment.about.get("tune") else ""
    return f"{', '.join(methods)}; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}{tuned}"


def _best_method(comparison: ComparisonResult) -> str | None:
    """Return the best method and its metric; None if no method has a finite one."""
    metric = recorded_metric(comparison)
    rows = [row for row in comparison["table"] if row.get(metric.headline) is not None]
    best = max(rows, key=metric.score, default=None)
    return None if best is None else f"{best['method']} {metric.number(metric_value(best, metric.headline))}"


def _is_at_work(experiment: FoundRuns) -> bool:
    return any(is_held(run) for run in experiment.runs)


def _rounds(run: Path) -> int:
    """Return the number of recorded rounds."""
    return len(list((run / "journal").glob("*.json")))


def load_result(
    project: Project, name: str
) -> tuple[RunResult, Literal["run"]] | tuple[ComparisonResult, Literal["compare"]]:
    """Load a finished result and the name of the command that printed it first.

    UserError if there is no such set of runs, or if it is not finished; the message names the command that resumes it.
    """
    name = name.removeprefix("runs/").rstrip("/")  # as a shell completes it
    if "/" in name:
        return _load_run(project, name), "run"
    experiment = find_runs(project.store.runs, name)
    if experiment.kind == "reproduce":
        raise UserError(
            f"{experiment.name}: got a sweep of a published table, expected a run or comparison. `siloflow "
            "reproduce` prints it from its records."
        )
    state = unfinished_state(experiment)
    if state:
        command = _resume_command(experiment.about, experiment.name)
        advice = "wait for it to end" if state == "at work" else f"run `{command}` to continue it"
        raise UserError(
            f"{experiment.name}: got an unfinished result ({state}), expected a finished one. To get it, {advice}."
        )
    if experiment.kind == "run":
        return _load_run(project, experiment.name), "run"
    keys = ("table", "paired", "runs", "tuning", "failed", "task")
    comparison: ComparisonResult = read_json(experiment.folder / "comparison.json", keys=keys)
    return comparison, "compare"


def _load_run(project: Project, name: str) -> RunResult:
    from flows.training.load_finished_run import find_run  # and torch with it

    folder = find_run(project, name)
    result = folder.finished()
    if result is None:
        raise UserError(
            f"{folder.path}: got an unfinished run, expected a finished one. Run the command that "
            "started it with --resume."
        )
    return {**result}


def _resume_command(about: ExperimentRecord, name: str) -> str:
    """Return the command that finishes the set, with its original arguments."""
    settings = [f"--set={shlex.quote(override)}" for override in about.get("overrides", ())]
    if about["kind"] == "run":
        return " ".join([f"siloflow run {about['methods'][0]} --seed {about['seeds'][0]}", *settings, "--resume"])
    if about["kind"] == "advise":
        minutes = ["--minutes", f"{about['minutes']:g}"]
        return " ".join(["siloflow advise", *about["methods"], *minutes, *settings, "--resume --name", name])
    arguments = [*about["methods"], "--seeds", ",".join(map(str, about["seeds"])), "--reference", about["reference"]]
    if "overrides" not in about:  # of an earlier version
        arguments += ["--set", f"comparison.tune={about['tune']}"] if about.get("tune") else []
        arguments += ["--partitions", str(about["partitions"])] if about.get("partitions", 1) > 1 else []
    return " ".join(["siloflow compare", *arguments, *settings, "--resume --name", name])
