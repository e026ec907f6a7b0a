"""A network whose weights are Gaussian: what it answers is a mean over draws of them (Bayes by backprop, Blundell 2015)."""

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
from ..protocols import BatchedNetwork
from ..wrapper import NetworkWrapper

Bias = Literal["point", "gaussian", "none"]
"""What the biases are: numbers, Gaussian as all other weights are, or not there."""


@register("variational")
@dataclass(frozen=True)
class Variational(BatchedNetwork, NetworkWrapper):
    """The inner network with a mean for every weight, under its name, and a deviation: "dense0.weight.deviation".

    With a stream it is one pass with noise (`noise`, see noisy_weights). Without, the answer is the logarithm of the mean of
    softmax over `draws` of all weights, always the same draws of standard normals; a regression's is the mean. 0 draws are
    the answer of the means.
    """

    noise: Noise = "local"
    bias: Bias = "point"
    draws: int = 10
    deviation: float = 0.0067  # of fresh weights

    cost = Network.cost  # of its own logits

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Its own form, if the inner network has one."""
        return self if self.inner.stacked else None

    @property
    def random(self) -> bool:
        """Weights are."""
        return True

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The inner network's weights as means, and equal deviations."""
        means = without(super().init(stream), self.bias)
        names = [name for name in means if is_gaussian(name, self.bias)]
        return {**means, **{name + DEVIATION: means[name] * 0 + self.deviation for name in names}}

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to (rows, outputs)."""
        return self._answer(self.inner.apply, weights, context, x, stream, False)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape) to (clients, rows, outputs)."""
        return self._answer(self.inner.apply_stack, weights, context, x, streams, True)

    def _answer(
        self,
        apply: Callable[..., Tensor],
        weights: Weights,
        context: Weights,
        x: Tensor,
        stream: Tensor | None,
        stack: bool,
    ) -> Tensor:
        means, variances = differing(weights)
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
    """What a network says whose weights have these means and variances, by the inner network's `apply`.

    With a stream, one pass with noise. Without, the logarithm of the mean of softmax over draws of the weights, which of a
    stack all clients share; a regression's mean; of 0 draws the answer of the means. Shapes as `apply` has them.
    """
    if stream is not None:
        return apply(Noisy(means, variances, stream, noise), context, x, stream)
    if not draws:
        return apply(means, context, x, None)
    common = server_stream(0, 0, "prediction").to(x.device)
    outputs = []
    for number in range(draws):
        noisy = Noisy(means, variances, fold_in(common, number), "naive", common=stack)
        outputs.append(apply(noisy, context, x, None))
    if outputs[0].shape[-1] == 1:
        return torch.stack(outputs).mean(0)
    return torch.logsumexp(torch.stack([torch.log_softmax(one, -1) for one in outputs]), 0) - math.log(draws)


def differing(weights: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Means with what has no deviation, and variances by the weight's name."""
    variances = {name.removesuffix(DEVIATION): w**2 for name, w in weights.items() if name.endswith(DEVIATION)}
    return {name: w for name, w in weights.items() if not name.endswith(DEVIATION)}, variances


def is_gaussian(name: str, bias: Bias) -> bool:
    """Whether the inner network's weight of this name is: by how the name ends, and with any other ending it is a number."""
    return name.endswith(".weight") or (name.endswith(".bias") and bias == "gaussian")


def without(weights: Weights, bias: Bias) -> dict[str, Tensor]:
    """The inner network's weights, without biases if there are to be none."""
    return {name: w for name, w in weights.items() if bias != "none" or not name.endswith(".bias")}
