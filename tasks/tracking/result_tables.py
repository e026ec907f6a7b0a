"""Write the tables of a run and of a comparison, and compute the metrics of a round from the clients' counts."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from models.metrics.client_metrics import ClientMetric
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics, metric_value
from silos.io.atomic_io import writing
from tasks.messages.score_messages import Scores
from tasks.tracking.result_types.comparison_result import TableRow
from tasks.tracking.result_types.journal_record import RoundRecord
from tasks.tracking.result_types.run_result import ClientScore, RunResult

ACCURACY = TASK_METRICS["classification"]

ClientValues = dict[str, float | None]
"""A client's values by `split/name`; None for a client without rows, or for which a metric is undefined."""


def write_client_table(path: Path, records: Callable[[], Iterable[RoundRecord]]) -> Path:
    """Write a CSV row for each round and reported client; `records` is called twice, and records are read one at a time."""
    columns = sorted({column for record in records() for row in record["clients"].values() for column in row})
    with writing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["round", "client", "dropped", *columns])
        for record in records():
            dropped = set(record["dropped"])
            for client, row in record["clients"].items():
                values = ["" if row.get(column) is None else row[column] for column in columns]
                writer.writerow([record["round"], client, int(client in dropped), *values])
        text.detach()
    return path


def table_rows(results: Sequence[RunResult], metric: TaskMetrics = ACCURACY) -> list[TableRow]:
    """Return one row per method: means over seeds, and in `accuracy/mean/sd` the standard deviation over seeds (n - 1).

    If a metric of one seed is not finite, since training diverged, it has no mean. The loss is the mean of finite ones.
    """
    rows = []
    others = tuple(f"{role}/{metric.headline}" for role in ("fresh", "unseen"))  # if the data have such clients
    for method in dict.fromkeys(r["method"] for r in results):
        runs = [r for r in results if r["method"] == method]
        row: TableRow = {"method": method, "model": runs[0]["model"], "seeds": len(runs)}
        for name in (*metric.columns, "loss/mean", *others):
            numbers = [metric_value(r["metrics"], name) for r in runs]
            if name in others and numbers == [None] * len(runs):
                continue
            values = [v for v in numbers if v is not None and math.isfinite(v)]
            stated = sum(name in r["metrics"] for r in runs)  # also infinite ones, which a file has as null
            if name != "loss/mean" and len(values) < stated:
                values = []
            row[name] = statistics.fmean(values) if values else None
            row[f"{name}/sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
        row["seconds"] = statistics.fmean(r["seconds"]["total"] for r in runs)
        row["bytes/up"] = statistics.fmean(r["bytes"]["up"] for r in runs)
        row["bytes/down"] = statistics.fmean(r["bytes"]["down"] for r in runs)
        rows.append(row)
    return rows


def client_scores(run: RunResult, metric: str) -> list[ClientScore]:
    """Return each client's score by a metric, as a run's result has it."""
    scores = run["metrics"][f"{metric}/by_client"]
    assert isinstance(scores, list), "a list of clients"
    return scores


def by_client(scores: Sequence[Scores], metric: TaskMetrics = ACCURACY) -> dict[str, ClientValues]:
    """Return for each client `split/name`: accuracy in [0, 1] or rmse in units of y, and loss and entropy per row.

    Values are None for a client without rows, or for which a metric is undefined.
    """
    table: dict[str, ClientValues] = {}
    for message in scores:
        for i, client in enumerate(message.clients):
            rows = int(message.rows[i])
            row = table.setdefault(client, {})
            row[f"{message.split}/rows"] = rows
            mean = {name: float(total[i]) / rows for name, total in message.sums.items()} if rows else {}
            for each in (metric, *metric.reported):
                if each.outcome in message.sums:
                    row[f"{message.split}/{each.name}"] = _value(each, mean[each.outcome]) if rows else None
            for name in ("loss", *metric.also):
                row[f"{message.split}/{name}"] = mean.get(name)
    return table


def _value(metric: TaskMetrics, mean: float) -> float | None:
    """Return the metric; None if it is undefined for the client, whose rows then have no sum."""
    return None if isinstance(metric, ClientMetric) and math.isnan(mean) else metric.of_mean(mean)


def summary(table: Mapping[str, ClientValues], split: str, metric: TaskMetrics = ACCURACY) -> dict[str, float]:
    """Return the metrics' aggregates over clients, and the means over clients of the loss and the other measures.

    Each client counts once; a client without rows in the split, or for which a metric is undefined, is left out.
    """
    scored = [row for row in table.values() if row.get(f"{split}/rows")]
    if not scored:
        return {}
    metrics = {
        name: value for each in (metric, *metric.reported) for name, value in aggregates(table, split, each).items()
    }
    values_of = {name: np.array([row[f"{split}/{name}"] for row in scored]) for name in ("loss", *metric.also)}
    return {**metrics, **{f"{name}/mean": float(values.mean()) for name, values in values_of.items()}}


def aggregates(table: Mapping[str, ClientValues], split: str, metric: TaskMetrics) -> dict[str, float]:
    """Return one metric's aggregates over the clients that have it; `auc/undefined` counts the others.

    Empty if the metric was not computed.
    """
    column = f"{split}/{metric.name}"
    scored = [row for row in table.values() if row.get(f"{split}/rows") and column in row]
    defined = [row for row in scored if row[column] is not None]
    missing: dict[str, float] = {}
    if scored and isinstance(metric, ClientMetric) and metric.undefined_if:
        missing[f"{metric.name}/undefined"] = len(scored) - len(defined)
    if not defined:
        return missing
    values, rows = (np.array([row[name] for row in defined], dtype=float) for name in (column, f"{split}/rows"))
    return {**metric.summary(values, rows), **missing}
