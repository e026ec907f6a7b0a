"""Networks with Gaussian weights, which predict with a mean over draws (Bayes by backprop, Blundell et al. 2015)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...gaussians import DEVIATION, Noise, Noisy
from ...prng import fold_in, server_stream
from ...server_state import Weights
from ..network import Network, register
from ..network_abilities import BatchedNetwork
from ..wrapper import NetworkWrapper

Bias = Literal["point", "gaussian", "none"]
"""What biases are: numbers, Gaussian like all other weights, or absent."""


@dataclass(frozen=True)
class GaussianWrapper(NetworkWrapper):
    """Base of wrappers whose weights are Gaussian; the means have the names of the inner network's weights.

    Attributes:
        noise: How noise reaches rows (see models.gaussians).
        bias: "point" if biases are plain numbers, "gaussian" if they are Gaussian too, "none" if there are none.
    """

    noise: Noise = "local"
    bias: Bias = "point"

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Return itself if it and the inner network have a batched form."""
        return self if isinstance(self, BatchedNetwork) and self.inner.stacked else None

    @property
    def random(self) -> bool:
        """Return True, because weights are random."""
        return True

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the inner network's weights as means, without biases if `bias` is "none"."""
        return drop_biases(super().init(stream), self.bias)


@register("variational")
@dataclass(frozen=True)
class Variational(BatchedNetwork, GaussianWrapper):
    """The inner network with a mean under every weight's name, and a deviation: "dense0.weight.deviation".

    With a stream it makes one noisy pass. Without one it averages the softmax over `draws` draws of all weights and
    returns the logarithm; the standard normals are always the same. For regression it returns the mean. With 0 draws it
    predicts with the means.
    """

    draws: int = 10
    deviation: float = 0.0067  # of initial weights

    cost = Network.cost  # computed from its own logits

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the means, and set equal deviations."""
        means = super().init(stream)
        names = [name for name in means if is_gaussian(name, self.bias)]
        return {**means, **{name + DEVIATION: means[name] * 0 + self.deviation for name in names}}

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        return self._predict(self.inner.apply, weights, context, x, stream, False)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """Map x (clients, rows, *shape) to (clients, rows, outputs)."""
        return self._predict(self.inner.apply_stack, weights, context, x, streams, True)

    def _predict(
        self,
        apply: Callable[..., Tensor],
        weights: Weights,
        context: Weights,
        x: Tensor,
        stream: Tensor | None,
        stack: bool,
    ) -> Tensor:
        means, variances = split_deviations(weights)
        return predict(apply, means, variances, context, x, stream, self.noise, self.draws, stack)


def predict(
    apply: Callable[..., Tensor],
    means: Weights,
    variances: Weights,
    context: Weights,
    x: Tensor,
    stream: Tensor | None,
    noise: Noise,
    draws: int,
    stack: bool,
) -> Tensor:
    """Predict with weights that have these means and variances.

    With a stream this makes one noisy pass. Without one it returns the logarithm of the mean softmax over draws of the
    weights, or the mean for regression. With 0 draws it returns the output of the means.

    Args:
        apply: The inner network's `apply`, or `apply_stack` for a stack; x, context and the result have its shapes.
        means: Means, and weights without a variance.
        variances: Variances by the weight's name.
        context: The network's context.
        x: The rows.
        stream: Stream of the noise, or None.
        noise: How noise reaches rows.
        draws: Number of draws without a stream.
        stack: Whether x is a stack, whose clients then share their draws.
    """
    if stream is not None:
        return apply(Noisy(means, variances, stream, noise), context, x, stream)
    if not draws:
        return apply(means, context, x, None)
    # the same draws at every call, so that a prediction is repeatable and rounds are compared under equal noise
    common = server_stream(0, 0, "prediction").to(x.device)
    outputs = []
    for draw in range(draws):
        noisy = Noisy(means, variances, fold_in(common, draw), "naive", common=stack)
        outputs.append(apply(noisy, context, x, None))
    if outputs[0].shape[-1] == 1:
        return torch.stack(outputs).mean(0)
    # the mean of probabilities, computed from logarithms because small probabilities underflow
    return torch.logsumexp(torch.stack([torch.log_softmax(logits, -1) for logits in outputs]), 0) - math.log(draws)


def split_deviations(weights: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Separate means, together with weights that have no deviation, from variances by the weight's name."""
    variances = {name.removesuffix(DEVIATION): w**2 for name, w in weights.items() if name.endswith(DEVIATION)}
    return {name: w for name, w in weights.items() if not name.endswith(DEVIATION)}, variances


def is_gaussian(name: str, bias: Bias) -> bool:
    """Whether the inner network's weight of this name is Gaussian.

    Names with other suffixes than these are plain numbers.
    """
    return name.endswith(".weight") or (name.endswith(".bias") and bias == "gaussian")


def drop_biases(weights: Weights, bias: Bias) -> dict[str, Tensor]:
    """Remove the inner network's biases if `bias` is "none"."""
    return {name: w for name, w in weights.items() if bias != "none" or not name.endswith(".bias")}
