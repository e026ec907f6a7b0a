"""FedWaD: the 2-Wasserstein distance of two clients' rows by a measure that goes between them (Rakotomamonjy, Nadjahi and
Ralaivola, ICLR 2024, arXiv 2310.01973, algorithm 1).

In each round both clients go halfway from the server's measure to their own rows, and the server goes halfway between what
they found. By the triangle inequality the sum of the clients' distances from the server's measure is never below the
distance from one to the other, and it reaches that where the measure lies on a shortest curve between them.

The clients' rows are given away, see `Points`. It is not private, and nothing should be built on it that says so.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from models.shift.optimal_transport.wasserstein import (
    Measure,
    between,
    between_centres,
    cost,
    optimal_plan,
    uniform,
)

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
