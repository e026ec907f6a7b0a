"""Whether two methods differ, from paired outcomes on the same seeds and rows.

Seeds and test rows are crossed random factors: the same rows are tested in every seed. The variance of the mean difference
is V = V_rows + V_seeds - V_both, the method of moments for a two-way layout with one observation a cell; clients are fixed
strata of equal weight, since `accuracy/mean` and `rmse/pooled` count every client once. Degrees of freedom after
Satterthwaite (1946).

In simulations the 95 % interval covers the true difference in 92 to 99 % of cases with 3 seeds and in 94 to 98 % with 10.
With 2 seeds it is wide, and where seeds vary more than rows it covers 86 to 93 %; with 1 it knows nothing of seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from .task_metrics import TASK_METRICS, TaskMetrics

ACCURACY = TASK_METRICS["classification"]


@dataclass(frozen=True)
class Stratum:
    """One client's sums of d = right_a - right_b, which is +1, 0 or -1 for every seed and row, or of d = error_a - error_b.

    `by_seed`: sum over rows, one number a seed; `mean_squares`: sum over rows of (mean over seeds)^2; `squares`: sum of d^2.
    """

    rows: int
    by_seed: Sequence[float]
    mean_squares: float
    squares: float

    @classmethod
    def of(cls, d: np.ndarray) -> "Stratum":
        """The sums of d (seeds, rows) float64."""
        by_seed = tuple(float(v) for v in d.sum(1))
        return cls(d.shape[1], by_seed, float((d.mean(0) ** 2).sum()), float((d**2).sum()))


@dataclass(frozen=True)
class Difference:
    """Mean difference in accuracy, in [-1, 1], or in mean squared error, with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def distinguishable(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def difference(strata: Sequence[Stratum], level: float = 0.95, bound: float = 1.0, alike: bool = True) -> Difference:
    """The paired difference over clients, seeds and rows; clients without rows do not count.

    `bound` is the largest |d| that there can be; `alike` takes one variance for the rows of all clients, else each client
    with two rows or more has its own. With one seed the interval speaks of rows only; where no client has two rows nothing
    is known of rows, and the interval is all of [-bound, bound]. Where a d is not finite nothing is known at all, and all
    three are NaN. ValueError if no client has rows.
    """
    used = [s for s in strata if s.rows]
    if not used:
        raise ValueError("no client has rows in this split")
    rows = np.array([s.rows for s in used], dtype=float)
    sums = np.array([s.by_seed for s in used], dtype=float)  # (clients, seeds)
    if not np.isfinite(sums).all():
        return Difference(math.nan, math.nan, math.nan)
    seeds = sums.shape[1]
    per_client = sums / rows[:, None]
    mean = float(per_client.mean())
    mean_squares, squares = (np.array([getattr(s, n) for s in used]) for n in ("mean_squares", "squares"))
    if rows.max() == 1 and squares.any():
        return Difference(mean, -bound, bound)

    variance_rows, free_rows = _of_rows(mean_squares - rows * per_client.mean(1) ** 2, rows, alike)
    variance_seeds = variance_both = 0.0
    if seeds > 1:
        variance_seeds = float(per_client.mean(0).var(ddof=1)) / seeds
        shifts = rows * ((per_client - per_client.mean(1, keepdims=True)) ** 2).sum(1)
        both, _ = _of_rows(squares - seeds * mean_squares - shifts, rows, alike)
        variance_both = both / (seeds - 1) / seeds
    # a factor can come out below zero by chance; the larger of the two alone is then the honest floor
    variance = max(variance_rows + variance_seeds - variance_both, variance_rows, variance_seeds)
    if variance <= 0:
        return Difference(mean, mean, mean)
    parts = [(variance_rows, free_rows), (variance_seeds, seeds - 1)]
    freedom = variance**2 / sum(v**2 / f for v, f in parts if f and v)
    half = float(stdtrit(freedom, (1 + level) / 2)) * variance**0.5
    return Difference(mean, max(mean - half, -bound), min(mean + half, bound))


def over_draws(differences: Sequence[float], level: float = 0.95, bound: float = 1.0) -> Difference:
    """The mean of one difference a draw of the data, with Student's interval: draws share neither rows nor laws.

    One draw tells nothing of others: the interval is all of [-bound, bound]. A difference that is not finite makes all
    three NaN. ValueError without draws.
    """
    values = np.array(differences, dtype=float)
    if not len(values):
        raise ValueError("there is no draw of the data")
    if not np.isfinite(values).all():
        return Difference(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if len(values) == 1:
        return Difference(mean, -bound, bound)
    half = float(stdtrit(len(values) - 1, (1 + level) / 2) * values.std(ddof=1) / len(values) ** 0.5)
    return Difference(mean, max(mean - half, -bound), min(mean + half, bound))


def _of_rows(spread: np.ndarray, rows: np.ndarray, alike: bool) -> tuple[float, float]:
    """Variance of the mean over clients, and its degrees of freedom, from each client's sum of squares over its rows."""
    spread, free = np.maximum(spread, 0.0) if not alike else spread, rows - 1
    together = max(float(spread.sum()), 0.0) / max(float(free.sum()), 1.0)
    if alike:
        return together * float((1 / rows).sum()) / len(rows) ** 2, float(free.sum())
    # a client with one row has no variance of its own
    variances = np.where(free > 0, spread / np.maximum(free, 1), together) / rows / len(rows) ** 2
    total = float(variances.sum())
    return total, total**2 / float((variances**2 / np.maximum(free, 1)).sum()) if total else 0.0


def better(method: str, reference: str, measured: Difference, quantity: TaskMetrics = ACCURACY) -> str | None:
    """Which of the two is better; None if that cannot be told."""
    if not measured.distinguishable:
        return None
    return method if quantity.gain(measured.mean) > 0 else reference


def sentence_of(method: str, reference: str, measured: Difference, quantity: TaskMetrics = ACCURACY) -> str:
    """`fedprox − fedavg +0.4 points, −0.3 to +1.1: not distinguishable`; points are hundredths of accuracy."""
    if math.isnan(measured.mean):
        return f"{method} − {reference}: not distinguishable, since predictions of one of them are not finite"
    winner = better(method, reference, measured, quantity)
    verdict = f"{winner} is better" if winner else "not distinguishable"
    return f"{method} − {reference} {quantity.difference(measured.mean, measured.low, measured.high)}: {verdict}"


def difference_record(first: str, second: str, difference: Difference, quantity: TaskMetrics) -> dict[str, Any]:
    """Who is better, and by how much."""
    return {
        "difference": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "better": better(first, second, difference, quantity),
        "sentence": sentence_of(first, second, difference, quantity),
    }


def difference_of_cells(
    first: str, second: str, difference: Difference, quantity: TaskMetrics, classes: Sequence[str] | None = None
) -> dict[str, Any]:
    """The same of two cells of a table, with their names, and with the classes whose rows alone were compared."""
    record = difference_record(first, second, difference, quantity)
    where = f" on {', '.join(classes)}" if classes else ""
    return {"first": first, "second": second, **record, "sentence": f"{record['sentence']}{where}"}
