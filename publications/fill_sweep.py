"""Run what a sweep lacks, and estimate how long that takes.

Every finished run is recorded at once, so an interrupted sweep continues where it stopped.
"""

import platform
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version as installed
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.bench_results import processor_name
from flows.core.console import progress
from flows.experiments.comparison.run_trials import ensemble
from flows.methods.method_settings import method_of
from flows.project.project_workers import project_workers
from flows.project.run_sets import scratch_dir
from flows.run import probe, run
from flows.training.paired_runs import compare_pairs, count_correct_by_class, outcomes_of_run
from flows.training.run_records.mlflow_run_metadata import git_commit
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import device_of
from models.metrics.client_metrics import recorded_metric
from models.metrics.paired_difference import CellDifferenceRecord, cell_difference_record
from publications.code_version import CODE, code_hash
from publications.published_tables import Pair
from publications.sweep import Sweep, runs
from publications.verdict_trials import run_trials, seconds_of_cell
from silos.errors import UserError
from tasks.execution.prefect_runner import PrefectRunner
from tasks.paired_outcomes import Outcomes
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.connection import connect, own_store


def fill(sweep: Sweep) -> None:
    """Run and record every cell, then compare pairs of cells on their rows, and seeds as one deep ensemble."""
    page = sweep.page
    for name in () if page.judged else {sweep.experiment, *map(sweep.experiment_of, page.cells)}:
        path = sweep.root / "runs" / name / "experiment.json"
        if name == sweep.experiment or not path.is_file():
            write_json(path, {"kind": "reproduce", "name": name, "about": f"{page.title}. {page.source}."})
    before = {cell: runs(sweep, cell) for cell in page.cells}
    _commit()
    for cell in page.cells:
        code_hash(sweep.modules(cell))  # as the sweep starts: files may change while it runs
    _plan(sweep, before)
    news = {cell for cell in page.cells if _fill_cell(sweep, cell, before)}
    for pair in sweep.pairs():
        both = {pair.first, pair.second}
        changed = news & both and all(map(sweep.here, both)) and not sweep.from_records(pair)
        if changed or sweep.could_pair(pair):
            difference = _compare_rows(sweep, pair)
            if difference is not None:
                sweep.results.keep(*sweep.place_of_pair(pair), {**difference, **_origin(sweep, pair.first)})
    for cell in page.cells if page.ensembles else ():
        if sweep.could_join(cell) or cell in news:
            means = _join_seeds(sweep, cell)
            if means is not None:
                numbers = {name: round(value, 6) for name, value in means.items()}
                sweep.results.keep(*sweep.place_of_ensemble(cell), {"numbers": numbers, **_origin(sweep, cell)})


def _plan(sweep: Sweep, before: dict[str, int]) -> None:
    """Show how many runs are known to be needed; `before` has each cell's runs of earlier commands."""
    counts = {cell: (sweep.count(cell), done, sweep.steps(cell)) for cell, done in before.items()}
    in_all = (sum(count for count, _, _ in counts.values()), sum(count * steps for count, _, steps in counts.values()))
    done = (sum(before.values()), sum(done * steps for _, done, steps in counts.values()))
    progress.current().plan(*in_all, *done)


def _fill_cell(sweep: Sweep, cell: str, before: dict[str, int]) -> bool:
    """Run the grid on one seed, what lies beyond it, then every seed at the best choice; True if any was missing."""
    news, done = [], 0
    while rest := sweep.tries(cell)[done:]:
        news += [_fill_one(sweep, cell, *one) for one in rest]
        done += len(rest)
        _plan(sweep, before)
    return any(news + [_fill_one(sweep, cell, *one) for one in sweep.wanted(cell)])


def _fill_one(sweep: Sweep, cell: str, seed: int, choice: str | None) -> bool:
    """Run and record a run or a trial, if it is missing; True if it was."""
    if sweep.record(cell, seed, choice) is not None:
        return False
    sweep.results.read_again()  # another sweep may have recorded it meanwhile
    if sweep.record(cell, seed, choice) is None:
        begun = not sweep.page.judged and sweep.folder(cell, seed, choice).path.exists()
        record = run_trials(sweep, cell, seed) if sweep.page.judged else _run(sweep, cell, seed, choice)
        record |= _origin(sweep, cell)
        if begun:  # by which code is not known
            del record["commit"]
        else:
            record["code"] = code_hash(sweep.modules(cell))
        record |= sweep.stated(cell)
        sweep.results.keep(sweep.place_of_runs(cell), sweep.key(seed, choice), record)
    return True


def _run(sweep: Sweep, cell: str, seed: int, choice: str | None) -> dict[str, Any]:
    """Run a cell with a seed and a choice, and return the record."""
    place = {"experiment": sweep.experiment_of(cell), "cell": sweep.place(cell, choice)}
    project, method = sweep.project(cell, seed, choice), sweep.page.method_of(cell)
    result = run.on(project, method=method, seed=seed, resume=True, derived=True, **place)
    assert result is not None, "it does not pause"
    record = _record(sweep, cell, result)
    if sweep.page.by_class:
        record["by_class"] = _count_by_class(sweep, cell, seed, choice)
    return record


def _record(sweep: Sweep, cell: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a finished run."""
    metrics = result["metrics"] | _at_rounds(sweep, cell, result)
    quantity = recorded_metric(result)
    others = [f"{role}/{quantity.headline}" for role in ("fresh", "unseen")]
    record = {
        "value": _measured(sweep, cell, result, metrics),
        quantity.name: metrics[quantity.headline],
        **{name: metrics[name] for name in others if name in metrics},
        "validation": metrics.get(f"validation/{quantity.headline}"),
        "validation_loss": metrics.get("validation/loss/mean"),
        "method": result["method"],
        "rounds": result["rounds"],
        "steps": result["steps"],
        "parameters": result["parameters"],
        "bytes": result["bytes"],
        "seconds": round(result["seconds"]["total"], 1),
        "seconds_per_round": round(result["seconds"]["per_round"], 4),
        "data_version": result["data_version"],
        "weights_sha256": result["weights_sha256"],
    }
    if sweep.page.also:
        record["also"] = {name: round(v, 6) for name, v in metrics.items() if isinstance(v, int | float)}
    return record


def _origin(sweep: Sweep, cell: str) -> dict[str, Any]:
    """Return when, where, with which command and with which versions a record is made."""
    device = "cpu" if sweep.page.judged else device_of(sweep.project(cell, *sweep.tries(cell)[0]).params.engine)
    return {
        "command": f"siloflow reproduce {sweep.paper} --table {sweep.table} --scale {sweep.scale}",
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor_name(device),
        "versions": {name: installed(name) for name in ("torch", "numpy", "scipy")}
        | {"python": platform.python_version()},
    }


@cache
def _commit() -> str:
    """Return the commit of siloflow, with `+changes` if a file differs from it; records in docs/ do not count."""
    return git_commit(CODE, ".", ":!docs")


def _measured(sweep: Sweep, cell: str, result: Mapping[str, Any], metrics: dict[str, Any]) -> float | None:
    """Return the rounds to the target, or a metric; None if the target or the metric's round was not reached."""
    measure = sweep.recorded_measure(cell)
    if measure.rounds_to is not None:
        return result["rounds"] if result["ended_by"] == "evaluation.stop_at" else None
    name = measure.metric or recorded_metric(result).headline
    value: float | None = metrics.get(name) if "@" in name else metrics[name]
    return value


def _at_rounds(sweep: Sweep, cell: str, result: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that the page names as `metric@when`, from the rounds that the run evaluated."""
    measures = (sweep.page.measure_of(cell), sweep.recorded_measure(cell))
    names = {*sweep.page.also, *(measure.metric or "" for measure in measures)}
    folder, values = RunFolder(sweep.root / result["folder"]), {}
    for metric, _, when in (name.partition("@") for name in sorted(names) if "@" in name):
        value = _at(folder.curve(metric, result["rounds"]), result["rounds"] if when == "last" else when)
        if value is not None:
            values[f"{metric}@{when}"] = value
    return values


def _at(curve: list[tuple[int, float]], when: str | int) -> float | None:
    """Return a curve's value in a round, its highest, or its unrest: the deviation of changes between evaluations."""
    if when == "highest":
        return max((value for _, value in curve), default=None)
    if when != "unrest":
        return dict(curve).get(int(when))
    changes = [after - before for (_, before), (_, after) in pairwise(curve)]
    return statistics.stdev(changes) if len(changes) > 1 else None


def _compare_rows(sweep: Sweep, pair: Pair) -> CellDifferenceRecord | None:
    """Compare two cells on the same seeds and rows, or on the rows of some classes; None if there are no such rows.

    Raises:
        UserError: If the data have none of these classes.
    """
    first, second, classes = pair.first, pair.second, pair.classes
    project, quantity = sweep.project(first, *sweep.wanted(first)[0]), sweep.quantity(first)
    silos = project.scored.federated()
    unknown = [name for name in classes or () if name not in silos.manifest.classes]
    if unknown:
        raise UserError(f"{first} − {second}: the data have no class {unknown[0]!r}.")
    with project_workers(project) as workers:
        runner = PrefectRunner(workers, f"{first} against {second}")
        difference = compare_pairs(runner, silos, _outcomes(sweep, first), _outcomes(sweep, second), quantity, classes)
    return None if difference is None else cell_difference_record(first, second, difference, quantity, classes)


def _outcomes(sweep: Sweep, cell: str) -> list[Outcomes]:
    """Return where the clients of each run keep their outcomes."""
    runs = zip(sweep.wanted(cell), sweep.folders(cell), strict=True)
    return [outcomes_of_run(sweep.project(cell, *one), folder.path) for one, folder in runs]


def _join_seeds(sweep: Sweep, cell: str) -> dict[str, float] | None:
    """Evaluate a cell's runs as one deep ensemble; None if one of them has no model on this machine."""
    projects = [sweep.project(cell, *one) for one in sweep.wanted(cell)]
    method = method_of(projects[0].params, sweep.page.method_of(cell))
    members = list(zip(projects, sweep.seeds_of(cell), sweep.folders(cell), strict=True))
    return ensemble(method, members, f"ensemble of {cell}")


def _count_by_class(sweep: Sweep, cell: str, seed: int, choice: str | None) -> dict[str, list[int]]:
    """Count [right, rows] by class over all clients of one run."""
    project = sweep.project(cell, seed, choice)
    with project_workers(project) as workers:
        run = outcomes_of_run(project, sweep.folder(cell, seed, choice).path)
        return count_correct_by_class(PrefectRunner(workers, f"{cell}, seed {seed}"), project.scored.federated(), run)


def run_again(sweep: Sweep, count: int) -> dict[str, Any]:
    """Run some recorded runs again; a record whose weights and numbers come out the same then names today's code.

    Runs are drawn at random, first among the records of other code or of an unknown version. All other records stay.

    Args:
        sweep: The table.
        count: The number of runs.

    Raises:
        UserError: If the records are of verdicts, which have no weights, or if there are none.
    """
    if sweep.page.judged:
        raise UserError("--again: got a table of verdicts, expected one of training runs, since weights are compared.")
    recorded = [(cell, *one) for cell in sweep.page.cells for one in sweep.recorded_runs(cell)]
    by_place = {(sweep.place_of_runs(cell), seed, choice): (cell, seed, choice) for cell, seed, choice in recorded}
    known = [one for one in by_place.values() if "weights_sha256" in sweep.recorded(*one)]  # cells may share a run
    if not known:
        raise UserError(
            f"--again: got no record of table {sweep.table} with weights, expected some; run it without --again first."
        )
    _commit()  # as the runs start: files may change meanwhile
    random.shuffle(known)
    known.sort(key=lambda one: sweep.recorded(*one).get("code") == code_hash(sweep.modules(one[0])))
    chosen = known[:count]
    progress.current().plan(len(chosen), sum(sweep.steps(cell) for cell, _, _ in chosen))
    with scratch_dir(sweep.root / "cache" / "again") as scratch:
        found = [_run_one_again(sweep, *one, scratch) for one in chosen]
    names = {"paper": sweep.paper, "table": sweep.table, "scale": sweep.scale}
    same = sum(run["weights"] and run["numbers"] for run in found)
    return {**names, "records": len(known), "runs": found, "same": same}


def _run_one_again(sweep: Sweep, cell: str, seed: int, choice: str | None, scratch: Path) -> dict[str, Any]:
    """Run a recorded run in a scratch folder, sign its record if it comes out the same, and return both numbers."""
    record, quantity = sweep.recorded(cell, seed, choice), sweep.quantity(cell)
    progress.say(f"again: {cell}, seed {seed}{'' if choice is None else f', {choice}'}")
    project = replace(sweep.project(cell, seed, choice), scratch=scratch)
    found = {
        "cell": cell,
        "seed": seed,
        "choice": choice,
        "metric": quantity.name,
        "recorded": record.get(quantity.name),
    }
    found |= {"commit": record.get("commit"), "processor": record.get("processor")}
    try:
        now = _record(sweep, cell, probe(project, sweep.page.method_of(cell), seed))
    except UserError as error:
        return {**found, "weights": False, "numbers": False, "now": None, "error": str(error)}
    compared = (now.keys() & record.keys()) - {"seconds", "seconds_per_round", "data_version"}
    differ = {name for name in compared if not _agrees(now[name], record[name])}
    if not differ:
        signed = {**record, **now, **_origin(sweep, cell), "code": code_hash(sweep.modules(cell))}
        # of the table that owns the record; cells are compared only if they name the same version, whose hash depends on
        # the form of the files too
        signed |= {"command": record["command"], "data_version": record["data_version"]}
        signed |= sweep.stated(cell)
        sweep.results.keep(sweep.place_of_runs(cell), sweep.key(seed, choice), signed)
    same = {"weights": "weights_sha256" not in differ, "numbers": not differ - {"weights_sha256"}}
    return {**found, **same, "now": now[quantity.name], "error": None}


def _agrees(now: Any, recorded: Any) -> bool:
    """Return whether a run has the recorded value; of several metrics the recorded ones, since others may be new."""
    if isinstance(now, dict) and isinstance(recorded, dict):
        return now.keys() >= recorded.keys() and all(now[name] == value for name, value in recorded.items())
    return bool(now == recorded)


PROBE_ROUNDS = 3


def estimate(sweep: Sweep) -> dict[str, Any]:
    """Estimate the seconds of the whole table from a few rounds of each cell; nothing is kept."""
    with scratch_dir(sweep.root / "cache" / "estimate") as scratch:
        connect(own_store(scratch))  # the first cell does not pay for making MLflow's tables
        seconds = {cell: _seconds(sweep, cell, scratch) for cell in sweep.page.cells}
    return {"paper": sweep.paper, "table": sweep.table, "scale": sweep.scale, "seconds": seconds}


def _seconds(sweep: Sweep, cell: str, scratch: Path) -> float:
    """Estimate the seconds of a cell's runs or trials."""
    if sweep.page.judged:
        return seconds_of_cell(sweep, cell)
    seed, choice = sweep.tries(cell)[0]
    published, counts = sweep.page.cells[cell].published, sweep.page.measure_of(cell).rounds_to is not None
    rounds = published if counts and published else sweep.rounds(cell)
    probed = min(PROBE_ROUNDS, sweep.rounds(cell))
    settings = [*sweep.settings(cell, seed, choice), f"training.rounds={probed}", "evaluation.stop_at=null"]
    project = replace(sweep.opened.derive(settings, derived=True), scratch=scratch)
    start = time.perf_counter()
    record = probe(project, sweep.page.method_of(cell), seed)
    fixed = time.perf_counter() - start - record["seconds"]["per_round"] * probed
    return sweep.count(cell) * (fixed + rounds * record["seconds"]["per_round"])
