"""Gaussians with a diagonal covariance, as means and deviations or as natural parameters.

Natural parameters of N(mean, deviation²) are precision = 1 / deviation² and pull = precision * mean. A product of densities
is a sum of them and a quotient their difference, which may have no deviation: it is a function, and no law.

Weights of which some are Gaussian, as a layer meets them: drawn once for all rows, or as noise of its own for each row.

Every layer is linear in its weights, which is all that is used here; so a network becomes a random one without a word of
its own, and layers that do not ask (see `linear` and `convolve`) get weights that are drawn once for all rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .prng import fold_in, normal, uniform
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


Noise = Literal["local", "flipout", "naive"]
"""How noise of weights reaches rows.

local: what a layer gives is drawn, for every row, from the law that it has (local reparameterisation, Kingma et al. 2015);
of a convolution without what its places have in common. flipout: one draw for all rows, whose sign changes from row to row
(Wen et al. 2018). naive: one draw for all rows (Blundell et al. 2015).
"""

Layer = Callable[[Weights, Tensor], Tensor]
"""A layer as a linear function of its weights, for what it reads."""

Draw = Callable[[Sequence[int]], Tensor]
"""Numbers of this shape for each client: (*shape) of one, (clients, *shape) of a stack."""

_FIRST = 2**19  # of a stream; dropout has smaller numbers, what is drawn of features has larger ones
_LEAST = 1e-12  # variance, so that its root has a slope


class Layout(NamedTuple):
    """How draws are laid out as what a layer reads and gives is: a number for each of its, or one for a row's channel."""

    each: Callable[[Draw, Tensor], Tensor]
    channels: Callable[[Draw, Tensor], Tensor]


class Noisy(Mapping[str, Tensor]):
    """Means and variances, and a stream of one client, (), or of a stack, (clients,).

    `common`: the stream is one for a stack, all clients of which get the same draws. What has no variance is as it is.
    """

    def __init__(self, means: Weights, variances: Weights, stream: Tensor, noise: Noise, common: bool = False) -> None:
        self.means, self.variances, self.stream, self.noise, self.common = means, variances, stream, noise, common
        self._place = {name: number for number, name in enumerate(sorted(variances))}

    def __getitem__(self, name: str) -> Tensor:
        """One draw for all rows."""
        if name not in self.variances:
            return self.means[name]
        return self.means[name] + self._deviation(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)

    def layer(self, name: str, x: Tensor, layer: Layer, layout: Layout) -> Tensor:
        """What the layer gives whose weights are called `name`.weight and, if there is one, `name`.bias."""
        weight, parts = f"{name}.weight", [part for part in (f"{name}.weight", f"{name}.bias") if part in self.means]
        random = {part: self.variances[part] for part in parts if part in self.variances}
        if self.noise == "naive" or weight not in random:
            return layer({part: self[part] for part in parts}, x)
        if self.noise == "local":
            mean = layer({part: self.means[part] for part in parts}, x)
            variance = layer(random, x**2)
            drawn = layout.each(lambda shape: normal(self._stream(weight), shape), mean)
            return mean + (variance + _LEAST).sqrt() * drawn.to(mean.dtype)
        mean = layer({part: self.means[part] if part == weight else self[part] for part in parts}, x)
        apart = layer({weight: self._deviation(weight)}, x * layout.channels(self._signs(weight, 1), x).to(x.dtype))
        return mean + apart * layout.channels(self._signs(weight, 2), mean).to(mean.dtype)

    def _deviation(self, name: str) -> Tensor:
        """One draw of how far a weight is from its mean."""
        deviation = self.variances[name].sqrt()
        axes = 1 if self.common else self.stream.dim()
        return deviation * normal(self._stream(name), deviation.shape[axes:]).to(deviation.dtype)

    def _signs(self, name: str, purpose: int) -> Draw:
        return lambda shape: torch.where(uniform(fold_in(self._stream(name), purpose), shape) < 0.5, -1.0, 1.0)

    def _stream(self, name: str) -> Tensor:
        return fold_in(self.stream, _FIRST + self._place[name])
