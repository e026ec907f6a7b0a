"""Gaussians with a diagonal covariance, as means and deviations or as natural parameters.

Natural parameters of N(mean, deviation²) are precision = 1 / deviation² and pull = precision * mean. A product of densities
is a sum of them and a quotient their difference, which may have no deviation: it is a function, and no law.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .server_state import Weights

PULL, PRECISION = ".pull", ".precision"
"""What the names of weights end in that are natural parameters, in float64."""

DEVIATION = ".deviation"
"""What the name of a Gaussian weight's deviation ends in; its mean has the weight's own name."""


class Natural(NamedTuple):
    """Of one weight: tensors of its shape in float64, or with the clients' axis before it."""

    pull: Tensor
    precision: Tensor

    @classmethod
    def of(cls, named: Weights, name: str) -> "Natural":
        """Those of the weight `name`, in float64."""
        return cls(named[name + PULL].double(), named[name + PRECISION].double())

    def named(self, name: str) -> dict[str, Tensor]:
        """The inverse of `of`."""
        return {name + PULL: self.pull, name + PRECISION: self.precision}

    @property
    def mean(self) -> Tensor:
        """Only of a positive precision is it one."""
        return self.pull / self.precision

    @property
    def deviation(self) -> Tensor:
        """NaN where the precision is negative."""
        return self.precision.rsqrt()


def natural(mean: Tensor, deviation: Tensor) -> Natural:
    """Of N(mean, deviation²), in float64."""
    precision = deviation.double() ** -2
    return Natural(precision * mean.double(), precision)


def plus(first: Weights, second: Weights) -> dict[str, Tensor]:
    """Sums of natural parameters by name: the product of two Gaussians."""
    return {name: t + second[name] for name, t in first.items()}


def minus(first: Weights, second: Weights) -> dict[str, Tensor]:
    """Differences of natural parameters by name: the quotient of two Gaussians."""
    return {name: t - second[name] for name, t in first.items()}


def gaussian_names(named: Weights, ending: str = DEVIATION) -> list[str]:
    """The weights of which there is something under their name with this ending."""
    return [name.removesuffix(ending) for name in named if name.endswith(ending)]


def divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_precision: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(other_mean, 1 / other_precision)) of every number, in nats."""
    ratio = other_precision * variance
    return (ratio - ratio.log() - 1 + other_precision * (mean - other_mean) ** 2) / 2


def positive(raw: Tensor) -> Tensor:
    """A deviation as it is trained: softplus(raw)."""
    return softplus(raw)


def raw_of(deviation: Tensor) -> Tensor:
    """The inverse of `positive`."""
    return deviation + torch.log(-torch.expm1(-deviation))
