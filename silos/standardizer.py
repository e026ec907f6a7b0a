"""One mean and scale for each number of a row, and for targets: agreed once, and applied wherever rows are opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Standardizer:
    """Of each column its mean and its standard deviation, 1 of one that is constant; in the units of the data."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def of(self, values: np.ndarray) -> np.ndarray:
        """(values - mean) / scale, computed in float64: (rows, ...) of as many columns, as float32 of the same shape."""
        columns = values.reshape(len(values), len(self.mean)).astype(np.float64)
        return ((columns - self.mean) / self.scale).astype(np.float32).reshape(values.shape)

    def as_json(self) -> dict[str, list[float]]:
        """Plain JSON."""
        return {"mean": list(self.mean), "scale": list(self.scale)}


@dataclass(frozen=True)
class Standardization:
    """What rows are scaled by; None leaves them as they are."""

    inputs: Standardizer | None = None
    targets: Standardizer | None = None

    @property
    def unit(self) -> float:
        """What 1 of a scaled target is in units of y."""
        return self.targets.scale[0] if self.targets else 1.0

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, from which `from_json` makes the same numbers to the bit."""
        return {name: of and of.as_json() for name, of in (("inputs", self.inputs), ("targets", self.targets))}

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> "Standardization":
        """What `as_json` answered; KeyError or TypeError for anything else."""
        return cls(*(_scale(held[name]) for name in ("inputs", "targets")))


NO_STANDARDIZATION = Standardization()


def _scale(held: Mapping[str, Any] | None) -> Standardizer | None:
    return None if held is None else Standardizer(*(tuple(map(float, held[name])) for name in ("mean", "scale")))
