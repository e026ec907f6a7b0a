"""The mean and scale of each input and target, agreed once or each client's own, applied whenever rows are loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Standardizer:
    """The mean and standard deviation of each column, in the units of the data; scale 1 for constant columns."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def transform(self, values: np.ndarray) -> np.ndarray:
        """Compute (values - mean) / scale in float64; (rows, ...) in, float32 of the same shape out."""
        columns = values.reshape(len(values), len(self.mean)).astype(np.float64)
        return ((columns - self.mean) / self.scale).astype(np.float32).reshape(values.shape)

    def as_json(self) -> dict[str, list[float]]:
        """Return plain JSON."""
        return {"mean": list(self.mean), "scale": list(self.scale)}


@dataclass(frozen=True)
class Standardization:
    """The standardizers of inputs and targets; None leaves values unchanged.

    Inputs of `own_columns` are standardised by the mean and scale of each client's own training rows instead.
    """

    inputs: Standardizer | None = None
    targets: Standardizer | None = None
    own_columns: tuple[int, ...] = ()

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
        deviation = rows[:, columns].std(axis=0)
        mean[columns], scale[columns] = rows[:, columns].mean(axis=0), np.where(deviation == 0, 1.0, deviation)
        return Standardizer(tuple(mean.tolist()), tuple(scale.tolist()))

    def agreed_as_json(self) -> dict[str, Any]:
        """Return what all clients share as plain JSON."""
        return {name: each and each.as_json() for name, each in (("inputs", self.inputs), ("targets", self.targets))}

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, from which `from_json` restores the same numbers bit for bit."""
        return {**self.agreed_as_json(), "own_columns": list(self.own_columns)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Standardization":
        """Restore what `as_json` returned; KeyError or TypeError for anything else."""
        inputs, targets = (_standardizer_from_json(content[name]) for name in ("inputs", "targets"))
        return cls(inputs, targets, tuple(map(int, content.get("own_columns", ()))))


NO_STANDARDIZATION = Standardization()


def _standardizer_from_json(content: Mapping[str, Any] | None) -> Standardizer | None:
    return None if content is None else Standardizer(*(tuple(map(float, content[name])) for name in ("mean", "scale")))
