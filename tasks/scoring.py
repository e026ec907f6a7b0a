"""From each client's counts to the metrics of a round."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.messages import Scores


def by_client(scores: Sequence[Scores]) -> dict[str, dict[str, Any]]:
    """client to `split/quantity`: accuracy in [0, 1], loss and entropy in nats a row; no rows give None."""
    table: dict[str, dict[str, Any]] = {}
    for s in scores:
        for i, client in enumerate(s.clients):
            rows = int(s.rows[i])
            row = table.setdefault(client, {})
            row[f"{s.split}/rows"] = rows
            for name, total in (("accuracy", s.correct), ("loss", s.loss), ("entropy", s.entropy)):
                row[f"{s.split}/{name}"] = float(total[i]) / rows if rows else None
    return table


def summary(table: dict[str, dict[str, Any]], split: str) -> dict[str, float]:
    """Mean, spread and worst over clients (each client counts once), and the mean over rows.

    `accuracy/sd` is the standard deviation over clients with n - 1; a client without rows in the split is left out.
    """
    scored = [row for row in table.values() if row.get(f"{split}/rows")]
    if not scored:
        return {}
    rows = np.array([row[f"{split}/rows"] for row in scored], dtype=float)
    found = {name: np.array([row[f"{split}/{name}"] for row in scored]) for name in ("accuracy", "loss", "entropy")}
    accuracy = found["accuracy"]
    return {
        "accuracy/mean": float(accuracy.mean()),
        "accuracy/sd": float(accuracy.std(ddof=1)) if len(accuracy) > 1 else 0.0,
        "accuracy/worst": float(accuracy.min()),
        "accuracy/over_rows": float((accuracy * rows).sum() / rows.sum()),
        "loss/mean": float(found["loss"].mean()),
        "entropy/mean": float(found["entropy"].mean()),
    }
