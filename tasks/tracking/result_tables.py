"""Tables of a run and of a comparison, and the metrics of a round from the counts of clients."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from silos.io.atomic_io import writing
from tasks.messages.score_messages import Scores

ACCURACY = TASK_METRICS["classification"]


def write_client_table(path: Path, records: Callable[[], Iterable[Mapping[str, Any]]]) -> Path:
    """A row for each round and client told of, as CSV; the records are asked for twice, and read one at a time."""
    columns = sorted({c for record in records() for row in record["clients"].values() for c in row})
    with writing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["round", "client", "dropped", *columns])
        for record in records():
            dropped = set(record["dropped"])
            for client, row in record["clients"].items():
                values = ["" if row.get(c) is None else row[c] for c in columns]
                writer.writerow([record["round"], client, int(client in dropped), *values])
        text.detach()
    return path


def table_rows(results: Sequence[Mapping[str, Any]], quantity: TaskMetrics = ACCURACY) -> list[dict[str, Any]]:
    """One row a method: means over seeds, `accuracy/mean/sd` the standard deviation over seeds (n - 1)."""
    rows = []
    others = tuple(f"{role}/{quantity.headline}" for role in ("fresh", "unseen"))  # where the data have such clients
    for method in dict.fromkeys(r["method"] for r in results):
        runs = [r for r in results if r["method"] == method]
        row: dict[str, Any] = {"method": method, "model": runs[0]["model"], "seeds": len(runs)}
        for name in (*quantity.columns, "loss/mean", *others):
            numbers = [r["metrics"].get(name) for r in runs]
            if name in others and numbers == [None] * len(runs):
                continue
            values = [v for v in numbers if v is not None and math.isfinite(v)]  # a run may have diverged
            row[name] = statistics.fmean(values) if values else None
            row[f"{name}/sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
        row["seconds"] = statistics.fmean(r["seconds"]["total"] for r in runs)
        row["bytes/up"] = statistics.fmean(r["bytes"]["up"] for r in runs)
        row["bytes/down"] = statistics.fmean(r["bytes"]["down"] for r in runs)
        rows.append(row)
    return rows


ACCURACY_round_metrics = TASK_METRICS["classification"]


def by_client(scores: Sequence[Scores], quantity: TaskMetrics = ACCURACY_round_metrics) -> dict[str, dict[str, Any]]:
    """client to `split/name`: accuracy in [0, 1] or rmse in units of y, loss and entropy a row; no rows give None."""
    table: dict[str, dict[str, Any]] = {}
    for s in scores:
        for i, client in enumerate(s.clients):
            rows = int(s.rows[i])
            row = table.setdefault(client, {})
            row[f"{s.split}/rows"] = rows
            mean = {name: float(total[i]) / rows for name, total in s.sums.items()} if rows else {}
            row[f"{s.split}/{quantity.name}"] = quantity.of_mean(mean[quantity.outcome]) if rows else None
            for name in ("loss", *quantity.also):
                row[f"{s.split}/{name}"] = mean.get(name)
    return table


def summary(
    table: dict[str, dict[str, Any]], split: str, quantity: TaskMetrics = ACCURACY_round_metrics
) -> dict[str, float]:
    """The quantity's aggregates over clients, and the means over clients of the loss and what else it has.

    Each client counts once; one without rows in the split is left out.
    """
    scored = [row for row in table.values() if row.get(f"{split}/rows")]
    if not scored:
        return {}
    rows = np.array([row[f"{split}/rows"] for row in scored], dtype=float)
    values = {n: np.array([row[f"{split}/{n}"] for row in scored]) for n in (quantity.name, "loss", *quantity.also)}
    means = {f"{name}/mean": float(values[name].mean()) for name in ("loss", *quantity.also)}
    return {**quantity.summary(values[quantity.name], rows), **means}
