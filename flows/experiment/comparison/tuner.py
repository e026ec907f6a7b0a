"""Methods of a comparison tuned alike: equally many settings each, the best on validation rows of the first seed.

A grid is the learning rate of params.yaml times powers of 3 by what the method's page names in `tuned`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from flows.experiment.comparison.search_space import Axis, Grid, Point
from flows.methods.base import Method
from models.metrics.task_metrics import TaskMetrics
from silos import param_types
from silos.errors import UserError

RATE = "training.optimiser.learning_rate"
_FACTOR = 3  # between two learning rates
_LEAST_RATE = 1e-30  # with less no weight moves in float32


class Score(NamedTuple):
    """Of a setting on validation rows: `value`, of which more is better, and their mean loss."""

    value: float
    loss: float


@dataclass(frozen=True)
class TunerResult:
    """What a method was tuned to; `at` tells its run on the first seed from the others that were tried."""

    method: str
    settings: list[str]
    at: int
    tried: int
    score: float | None  # on validation rows, higher is better; None if no setting has one
    at_edge: list[str]


def grid_of(
    method_name: str, method: type[Method], rate: float, settings: int, options: Mapping[str, Any] | None = None
) -> Grid:
    """So many settings around this learning rate, over these options; UserError if the page's own do not divide them."""
    if not isinstance(method.tuned, Mapping) or not all(isinstance(axis, Axis) for axis in method.tuned.values()):
        raise UserError(
            f"the page of method {method_name!r}: `tuned` is no axes; write tuned = axes(option=(0.1, 1.0)), with axes from "
            "flows.experiment.comparison.search_space."
        )
    own = {f"method.{method_name}.{option}": axis for option, axis in method.tuned.items()}
    combinations = math.prod(len(axis.values) for axis in own.values())
    if settings % combinations:
        raise UserError(
            f"comparison.tune is {settings}, and {method_name} has {combinations} settings of its own to try with each "
            f"learning rate; give a number that {combinations} divides."
        )
    count = settings // combinations
    powers = range(-(2 * count // 3), count - 2 * count // 3)
    rates = tuple(float(f"{rate * _FACTOR**power:.2g}") for power in powers)
    if rates[0] < _LEAST_RATE or rates[-1] > param_types.MAX_REAL:
        raise UserError(
            f"comparison.tune is {settings}: {method_name} would be tried with learning rates from {rates[0]:.2g} to "
            f"{rates[-1]:.2g}, and they may be from {_LEAST_RATE:g} to {param_types.MAX_REAL:g}; give fewer settings."
        )

    def takes(point: Point) -> bool:
        """Whether the page has these options."""
        try:
            method.model_validate({**(options or {}), **dict(zip(method.tuned, point[1:], strict=True))})
        except ValidationError:
            return False
        return True

    return Grid({RATE: Axis(values=rates, least=_LEAST_RATE, most=param_types.MAX_REAL), **own}, takes)


def tuned(
    method: str,
    grid: Grid,
    scored: Callable[[int, tuple[str, ...]], Score | None],
    told: Callable[[int], None] = lambda _: None,
) -> TunerResult:
    """The best setting of the grid and, once, of what lies beyond its edges; `scored` runs one, None if it has no score.

    `told` hears how many lie beyond, before they are run.
    """
    points: list[Point] = grid.points()
    scores = [scored(at, tuple(grid.settings(point))) for at, point in enumerate(points)]
    wider = grid.beyond(points[_best(scores)])
    told(len(wider))
    scores += [scored(len(points) + at, tuple(grid.settings(point))) for at, point in enumerate(wider)]
    points += wider
    best = _best(scores)
    kept = scores[best]
    return TunerResult(
        method=method,
        settings=grid.settings(points[best]),
        at=best,
        tried=len(points),
        score=None if kept is None else kept.value,
        at_edge=grid.at_edge(points[best], points),
    )


def validation_score(result: dict[str, Any], quantity: TaskMetrics) -> Score | None:
    """Of a finished run; None if it diverged."""
    value, loss = quantity.score(result["metrics"], "validation/"), result["metrics"].get("validation/loss/mean")
    return Score(value, math.inf if loss is None or math.isnan(loss) else loss) if math.isfinite(value) else None


def _best(scores: list[Score | None]) -> int:
    """The place of the highest score, of several that are equal that of the least loss; where there is none, the first.

    Few validation rows make many equal, and the first of them has the least rate, with which weights hardly move.
    """
    return max(range(len(scores)), key=lambda at: _rank(scores[at]))


def _rank(score: Score | None) -> tuple[float, float]:
    return (-math.inf, -math.inf) if score is None else (score.value, -score.loss)
