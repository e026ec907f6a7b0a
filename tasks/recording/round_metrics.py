"""From each client's counts to the metrics of a round."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.metrics.task_metrics import QUANTITIES, Quantity
from tasks.messages import Scores

ACCURACY = QUANTITIES["classification"]


def by_client(scores: Sequence[Scores], quantity: Quantity = ACCURACY) -> dict[str, dict[str, Any]]:
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


def summary(table: dict[str, dict[str, Any]], split: str, quantity: Quantity = ACCURACY) -> dict[str, float]:
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
