"""Records a whole comparison: in MLflow as the run above its runs, and in fixed files that DVC compares.

MLflow receives the figure, tables, sentences, and each method's metrics. `dvc metrics` and `dvc plots` compare the
files between revisions.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from flows.core.console import progress
from flows.experiments.comparison.comparison_text import (
    comparison_table,
    headline,
    not_complete,
    sentences_after,
    sentences_first,
    tuned_sentence,
)
from flows.experiments.comparison.run_trials import Plan
from flows.project.project import Project
from flows.project.run_sets import experiment
from flows.training.run_records.mlflow_run_metadata import comparison_spec, dataset
from flows.training.run_records.run_folder import RunFolder
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos.io.atomic_io import write_bytes
from tasks.tracking import prefect_artifacts
from tasks.tracking.json_io import write_json
from tasks.tracking.metric_names import metric_name_parts
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.mlflow_logging.mlflow_records import FinalArtifacts
from tasks.tracking.result_types.comparison_result import ComparisonResult, EnsembleScores, TableRow, TunedSettings
from tasks.tracking.result_types.run_result import RunResult


def comparison_settings(project: Project, plan: Plan) -> str:
    """Return the note of the comparison's own run until the comparison is finished."""
    methods, seeds = ", ".join(plan.methods), ", ".join(map(str, plan.seeds))
    return f"{methods} on {project.params.data.name} ({plan.data_version}), seeds {seeds}: running or stopped."


def log_comparison(project: Project, name: str, plan: Plan, comparison: ComparisonResult, flow_run: str) -> None:
    """Log the comparison as a run; if MLflow is unreachable, the screen says so. A repeated call logs nothing twice."""
    folder = project.store.runs / name
    tables = {"table.json": _methods(project, comparison), "runs.json": _runs(project, comparison["runs"])}
    for file, table in tables.items():
        write_json(folder / file, table)
    params = {
        "methods": ", ".join(plan.methods),
        "seeds": ", ".join(map(str, plan.seeds)),
        "reference": plan.reference,
        "tune": plan.tune,
    }
    spec = comparison_spec(project, {**experiment(project, name), "data_version": plan.data_version})
    spec = replace(spec, params=params, links=prefect_artifacts.flow_run_tags(flow_run))
    note, best = note_of(project, comparison), _best_row(project.quantity, comparison["table"])
    written = [file for file in ("comparison.png", "cost.png", "report.html") if (folder / file).is_file()]
    files = tuple(folder / file for file in (*written, "comparison.json", *tables))
    began = int((folder / "experiment.json").stat().st_mtime * 1000)  # fixed: a repeated call logs no second value
    metrics = metrics_of(project.quantity, comparison)
    artifacts = FinalArtifacts(
        files,
        data=dataset(project, project.silos),
        metrics={"round": 0, "time_ms": began, "metrics": {**metrics}},
        tags={} if best is None else {"best method": str(best["method"])},
        note="\n\n".join(text for text in (note, prefect_artifacts.flow_run_markdown(flow_run)) if text),
        about=note,
        columns=tuple(name for name in metrics if not name.endswith(("/low", "/high")) and "/sd/" not in name),
        tables=tuple(tables),
        status="FAILED" if comparison["failed"] else "FINISHED",
    )
    logger = MLflowLogger(folder, spec)
    if logger.finish(artifacts) is None:
        progress.say(f"{logger.problem}; MLflow lacks the comparison itself, which runs/{name} has in full.")
    elif logger.notice:
        progress.current().say_once(f"{logger.notice}.")


def metrics_of(quantity: TaskMetrics, comparison: ComparisonResult) -> dict[str, float]:
    """Return the metrics of the comparison's own run, under names that only such runs have.

    These are the best method's headline metric, each method's mean and standard deviation over seeds, as
    `accuracy/mean/fedavg` and `accuracy/mean/sd/fedavg`, and each paired difference from the reference with its 95 %
    interval, corrected for several methods as in the sentences.
    """
    best, headline_name = _best_row(quantity, comparison["table"]), quantity.headline
    metrics = {} if best is None else {f"best/{headline_name}": metric_value(best, headline_name)}
    parts = metric_name_parts([str(row["method"]) for row in comparison["table"]])
    for row in comparison["table"]:
        for name in (headline_name, f"{headline_name}/sd"):
            metrics[f"{name}/{parts[str(row['method'])]}"] = metric_value(row, name)
    for pair in comparison["paired"]:
        name = f"difference/{parts.get(pair['method'], pair['method'])}"
        interval = pair["corrected"]
        metrics |= {name: pair["difference"], f"{name}/low": interval["low"], f"{name}/high": interval["high"]}
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def _best_row(quantity: TaskMetrics, table: Sequence[TableRow]) -> TableRow | None:
    """Return the table's row with the best headline metric; None if no method has a finite one."""
    best = max(table, key=quantity.score, default=None)
    return None if best is None or not math.isfinite(quantity.score(best)) else best


def note_of(project: Project, comparison: ComparisonResult) -> str:
    """Return the note as Markdown; MLflow shows only its first line while the note is folded."""
    titles, *rows = comparison_table(comparison, project.quantity)
    missing = not_complete(comparison)
    faults = comparison.get("open_faults", ())
    verdicts = " ".join([*faults, *sentences_first(comparison), headline(comparison["paired"])])
    return "\n".join(
        [
            f"{missing[:1].upper()}{missing[1:]}. {verdicts}" if missing else verdicts,
            "",
            *_markdown(titles, rows),
            "",
            *(f"- {p['sentence']}" for p in comparison["paired"]),
            *(f"- {sentence}" for sentence in sentences_after(comparison)),
            "",
            *_tuning(comparison["tuning"]),
            *_ensembles(comparison["ensembles"]),
            f"Data version {comparison['data_version']}.",
        ]
    )


class _LoggedTable(TypedDict):
    """A table as MLflow reads it from JSON."""

    columns: list[str]
    data: Sequence[Sequence[str | int]]


def _methods(project: Project, comparison: ComparisonResult) -> _LoggedTable:
    """Return the table that is also printed."""
    titles, *rows = comparison_table(comparison, project.quantity)
    return {"columns": titles, "data": rows}


def _runs(project: Project, runs: Sequence[RunResult]) -> _LoggedTable:
    """Return one row for each run, with the hash of its weights."""
    quantity = project.quantity
    rows: list[list[str | int]] = [
        [
            run["method"],
            run["seed"],
            *(quantity.number(metric_value(run["metrics"], name)) for name in quantity.columns),
            run["weights_sha256"],
            f"{run['seconds']['total']:.1f}",
        ]
        for run in runs
    ]
    return {"columns": ["method", "seed", *quantity.columns.values(), "weights_sha256", "seconds"], "data": rows}


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [" | ".join(row) for row in (titles, *rows)]
    return [f"| {lines[0]} |", "|---" * len(titles) + "|", *(f"| {line} |" for line in lines[1:])]


def _ensembles(ensembles: Sequence[EnsembleScores]) -> list[str]:
    if not ensembles:
        return []
    names = [name for name in ensembles[0] if name not in ("method", "seeds")]
    rows = [[str(ensemble["method"]), *(f"{ensemble[name]:.3f}" for name in names)] for ensemble in ensembles]
    return ["All seeds of a method as one ensemble:", "", *_markdown(["method", *names], rows), ""]


def _tuning(tuning: Sequence[TunedSettings]) -> list[str]:
    """List the settings that each method was tuned to."""
    return [*(f"- {result['method']}: {tuned_sentence(result)}" for result in tuning), ""] if tuning else []


def write_summary(project: Project, comparison: ComparisonResult, folder: Path) -> None:
    """Write `metrics.json`, the table and the paired differences, and `curves.csv`, the headline metric by round.

    Args:
        project: The project.
        comparison: The result of the comparison.
        folder: Where to write; it is created.
    """
    quantity = project.quantity
    folder.mkdir(parents=True, exist_ok=True)
    table = {str(row["method"]): {name: row.get(name) for name in quantity.columns} for row in comparison["table"]}
    paired = {
        pair["method"]: {
            "difference": pair["difference"],
            "low": pair["corrected"]["low"],
            "high": pair["corrected"]["high"],
        }
        for pair in comparison["paired"]
    }
    write_json(folder / "metrics.json", {"methods": table, "paired": paired})
    write_bytes(folder / "curves.csv", _curves(project, comparison["runs"]).encode())


def _curves(project: Project, runs: Sequence[RunResult]) -> str:
    """Return a row for each round with the mean over seeds of each method; empty where a method was not scored."""
    values: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        by_round = values.setdefault(run["method"], {})
        folder = RunFolder(project.root / run["folder"])
        for round, value in folder.curve(project.quantity.headline, run["rounds"]):
            by_round.setdefault(round, []).append(value)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["round", *values])
    for round in sorted({round for by_round in values.values() for round in by_round}):
        cells = [by_round.get(round, []) for by_round in values.values()]
        writer.writerow([round, *(f"{math.fsum(cell) / len(cell):.6g}" if cell else "" for cell in cells)])
    return text.getvalue()
