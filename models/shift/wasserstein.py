"""How far apart two clients' rows lie: the 2-Wasserstein distance, of normal laws and of points with weights.

W(μ, ν) is the root of the least Σ π_ij ‖x_i - y_j‖² over all plans π that carry μ to ν. It is in units of the features, and
a feature of a large scale decides it: rows are to be on a scale that clients agree on.

FedWaD: the 2-Wasserstein distance of two clients' rows by a measure that goes between them (Rakotomamonjy, Nadjahi and
Ralaivola, ICLR 2024, arXiv 2310.01973, algorithm 1).

In each round both clients go halfway from the server's measure to their own rows, and the server goes halfway between what
they found. By the triangle inequality the sum of the clients' distances from the server's measure is never below the
distance from one to the other, and it reaches that where the measure lies on a shortest curve between them.

The clients' rows are given away, see `Points`. It is not private, and nothing should be built on it that says so.
"""

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

_LEAST_MASS = 1e-12  # less is rounding, and would make a point of its own
_STEPS = 10**7  # of the network simplex; thousands of points take fewer


def feature_distances(means: np.ndarray, sds: np.ndarray, other_means: np.ndarray, other_sds: np.ndarray) -> np.ndarray:
    """Of each feature as if it were normal: ((m - m')² + (s - s')²)^½, in the shape of what is given.

    Laws with these moments, whatever they are, are no nearer (Gelbrich 1990). Of rows that holds where s divides by their
    number.
    """
    return np.hypot(means - other_means, sds - other_sds)


def diagonal_distance(means: np.ndarray, sds: np.ndarray, other_means: np.ndarray, other_sds: np.ndarray) -> np.ndarray:
    """Of all features, (...), as if each were normal and independent of the others; all given: (..., features).

    It needs no more than means and standard deviations, and laws with these, whatever they are, are no nearer.
    """
    return np.linalg.norm(feature_distances(means, sds, other_means, other_sds), axis=-1)


def normal_distance(
    means: np.ndarray, covariances: np.ndarray, other_means: np.ndarray, other_covariances: np.ndarray
) -> np.ndarray:
    """Of normal laws, (...); means: (..., features), covariances: (..., features, features).

    Its square is ‖m - m'‖² + tr(Σ + Σ' - 2 (Σ^½ Σ' Σ^½)^½). The trace is the least ‖S - S'U‖² over orthogonal U, where
    S Sᵀ = Σ and S' S'ᵀ = Σ' (Bhatia, Jain and Lim 2019): no difference of large numbers is taken, so equals are at about 0.
    """
    root, other = _root(covariances), _root(other_covariances)
    left, _, right = np.linalg.svd(np.swapaxes(other, -2, -1) @ root)
    spread = np.linalg.norm(root - other @ (left @ right), axis=(-2, -1))
    return np.hypot(np.linalg.norm(means - other_means, axis=-1), spread)


@dataclass(frozen=True)
class Measure:
    """Points and how much of the whole lies at each of them."""

    points: np.ndarray  # (points, features) float64
    weights: np.ndarray  # (points,) float64, above 0, of sum 1


def uniform(rows: np.ndarray) -> Measure:
    """Rows (rows, features), each with the same weight; ValueError if there are none, or if one has no finite number."""
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"rows of shape {rows.shape} have no distance; give at least one, as (rows, features).")
    if not np.isfinite(rows).all():
        raise ValueError("rows with NaN or infinite values have no distance; leave them out, or fill them.")
    return Measure(rows.astype(np.float64), np.full(len(rows), 1 / len(rows)))


class Plan(NamedTuple):
    """Which mass is carried from which point to which: (moves,) each."""

    start: np.ndarray  # int64, places in the first measure
    end: np.ndarray  # int64, places in the second
    mass: np.ndarray  # float64, above 0, of sum 1


def optimal_plan(first: Measure, second: Measure) -> Plan:
    """The plan of least cost, of at most so many moves as there are points in both.

    Along one feature both are sorted. Otherwise the linear program is solved exactly by the network simplex of POT:
    ModuleNotFoundError where the extra `transport` is not installed, RuntimeError where it gives up. ValueError if the
    measures have other numbers of features. Memory is that of all pairs of points, and time may grow with their cube.
    """
    features, others = first.points.shape[1], second.points.shape[1]
    if features != others:
        raise ValueError(f"points of {features} features and of {others} have no distance; give the same to both.")
    start, end, mass = _sorted_plan(first, second) if features == 1 else _solved_plan(first, second)
    kept = mass >= _LEAST_MASS
    return Plan(start[kept], end[kept], mass[kept] / mass[kept].sum())


def distance(first: Measure, second: Measure) -> float:
    """W(first, second); errors as `optimal_plan`."""
    return cost(optimal_plan(first, second), first, second)


def cost(plan: Plan, first: Measure, second: Measure) -> float:
    """The root of the mean square of how far the plan carries."""
    moved = first.points[plan.start] - second.points[plan.end]
    return float(np.sqrt(plan.mass @ (moved**2).sum(1)))


def between(plan: Plan, first: Measure, second: Measure, share: float) -> Measure:
    """What lies this share of the way from the first to the second: a point for each move of an optimal plan.

    Its distance is share · W from the first and (1 - share) · W from the second: it lies on a shortest curve.
    """
    return Measure((1 - share) * first.points[plan.start] + share * second.points[plan.end], plan.mass)


def between_centres(plan: Plan, first: Measure, second: Measure, share: float) -> Measure:
    """As `between`, with as many points as the first has: each goes towards the mean of where its mass is carried.

    It is the same where each point's mass stays together, and else not on a shortest curve.
    """
    carried = np.zeros_like(first.points)
    np.add.at(carried, plan.start, plan.mass[:, None] * second.points[plan.end])
    return Measure((1 - share) * first.points + share * carried / first.weights[:, None], first.weights)


def _root(covariances: np.ndarray) -> np.ndarray:
    """S with S Sᵀ = Σ, also where Σ has no full rank."""
    values, vectors = np.linalg.eigh(covariances)
    rounding = np.finfo(np.float64).eps * values.shape[-1] * values[..., -1:]
    return vectors * np.sqrt(np.where(values > rounding, values, 0.0))[..., None, :]


def _sorted_plan(first: Measure, second: Measure) -> Plan:
    """Quantile to quantile: both are cut wherever one of them goes to its next point."""
    order, other = (np.argsort(one.points[:, 0], kind="stable") for one in (first, second))
    ends, others = np.cumsum(first.weights[order]), np.cumsum(second.weights[other])
    cuts = np.union1d(ends, others)
    mass = np.diff(cuts, prepend=0.0)
    middle = cuts - mass / 2
    # rounding may leave a last cut beyond the last point
    start = np.minimum(np.searchsorted(ends, middle), len(ends) - 1)
    end = np.minimum(np.searchsorted(others, middle), len(others) - 1)
    return Plan(order[start], other[end], mass)


def _solved_plan(first: Measure, second: Measure) -> Plan:
    # cdist takes differences; products, which POT's own `dist` takes, would leave equal points a little apart
    costs = cdist(first.points, second.points, "sqeuclidean")
    plan, told = _transport().emd(first.weights, second.weights, costs, numItermax=_STEPS, log=True)
    if told["warning"] is not None:
        raise RuntimeError(f"no optimal plan of {len(first.points)} to {len(second.points)} points: {told['warning']}")
    start, end = plan.nonzero()
    return Plan(start, end, plan[start, end])


def _transport() -> ModuleType:
    try:
        import ot  # seconds of import, and an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the Wasserstein distance of rows of several features needs POT, which is not installed; "
            "`pip install -c constraints.txt -e '.[transport]'` installs it, or leave out the distance of rows."
        ) from error
    return ot


Points = Literal["exact", "centres"]
"""What stands for halfway between two measures, and so what a client sends.

Whoever asks for either gives the clients' rows away. `exact`: a point of what is sent is the mean of one row and one point
that the server knows, so the server has every row, but for rounding, after one round. `centres`, the authors' barycentric
approximation: each is a mean over the rows that one point of the server's stands for. Those are few, or one, unless the
server has far fewer points than the client has rows, and each round sends other means of the same rows; with so few points
the bound is well above the distance.
"""

_HALF = 0.5
_STILL = 1e-6  # of the bound: a round that lowers it by less is the last


@dataclass(frozen=True)
class Answer:
    """What a client sends in a round: what lies halfway to its rows, and its distance from the server's measure."""

    halfway: Measure
    distance: float


@dataclass(frozen=True)
class Client:
    """The side that has rows, (rows, features), on a scale that all clients agree on; errors as `uniform`."""

    rows: np.ndarray
    points: Points = "exact"

    def answer(self, current: Measure) -> Answer:
        """To the server's measure of this round; errors as `optimal_plan`."""
        own = uniform(self.rows)
        plan = optimal_plan(current, own)
        return Answer(_WAYS[self.points](plan, current, own, _HALF), cost(plan, current, own))


@dataclass(frozen=True)
class Server:
    """The side that has none: the measure that clients are asked with, and a bound of each round so far."""

    current: Measure
    rounds: int = 10
    """How often the measure is moved; clients are asked once more, for the bound of the last."""
    points: Points = "exact"
    bounds: tuple[float, ...] = ()

    @property
    def bound(self) -> float:
        """What the distance is not above: never increases; infinite before the first answers."""
        return min(self.bounds, default=math.inf)

    @property
    def finished(self) -> bool:
        """All rounds are over, or the bound has stopped moving."""
        still = len(self.bounds) > 1 and self.bounds[-2] - self.bounds[-1] <= _STILL * self.bounds[-1]
        return still or len(self.bounds) > self.rounds

    def after(self, first: Answer, second: Answer) -> "Server":
        """The server after a round's answers."""
        told = replace(self, bounds=(*self.bounds, first.distance + second.distance))
        if told.finished:
            return told
        plan = optimal_plan(first.halfway, second.halfway)
        return replace(told, current=_WAYS[self.points](plan, first.halfway, second.halfway, _HALF))


def one_point(at: np.ndarray) -> Measure:
    """The start that reaches the distance: all mass at one point, (features,), best between both clients' means.

    All plans then agree with the optimal one between the clients, and what they answer first lies half as far apart as their
    rows do. Of clients whose rows are the same the bound halves in each round, and is never 0.
    """
    return Measure(np.asarray(at, np.float64)[None], np.ones(1))


def random_points(points: int, features: int, random: np.random.Generator) -> Measure:
    """The authors' start, standard normal: with two features or more the bound stays above the distance, in 50 by 5 %."""
    return uniform(random.standard_normal((points, features)))


_WAYS = {"exact": between, "centres": between_centres}
