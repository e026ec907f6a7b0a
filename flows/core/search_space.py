"""Defines the grid of settings that a method is tuned over, and how the grid extends beyond its edges.

A comparison at default settings would rank the defaults. So every method gets the same number of settings, and the best
on validation rows is used. If the best is at an edge of the grid, settings beyond the edge are tried once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from silos import strict_yaml

BEYOND = 2
"""Number of values that an axis gets beyond an edge at which the best setting is."""

Point = tuple[Any, ...]
"""One value for each axis."""


class Axis(BaseModel):
    """Values of one setting.

    Numbers above 0 are sorted, and continue beyond both ends by the same factor, from `least` to `most`. Other values,
    such as lists, have no order and so no edge.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    values: tuple[Any, ...] = Field(min_length=1)
    least: float = Field(default=0.0, ge=0)
    most: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_list(cls, given: object) -> object:
        """Accept a plain list of values."""
        return {"values": given} if isinstance(given, list | tuple) else given

    @field_validator("values")
    @classmethod
    def _once_each(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if any(value in values[:index] for index, value in enumerate(values)):
            raise ValueError(f"{list(values)}: got a value twice, expected distinct values")
        return tuple(sorted(values)) if _ordered(values) else values

    @property
    def ordered(self) -> bool:
        """Return whether the values are ordered, and so have edges."""
        return _ordered(self.values)

    def beyond(self, value: object) -> list[float]:
        """Return the next values outwards if this one is at an edge, rounded to two digits; otherwise none."""
        if not self.ordered or value not in (self.values[0], self.values[-1]):
            return []
        assert isinstance(value, int | float), "only numbers are ordered"
        inner = self.values[1] if value == self.values[0] else self.values[-2]
        factor, outer_values = value / inner, list[float]()
        for step in range(1, BEYOND + 1):
            outer = float(f"{value * factor**step:.2g}")
            outer = round(outer) if all(isinstance(v, int) for v in self.values) else outer
            is_outside = outer > value if factor > 1 else outer < value  # rounding may give the edge itself
            if is_outside and outer >= self.least and outer > 0 and (self.most is None or outer <= self.most):
                outer_values.append(outer)
        return list(dict.fromkeys(outer_values))


@dataclass(frozen=True)
class Grid:
    """Axes by the setting that they belong to: a key of params.yaml, or a setting in which {} is replaced by the value.

    `takes` says which points can be run: points that it refuses are beyond no edge.
    """

    axes: Mapping[str, Axis]
    takes: Callable[[Point], bool] = lambda _: True

    def points(self) -> list[Point]:
        """Return every combination of values."""
        return list(product(*(axis.values for axis in self.axes.values())))

    def beyond(self, best: Point) -> list[Point]:
        """Return the points beyond each edge at which `best` is; the other axes keep the values of `best`."""
        return [point for index, axis in enumerate(self.axes.values()) for point in self._along(axis, index, best)]

    def at_edge(self, best: Point, tried: Sequence[Point]) -> list[str]:
        """Return keys of axes on which one side of `best` was not tried, although the axis extends there."""
        keys = []
        for index, (key, axis) in enumerate(self.axes.items()):
            if not axis.ordered:
                continue
            values = sorted({point[index] for point in tried})
            tried_axis = Axis(values=tuple(values), least=axis.least, most=axis.most)
            if self._along(tried_axis, index, best):
                keys.append(key.partition("=")[0])
        return keys

    def settings(self, point: Point) -> list[str]:
        """Return `section.key=value` for each axis."""
        return [insert_value(key, value) for key, value in zip(self.axes, point, strict=True)]

    def _along(self, axis: Axis, index: int, best: Point) -> list[Point]:
        """Return the points beyond the edge of one axis at which `best` is, if they can be run."""
        points = [(*best[:index], value, *best[index + 1 :]) for value in axis.beyond(best[index])]
        return [point for point in points if self.takes(point)]


def _ordered(values: Sequence[object]) -> TypeGuard[Sequence[float]]:
    are_positive = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)
    return are_positive and len(values) > 1


def axes(**values: Axis | tuple[object, ...]) -> dict[str, Axis]:
    """Map options to axes, as a method's `tuned` names them."""
    return {option: v if isinstance(v, Axis) else Axis(values=v) for option, v in values.items()}


def insert_value(setting: str, value: object) -> str:
    """Put the value into the setting's {}, or after its key; ValueError if {} occurs more than once."""
    template = setting if "=" in setting or "{}" in setting else f"{setting}={{}}"
    if template.count("{}") != 1:
        raise ValueError(f"{setting!r}: expected {{}} once, instead of the value")
    return template.replace("{}", as_yaml(value))


def as_yaml(value: object) -> str:
    """Return a value as one line of YAML: YAML would read 1e-05 as text, and the text yes as a boolean."""
    return value if isinstance(value, str) and _is_plain_scalar(value) else _flow_style(value)


def _flow_style(value: object) -> str:
    if isinstance(value, float):
        return f"{Decimal(repr(value)):f}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow_style, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {_flow_style(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value)


def _is_plain_scalar(text: str) -> bool:
    try:
        return strict_yaml.load(text.encode()) == text
    except strict_yaml.NotYamlError:
        return False
