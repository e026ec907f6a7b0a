"""Gaussians with diagonal covariance, and networks whose weights are drawn from them.

Natural parameters of N(mean, deviation²) are precision = 1 / deviation² and pull = precision * mean. A product of
densities is the sum of their natural parameters. A quotient is the difference; its precision may be negative, and then
it is not a density.

`Noisy` gives layers random weights, either drawn once for all rows or as noise per row. It only relies on layers being
linear in their weights, so networks need no code for it. Layers that do not call `Noisy.layer` (see `linear` and
`convolve`) get weights drawn once for all rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .prng import fold_in, normal, uniform
from .server_state import Weights

PULL, PRECISION = ".pull", ".precision"
"""Suffixes of the names of natural parameters, stored in float64."""

DEVIATION = ".deviation"
"""Suffix of the name of a Gaussian weight's deviation; its mean has the weight's own name."""


class Natural(NamedTuple):
    """Natural parameters of one weight: float64 tensors of its shape, with an optional leading client axis."""

    pull: Tensor
    precision: Tensor

    @classmethod
    def of(cls, named: Weights, name: str) -> "Natural":
        """Read the natural parameters of the weight `name`, in float64."""
        return cls(named[name + PULL].double(), named[name + PRECISION].double())

    def named(self, name: str) -> dict[str, Tensor]:
        """Return the natural parameters by name, the inverse of `of`."""
        return {name + PULL: self.pull, name + PRECISION: self.precision}

    @property
    def mean(self) -> Tensor:
        """Return the mean; it is meaningful only for a positive precision."""
        return self.pull / self.precision

    @property
    def deviation(self) -> Tensor:
        """Return the deviation; NaN where the precision is negative."""
        return self.precision.rsqrt()


def natural(mean: Tensor, deviation: Tensor) -> Natural:
    """Convert N(mean, deviation²) to natural parameters in float64."""
    precision = deviation.double() ** -2
    return Natural(precision * mean.double(), precision)


def plus(first: Weights, second: Weights) -> dict[str, Tensor]:
    """Add natural parameters by name: the product of two Gaussians."""
    return {name: t + second[name] for name, t in first.items()}


def gaussian_names(named: Weights, suffix: str = DEVIATION) -> list[str]:
    """Return the weights that have an entry with this suffix."""
    return [name.removesuffix(suffix) for name in named if name.endswith(suffix)]


def divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_precision: Tensor) -> Tensor:
    """Compute KL(N(mean, variance) || N(other_mean, 1 / other_precision)) elementwise, in nats."""
    ratio = other_precision * variance
    return (ratio - ratio.log() - 1 + other_precision * (mean - other_mean) ** 2) / 2


def inverse_softplus(deviation: Tensor) -> Tensor:
    """Invert softplus: return the raw parameter of a deviation."""
    return deviation + torch.log(-torch.expm1(-deviation))


Noise = Literal["local", "flipout", "naive"]
"""How noise of weights reaches rows.

`local` draws each row's layer output from its distribution (local reparameterisation, Kingma et al. 2015); a
convolution ignores correlations between positions. `flipout` draws weights once for all rows and flips signs per row
(Wen et al. 2018). `naive` draws weights once for all rows (Blundell et al. 2015).
"""

Layer = Callable[[Weights, Tensor], Tensor]
"""A layer as a linear function of its weights, applied to an input."""

Draw = Callable[[Sequence[int]], Tensor]
"""Draws numbers of a shape for each client: (*shape) for one client, (clients, *shape) for a stack."""

_WEIGHT_STREAMS = 2**19  # first stream number of weights; dropout uses smaller numbers, features larger ones
_MIN_VARIANCE = 1e-12  # keeps the gradient of the square root finite


class Layout(NamedTuple):
    """Arranges draws like a layer's inputs and outputs: one number per element, or one per row and channel."""

    each: Callable[[Draw, Tensor], Tensor]
    channels: Callable[[Draw, Tensor], Tensor]


class Noisy(Mapping[str, Tensor]):
    """Weights as means and variances, with a stream of one client, (), or of a stack, (clients,).

    With `common`, all clients of a stack share one stream and so the same draws. Weights without a variance are
    constant.
    """

    def __init__(self, means: Weights, variances: Weights, stream: Tensor, noise: Noise, common: bool = False) -> None:
        self.means, self.variances, self.stream, self.noise, self.common = means, variances, stream, noise, common
        self._index = {name: index for index, name in enumerate(sorted(variances))}

    def __getitem__(self, name: str) -> Tensor:
        """Draw the weight once for all rows."""
        if name not in self.variances:
            return self.means[name]
        return self.means[name] + self._deviation(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)

    def layer(self, name: str, x: Tensor, layer: Layer, layout: Layout) -> Tensor:
        """Compute the output of the layer with the weights `name`.weight and, if present, `name`.bias."""
        weight, parts = f"{name}.weight", [part for part in (f"{name}.weight", f"{name}.bias") if part in self.means]
        random = {part: self.variances[part] for part in parts if part in self.variances}
        if self.noise == "naive" or weight not in random:
            return layer({part: self[part] for part in parts}, x)
        if self.noise == "local":
            mean = layer({part: self.means[part] for part in parts}, x)
            variance = layer(random, x**2)
            noise = layout.each(lambda shape: normal(self._stream(weight), shape), mean)
            return mean + (variance + _MIN_VARIANCE).sqrt() * noise.to(mean.dtype)
        mean = layer({part: self.means[part] if part == weight else self[part] for part in parts}, x)
        deviation = layer({weight: self._deviation(weight)}, x * layout.channels(self._signs(weight, 1), x).to(x.dtype))
        return mean + deviation * layout.channels(self._signs(weight, 2), mean).to(mean.dtype)

    def _deviation(self, name: str) -> Tensor:
        """Draw once how far a weight is from its mean."""
        deviation = self.variances[name].sqrt()
        axes = 1 if self.common else self.stream.dim()
        return deviation * normal(self._stream(name), deviation.shape[axes:]).to(deviation.dtype)

    def _signs(self, name: str, purpose: int) -> Draw:
        return lambda shape: torch.where(uniform(fold_in(self._stream(name), purpose), shape) < 0.5, -1.0, 1.0)

    def _stream(self, name: str) -> Tensor:
        return fold_in(self.stream, _WEIGHT_STREAMS + self._index[name])
