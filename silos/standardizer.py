"""The mean and scale of each input and target, agreed once and applied whenever rows are loaded."""

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
    """The standardizers of inputs and targets; None leaves values unchanged."""

    inputs: Standardizer | None = None
    targets: Standardizer | None = None

    @property
    def target_scale(self) -> float:
        """Return the scale of the targets: 1 of a standardised target in units of y."""
        return self.targets.scale[0] if self.targets else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, from which `from_json` restores the same numbers bit for bit."""
        return {name: each and each.as_json() for name, each in (("inputs", self.inputs), ("targets", self.targets))}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Standardization":
        """Restore what `as_json` returned; KeyError or TypeError for anything else."""
        return cls(*(_standardizer_from_json(content[name]) for name in ("inputs", "targets")))


NO_STANDARDIZATION = Standardization()


def _standardizer_from_json(content: Mapping[str, Any] | None) -> Standardizer | None:
    return None if content is None else Standardizer(*(tuple(map(float, content[name])) for name in ("mean", "scale")))
