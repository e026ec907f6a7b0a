"""The settings that a method is tried with: a grid, what lies beyond its edges, and which choices stand at one.

A method that is compared at its defaults is ranked by them. So every method gets equally many settings, the best on
validation rows is kept, and what stands at the edge of its grid is looked for beyond it, once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from silos import strict_yaml

BEYOND = 2
"""Values that an axis gets beyond an edge at which the best stands."""

Point = tuple[Any, ...]
"""A value for each axis."""


class Axis(BaseModel):
    """Values of one setting. Numbers above 0 are sorted, and go on beyond both ends by the same factor, from `least` to
    `most`. Others, such as lists, have no order and so no edge.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    values: tuple[Any, ...] = Field(min_length=1)
    least: float = Field(default=0.0, ge=0)
    most: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_list(cls, given: Any) -> Any:
        return {"values": given} if isinstance(given, list | tuple) else given

    @field_validator("values")
    @classmethod
    def _once_each(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(value in values[:at] for at, value in enumerate(values)):
            raise ValueError(f"{list(values)} names a value twice")
        return tuple(sorted(values)) if _ordered(values) else values

    @property
    def ordered(self) -> bool:
        """Whether it has edges."""
        return _ordered(self.values)

    def beyond(self, value: Any) -> list[Any]:
        """The next values outside, where this one stands at an edge: outwards, two digits each; none elsewhere."""
        if not self.ordered or value not in (self.values[0], self.values[-1]):
            return []
        inner = self.values[1] if value == self.values[0] else self.values[-2]
        factor, next_ = value / inner, []
        for step in range(1, BEYOND + 1):
            outer = float(f"{value * factor**step:.2g}")
            outer = round(outer) if all(isinstance(v, int) for v in self.values) else outer
            outside = outer > value if factor > 1 else outer < value  # two digits may be those of the edge itself
            if outside and outer >= self.least and outer > 0 and (self.most is None or outer <= self.most):
                next_.append(outer)
        return list(dict.fromkeys(next_))


@dataclass(frozen=True)
class Grid:
    """Axes by the setting they belong in: a key of params.yaml, or a whole setting in which {} stands for the value.

    `takes` says which points can be run at all: what is refused lies beyond no edge.
    """

    axes: Mapping[str, Axis]
    takes: Callable[[Point], bool] = lambda _: True

    def points(self) -> list[Point]:
        """Every combination."""
        return list(product(*(axis.values for axis in self.axes.values())))

    def beyond(self, best: Point) -> list[Point]:
        """What to try once more: along each axis at whose edge the best stands, the others staying as they are."""
        return [point for at, axis in enumerate(self.axes.values()) for point in self._along(axis, at, best)]

    def at_edge(self, best: Point, tried: Sequence[Point]) -> list[str]:
        """Keys of the axes on which nothing was tried on one side of the best, though there is room."""
        keys = []
        for at, (key, axis) in enumerate(self.axes.items()):
            if not axis.ordered:
                continue
            values = sorted({point[at] for point in tried})
            there = Axis(values=tuple(values), least=axis.least, most=axis.most)
            if self._along(there, at, best):
                keys.append(key.partition("=")[0])
        return keys

    def settings(self, point: Point) -> list[str]:
        """`section.key=value` for each axis."""
        return [placed(key, value) for key, value in zip(self.axes, point, strict=True)]

    def _along(self, axis: Axis, at: int, best: Point) -> list[Point]:
        """What lies beyond the edge of one axis at which the best stands, as far as it can be run."""
        wider = [(*best[:at], value, *best[at + 1 :]) for value in axis.beyond(best[at])]
        return [point for point in wider if self.takes(point)]


def _ordered(values: Sequence[Any]) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)
    return numbers and len(values) > 1


def axes(**values: Axis | tuple[Any, ...]) -> dict[str, Axis]:
    """Option to its axis, as a method's page names what it is tuned by."""
    return {option: v if isinstance(v, Axis) else Axis(values=v) for option, v in values.items()}


def placed(setting: str, value: Any) -> str:
    """The setting with the value in place of {}, or after its key; ValueError where {} stands more than once."""
    template = setting if "=" in setting or "{}" in setting else f"{setting}={{}}"
    if template.count("{}") != 1:
        raise ValueError(f"{setting!r}: {{}} stands once where the value goes")
    return template.replace("{}", as_yaml(value))


def as_yaml(value: Any) -> str:
    """A value as YAML reads it on one line: 1e-05 would be a word there, and the word yes no word."""
    return value if isinstance(value, str) and _is_itself(value) else _in_brackets(value)


def _in_brackets(value: Any) -> str:
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_in_brackets, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {_in_brackets(part)}' for key, part in value.items())}}}"
    return json.dumps(value)


def _is_itself(word: str) -> bool:
    try:
        return strict_yaml.load(word.encode()) == word
    except strict_yaml.NotYamlError:
        return False
