"""Tunes the methods of a comparison alike: the same number of settings each, scored on validation rows of one seed.

The grid of a method is the learning rate of params.yaml times powers of 3, combined with the method's `tuned` options.
A method on which the learning rate has no effect tries its `tuned` options alone, and so fewer settings.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import ValidationError

from flows.core.search_space import Axis, Grid, Point
from flows.methods.base import Method
from models.metrics.task_metrics import TaskMetrics, metric_value
from silos import param_limits
from silos.errors import UserError
from tasks.tracking.result_types.comparison_result import TunedSettings

RATE = "training.optimiser.learning_rate"
_FACTOR = 3  # between neighbouring learning rates
_MIN_RATE = 1e-30  # smaller rates change no weight in float32


class Score(NamedTuple):
    """The score of a setting on validation rows: `value`, higher is better, and the mean loss."""

    value: float
    loss: float

    @property
    def rank(self) -> tuple[float, float]:
        """Return what scores are ordered by, the greatest being best: the value, and for equal ones the least loss."""
        return self.value, -self.loss


@dataclass(frozen=True)
class TunerResult:
    """The best settings of a method; `at` is the index of its run on the first seed among all that were tried."""

    method: str
    settings: list[str]
    at: int
    tried: int
    score: float | None  # on validation rows, higher is better; None if no setting has one
    at_edge: list[str]

    def as_json(self, seed: int) -> TunedSettings:
        """Return the record of the settings, which were chosen on a seed."""
        return {
            "method": self.method,
            "settings": self.settings,
            "at": self.at,
            "tried": self.tried,
            "score": self.score,
            "at_edge": self.at_edge,
            "seed": seed,
        }


def grid_of(
    method_name: str, method: type[Method], rate: float, settings: int, options: Mapping[str, object] | None = None
) -> Grid:
    """Build a grid of `settings` points around a learning rate, or of the method's options if it uses none.

    Args:
        method_name: The name of the method, for keys and errors.
        method: Its class, with the axes of `tuned`.
        rate: The central learning rate.
        settings: The number of points.
        options: The method's section of params.yaml.

    Raises:
        UserError: If `tuned` has no axes, if their combinations do not divide `settings`, or for extreme learning
            rates.
    """
    if not isinstance(method.tuned, Mapping) or not all(isinstance(axis, Axis) for axis in method.tuned.values()):
        raise UserError(
            f"method {method_name!r}: tuned: got another type, expected axes. Write tuned = axes(option=(0.1, "
            "1.0)), with axes from flows.core.search_space."
        )
    method_axes = {f"method.{method_name}.{option}": axis for option, axis in method.tuned.items()}
    combinations = math.prod(len(axis.values) for axis in method_axes.values())

    def takes(point: Point) -> bool:
        """Return whether the method accepts these options."""
        # the learning rate, if there is one, comes before the method's own options
        tried = point[len(point) - len(method.tuned) :]
        try:
            method.model_validate({**(options or {}), **dict(zip(method.tuned, tried, strict=True))})
        except ValidationError:
            return False
        return True

    if not method.uses_learning_rate:
        return Grid(method_axes, takes)
    if settings % combinations:
        raise UserError(
            f"comparison.tune: got {settings}, expected a multiple of {combinations}, since {method_name} tries "
            f"{combinations} settings of its own with each learning rate. Choose such a number."
        )
    count = settings // combinations
    powers = range(-(2 * count // 3), count - 2 * count // 3)
    rates = tuple(float(f"{rate * _FACTOR**power:.2g}") for power in powers)
    if rates[0] < _MIN_RATE or rates[-1] > param_limits.MAX_REAL:
        raise UserError(
            f"comparison.tune: got {settings}, expected fewer settings, since {method_name} would be tried with "
            f"learning rates from {rates[0]:.2g} to {rates[-1]:.2g}, and they may be from {_MIN_RATE:g} to "
            f"{param_limits.MAX_REAL:g}. Lower it."
        )
    return Grid({RATE: Axis(values=rates, least=_MIN_RATE, most=param_limits.MAX_REAL), **method_axes}, takes)


def tune_method(
    method: str,
    grid: Grid,
    run_settings: Callable[[int, list[list[str]]], list[Score | None]],
    announce: Callable[[int], None] = lambda _: None,
) -> TunerResult:
    """Return the best setting of the grid, and of the points beyond its edges, which are tried once.

    Args:
        method: The name of the method.
        grid: Its grid.
        run_settings: Runs settings, given the index of the first and the lines of each; returns None for one without
            a score.
        announce: Called with the number of points beyond the edges, before they are run.
    """
    points = grid.points()
    scores = run_settings(0, [grid.settings(point) for point in points])
    outer_points = grid.beyond(points[_best(scores)])
    announce(len(outer_points))
    scores += run_settings(len(points), [grid.settings(point) for point in outer_points])
    points += outer_points
    best = _best(scores)
    best_score = scores[best]
    return TunerResult(
        method=method,
        settings=grid.settings(points[best]),
        at=best,
        tried=len(points),
        score=None if best_score is None else best_score.value,
        at_edge=grid.at_edge(points[best], points),
    )


def validation_score(metrics: Mapping[str, object], quantity: TaskMetrics) -> Score | None:
    """Return the score of a run by its metrics; None if it diverged."""
    value, loss = quantity.score(metrics, "validation/"), metric_value(metrics, "validation/loss/mean")
    return Score(value, math.inf if loss is None or math.isnan(loss) else loss) if math.isfinite(value) else None


def _best(scores: list[Score | None]) -> int:
    """Return the index of the highest score, among equal ones that of the lowest loss; 0 if no setting has a score.

    With few validation rows many scores are equal, and the first has the lowest rate, with which weights hardly change.
    """
    ranks = [(-math.inf, -math.inf) if score is None else score.rank for score in scores]
    return ranks.index(max(ranks))
