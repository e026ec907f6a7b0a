"""The schema on which all silos agree: names, kinds and ranges of features, and the rules for names."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from silos.param_types import Name
from silos.sources.source_params import Fill, Number, Section, one_fault

LONGEST = 1000  # letters: names become files, metrics and headings


def first_fault(names: np.ndarray) -> tuple[int, str] | None:
    """The number of the first name that cannot be one, and what is wrong with it; None if all can. names: (n,) str."""
    if not len(names):
        return None
    # text of NumPy's may hold any 32 bits, of which Python makes no letter
    letters = np.ascontiguousarray(names).view(f"{names.dtype.byteorder}u4").reshape(len(names), -1)
    halves = ((letters >= 0xD800) & (letters < 0xE000) | (letters > 0x10FFFF)).any(axis=1)
    if halves.any():
        return int(halves.argmax()), "holds half a character, which is no text; write it anew"
    lengths = np.char.str_len(names)
    if (lengths > LONGEST).any():
        at = int((lengths > LONGEST).argmax())
        return at, f"has {lengths[at]} characters, and a name has {LONGEST} at most; give it a shorter one"
    return None


Task = Literal["classification", "regression"]


class Feature(Section):
    """One column of a flat table.

    `categories` are the values that a categorical one takes, in the agreed order; `low` and `high` the agreed bounds of a
    numeric one, both or neither. `missing` says what is done with NaN. `column` is the column of a file that a feature of 0
    and 1 is made from, where its own name may mislead: the name of the column holds an equals sign or ends in ` is missing`.
    """

    name: Annotated[Name, Field(max_length=LONGEST)]
    kind: Literal["numeric", "categorical"] = "numeric"
    categories: tuple[Number, ...] = ()
    low: Number | None = None
    high: Number | None = None
    missing: Annotated[
        Literal["refuse"] | Fill, one_fault("is neither refuse nor {fill: v} with a finite number v or mean")
    ] = "refuse"
    column: Name | None = None

    @property
    def fill(self) -> float | Literal["mean"] | None:
        """What stands in x for a missing value; None where none may be missing."""
        return self.missing.fill if isinstance(self.missing, Fill) else None

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Which values lie outside of the bounds, or in none of the categories: (rows,) bool. values: (rows,) float32."""
        if self.categories:
            return ~np.isin(values, np.array(self.categories, np.float32))
        if self.low is None or self.high is None:
            return np.zeros(len(values), bool)
        return (values < np.float32(self.low)) | (values > np.float32(self.high))

    def written(self) -> dict[str, Any]:
        """As JSON, without defaults, so that a key added later leaves older schemas alone."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @model_validator(mode="after")
    def _has_categories_if_it_is_categorical(self) -> "Feature":
        if self.kind == "numeric":
            if self.categories:
                raise ValueError(f"{self.name!r} has categories and is numeric; add kind: categorical, or drop them")
            return self
        if not self.categories:
            raise ValueError(f"{self.name!r} is categorical without categories; list the values that it takes")
        if (self.low, self.high) != (None, None):
            raise ValueError(f"{self.name!r} is categorical, and low and high bound a numeric one; drop them")
        single = [float(np.float32(value)) for value in self.categories]
        for at, value in enumerate(single):
            if value in single[:at]:
                raise ValueError(f"{self.name!r} has the category {value:g} twice; list each value once")
        return self

    @model_validator(mode="after")
    def _has_bounds_in_order(self) -> "Feature":
        if (self.low is None) != (self.high is None):
            there, absent = ("low", "high") if self.high is None else ("high", "low")
            raise ValueError(f"{self.name!r} has {there} and no {absent}; give both bounds or none")
        if self.low is not None and self.high is not None and not np.float32(self.low) < np.float32(self.high):
            raise ValueError(f"{self.name!r} has low {self.low:g} and high {self.high:g}; low must be below high")
        return self


def twice(names: Sequence[str]) -> str | None:
    """The end of a sentence about the first name that is there twice, after the features' place; None if there is none."""
    places: dict[str, int] = {}
    for at, name in enumerate(names):
        if places.setdefault(name, at) != at:
            return f"the name {name!r} stands for columns {places[name]} and {at}; give each a name of its own"
    return None


def _named_apart(features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    fault = twice([feature.name for feature in features])
    if fault:
        raise ValueError(fault)
    return features


Features = Annotated[tuple[Feature, ...], AfterValidator(_named_apart)]


def unnamed(count: int) -> tuple[Feature, ...]:
    """The features of a table of which nothing is said: x0, x1 ..., numeric, without bounds."""
    return tuple(Feature(name=f"x{at}") for at in range(count))


def is_table(shape: Sequence[int], dtype: str | np.dtype) -> bool:
    """Whether rows of this shape are columns of a table, of which each is a feature; else they are pictures."""
    return len(shape) == 1 and dtype != "uint8"


@dataclass(frozen=True)
class Schema:
    """What clients and server must agree on: a row's shape and type, its features, and what it is labelled with.

    `features` has one entry a column of a flat table, and is empty of pictures.
    """

    features: tuple[Feature, ...]
    classes: tuple[str, ...]
    task: Task
    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def id(self) -> str:
        """Sixteen hexadecimal digits that differ wherever two schemas do."""
        held = {
            "features": [feature.written() for feature in self.features],
            "classes": self.classes,
            "task": self.task,
            "shape": self.shape,
            "dtype": self.dtype,
        }
        return hashlib.sha256(json.dumps(held, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
