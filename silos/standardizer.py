"""The mean and scale of each input and target, agreed once or each client's own, applied whenever rows are loaded."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import NotRequired, TypedDict

import numpy as np

_LEVELS = 20  # quantiles of a feature that a client aligns
_FAR = float(np.finfo(np.float32).max)  # the end of an outer segment

Segments = tuple[tuple[tuple[float, ...], ...], ...]
"""Of each column: the ends of segments below and above, the slope in each, and the value that adds nothing."""


class StandardizerRecord(TypedDict):
    """A standardizer as plain JSON."""

    mean: list[float]
    scale: list[float]
    segments: NotRequired[list[list[list[float]]]]


class AgreedRecord(TypedDict):
    """What all clients share of a standardization, as plain JSON."""

    inputs: StandardizerRecord | None
    targets: StandardizerRecord | None


class StandardizationRecord(AgreedRecord):
    """A standardization as plain JSON."""

    own_columns: NotRequired[list[int]]
    by_quantiles: NotRequired[bool]


@dataclass(frozen=True)
class Standardizer:
    """The mean and standard deviation of each column, in the units of the data; scale 1 for constant columns.

    If there are segments, columns first become sums over them of slope * (value within the segment - offset).
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    segments: Segments = ()

    def transform(self, values: np.ndarray) -> np.ndarray:
        """Compute (values - mean) / scale in float64; (rows, ...) in, float32 of the same shape out."""
        columns = values.reshape(len(values), len(self.mean)).astype(np.float64)
        if self.segments:
            parts = np.array(self.segments).T  # (segments, 4, columns)
            columns = sum(slope * (columns.clip(low, high) - offset) for low, high, slope, offset in parts)
        return ((columns - self.mean) / self.scale).astype(np.float32).reshape(values.shape)

    def as_json(self) -> StandardizerRecord:
        """Return plain JSON; `segments` only if there are some."""
        record: StandardizerRecord = {"mean": list(self.mean), "scale": list(self.scale)}
        if self.segments:
            record["segments"] = [[list(part) for part in column] for column in self.segments]
        return record


@dataclass(frozen=True)
class Standardization:
    """The standardizers of inputs and targets; None leaves values unchanged.

    Inputs of `own_columns` are standardised by the mean and scale of each client's own training rows instead, or
    `by_quantiles` mapped so that these rows have a normal distribution.
    """

    inputs: Standardizer | None = None
    targets: Standardizer | None = None
    own_columns: tuple[int, ...] = ()
    by_quantiles: bool = False

    @property
    def target_scale(self) -> float:
        """Return the scale of the targets: 1 of a standardised target in units of y."""
        return self.targets.scale[0] if self.targets else 1.0

    def inputs_of(self, train: np.ndarray) -> Standardizer | None:
        """Return the standardizer of the inputs of a client with these training rows: (rows, ...)."""
        if not self.own_columns:
            return self.inputs
        rows = train.reshape(len(train), -1).astype(np.float64)
        agreed = self.inputs or Standardizer((0.0,) * rows.shape[1], (1.0,) * rows.shape[1])
        mean, scale = np.array(agreed.mean), np.array(agreed.scale)
        columns = list(self.own_columns)
        if self.by_quantiles:
            mean[columns], scale[columns] = 0.0, 1.0
            segments = tuple(_segments(rows[:, i]) if i in columns else _UNCHANGED for i in range(rows.shape[1]))
            return Standardizer(tuple(mean.tolist()), tuple(scale.tolist()), segments)
        deviation = rows[:, columns].std(axis=0)
        mean[columns], scale[columns] = rows[:, columns].mean(axis=0), np.where(deviation == 0, 1.0, deviation)
        return Standardizer(tuple(mean.tolist()), tuple(scale.tolist()))

    def agreed_as_json(self) -> AgreedRecord:
        """Return what all clients share as plain JSON."""
        inputs, targets = (each.as_json() if each is not None else None for each in (self.inputs, self.targets))
        return {"inputs": inputs, "targets": targets}

    def as_json(self) -> StandardizationRecord:
        """Return plain JSON, from which `from_json` restores the same numbers bit for bit."""
        record: StandardizationRecord = {**self.agreed_as_json(), "own_columns": list(self.own_columns)}
        if self.by_quantiles:
            record["by_quantiles"] = True
        return record

    @classmethod
    def from_json(cls, content: StandardizationRecord) -> "Standardization":
        """Restore what `as_json` returned; KeyError or TypeError for anything else."""
        inputs, targets = (_standardizer_from_json(each) for each in (content["inputs"], content["targets"]))
        own = tuple(map(int, content.get("own_columns", ())))
        return cls(inputs, targets, own, bool(content.get("by_quantiles", False)))


NO_STANDARDIZATION = Standardization()

_NOTHING = (0.0,) * _LEVELS  # of segments that a column does not need
_UNCHANGED = ((-_FAR, *_NOTHING), (_FAR, *_NOTHING), (1.0, *_NOTHING), (0.0, *_NOTHING))


def _segments(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Return the segments of a monotone map by which these values have the quantiles of a normal distribution.

    Equal quantiles have the mean of their places. Beyond the outer quantiles, from which a rare value may be far, the
    slope is that of standardised values. A constant becomes 0.
    """
    if values.min() == values.max():
        return ((*_NOTHING, 0.0),) * 4
    shares = (np.arange(_LEVELS) + 0.5) / _LEVELS
    knots, place = np.unique(np.quantile(values, shares), return_inverse=True)
    normal = np.bincount(place, [NormalDist().inv_cdf(share) for share in shares.tolist()]) / np.bincount(place)
    deviation = values.std()
    slope = np.array([1 / deviation, *(np.diff(normal) / np.diff(knots)), 1 / deviation])
    low, high = np.array([-_FAR, *knots]), np.array([*knots, _FAR])
    offset = np.array([knots[0] - normal[0] * deviation, *knots])
    return tuple((*part.tolist(), *_NOTHING[len(knots) :]) for part in (low, high, slope, offset))


def _standardizer_from_json(content: StandardizerRecord | None) -> Standardizer | None:
    if content is None:
        return None
    mean, scale = (tuple(map(float, each)) for each in (content["mean"], content["scale"]))
    return Standardizer(mean, scale)
