"""A whole comparison in MLflow: the note above its runs, and one more run beside them with figure, tables and sentences."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flows.console import progress
from flows.experiment import prefect_artifacts
from flows.experiment.comparison.comparison_text import (
    comparison_table,
    headline,
    not_complete,
    sentences_after,
    tuned_sentence,
)
from flows.experiment.comparison.trials import Plan
from flows.experiment.project import Project
from flows.experiment.run.mlflow_run_metadata import dataset, git_commit
from models.metrics.task_metrics import TaskMetrics
from tasks.tracking.json_io import write_json
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.mlflow_logging.run_spec import FinalArtifacts, RunSpec

NAME = "comparison"
"""Of that run; it has metrics of its own names, so that by whatever the other runs are ordered it is the last."""


def comparison_settings(project: Project, wanted: Plan) -> str:
    """The note above the runs until the comparison is done."""
    methods, seeds = ", ".join(wanted.methods), ", ".join(map(str, wanted.seeds))
    return f"{methods} on {project.params.data.name} ({wanted.data_version}), seeds {seeds}: running, or stopped."


def log_comparison(project: Project, name: str, wanted: Plan, comparison: dict[str, Any], flow_run: str) -> None:
    """A store that is away is no reason to fail; told again, it is all there once. `flow_run`: its name in Prefect."""
    folder = project.runs / name
    tables = {"table.json": _methods(project, comparison), "runs.json": _runs(project, comparison)}
    for file, table in tables.items():
        write_json(folder / file, table)
    ticket = RunSpec(
        uri=project.tracking,
        artifacts=(project.runs / "artifacts" / name).as_uri(),
        experiment=name,
        name=NAME,
        tag=NAME,  # of all runs of its experiment, which is of this comparison alone
        tags={"data_version": wanted.data_version, "git_commit": git_commit(project.root)},
        links=prefect_artifacts.link(flow_run),
        params={
            "methods": ", ".join(wanted.methods),
            "seeds": ", ".join(map(str, wanted.seeds)),
            "reference": wanted.reference,
            "tune": wanted.tune,
        },
        quantity=project.quantity,
    )
    note = note_of(project, comparison)
    files = (folder / "comparison.png", folder / "comparison.json", *(folder / file for file in tables))
    began = int((folder / "experiment.json").stat().st_mtime * 1000)  # a repeated delivery adds no second value
    told = FinalArtifacts(
        files,
        data=dataset(project, project.silos),
        metrics={"round": 0, "time_ms": began, "metrics": metrics_of(project.quantity, comparison)},
        tags=_best(project.quantity, comparison),
        note="\n\n".join(text for text in (note, prefect_artifacts.sentence(flow_run)) if text),
        about=note,
        tables=tuple(tables),
        status="FAILED" if comparison["failed"] else "FINISHED",
    )
    delivery = MLflowLogger(folder, ticket)
    if delivery.finish(told) is None:
        progress.current().say(f"{delivery.problem}; it has nothing of the comparison itself, and runs/{name} has all.")
    elif delivery.notice:
        progress.current().say_once(f"{delivery.notice}.")


def metrics_of(quantity: TaskMetrics, comparison: Mapping[str, Any]) -> dict[str, float]:
    """The best method's headline metric, and each paired difference from the reference with its 95 % interval."""
    best = _best_row(quantity, comparison)
    metrics = {} if best is None else {f"best/{quantity.headline}": best[quantity.headline]}
    for pair in comparison["paired"]:
        name = f"difference/{pair['method']}"
        metrics |= {name: pair["difference"], f"{name}/low": pair["low"], f"{name}/high": pair["high"]}
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _best(quantity: TaskMetrics, comparison: Mapping[str, Any]) -> dict[str, str]:
    best = _best_row(quantity, comparison)
    return {} if best is None else {"best method": best["method"]}


def _best_row(quantity: TaskMetrics, comparison: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The table's row with the best headline metric; None if no method has a number."""
    best: Mapping[str, Any] | None = max(comparison["table"], key=quantity.score, default=None)
    return None if best is None or not math.isfinite(quantity.score(best)) else best


def note_of(project: Project, comparison: Mapping[str, Any]) -> str:
    """Markdown; its first line is all that the page shows of a folded note."""
    table = _methods(project, comparison)
    return "\n".join(
        [
            _first_line(comparison),
            "",
            *_markdown(table["columns"], table["data"]),
            "",
            *(f"- {p['sentence']}" for p in comparison["paired"]),
            *(f"- {sentence}" for sentence in sentences_after(comparison)),
            "",
            *_tuning(comparison["tuning"]),
            *_ensembles(comparison["ensembles"]),
            f"Data version {comparison['data_version']}.",
        ]
    )


def _first_line(comparison: Mapping[str, Any]) -> str:
    missing, verdicts = not_complete(comparison), headline(comparison["paired"])
    return f"{missing[:1].upper()}{missing[1:]}. {verdicts}" if missing else verdicts


def _methods(project: Project, comparison: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The table that is printed."""
    titles, *rows = comparison_table(comparison, project.quantity)
    return {"columns": titles, "data": rows}


def _runs(project: Project, comparison: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A row a run, with the hash that says whether two have the same bits."""
    quantity = project.quantity
    rows = [
        [
            run["method"],
            run["seed"],
            *(quantity.number(run["metrics"].get(name)) for name in quantity.columns),
            run["weights_sha256"],
            f"{run['seconds']['total']:.1f}",
        ]
        for run in comparison["runs"]
    ]
    return {"columns": ["method", "seed", *quantity.columns.values(), "weights_sha256", "seconds"], "data": rows}


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [" | ".join(map(str, row)) for row in (titles, *rows)]
    return [f"| {lines[0]} |", "|---" * len(titles) + "|", *(f"| {line} |" for line in lines[1:])]


def _ensembles(ensembles: Sequence[Mapping[str, Any]]) -> list[str]:
    if not ensembles:
        return []
    names = [name for name in ensembles[0] if name not in ("method", "seeds")]
    rows = [[one["method"], *(f"{one[name]:.3f}" for name in names)] for one in ensembles]
    return ["All seeds of a method as one ensemble:", "", *_markdown(["method", *names], rows), ""]


def _tuning(tuning: Sequence[dict[str, Any]]) -> list[str]:
    """What each method was tuned to."""
    return [*(f"- {one['method']}: {tuned_sentence(one)}" for one in tuning), ""] if tuning else []
