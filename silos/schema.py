"""The schema on which all silos agree: names, kinds and ranges of features, and the rules for names."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from silos.param_types import Name
from silos.params_section import Fill, Number, Section, one_fault

MAX_TEXT_LENGTH = 1000  # characters: names become files, metrics and headings


def find_invalid_name(names: np.ndarray) -> tuple[int, str] | None:
    """Return the index of the first invalid name and its fault; None if all are valid. names: (n,) str."""
    if not len(names):
        return None
    # NumPy's text may hold any 32 bits, also ones that are no character
    code_points = np.ascontiguousarray(names).view(f"{names.dtype.byteorder}u4").reshape(len(names), -1)
    invalid = ((code_points >= 0xD800) & (code_points < 0xE000) | (code_points > 0x10FFFF)).any(axis=1)
    if invalid.any():
        return int(invalid.argmax()), "got an incomplete character, expected text. Write the name again"
    lengths = np.char.str_len(names)
    if (lengths > MAX_TEXT_LENGTH).any():
        index = int((lengths > MAX_TEXT_LENGTH).argmax())
        return (
            index,
            f"got {lengths[index]} characters, expected at most {MAX_TEXT_LENGTH}. Shorten the name",
        )
    return None


Task = Literal["classification", "regression"]


class Feature(Section):
    """One column of a flat table.

    `categories` are the values that a categorical one takes, in the agreed order; `low` and `high` the agreed bounds of a
    numeric one, both or neither. `missing` says what is done with NaN. `column` is the column of a file that a feature of 0
    and 1 is made from, where its own name may mislead: the name of the column holds an equals sign or ends in ` is missing`.
    """

    name: Annotated[Name, Field(max_length=MAX_TEXT_LENGTH)]
    kind: Literal["numeric", "categorical"] = "numeric"
    categories: tuple[Number, ...] = ()
    low: Number | None = None
    high: Number | None = None
    missing: Annotated[
        Literal["refuse"] | Fill, one_fault("expected refuse or {fill: v} with a finite number v or mean")
    ] = "refuse"
    column: Name | None = None

    @property
    def fill(self) -> float | Literal["mean"] | None:
        """Return the value that replaces a missing value in x; None if no value may be missing."""
        return self.missing.fill if isinstance(self.missing, Fill) else None

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Return which values lie outside the bounds, or in no category: (rows,) bool. values: (rows,) float32."""
        if self.categories:
            return ~np.isin(values, np.array(self.categories, np.float32))
        if self.low is None or self.high is None:
            return np.zeros(len(values), bool)
        return (values < np.float32(self.low)) | (values > np.float32(self.high))

    def written(self) -> dict[str, Any]:
        """Return the JSON without defaults, so that keys added later do not change older schemas."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @model_validator(mode="after")
    def _has_categories_if_it_is_categorical(self) -> "Feature":
        if self.kind == "numeric":
            if self.categories:
                raise ValueError(
                    f"{self.name!r}: got categories for a numeric feature, expected none. Add kind: "
                    "categorical, or drop them"
                )
            return self
        if not self.categories:
            raise ValueError(
                f"{self.name!r}: got no categories, expected the values of a categorical feature. List them"
            )
        if (self.low, self.high) != (None, None):
            raise ValueError(f"{self.name!r}: got low or high for a categorical feature, expected none. Drop them")
        single = [float(np.float32(value)) for value in self.categories]
        for index, value in enumerate(single):
            if value in single[:index]:
                raise ValueError(
                    f"{self.name!r}: got the category {value:g} twice, expected it once. Remove one of them"
                )
        return self

    @model_validator(mode="after")
    def _has_bounds_in_order(self) -> "Feature":
        if (self.low is None) != (self.high is None):
            present, absent = ("low", "high") if self.high is None else ("high", "low")
            raise ValueError(
                f"{self.name!r}: got {present} without {absent}, expected both bounds or none. Add "
                f"{absent}, or drop {present}"
            )
        if self.low is not None and self.high is not None and not np.float32(self.low) < np.float32(self.high):
            raise ValueError(
                f"{self.name!r}: got low {self.low:g} and high {self.high:g}, expected low below "
                "high. Correct one of them"
            )
        return self


def describe_duplicate(names: Sequence[str]) -> str | None:
    """Return the end of a sentence about the first duplicate name; None if all names differ."""
    indices: dict[str, int] = {}
    for index, name in enumerate(names):
        if indices.setdefault(name, index) != index:
            return (
                f"got the name {name!r} for the columns {indices[name]} and {index}, expected different names. "
                "Rename one of them"
            )
    return None


def _check_distinct_names(features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    fault = describe_duplicate([feature.name for feature in features])
    if fault:
        raise ValueError(fault)
    return features


Features = Annotated[tuple[Feature, ...], AfterValidator(_check_distinct_names)]


@lru_cache(maxsize=8)  # each client asks for them
def default_features(count: int) -> tuple[Feature, ...]:
    """Return the features of a table without a declaration: x0, x1 ..., numeric, without bounds."""
    return tuple(Feature(name=f"x{index}") for index in range(count))


def is_table(shape: Sequence[int], dtype: str | np.dtype) -> bool:
    """Return whether rows of this shape are columns of a table, one a feature; else they are pictures."""
    return len(shape) == 1 and dtype != "uint8"


@dataclass(frozen=True)
class Schema:
    """The agreement of clients and server: a row's shape and type, its features, classes and task.

    `features` has one entry for each column of a flat table, and is empty for pictures.
    """

    features: tuple[Feature, ...]
    classes: tuple[str, ...]
    task: Task
    shape: tuple[int, ...]
    dtype: str

    @cached_property
    def id(self) -> str:
        """Return sixteen hexadecimal digits that differ wherever two schemas do."""
        content = {
            "features": [feature.written() for feature in self.features],
            "classes": self.classes,
            "task": self.task,
            "shape": self.shape,
            "dtype": self.dtype,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]
