"""The distances of Fomichev, Kholod and Kocheshkov, "Determining the types of shift between clients", section III.

A pair of clients differs in its features by D_X, in its labels by D_Y, in its concept by D_{Y|X}. `Readings` names the
choices that the text leaves open. D_Y and D_{Y|X} are called total variation there and are twice that: they go up to
2. The module also holds the statistics that a client reports in their method (section III.C: moments, ranges and class
counts), and the posterior that class-conditional normal densities give by Bayes' rule.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, mixture


@dataclass(frozen=True)
class Statistics:
    """Statistics of all clients, in one order of features and classes; NaN if undefined.

    Standard deviations have divisor n − 1 for every feature. A discrete feature has the codes 1 to K in the order of
    the schema; its lowest and highest are those of the schema, not of the rows.
    """

    rows: np.ndarray  # (clients,)
    class_counts: np.ndarray  # (clients, classes)
    mean: np.ndarray  # (clients, features)
    sd: np.ndarray  # (clients, features)
    lowest: np.ndarray  # (clients, features)
    highest: np.ndarray  # (clients, features)
    present: np.ndarray  # (clients, features, classes): rows of the class in which the feature is not missing
    class_mean: np.ndarray  # (clients, features, classes)
    class_sd: np.ndarray  # (clients, features, classes)
    categories: np.ndarray  # (features,): K, and 0 of a numeric feature

    @property
    def prior(self) -> np.ndarray:
        """P(Y): (clients, classes); NaN for a client without rows."""
        total = self.class_counts.sum(-1, keepdims=True)
        return _divide(self.class_counts, total)

    def select(self, features: slice) -> "Statistics":
        """Select features."""
        names = ("mean", "sd", "lowest", "highest", "present", "class_mean", "class_sd")
        selected = {name: getattr(self, name)[:, features] for name in names}
        return Statistics(self.rows, self.class_counts, **selected, categories=self.categories[features])


def statistics_from_summaries(summaries: Summaries, layout: Layout) -> Statistics:
    """Convert the reports of a diagnosis; ranges are the agreed bounds, which are no client's own values."""
    categories = np.array([0 if values is None else len(values) for values in layout.categories])
    moments, class_moments = mixture(summaries.moments), summaries.moments[..., :-1, :]
    bounds = np.where(categories > 0, 1.0, layout.low), np.where(categories > 0, categories, layout.high)
    lowest, highest = (np.broadcast_to(bound, moments.shape[:2]) for bound in bounds)
    return Statistics(
        rows=summaries.rows,
        class_counts=np.nan_to_num(summaries.labels),
        mean=moments[..., 1],
        sd=moments[..., 2],
        lowest=lowest,
        highest=highest,
        present=np.nan_to_num(class_moments[..., 0]),
        class_mean=class_moments[..., 1],
        class_sd=class_moments[..., 2],
        categories=categories,
    )


def statistics_from_rows(
    clients: Sequence[tuple[np.ndarray, np.ndarray]], classes: int, categories: np.ndarray | None = None
) -> Statistics:
    """Compute statistics from every client's rows: x (rows, features) and y (rows,), classes from 0 on.

    A value that is not finite is missing, and is left out of its feature and class. categories: (features,), K for a
    feature with codes 1 to K and 0 for a numeric one; all are numeric by default.
    """
    if categories is None:
        categories = np.zeros(clients[0][0].shape[1], np.int64)
    parts = [_of_client(np.asarray(x, np.float64), np.asarray(y), classes) for x, y in clients]
    arrays = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    for name, bound in (("lowest", np.ones_like(categories)), ("highest", categories)):
        arrays[name] = np.where(categories > 0, bound, arrays[name])
    return Statistics(**arrays, categories=categories)


def _of_client(x: np.ndarray, y: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    in_class = y[:, None] == np.arange(classes)
    finite = np.isfinite(x)
    finite_in_class = finite[:, :, None] & in_class[:, None]
    mean, sd = _moments(x, finite)
    class_mean, class_sd = _moments(x[:, :, None], finite_in_class)
    has_value = finite.any(0)
    return {
        "rows": np.asarray(len(y)),
        "class_counts": in_class.sum(0),
        "mean": mean,
        "sd": sd,
        "lowest": np.where(has_value, np.where(finite, x, np.inf).min(0, initial=np.inf), np.nan),
        "highest": np.where(has_value, np.where(finite, x, -np.inf).max(0, initial=-np.inf), np.nan),
        "present": finite_in_class.sum(0),
        "class_mean": class_mean,
        "class_sd": class_sd,
    }


def _moments(x: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation over the first axis within `mask`: NaN without values, and a NaN deviation of one."""
    count = mask.sum(0)
    mean = _divide(np.where(mask, x, 0.0).sum(0), count)
    distance = np.where(mask, x - np.where(count > 0, mean, 0.0), 0.0)
    return mean, np.sqrt(_divide((distance**2).sum(0), count - 1))


def _divide(sums: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Divide, with NaN where the count is 0."""
    return np.divide(sums, count, out=np.full(sums.shape, np.nan), where=count > 0)


_MIN_SD = 1e-3  # of the feature's standard deviation


def posterior(points: np.ndarray, mean: np.ndarray, sd: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return P(Y | X = x) at points: (..., points, classes), of sum 1 over classes.

    A class with prior 0 or without a mean has 0 everywhere. Where all densities underflow, the result is the prior of
    the present classes; without any class it is 0. mean, sd, prior: (..., classes), sd positive.
    """
    present = (prior > 0) & np.isfinite(mean)
    log_scale = np.log(prior, out=np.full(present.shape, -np.inf), where=present) - np.log(sd)
    distances = points[..., None] - np.where(present, mean, 0.0)[..., None, :]
    with np.errstate(over="ignore"):
        distances /= sd[..., None, :]
        distances *= distances
    distances /= 2
    log_densities = log_scale[..., None, :] - distances
    largest = log_densities.max(-1, keepdims=True)
    densities = log_densities - np.where(np.isfinite(largest), largest, 0.0)
    np.exp(densities, out=densities)
    total = densities.sum(-1, keepdims=True)
    if (total > 0).all():  # without a mask a division takes half the time
        return np.divide(densities, total, out=np.empty(densities.shape))
    present_prior = np.where(present, prior, 0.0)
    share = present_prior / np.maximum(present_prior.sum(-1, keepdims=True), np.finfo(float).tiny)
    out = np.broadcast_to(share[..., None, :], densities.shape).copy()
    return np.divide(densities, total, out=out, where=total > 0)


def usable_sd(class_sd: np.ndarray, present: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Return deviations usable in a density, (..., classes), of a client's own classes.

    A class of one row gets the pooled deviation of the other classes about their means. The lower bound is a
    thousandth of the feature's deviation `sd`, (...), or 1 if the feature is constant: then all classes have one mean,
    and the posterior is the prior for any deviation. class_sd: (..., classes), NaN if undefined; present: the rows
    behind each.
    """
    usable = np.isfinite(class_sd) & (present > 1)
    dof = np.where(usable, present - 1.0, 0.0)
    squares = (dof * np.where(usable, class_sd, 0.0) ** 2).sum(-1)
    pooled_sd = np.sqrt(squares / np.maximum(dof.sum(-1), 1))
    min_sd = np.where(sd > 0, _MIN_SD * sd, 1.0)
    return np.maximum(np.where(usable, class_sd, pooled_sd[..., None]), min_sd[..., None])


Priors = Callable[[np.ndarray], np.ndarray]  # of pairs: (pairs, 2, features, classes)

_BATCH_NUMBERS = 2**20  # of one array: 8 MiB, which takes half the time of 32


@dataclass(frozen=True)
class Readings:
    """Choices that the text leaves open.

    Attributes:
        range: The divisor of the difference of means: the range of both clients together, or the larger of their own
            ranges, as printed, with which D_X is unbounded.
        aggregate: How a pair's distance aggregates its features.
        grid: Whether the grid covers the range of the pair or of all clients, evenly.
        points: The points of the grid.
        divisor: Of variances: as printed, n − 1 for numeric features and n for discrete ones, or one for both.
        one_row: Whether a class with one row, which has no deviation, gets that of the client's other classes or is
            absent.
        feature_grades, label_grades, concept_grades: Lower bounds of the three upper grades; from moderate on it is a
            shift. Those of D_{Y|X} are not printed.
    """

    range: Literal["union", "printed"] = "union"
    aggregate: Literal["max", "mean"] = "max"
    grid: Literal["pair", "federation"] = "pair"
    points: int = 100
    divisor: Literal["printed", "n - 1", "n"] = "printed"
    one_row: Literal["pooled", "absent"] = "pooled"
    feature_grades: tuple[float, float, float] = (0.35, 0.7, 1.05)
    label_grades: tuple[float, float, float] = (0.5, 1.0, 1.5)
    concept_grades: tuple[float, float, float] = (0.5, 1.0, 1.5)


def feature_distance(statistics: Statistics, pairs: np.ndarray, readings: Readings = Readings()) -> np.ndarray:
    """Return D_X of pairs of clients, (pairs, 2), by feature: (pairs, features).

    0/0 is 0. NaN if a client has fewer than two values, and so no standard deviation.
    """
    sd = _scale(statistics.present.sum(-1), statistics.categories, readings) * statistics.sd
    first, second = pairs.T
    lowest, highest = statistics.lowest[pairs.T], statistics.highest[pairs.T]
    width = highest.max(0) - lowest.min(0) if readings.range == "union" else (highest - lowest).max(0)
    means = _ratio(np.abs(statistics.mean[first] - statistics.mean[second]), width)
    sds = _ratio(np.abs(sd[first] - sd[second]), np.maximum(sd[first], sd[second]))
    return np.sqrt(means**2 + sds**2)


def label_distance(statistics: Statistics, pairs: np.ndarray) -> np.ndarray:
    """Return D_Y of pairs: (pairs,), from 0 to 2, twice the total variation."""
    return np.abs(statistics.prior[pairs[:, 0]] - statistics.prior[pairs[:, 1]]).sum(-1)


def concept_distance(statistics: Statistics, pairs: np.ndarray, readings: Readings = Readings()) -> np.ndarray:
    """Return D_{Y|X} of pairs, (pairs, features), from 0 to 2, twice the mean total variation over the grid.

    NaN if a client reports no class.
    """
    known = known_classes(statistics, readings)
    comparable = known[pairs].any(-1).all(1)
    prior = np.where(known, statistics.prior[:, None], 0.0)
    return np.where(comparable, _posterior_distance(statistics, pairs, readings, lambda part: prior[part]), np.nan)


def distance_at_equal_priors(
    statistics: Statistics,
    pairs: np.ndarray,
    readings: Readings = Readings(),
    classes: Literal["shared", "own"] = "shared",
) -> np.ndarray:
    """Return D_{Y|X} with equal shares of each client's classes: (pairs, features). Not in the paper.

    With `shared` classes the effect of label shift on the posterior is removed; NaN with fewer than two shared
    classes. With a client's `own` classes, one that only one client has counts too; NaN if a client has none.
    """
    known = known_classes(statistics, readings)

    def compared_classes(batch: np.ndarray) -> np.ndarray:
        classes_of_pair = known[batch]
        return classes_of_pair & classes_of_pair.all(1, keepdims=True) if classes == "shared" else classes_of_pair

    def equal_prior(batch: np.ndarray) -> np.ndarray:
        return compared_classes(batch) / np.maximum(compared_classes(batch).sum(-1, keepdims=True), 1)

    comparable = (compared_classes(pairs).sum(-1) >= (2 if classes == "shared" else 1)).all(1)
    return np.where(comparable, _posterior_distance(statistics, pairs, readings, equal_prior), np.nan)


def distance_in_classes(joint: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return D_{X|Y}, the mean over shared classes of twice the total variation of X: (pairs, features).

    The paper considers whether P(X | Y) differs but gives no formula. joint: (clients, features, bins, classes) rows.
    NaN if the clients share no class.
    """
    rows = joint.sum(-2, keepdims=True)
    distances = np.empty((len(pairs), joint.shape[1]))
    for batch in _batches(len(pairs), joint[0].size):
        first, second = pairs[batch].T
        shared = (rows[first] > 0) & (rows[second] > 0)
        within, of_second = (joint[client] / np.maximum(rows[client], 1) for client in (first, second))
        within -= of_second
        distance = (np.abs(within, out=within) * shared).sum((-2, -1))
        num_shared = shared.sum((-2, -1))
        distances[batch] = _divide(distance, num_shared)
    return distances


def posteriors(statistics: Statistics, grid: np.ndarray, readings: Readings = Readings()) -> np.ndarray:
    """Return every client's P(Y | X_r) on one grid: (clients, features, points, classes); grid: (features, points)."""
    prior = np.where(known_classes(statistics, readings), statistics.prior[:, None], 0.0)
    return posterior(grid, statistics.class_mean, _class_sd(statistics, readings), prior)


def federation_grid(statistics: Statistics, points: int) -> np.ndarray:
    """Return points from a feature's lowest to its highest value over all clients: (features, points)."""
    lowest, highest = np.fmin.reduce(statistics.lowest), np.fmax.reduce(statistics.highest)
    return np.linspace(np.nan_to_num(lowest), np.nan_to_num(highest), points, axis=-1)


def known_classes(statistics: Statistics, readings: Readings = Readings()) -> np.ndarray:
    """Return whether a client reports what the posterior of a class needs: (clients, features, classes) bool."""
    min_rows = 1 if readings.one_row == "pooled" else 2
    return np.isfinite(statistics.class_mean) & (statistics.prior > 0)[:, None] & (statistics.present >= min_rows)


def _posterior_distance(statistics: Statistics, pairs: np.ndarray, readings: Readings, priors: Priors) -> np.ndarray:
    """Return the mean distance of a pair's posteriors over the grid: (pairs, features)."""
    sd = _class_sd(statistics, readings)
    distances = np.empty((len(pairs), statistics.mean.shape[1]))
    for batch in _batches(len(pairs), 2 * readings.points * sd[0].size):
        batch_pairs = pairs[batch]
        grid = _grids(statistics, batch_pairs, readings)
        both = posterior(grid[:, None], statistics.class_mean[batch_pairs], sd[batch_pairs], priors(batch_pairs))
        distances[batch] = np.abs(both[:, 0] - both[:, 1]).sum(-1).mean(-1)
    return distances


def _batches(pairs: int, numbers_per_pair: int) -> Iterator[slice]:
    """Split pairs into slices, given the numbers that each pair holds at once."""
    step = max(1, _BATCH_NUMBERS // max(1, numbers_per_pair))
    return (slice(start, start + step) for start in range(0, pairs, step))


def _grids(statistics: Statistics, pairs: np.ndarray, readings: Readings) -> np.ndarray:
    """Return (pairs, features, points), or (1, features, points) if all pairs have one grid."""
    if readings.grid == "federation":
        return federation_grid(statistics, readings.points)[None]
    lowest = np.fmin(*statistics.lowest[pairs.T])
    highest = np.fmax(*statistics.highest[pairs.T])
    return np.linspace(np.nan_to_num(lowest), np.nan_to_num(highest), readings.points, axis=-1)


def _class_sd(statistics: Statistics, readings: Readings) -> np.ndarray:
    scale = _scale(statistics.present, statistics.categories[:, None], readings)
    return usable_sd(scale * statistics.class_sd, statistics.present, statistics.sd)


def _scale(rows: np.ndarray, categories: np.ndarray, readings: Readings) -> np.ndarray:
    """Return the factor that converts deviations over `rows` rows to the divisor of `readings`."""
    divided_by_rows = {"printed": categories > 0, "n": categories >= 0, "n - 1": categories < 0}[readings.divisor]
    return np.where(divided_by_rows, np.sqrt(np.maximum(rows - 1, 0) / np.maximum(rows, 1)), 1.0)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=numerator != 0)
