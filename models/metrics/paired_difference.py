"""The paired difference of two methods, from outcomes on the same seeds and rows.

Seeds and test rows are crossed random factors: the same rows are tested in every seed. The variance of the mean
difference is V = V_rows + V_seeds - V_both. It follows from the method of moments for a two-way layout with one
observation a cell. Clients are fixed strata of equal weight, since `accuracy/mean` and `rmse/pooled` count every
client once. Degrees of freedom follow Satterthwaite (1946).

In simulations the 95 % interval covers the true difference in 92 to 99 % of cases with 3 seeds, and in 94 to 98 % with
10. With 2 seeds it is wide, and covers 86 to 93 % if seeds vary more than rows; with 1 seed it does not include their
variance. `siloflow bench --intervals` repeats the simulations, also of silos and of partitions as draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np

from .task_metrics import TASK_METRICS, TaskMetrics

ACCURACY = TASK_METRICS["classification"]

LEAST_SILOS = 8
"""Fewer silos say too little about others: Student's interval would rest on six degrees of freedom or fewer."""

_ROUNDING = 1e-7  # of the mean: a smaller error is what rounding leaves of equal draws


@dataclass(frozen=True)
class Stratum:
    """One client's sums of d, a difference for every seed and row: of correctness, +1, 0 or -1, or of errors.

    by_seed: over rows, for each seed; mean_squares: over rows, of (mean over seeds)^2; squares: of d^2. If rows belong
        to units, units are counted instead of rows.
    """

    rows: int
    by_seed: Sequence[float]
    mean_squares: float
    squares: float

    @classmethod
    def from_differences(cls, d: np.ndarray, unit: np.ndarray | None = None) -> "Stratum":
        """Compute the sums of d, (seeds, rows) float64; rows of one unit, (rows,), are one draw."""
        if unit is not None:
            d = _differences_by_unit(d, unit)
        by_seed = tuple(float(v) for v in d.sum(1))
        return cls(d.shape[1], by_seed, float((d.mean(0) ** 2).sum()), float((d**2).sum()))


def _differences_by_unit(d: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return a difference for each seed and unit whose mean over units is that over rows: (seeds, units).

    Beyond that mean it is the sum of the unit's deviations from it, over the mean size of a unit. So the variance of
    the mean is that of a ratio, the sum of d to the number of rows (Cochran 1977, section 9A.4).
    """
    units, number = np.unique(unit, return_inverse=True)
    mean = d.mean(1, keepdims=True)
    sums = np.stack([np.bincount(number.ravel(), of_seed, len(units)) for of_seed in d - mean])
    return mean + sums * (len(units) / d.shape[1])


@dataclass(frozen=True)
class Difference:
    """A mean difference in accuracy, in [-1, 1], or in rmse, with its 95 % interval.

    `p` is the two-sided p-value of "no difference", from the same variance and degrees of freedom as the interval.
    `error` is the standard error; 0 if no draw differs from another, infinite if the variance is unknown.
    """

    mean: float
    low: float
    high: float
    p: float = field(default=math.nan, compare=False)
    error: float = field(default=math.nan, compare=False)
    dof: float = field(default=math.nan, compare=False)
    bound: float = field(default=math.inf, compare=False)

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    @classmethod
    def of_student(
        cls, mean: float, error: float, dof: float, p: float, level: float = 0.95, bound: float = math.inf
    ) -> "Difference":
        """Return the mean with Student's interval, inside [-bound, bound].

        The error is zero if draws are equal. Then the interval is the mean alone where the sign test rejects, else all
        values.

        Args:
            mean: The mean difference.
            error: Its standard error.
            dof: The degrees of freedom.
            p: The two-sided p-value of "no difference".
            level: The level of the interval.
            bound: The largest possible difference.
        """
        if not error:
            low, high = (-bound, bound) if mean and p > 1 - level else (mean, mean)
            return cls(mean, low, high, p, error, dof, bound)
        from scipy.special import stdtrit  # imported here, because it is slow and a run is trained without it

        half_width = float(stdtrit(dof, (1 + level) / 2)) * error
        return cls(mean, max(mean - half_width, -bound), min(mean + half_width, bound), p, error, dof, bound)

    @classmethod
    def unknown(cls, mean: float, bound: float) -> "Difference":
        """Return the mean with all of [-bound, bound]: the draws do not show how much it varies."""
        return cls(mean, -bound, bound, 1.0, math.inf, 0.0, bound)


def difference(
    strata: Sequence[Stratum], level: float = 0.95, bound: float = 1.0, pooled_variance: bool = True
) -> Difference:
    """Return the paired difference over clients, seeds and rows; clients without rows are ignored.

    With one seed the interval covers the variance of rows only. If no client has two rows, the interval is all of
    [-bound, bound]. If any d is not finite, all results are NaN. ValueError if no client has rows.

    Args:
        strata: The sums of each client.
        level: The level of the interval.
        bound: The largest possible |d|.
        pooled_variance: Whether rows of all clients share one variance; otherwise each client with two rows or more
            has its own.
    """
    used = _with_rows(strata)
    rows, per_client = _means(used)
    if not np.isfinite(per_client).all():
        return Difference(math.nan, math.nan, math.nan)
    mean = float(per_client.mean())
    if rows.max() == 1 and any(s.squares for s in used):
        return Difference.unknown(mean, bound)
    crossed, parts = _crossed_variance(used, pooled_variance)
    own = per_client.mean(1)
    return _student(mean, crossed, parts, (int(rows[own > 0].sum()), int(rows[own < 0].sum())), level, bound)


def difference_over_silos(strata: Sequence[Stratum], level: float = 0.95, bound: float = 1.0) -> Difference:
    """Return the paired difference with an interval for other silos like these: silos are draws, crossed with seeds.

    A client's mean over its rows, for each seed, is one observation of a two-way layout of clients and seeds. So the
    variance of its rows is part of that between clients, and the variance of the mean is V_silos + V_seeds - V_both.
    The trained models are those of these silos: how a federation of other silos would train is not covered.

    Args:
        strata: The sums of each client; clients without rows are ignored.
        level: The level of the interval.
        bound: The largest possible |d|.

    Raises:
        ValueError: If no client has rows.
    """
    _, per_client = _means(_with_rows(strata))
    return difference([Stratum.from_differences(per_client.T)], level, bound)


def difference_over_partitions(
    partitions: Sequence[Sequence[Stratum]],
    shared: float = 0.0,
    level: float = 0.95,
    bound: float = 1.0,
    pooled_variance: bool = True,
) -> Difference:
    """Return the mean paired difference over partitions of one source, with an interval for other partitions.

    Partitions are draws, crossed with seeds, as silos in `difference_over_silos`. Partitions of one source test on some
    rows in common: the variance of rows within a partition, times `shared`, does not fall with more partitions.

    Args:
        partitions: The strata of each partition, with the same seeds.
        shared: The share of a partition's test rows that another one tests on too: 1 if the source marks its test rows,
            the share of rows tested if each partition draws them, 0 if the source is drawn for each partition.
        level: The level of the interval.
        bound: The largest possible |d|.
        pooled_variance: As in `difference`.
    """
    used = [_with_rows(strata) for strata in partitions]
    means = [_means(strata) for strata in used]
    by_seed = np.stack([per_client.mean(0) for _, per_client in means])  # (partitions, seeds)
    if not np.isfinite(by_seed).all():
        return Difference(math.nan, math.nan, math.nan)
    mean = float(by_seed.mean())
    if len(used) == 1:
        return Difference.unknown(mean, bound)
    between, parts = _crossed_variance([Stratum.from_differences(by_seed.T)], True)
    of_rows = [
        _row_variance(np.array([_spread(s) for s in strata]), rows, pooled_variance)
        for strata, (rows, _) in zip(used, means, strict=True)
    ]
    variance_rows = shared * float(np.mean([variance for variance, _ in of_rows]))
    parts = [*parts, (variance_rows, sum(dof for _, dof in of_rows))]
    return _student(mean, between + variance_rows, parts, _signs(by_seed.mean(1)), level, bound)


def _with_rows(strata: Sequence[Stratum]) -> list[Stratum]:
    used = [s for s in strata if s.rows]
    if not used:
        raise ValueError("clients: got no rows in this split, expected some")
    return used


def _means(strata: Sequence[Stratum]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of each client, and its mean for each seed, (clients, seeds)."""
    rows = np.array([s.rows for s in strata], dtype=float)
    return rows, np.array([s.by_seed for s in strata], dtype=float) / rows[:, None]


def _spread(stratum: Stratum) -> float:
    """Return the sum of squares of the rows' means over seeds, around the client's mean."""
    mean = math.fsum(stratum.by_seed) / len(stratum.by_seed) / stratum.rows
    return stratum.mean_squares - stratum.rows * mean**2


def _crossed_variance(strata: Sequence[Stratum], pooled_variance: bool) -> tuple[float, list[tuple[float, float]]]:
    """Return the variance of the mean over rows and seeds, and the parts of rows and of seeds with their dof."""
    rows, per_client = _means(strata)
    seeds = per_client.shape[1]
    mean_squares, squares = (np.array([getattr(s, n) for s in strata]) for n in ("mean_squares", "squares"))
    variance_rows, dof_rows = _row_variance(mean_squares - rows * per_client.mean(1) ** 2, rows, pooled_variance)
    variance_seeds = variance_both = 0.0
    if seeds > 1:
        variance_seeds = float(per_client.mean(0).var(ddof=1)) / seeds
        shifts = rows * ((per_client - per_client.mean(1, keepdims=True)) ** 2).sum(1)
        both, _ = _row_variance(squares - seeds * mean_squares - shifts, rows, pooled_variance)
        variance_both = both / (seeds - 1) / seeds
    # an estimate can be below zero by chance; the larger of the two alone is then a lower bound
    variance = max(variance_rows + variance_seeds - variance_both, variance_rows, variance_seeds)
    return variance, [(variance_rows, dof_rows), (variance_seeds, seeds - 1)]


def _student(
    mean: float,
    variance: float,
    parts: Sequence[tuple[float, float]],
    signs: tuple[int, int],
    level: float,
    bound: float,
) -> Difference:
    """Return the mean with Student's interval; parts: variances with degrees of freedom, for Satterthwaite's."""
    error = _without_rounding(max(variance, 0.0) ** 0.5, mean)
    if not error and not mean and any(signs):  # clients differ, and cancel each other
        return Difference.unknown(mean, bound)
    dof = variance**2 / sum(v**2 / f for v, f in parts if f and v) if error else 0.0
    return Difference.of_student(mean, error, dof, _p_value(mean, error, dof, signs), level, bound)


def _signs(draws: np.ndarray) -> tuple[int, int]:
    """Return how many draws are above zero, and how many below."""
    return int((draws > 0).sum()), int((draws < 0).sum())


def _without_rounding(error: float, mean: float) -> float:
    """Return the error, or zero if the draws are equal but for rounding."""
    return error if error > _ROUNDING * abs(mean) else 0.0


def _p_value(mean: float, error: float, dof: float, signs: tuple[int, int]) -> float:
    """Return the two-sided p-value of Student's t; of the sign test if each client's draws are equal and the error is zero.

    The sign test counts the draws above and below zero in `signs`, and leaves out those that are zero.
    """
    if not mean and not error:
        return 1.0
    from scipy.special import bdtr, stdtr

    if error:
        return 2 * float(stdtr(dof, -abs(mean) / error))
    above, below = signs
    against = below if mean > 0 else above
    return min(2 * float(bdtr(against, above + below, 0.5)), 1.0)


def difference_over_draws(differences: Sequence[float], level: float = 0.95, bound: float = 1.0) -> Difference:
    """Return the mean of one difference for each draw of the data, with Student's interval.

    Args:
        differences: One for each draw; draws share neither rows nor distributions.
        level: The level of the interval.
        bound: The largest possible difference.

    Returns:
        With one draw, an interval of all of [-bound, bound]. If a difference is not finite, all results are NaN.

    Raises:
        ValueError: If there are no draws.
    """
    values = np.array(differences, dtype=float)
    if not len(values):
        raise ValueError("draws: got none, expected at least one")
    if not np.isfinite(values).all():
        return Difference(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if len(values) == 1:
        return Difference.unknown(mean, bound)
    error, dof = _without_rounding(float(values.std(ddof=1)) / len(values) ** 0.5, mean), len(values) - 1
    return Difference.of_student(mean, error, dof, _p_value(mean, error, dof, _signs(values)), level, bound)


def holm(p: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order of p.

    Rejecting where one is at most 0.05 keeps the chance of any false rejection at 5 %, however the tests depend on each
    other (Holm 1979). The j-th smallest of m values becomes the largest of (m - i + 1) p_i over i <= j, at most 1. NaN
    stays NaN and counts as no test.
    """
    order = sorted((value, index) for index, value in enumerate(p) if not math.isnan(value))
    adjusted, largest = [math.nan] * len(p), 0.0
    for smaller, (value, index) in enumerate(order):
        largest = max(largest, min((len(order) - smaller) * value, 1.0))
        adjusted[index] = largest
    return adjusted


def holm_intervals(differences: Sequence[Difference], level: float = 0.95) -> list[Difference]:
    """Return the differences with intervals that exclude zero exactly where Holm's test rejects, and Holm's p.

    Stepping down, the j-th smallest p of m is rejected at level (1 - level) / (m - j + 1), and its interval has that
    level. After k rejections all others have the level of the next step, m - k. The chance that any interval excludes a
    true difference of zero is at most 1 - level. The chance that all intervals cover their differences is that of
    Bonferroni's intervals only if nothing is rejected (Efird and Nielsen 2008). One difference stays as it is.
    """
    adjusted = holm([d.p for d in differences])
    tests = sum(not math.isnan(p) for p in adjusted)
    if tests < 2:
        return list(differences)
    order = sorted((d.p, index) for index, d in enumerate(differences) if not math.isnan(d.p))
    rank = {index: step for step, (_, index) in enumerate(order)}
    rejected = [p <= 1 - level for p in adjusted]
    intervals = []
    for index, (d, p) in enumerate(zip(differences, adjusted, strict=True)):
        if math.isnan(p):
            intervals.append(d)
        elif not math.isfinite(d.error):
            intervals.append(replace(Difference.unknown(d.mean, d.bound), p=p))
        else:
            tests_left = tests - (rank[index] if rejected[index] else sum(rejected))
            one = 1 - (1 - level) / max(tests_left, 1)
            intervals.append(replace(Difference.of_student(d.mean, d.error, d.dof, d.p, one, d.bound), p=p))
    return intervals


def _row_variance(spread: np.ndarray, rows: np.ndarray, pooled_variance: bool) -> tuple[float, float]:
    """Return the variance of the mean over clients and its degrees of freedom, from clients' sums of squares."""
    spread, dof = np.maximum(spread, 0.0) if not pooled_variance else spread, rows - 1
    pooled = max(float(spread.sum()), 0.0) / max(float(dof.sum()), 1.0)
    if pooled_variance:
        return pooled * float((1 / rows).sum()) / len(rows) ** 2, float(dof.sum())
    # a client with one row has no variance of its own
    variances = np.where(dof > 0, spread / np.maximum(dof, 1), pooled) / rows / len(rows) ** 2
    total = float(variances.sum())
    return total, total**2 / float((variances**2 / np.maximum(dof, 1)).sum()) if total else 0.0


def better_method(
    method: str, reference: str, measured: Difference, metrics: TaskMetrics = ACCURACY, matters: float = 0.0
) -> str | None:
    """Return the better of two methods; None if they are not distinguishable or differ by less than what matters.

    Args:
        method: The first method.
        reference: The method that it is compared with.
        measured: The paired difference, `method` minus `reference`.
        metrics: The metric, which says whether more is better.
        matters: The smallest difference that matters, in units of the metric.
    """
    if not measured.distinguishable or abs(measured.mean) < matters:
        return None
    return method if metrics.gain(measured.mean) > 0 else reference


def difference_sentence(
    method: str, reference: str, measured: Difference, metrics: TaskMetrics = ACCURACY, matters: float = 0.0
) -> str:
    """Return `fedprox − fedavg +0.4 points, −0.3 to +1.1: not distinguishable`; points are hundredths of accuracy.

    Args:
        method: The first method.
        reference: The method that it is compared with.
        measured: The paired difference, `method` minus `reference`.
        metrics: The metric, which formats the difference.
        matters: The smallest difference that matters, in units of the metric.
    """
    if math.isnan(measured.mean):
        return f"{method} − {reference}: not distinguishable, since predictions of one of them are not finite"
    winner = better_method(method, reference, measured, metrics, matters)
    verdict = "not distinguishable"
    if winner:
        verdict = f"{winner} is better"
    elif measured.distinguishable:
        verdict = f"certain, but smaller than what matters ({metrics.amount(matters)})"
    return f"{method} − {reference} {metrics.difference(measured.mean, measured.low, measured.high)}: {verdict}"


class DifferenceRecord(TypedDict):
    """The paired difference of two methods, first minus second, with its 95 % interval; null if it is not finite."""

    difference: float | None
    low: float | None
    high: float | None
    better: str | None
    """Null if neither is certainly better, by what matters or more."""
    sentence: str


def difference_record(
    first: str, second: str, difference: Difference, metrics: TaskMetrics, matters: float = 0.0
) -> DifferenceRecord:
    """Describe which is better and by how much, as JSON; neither is if they differ by less than what matters.

    Args:
        first: The first method.
        second: The method that it is compared with.
        difference: The paired difference, `first` minus `second`.
        metrics: The metric.
        matters: The smallest difference that matters, in units of the metric.
    """
    return {
        "difference": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "better": better_method(first, second, difference, metrics, matters),
        "sentence": difference_sentence(first, second, difference, metrics, matters),
    }


class CellDifferenceRecord(DifferenceRecord):
    """The paired difference of two cells of a published table."""

    first: str
    second: str


def cell_difference_record(
    first: str, second: str, difference: Difference, metrics: TaskMetrics, classes: Sequence[str] | None = None
) -> CellDifferenceRecord:
    """Describe two cells of a table with their names, and the classes that the comparison was restricted to."""
    record = difference_record(first, second, difference, metrics)
    suffix = f" on {', '.join(classes)}" if classes else ""
    return {"first": first, "second": second, **record, "sentence": f"{record['sentence']}{suffix}"}
