"""How much two clients differ, in units that a reader knows: points of a share, means, deviations and factors.

The tests decide whether clients differ. These numbers only describe by how much, from the same summaries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypedDict

import numpy as np

from models.diagnosis.client_summaries.client_summary import LEAST_ROWS, Layout, Summaries, divide_or_zero, mixture
from models.diagnosis.client_summaries.common_cells import counts_of_pairs
from models.diagnosis.guarded_tests import ALPHA, LEAST_EFFECT

from .shift_words import ChangeKind

_Z95 = 1.959964
"""The 97.5 % quantile of the standard normal distribution."""

_UNIT_FACTOR, _UNIT_TOLERANCE = 2.0, 1.25
"""A change of unit multiplies the mean and the deviation by one factor: the least factor, and how far the two may differ."""


@dataclass(frozen=True)
class Change:
    """One number of the first and of the second client, and its difference with a 95 % interval.

    Attributes:
        what: `label`, `absent` of a label that one of the two does not have, `mean`, `spread`, `constant` of a feature that
            has one value at one of the two, `target` of a regression's mean target, `category`, `missing` or `rule`.
        name: The label or feature.
        first: A share, a mean or, for `spread` and `constant`, a deviation; for `rule` without a cell NaN.
        second: Likewise.
        difference: first - second; for `rule` the difference of the share of `value` among rows with equal `name`.
        low: The lower end of the interval, NaN if it is unknown.
        high: The upper end.
        deviations: The difference in pooled standard deviations, for `mean` only.
        factor: The ratio of means and of deviations, for `mean` if it looks like a change of unit, and for `target` if one
            factor explains both.
        value: The category, for `rule` the label, or for `constant` the one value.
        cell: For `rule` of a categorical feature, the category to whose rows the numbers belong, if it shows more than all.
    """

    what: ChangeKind
    name: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    deviations: float | None = None
    factor: float | None = None
    value: str | None = None
    cell: str | None = None

    @property
    def error(self) -> float:
        """The standard error of the difference; NaN if it is unknown."""
        return (self.high - self.low) / (2 * _Z95)

    @property
    def z(self) -> float:
        """The difference in standard errors; 0 if it is unknown."""
        return abs(self.difference) / self.error if self.error > 0 else 0.0

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0, or is unknown; a rule may differ in both directions and cancel."""
        return self.what == "rule" or not self.low <= 0 <= self.high


_FAR_SHARE = 8.0
"""A kurtosis of more than one in so many rows is that of a few far values."""


def largest_label_change(pair: Summaries, classes: list[str]) -> Change | None:
    """Return the class whose share differs most, in standard errors; with two classes the rarer one.

    pair: the summaries of two clients; only classes that both report are compared, but a class that one of the two does
    not have comes first.
    """
    labels, rows = pair.labels, pair.rows.astype(float)
    absent = absent_classes(pair)
    lacked = np.where(absent.any(0), np.nan_to_num(labels).max(0), 0.0)
    if lacked.any():
        index, nan = int(lacked.argmax()), float("nan")
        first, second = (float(share) for share in np.nan_to_num(labels[:, index]) / np.maximum(rows, 1.0))
        return Change("absent", classes[index], first, second, first - second, nan, nan)
    both = ~np.isnan(labels).any(0)
    if not both.any() or rows.min() <= 0:
        return None
    changes = [
        _share_change("label", classes[index], labels[:, index], rows, noisy=pair.noise is not None)
        for index in np.flatnonzero(both).tolist()
    ]
    if len(labels[0]) == 2:
        return min(changes, key=lambda change: change.first + change.second)
    return max(changes, key=lambda change: (change.z, abs(change.difference)))


def target_change(moments: np.ndarray) -> Change | None:
    """Return by how much the targets of two clients differ: an offset, or a gain; moments: (2, 5). None if undefined.

    A gain multiplies mean and deviation by one factor. It is named if deviations differ clearly, and means as they do.
    """
    mean_change = next(iter(_moment_changes("the target", moments, noisy=False)), None)
    if mean_change is None:
        return None
    rows, mean, spread, _, kurtosis = moments.T
    factor = None
    if (spread > 0).all() and mean[1] != 0:
        ratio = float(spread[0] / spread[1])
        error_of_log = float(np.sqrt((np.maximum(kurtosis - 1, 0.1) / (4 * rows)).sum()))
        error = np.hypot(
            ratio * mean[1] * error_of_log, np.sqrt(spread[0] ** 2 / rows[0] + (ratio * spread[1]) ** 2 / rows[1])
        )
        if abs(np.log(ratio)) > _CLEAR * error_of_log and abs(mean[0] - ratio * mean[1]) < _CLEAR * error:
            factor = ratio
    return replace(mean_change, what="target", factor=factor)


def are_unlike(changes: Sequence[Change]) -> bool:
    """Return whether the targets of several clients, each against the same others, differ by unlike amounts.

    One may be an offset and another a gain, or two factors or two offsets may be further apart than by chance.
    """
    if len({change.factor is None for change in changes}) > 1:
        return True
    return any(abs(a.first - b.first) > _CLEAR * np.hypot(a.error, b.error) for a, b in combinations(changes, 2))


_CLEAR = 3.0
"""Standard errors that are no chance."""


def absent_classes(summaries: Summaries) -> np.ndarray:
    """Return which classes a client has no row of, and another reports: (clients, classes) bool; none under noise.

    A client without unreported rows has none of a class that it does not report.
    """
    labels = summaries.labels
    if summaries.noise is not None:
        return np.zeros(labels.shape, bool)
    complete = (summaries.rows > 0) & (np.nan_to_num(labels).sum(-1) >= summaries.rows)
    present = np.nan_to_num(labels) > 0
    return complete[:, None] & ~present & present.any(0)


def constant_features(summaries: Summaries, layout: Layout) -> np.ndarray:
    """Return which numeric features have one value at a client, and vary at another: (clients, features) bool.

    None under noise, where means and deviations are those of bins.
    """
    constant = np.zeros((len(summaries.rows), len(layout.names)), bool)
    if summaries.noise is not None:
        return constant
    for feature in np.flatnonzero(layout.numeric).tolist():
        rows, mean, spread = mixture(summaries.moments[:, feature])[:, :3].T
        one_value = (rows >= LEAST_ROWS) & (spread <= _ROUNDING * np.abs(mean))
        constant[:, feature] = one_value & np.any(spread > _ROUNDING * np.abs(mean))
    return constant


_ROUNDING = 1e-9  # of the mean: the deviation of one value, combined over classes


def feature_change(pair: Summaries, layout: Layout, feature: int) -> Change | None:
    """Return what differs most in one feature, in standard errors: mean, spread, a category, or missing values.

    None if one of the clients reports no value.
    """
    name, noisy = layout.names[feature], pair.noise is not None
    constant = constant_features(pair, layout)[:, feature]
    if constant.any():
        moments = mixture(pair.moments[:, feature])
        (first, second), nan = np.where(constant, 0.0, moments[:, 2]).tolist(), float("nan")
        value = f"{moments[int(constant.argmax()), 1]:.4g}"
        return Change("constant", name, first, second, first - second, nan, nan, value=value)
    counts = _counts(pair, feature).sum(-1)
    changes = []
    if counts.shape[-1] and counts.sum(-1).min() > 0 and counts[:, -1].any():
        changes.append(_share_change("missing", name, counts[:, -1], counts.sum(-1), noisy))
    values = layout.categories[feature]
    if values is None:
        changes += _moment_changes(name, mixture(pair.moments[:, feature]), noisy)
    elif counts.shape[-1]:
        rows = counts[:, :-1].sum(-1)
        if rows.min() > 0:
            compared = range(len(values)) if len(values) != 2 else [1]  # of two, one is enough
            changes += [
                _share_change("category", name, counts[:, index], rows, noisy, f"{values[index]:g}")
                for index in compared
            ]
    if not changes:
        return None
    if noisy:
        return max(changes, key=lambda change: abs(change.deviations or change.difference))
    return max(changes, key=lambda change: change.z)


def _counts(pair: Summaries, feature: int) -> np.ndarray:
    """Return the counts of a feature in the cells that both clients have, (2, cells, columns)."""
    # noise may make counts negative
    return np.maximum(counts_of_pairs(pair, np.array([[0, 1]]))[0, :, feature], 0.0)


def rule_change(pair: Summaries, layout: Layout, feature: int, classes: list[str]) -> Change | None:
    """Return how much more often rows of the first client have a label than rows with the same value at the second.

    This is the Mantel-Haenszel risk difference over the cells of a feature (Greenland and Robins 1985), for the class
    in which it is largest in standard errors. If a single category shows it more clearly, the difference is of its rows.
    None if no cell has rows of both clients.
    """
    counts = _counts(pair, feature)
    if not counts.shape[1]:
        return None
    rows = counts.sum(-1)
    total = rows.sum(0)
    weight = divide_or_zero(rows[0] * rows[1], total)
    if weight.sum() <= 0:
        return None
    share = divide_or_zero(counts, np.repeat(rows[..., None], counts.shape[-1], -1))
    difference = (weight[:, None] * (share[0] - share[1])).sum(0) / weight.sum()
    per_row = divide_or_zero(share * (1 - share), np.repeat(rows[..., None], counts.shape[-1], -1))
    error = np.sqrt((weight[:, None] ** 2 * per_row.sum(0)).sum(0)) / weight.sum()
    both = ~np.isnan(pair.labels).any(0)
    compared = np.flatnonzero(both).tolist()
    if not compared:
        return None
    if len(both) == 2:
        # the differences of two classes are equal but for their sign; the rarer class is named
        best = min(compared, key=lambda index: counts[:, :, index].sum())
    else:
        best = max(compared, key=lambda index: abs(difference[index]) / max(error[index], 1e-9))
    half = _Z95 * float(error[best]) if pair.noise is None else float("nan")
    change = float(difference[best])
    nan = float("nan")
    name, values = layout.names[feature], layout.categories[feature] or ()
    of_all = Change("rule", name, nan, nan, change, change - half, change + half, value=classes[best])
    of_cells = [
        replace(
            _share_change("rule", name, counts[:, cell, best], rows[:, cell], pair.noise is not None, classes[best]),
            cell=f"{value:g}",
        )
        for cell, value in enumerate(values)
        if rows[:, cell].min() > 0
    ]
    return max([of_all, *of_cells], key=lambda change: change.z)


def _share_change(
    what: ChangeKind, name: str, counts: np.ndarray, rows: np.ndarray, noisy: bool, value: str | None = None
) -> Change:
    """Compare a share, (2,) counts of (2,) rows, with Agresti and Caffo's interval (2000): one row more of each kind."""
    first, second = (float(share) for share in counts / rows)
    adjusted = (counts + 1) / (rows + 2)
    error = float(np.sqrt((np.maximum(adjusted * (1 - adjusted), 0) / (rows + 2)).sum()))
    centre = float(adjusted[0] - adjusted[1])
    half = float("nan") if noisy else _Z95 * error
    return Change(what, name, first, second, first - second, centre - half, centre + half, value=value)


def _moment_changes(name: str, moments: np.ndarray, noisy: bool) -> list[Change]:
    """Compare mean and deviation, (2, 5) moments, with intervals that allow for kurtosis.

    Empty if a moment is undefined, or if few values far from all others dominate it: one such value of n has a kurtosis
    of about n.
    """
    rows, mean, spread, _, kurtosis = moments.T
    if not np.isfinite(moments).all() or (kurtosis > np.maximum(rows / _FAR_SHARE, 30)).any():
        return []
    error = float(np.sqrt((spread**2 / rows).sum()))
    pooled = float(np.sqrt(((rows - 1) * spread**2).sum() / max(rows.sum() - 2, 1)))
    difference = float(mean[0] - mean[1])
    half = float("nan") if noisy else _Z95 * error
    changes = [
        Change(
            "mean",
            name,
            float(mean[0]),
            float(mean[1]),
            difference,
            difference - half,
            difference + half,
            deviations=difference / pooled if pooled > 0 else None,
            factor=_unit_factor(mean, spread),
        )
    ]
    if changes[0].factor is None and (spread > 0).all() and not noisy:
        spread_error = float(np.sqrt((spread**2 * np.maximum(kurtosis - 1, 0.1) / (4 * rows)).sum()))
        change = float(spread[0] - spread[1])
        half = _Z95 * spread_error
        changes.append(Change("spread", name, float(spread[0]), float(spread[1]), change, change - half, change + half))
    return changes


def _unit_factor(mean: np.ndarray, spread: np.ndarray) -> float | None:
    """Return the ratio of means if the ratio of deviations is about the same, and neither is near 1."""
    if not (spread > 0).all() or mean[0] * mean[1] <= 0:
        return None
    ratio, of_spreads = float(mean[0] / mean[1]), float(spread[0] / spread[1])
    if not 1 / _UNIT_TOLERANCE <= ratio / of_spreads <= _UNIT_TOLERANCE:
        return None
    return ratio if max(ratio, 1 / ratio) >= _UNIT_FACTOR else None


def largest_mean_differences(summaries: Summaries, layout: Layout) -> np.ndarray:
    """Return for each two clients the largest difference of a mean, in pooled standard deviations: (clients, clients).

    Only numeric features are compared. NaN if two clients report no common feature.
    """
    largest = np.full((len(summaries.rows), len(summaries.rows)), np.nan)
    for feature in np.flatnonzero(layout.numeric).tolist():
        rows, mean, spread = mixture(summaries.moments[:, feature])[:, :3].T
        weights = np.where(rows > 1, rows - 1, 0.0)
        variance = weights * spread**2
        pooled = np.sqrt(np.add.outer(variance, variance) / np.maximum(np.add.outer(weights, weights), 1))
        distance = np.abs(np.subtract.outer(mean, mean))
        known = np.isfinite(distance) & np.isfinite(pooled)
        scaled = np.where(known, divide_or_zero(np.where(known, distance, 0.0), np.where(known, pooled, 0.0)), np.nan)
        largest = np.fmax(largest, scaled)
    return largest


def largest_share_differences(summaries: Summaries) -> np.ndarray:
    """Return for each two clients the largest difference of a label's share of rows: (clients, clients).

    Classes that one of the two does not report are left out. NaN if no class is reported by both.
    """
    largest = np.full((len(summaries.rows), len(summaries.rows)), np.nan)
    for counts in summaries.labels.T:
        share = counts / np.maximum(summaries.rows, 1)
        largest = np.fmax(largest, np.abs(np.subtract.outer(share, share)))
    return largest


class VisibleDifferences(TypedDict):
    """Differences that the tests find in four of five pairs: `share` of a label, `deviations` of a mean."""

    share: float
    deviations: float


def smallest_visible(rows: tuple[float, float], share: float, features: int) -> VisibleDifferences:
    """Return the differences that the tests find in four of five pairs: `share`, of a label, and `deviations`, of a mean.

    A test of one of `features` hypotheses at level ALPHA needs z standard errors, and an effect φ below LEAST_EFFECT is
    ignored.
    """
    from scipy.special import ndtri

    size = rows[0] * rows[1] / max(rows[0] + rows[1], 1)
    needed = [
        max(LEAST_EFFECT, float(ndtri(1 - ALPHA / (2 * hypotheses)) + ndtri(0.8)) / float(np.sqrt(max(size, 1e-9))))
        for hypotheses in (1, max(features, 1))
    ]
    return {"share": needed[0] * float(np.sqrt(share * (1 - share))), "deviations": needed[1]}
