"""The 2-Wasserstein distance of single features and of weighted points, and FedWaD, its federated computation.

W(μ, ν) is the root of the least Σ π_ij ‖x_i - y_j‖² over all plans π that carry μ to ν. It is in units of the features
and dominated by features of a large scale, so rows must be on a scale that clients agree on.

FedWaD (Rakotomamonjy, Nadjahi and Ralaivola, ICLR 2024, arXiv 2310.01973, algorithm 1) computes the distance of two
clients' rows through a measure between them. In each round both clients interpolate halfway from the server's measure
to their own rows, and the server interpolates halfway between the two results. By the triangle inequality the sum of
the clients' distances from the server's measure is never below the distance of their rows. It equals that distance if
the measure lies on a shortest curve between them.

FedWaD reveals the clients' rows, see `Points`. It is not private, and must not be presented as private.
"""

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal, NamedTuple

import numpy as np
from scipy.spatial.distance import cdist

_MIN_MASS = 1e-12  # less is rounding
_STEPS = 10**7  # of the network simplex; thousands of points take fewer


def feature_distances(means: np.ndarray, sds: np.ndarray, other_means: np.ndarray, other_sds: np.ndarray) -> np.ndarray:
    """Return the distance of each feature as if it were normal: ((m - m')² + (s - s')²)^½.

    It is a lower bound for any distributions with these moments (Gelbrich 1990); for rows if s has divisor n.
    """
    return np.hypot(means - other_means, sds - other_sds)


@dataclass(frozen=True)
class Measure:
    """A discrete probability measure."""

    points: np.ndarray  # (points, features) float64
    weights: np.ndarray  # (points,) float64, above 0, of sum 1


def uniform(rows: np.ndarray) -> Measure:
    """Give each row of (rows, features) the same weight; ValueError without rows or with values that are not finite."""
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"rows of shape {rows.shape} have no distance; give at least one, as (rows, features).")
    if not np.isfinite(rows).all():
        raise ValueError("rows with NaN or infinite values have no distance; leave them out, or fill them.")
    return Measure(rows.astype(np.float64), np.full(len(rows), 1 / len(rows)))


class Plan(NamedTuple):
    """A transport plan: the mass moved between each pair of points, (moves,) each."""

    start: np.ndarray  # int64, places in the first measure
    end: np.ndarray  # int64, places in the second
    mass: np.ndarray  # float64, above 0, of sum 1


def optimal_plan(first: Measure, second: Measure) -> Plan:
    """Return the plan of least cost, with at most as many moves as both measures have points.

    One feature is solved by sorting. Otherwise POT's network simplex solves the linear program exactly. Memory is that
    of all pairs of points, and time may grow with their cube.

    Raises:
        ValueError: The measures differ in their number of features.
        ModuleNotFoundError: The extra `transport` is not installed.
        RuntimeError: The solver did not converge.
    """
    features, other_features = first.points.shape[1], second.points.shape[1]
    if features != other_features:
        raise ValueError(
            f"points of {features} features and of {other_features} have no distance; give the same to both."
        )
    start, end, mass = _sorted_plan(first, second) if features == 1 else _solved_plan(first, second)
    used = mass >= _MIN_MASS
    return Plan(start[used], end[used], mass[used] / mass[used].sum())


def distance(first: Measure, second: Measure) -> float:
    """Return W(first, second); errors as in `optimal_plan`."""
    return cost(optimal_plan(first, second), first, second)


def cost(plan: Plan, first: Measure, second: Measure) -> float:
    """Return the root mean squared distance that the plan moves mass."""
    moved = first.points[plan.start] - second.points[plan.end]
    return float(np.sqrt(plan.mass @ (moved**2).sum(1)))


def interpolate(plan: Plan, first: Measure, second: Measure, share: float) -> Measure:
    """Interpolate from the first measure to the second: one point for each move of an optimal plan.

    Its distance is share · W from the first and (1 - share) · W from the second: it lies on a shortest curve.
    """
    return Measure((1 - share) * first.points[plan.start] + share * second.points[plan.end], plan.mass)


def interpolate_centres(plan: Plan, first: Measure, second: Measure, share: float) -> Measure:
    """Interpolate as `interpolate`, with the points of the first: each moves towards the mean of its mass's targets.

    It equals `interpolate` if each point's mass stays together, and otherwise does not lie on a shortest curve.
    """
    carried = np.zeros_like(first.points)
    np.add.at(carried, plan.start, plan.mass[:, None] * second.points[plan.end])
    return Measure((1 - share) * first.points + share * carried / first.weights[:, None], first.weights)


def _sorted_plan(first: Measure, second: Measure) -> Plan:
    """Match quantiles: split both measures at every cumulative weight of either."""
    order, other_order = (np.argsort(measure.points[:, 0], kind="stable") for measure in (first, second))
    ends, other_ends = np.cumsum(first.weights[order]), np.cumsum(second.weights[other_order])
    cuts = np.union1d(ends, other_ends)
    mass = np.diff(cuts, prepend=0.0)
    middle = cuts - mass / 2
    # rounding may leave a last cut after the last point
    start = np.minimum(np.searchsorted(ends, middle), len(ends) - 1)
    end = np.minimum(np.searchsorted(other_ends, middle), len(other_ends) - 1)
    return Plan(order[start], other_order[end], mass)


def _solved_plan(first: Measure, second: Measure) -> Plan:
    # cdist takes differences; products, which POT's own `dist` takes, would leave equal points a little apart
    costs = cdist(first.points, second.points, "sqeuclidean")
    plan, log = _import_pot().emd(first.weights, second.weights, costs, numItermax=_STEPS, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"no optimal plan of {len(first.points)} to {len(second.points)} points: {log['warning']}")
    start, end = plan.nonzero()
    return Plan(start, end, plan[start, end])


def _import_pot() -> ModuleType:
    try:
        import ot  # seconds of import, and an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the Wasserstein distance of rows of several features needs POT, which is not installed; "
            "`pip install -c constraints.txt -e '.[transport]'` in the checkout of siloflow installs it, or leave out the "
            "distance of rows."
        ) from error
    return ot


Points = Literal["exact", "centres"]
"""How the measure halfway between two measures is represented, and so what a client sends.

Either choice reveals the clients' rows. With `exact` each sent point is the mean of one row and one point that the
server knows, so the server has every row, up to rounding, after one round. `centres` is the authors' barycentric
approximation: each point is a mean over the rows matched to one point of the server's measure. These are few rows, or
one, unless the server has far fewer points than the client has rows, and each round sends other means of the same
rows. With so few points the bound is well above the distance.
"""

_HALF = 0.5
_TOLERANCE = 1e-6  # of the bound: a round that lowers it by less is the last


@dataclass(frozen=True)
class HalfwayReport:
    """A client's message of a round: the measure halfway to its rows, and its distance from the server's measure."""

    halfway: Measure
    distance: float


@dataclass(frozen=True)
class Client:
    """The client, with rows (rows, features) on a scale that all clients agree on; errors as in `uniform`."""

    rows: np.ndarray
    points: Points = "exact"

    def answer(self, current: Measure) -> HalfwayReport:
        """Answer the server's measure of this round; errors as in `optimal_plan`."""
        target = uniform(self.rows)
        plan = optimal_plan(current, target)
        return HalfwayReport(_INTERPOLATIONS[self.points](plan, current, target, _HALF), cost(plan, current, target))


@dataclass(frozen=True)
class Server:
    """The server: its measure, and a bound of the distance for each round so far."""

    current: Measure
    rounds: int = 10
    """Updates of the measure; one more query of the clients gives the bound of the last."""
    points: Points = "exact"
    bounds: tuple[float, ...] = ()

    @property
    def bound(self) -> float:
        """The upper bound of the distance; it never increases, and is infinite before the first answers."""
        return min(self.bounds, default=math.inf)

    @property
    def finished(self) -> bool:
        """Whether all rounds are over, or the bound has converged."""
        converged = len(self.bounds) > 1 and self.bounds[-2] - self.bounds[-1] <= _TOLERANCE * self.bounds[-1]
        return converged or len(self.bounds) > self.rounds

    def after(self, first: HalfwayReport, second: HalfwayReport) -> "Server":
        """Return the server after a round's answers."""
        server = replace(self, bounds=(*self.bounds, first.distance + second.distance))
        if server.finished:
            return server
        plan = optimal_plan(first.halfway, second.halfway)
        return replace(server, current=_INTERPOLATIONS[self.points](plan, first.halfway, second.halfway, _HALF))


def point_mass(point: np.ndarray) -> Measure:
    """Return the start that reaches the distance: all mass at one point, (features,).

    The best point lies between both clients' means. All plans then agree with the optimal one between the clients, and
    the first answers lie half as far apart as their rows. For clients with equal rows the bound halves in each round,
    and never reaches 0.
    """
    return Measure(np.asarray(point, np.float64)[None], np.ones(1))


_INTERPOLATIONS = {"exact": interpolate, "centres": interpolate_centres}
