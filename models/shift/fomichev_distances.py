"""The distances of Fomichev, Kholod and Kocheshkov, "Determining the types of shift between clients", section III.

A pair of clients differs in its features by D_X, in its labels by D_Y, in its concept by D_{Y|X}. Where the text leaves a
choice, `Readings` names it. D_Y and D_{Y|X} are called total variation there and are twice that: they go up to 2.

The posterior that class-conditional normal densities give by Bayes' rule, in logarithms; many at once.

What a client tells in the method of Fomichev, Kholod and Kocheshkov (section III.C): moments, ranges and class counts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.shift.client_summaries.client_summary import Layout, Summaries, mixture


@dataclass(frozen=True)
class Statistics:
    """Of all clients, in one order of features and classes; NaN where a value is unknown.

    Standard deviations are divided by n − 1, whatever the feature. A discrete feature has the codes 1 to K in the order of
    the schema, and its lowest and highest are those of the schema, not of the rows.
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
        """P(Y): (clients, classes); NaN of a client without rows."""
        total = self.class_counts.sum(-1, keepdims=True)
        none = np.full(self.class_counts.shape, np.nan)
        return np.divide(self.class_counts, total, out=none, where=total > 0)

    def of(self, features: slice) -> "Statistics":
        """The same of some features."""
        named = ("mean", "sd", "lowest", "highest", "present", "class_mean", "class_sd")
        of_features = {name: getattr(self, name)[:, features] for name in named}
        return Statistics(self.rows, self.class_counts, **of_features, categories=self.categories[features])


def of_summaries(told: Summaries, layout: Layout) -> Statistics:
    """From what clients tell in a diagnosis; ranges are the agreed bounds, which are no client's own values."""
    categories = np.array([0 if values is None else len(values) for values in layout.categories])
    whole, of_class = mixture(told.moments), told.moments[..., :-1, :]
    bounds = np.where(categories > 0, 1.0, layout.low), np.where(categories > 0, categories, layout.high)
    lowest, highest = (np.broadcast_to(bound, whole.shape[:2]) for bound in bounds)
    return Statistics(
        rows=told.rows,
        class_counts=np.nan_to_num(told.labels),
        mean=whole[..., 1],
        sd=whole[..., 2],
        lowest=lowest,
        highest=highest,
        present=np.nan_to_num(of_class[..., 0]),
        class_mean=of_class[..., 1],
        class_sd=of_class[..., 2],
        categories=categories,
    )


def statistics_of(
    clients: Sequence[tuple[np.ndarray, np.ndarray]], classes: int, categories: np.ndarray | None = None
) -> Statistics:
    """From rows: x (rows, features), y (rows,) classes from 0 on, of every client.

    A value that is not finite is missing: it is left out of its feature and class. categories: (features,), K of a feature
    with the codes 1 to K and 0 of a numeric one, which all are if it is not given.
    """
    if categories is None:
        categories = np.zeros(clients[0][0].shape[1], np.int64)
    told = [_of_client(np.asarray(x, np.float64), np.asarray(y), classes) for x, y in clients]
    joined = {name: np.stack([one[name] for one in told]) for name in told[0]}
    for name, bound in (("lowest", np.ones_like(categories)), ("highest", categories)):
        joined[name] = np.where(categories > 0, bound, joined[name])
    return Statistics(**joined, categories=categories)


def _of_client(x: np.ndarray, y: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    of_class = y[:, None] == np.arange(classes)
    finite = np.isfinite(x)
    by_class = finite[:, :, None] & of_class[:, None]
    mean, sd = _moments(x, finite)
    class_mean, class_sd = _moments(x[:, :, None], by_class)
    any_value = finite.any(0)
    return {
        "rows": np.asarray(len(y)),
        "class_counts": of_class.sum(0),
        "mean": mean,
        "sd": sd,
        "lowest": np.where(any_value, np.where(finite, x, np.inf).min(0, initial=np.inf), np.nan),
        "highest": np.where(any_value, np.where(finite, x, -np.inf).max(0, initial=-np.inf), np.nan),
        "present": by_class.sum(0),
        "class_mean": class_mean,
        "class_sd": class_sd,
    }


def _moments(x: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the first axis of those that are among them: NaN of none, and of one."""
    held = among.sum(0)
    mean = _shared(np.where(among, x, 0.0).sum(0), held)
    apart = np.where(among, x - np.where(held > 0, mean, 0.0), 0.0)
    return mean, np.sqrt(_shared((apart**2).sum(0), held - 1))


def _shared(total: np.ndarray, among: np.ndarray) -> np.ndarray:
    return np.divide(total, among, out=np.full(total.shape, np.nan), where=among > 0)


_LEAST_SD = 1e-3  # of the feature's standard deviation


def posterior(at: np.ndarray, mean: np.ndarray, sd: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """P(Y | X = x) at points: (..., points, classes), each of sum 1.

    at: (..., points); mean, sd, prior: (..., classes), sd positive. A class with prior 0, or without a mean, has 0
    everywhere. Where no class has a density that a number can hold it is the prior of the others; without any class all 0.
    """
    there = (prior > 0) & np.isfinite(mean)
    level = np.log(prior, out=np.full(there.shape, -np.inf), where=there) - np.log(sd)
    apart = at[..., None] - np.where(there, mean, 0.0)[..., None, :]
    with np.errstate(over="ignore"):
        apart /= sd[..., None, :]
        apart *= apart
    logs = level[..., None, :] - apart / 2
    largest = logs.max(-1, keepdims=True)
    densities = np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))
    total = densities.sum(-1, keepdims=True)
    held = np.where(there, prior, 0.0)
    share = held / np.maximum(held.sum(-1, keepdims=True), np.finfo(float).tiny)
    out = np.broadcast_to(share[..., None, :], densities.shape).copy()
    return np.divide(densities, total, out=out, where=total > 0)


def usable_sd(class_sd: np.ndarray, present: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Standard deviations that a density can have, (..., classes), of a client's own classes.

    class_sd: (..., classes), NaN where unknown; present: the rows behind each; sd: (...) of the feature over all classes.
    A class of one row has that of the others about their own means, pooled. None is below a thousandth of the feature's,
    or 1 where the feature is constant: then all classes have one mean, and the posterior is the prior whatever it is.
    """
    known = np.isfinite(class_sd) & (present > 1)
    free = np.where(known, present - 1.0, 0.0)
    squares = (free * np.where(known, class_sd, 0.0) ** 2).sum(-1)
    within = np.sqrt(squares / np.maximum(free.sum(-1), 1))
    least = np.where(sd > 0, _LEAST_SD * sd, 1.0)
    return np.maximum(np.where(known, class_sd, within[..., None]), least[..., None])


Priors = Callable[[np.ndarray], np.ndarray]  # of pairs: (pairs, 2, features, classes)

_TILE = 2**20  # numbers of one array: 8 MiB, which takes half the time of 32


@dataclass(frozen=True)
class Readings:
    """Choices that the text leaves.

    `range`, which divides the difference of means: of both clients together, or the larger of their own, as printed, with
    which D_X has no bound. `aggregate`: what a pair has over its features. `grid`: evenly over the range of the pair, or of
    all clients. `divisor` of variances: as printed, n − 1 of numeric features and n of discrete ones, or one for both.
    A class with `one_row` has no standard deviation: it has that of the client's other classes, or counts as absent.
    Of each distance the lower bounds of the three upper grades; from moderate on it is a shift. Those of D_{Y|X} are not
    printed.
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


def feature_distance(told: Statistics, pairs: np.ndarray, readings: Readings = Readings()) -> np.ndarray:
    """D_X of pairs of clients, (pairs, 2), by feature: (pairs, features).

    0/0 is 0. Unknown, NaN, where a client has fewer than two values: there is no standard deviation.
    """
    sd = _scale(told.present.sum(-1), told.categories, readings) * told.sd
    first, second = pairs.T
    lowest, highest = told.lowest[pairs.T], told.highest[pairs.T]
    width = highest.max(0) - lowest.min(0) if readings.range == "union" else (highest - lowest).max(0)
    means = _ratio(np.abs(told.mean[first] - told.mean[second]), width)
    sds = _ratio(np.abs(sd[first] - sd[second]), np.maximum(sd[first], sd[second]))
    return np.sqrt(means**2 + sds**2)


def label_distance(told: Statistics, pairs: np.ndarray) -> np.ndarray:
    """D_Y of pairs: (pairs,), from 0 to 2, which is twice the total variation."""
    return np.abs(told.prior[pairs[:, 0]] - told.prior[pairs[:, 1]]).sum(-1)


def concept_distance(told: Statistics, pairs: np.ndarray, readings: Readings = Readings()) -> np.ndarray:
    """D_{Y|X} of pairs by feature: (pairs, features), from 0 to 2, which is twice the mean total variation over the grid.

    Unknown, NaN, where a client tells of no class.
    """
    known = known_classes(told, readings)
    there = known[pairs].any(-1).all(1)
    prior = np.where(known, told.prior[:, None], 0.0)
    return np.where(there, _apart(told, pairs, readings, lambda part: prior[part]), np.nan)


def distance_at_equal_priors(
    told: Statistics, pairs: np.ndarray, readings: Readings = Readings(), classes: Literal["shared", "own"] = "shared"
) -> np.ndarray:
    """D_{Y|X} if either client had its classes equally often: (pairs, features). Not in the paper.

    What label shift alone does to the posterior is gone from it, if only `shared` classes are compared; NaN where there are
    fewer than two. With a client's `own` it counts a class that only one of them has, and is NaN where one has none.
    """
    known = known_classes(told, readings)

    def held(part: np.ndarray) -> np.ndarray:
        of_pair = known[part]
        return of_pair & of_pair.all(1, keepdims=True) if classes == "shared" else of_pair

    def equal(part: np.ndarray) -> np.ndarray:
        return held(part) / np.maximum(held(part).sum(-1, keepdims=True), 1)

    there = (held(pairs).sum(-1) >= (2 if classes == "shared" else 1)).all(1)
    return np.where(there, _apart(told, pairs, readings, equal), np.nan)


def distance_in_classes(joint: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """D_{X|Y}: twice the total variation of X within a class, mean over the classes that both hold: (pairs, features).

    Not in the paper, which asks whether P(X | Y) differs and gives no formula. joint: (clients, features, bins, classes),
    rows of a class in a bin. NaN where the clients share no class.
    """
    held = joint.sum(-2, keepdims=True)
    within = joint / np.maximum(held, 1)
    distances = np.empty((len(pairs), joint.shape[1]))
    for part in _tiles(len(pairs), joint[0].size):
        first, second = pairs[part].T
        shared = (held[first] > 0) & (held[second] > 0)
        apart = (np.abs(within[first] - within[second]) * shared).sum((-2, -1))
        among = shared.sum((-2, -1))
        distances[part] = np.divide(apart, among, out=np.full(apart.shape, np.nan), where=among > 0)
    return distances


def posteriors(told: Statistics, grid: np.ndarray, readings: Readings = Readings()) -> np.ndarray:
    """Every client's P(Y | X_r) on one grid for all: (clients, features, points, classes); grid: (features, points)."""
    prior = np.where(known_classes(told, readings), told.prior[:, None], 0.0)
    return posterior(grid, told.class_mean, _class_sd(told, readings), prior)


def federation_grid(told: Statistics, points: int) -> np.ndarray:
    """Points from a feature's lowest to its highest value over all clients: (features, points)."""
    lowest, highest = np.fmin.reduce(told.lowest), np.fmax.reduce(told.highest)
    return np.linspace(np.nan_to_num(lowest), np.nan_to_num(highest), points, axis=-1)


def known_classes(told: Statistics, readings: Readings = Readings()) -> np.ndarray:
    """Whether a client tells of a class and feature what a posterior needs: (clients, features, classes) bool."""
    least = 1 if readings.one_row == "pooled" else 2
    return np.isfinite(told.class_mean) & (told.prior > 0)[:, None] & (told.present >= least)


def _apart(told: Statistics, pairs: np.ndarray, readings: Readings, priors: Priors) -> np.ndarray:
    """Mean over the grid of how far the posteriors of a pair are apart: (pairs, features)."""
    sd = _class_sd(told, readings)
    apart = np.empty((len(pairs), told.mean.shape[1]))
    for tile in _tiles(len(pairs), 2 * readings.points * sd[0].size):
        part = pairs[tile]
        grid = _grids(told, part, readings)
        both = posterior(grid[:, None], told.class_mean[part], sd[part], priors(part))
        apart[tile] = np.abs(both[:, 0] - both[:, 1]).sum(-1).mean(-1)
    return apart


def _tiles(pairs: int, size: int) -> Iterator[slice]:
    """Slices of pairs, of each of which so many numbers are held at once."""
    step = max(1, _TILE // max(1, size))
    return (slice(start, start + step) for start in range(0, pairs, step))


def _grids(told: Statistics, pairs: np.ndarray, readings: Readings) -> np.ndarray:
    """(pairs, features, points), or (1, features, points) where all pairs have one."""
    if readings.grid == "federation":
        return federation_grid(told, readings.points)[None]
    lowest = np.fmin(*told.lowest[pairs.T])
    highest = np.fmax(*told.highest[pairs.T])
    return np.linspace(np.nan_to_num(lowest), np.nan_to_num(highest), readings.points, axis=-1)


def _class_sd(told: Statistics, readings: Readings) -> np.ndarray:
    scale = _scale(told.present, told.categories[:, None], readings)
    return usable_sd(scale * told.class_sd, told.present, told.sd)


def _scale(held: np.ndarray, categories: np.ndarray, readings: Readings) -> np.ndarray:
    """What standard deviations over so many rows are multiplied by, for the divisor that is read."""
    by_n = {"printed": categories > 0, "n": categories >= 0, "n - 1": categories < 0}[readings.divisor]
    return np.where(by_n, np.sqrt(np.maximum(held - 1, 0) / np.maximum(held, 1)), 1.0)


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.divide(over, under, out=np.zeros_like(over), where=over != 0)
