"""A client's posterior in training: its likelihood times a cavity, which is what all the others say of the weights.

Equations of VIRTUAL (Corinzia et al. 2019), restored: docs/methods/virtual.md.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...gaussians import DEVIATION, PRECISION, Noise, Noisy, divergence, gaussian_names, positive
from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.objectives import Objective
from ..network import register
from ..protocols import BatchedNetwork
from ..wrapper import NetworkWrapper
from .variational import Bias, is_gaussian, predict, without

RAW = ".raw"
"""What the name ends in of what a deviation is trained as."""

MEAN = ".mean"
"""What the name of a cavity's mean ends in, in the context, beside its precision."""

WEIGHT = "divergence.weight"
"""In the context, what a nat of divergence weighs beside the mean loss of a row: kl_weight / rows."""

Site = Literal["nonneg", "free", "clipped"]
"""Whether a client's factor can only add precision (by how it is trained), may take some away, or is cut off at none."""


@register("tilted")
@dataclass(frozen=True)
class Tilted(BatchedNetwork, NetworkWrapper):
    """The inner network with means under its weights' names, and what their deviations are trained as: "….raw".

    The cavity is context, precision and mean of each weight. `nonneg`: the posterior's precision is the cavity's and
    softplus(raw)^-2; else it is softplus(raw)^-2. The cost is the objective of one pass with noise, and the divergence from
    the cavity, in closed form.
    """

    noise: Noise = "local"
    bias: Bias = "point"
    site: Site = "nonneg"
    draws: int = 10

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Its own form, if the inner network has one."""
        return self if self.inner.stacked else None

    @property
    def random(self) -> bool:
        """Weights are."""
        return True

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The inner network's weights as means; raw 0."""
        means = without(super().init(stream), self.bias)
        return {**means, **{name + RAW: w * 0 for name, w in means.items() if is_gaussian(name, self.bias)}}

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """As Variational's, of the posterior as it is."""
        means, variances, _ = self._law(weights, context)
        return predict(self.inner.apply, means, variances, context, x, stream, self.noise, self.draws, False)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """As Variational's, of the posteriors as they are."""
        means, variances, _ = self._law_of_stack(weights, context)
        return predict(self.inner.apply_stack, means, variances, context, x, streams, self.noise, self.draws, True)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What the inner network costs in one pass with noise, and the weighed divergence: ()."""
        means, variances, nats = self._law(weights, context)
        loss, _ = self.inner.cost(Noisy(means, variances, batch.stream, self.noise), context, batch, objective)
        return loss + context[WEIGHT] * nats, {}

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack: (clients,)."""
        means, variances, nats = self._law_of_stack(weights, context)
        loss, _ = self.inner.cost_stack(Noisy(means, variances, batch.streams, self.noise), context, batch, objective)
        return loss + context[WEIGHT] * nats, {}

    def posterior(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], Tensor]:
        """One client's trained law as a Variational network's weights, and its divergence from the cavity in nats, ()."""
        return _told(*self._law(weights, context))

    def posterior_stack(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], Tensor]:
        """`posterior` for a stack, the divergence (clients,)."""
        return _told(*self._law_of_stack(weights, context))

    def _law(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """One client's means, with what has no variance, variances, and the divergence from the cavity in nats, ()."""
        means = {name: w for name, w in weights.items() if not name.endswith(RAW)}
        variances, nats = {}, []
        for name in sorted(gaussian_names(weights, RAW)):
            variances[name] = positive(weights[name + RAW]) ** 2
            if self.site == "nonneg":
                variances[name] = variances[name] / (1 + context[name + PRECISION] * variances[name])
            cavity = context[name + MEAN], context[name + PRECISION]
            nats.append(divergence(means[name], variances[name], *cavity).sum())
        return means, variances, sum(nats[1:], nats[0])

    def _law_of_stack(self, weights: Weights, context: Weights) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """`_law` for a stack, the divergence (clients,)."""
        means = {name: w for name, w in weights.items() if not name.endswith(RAW)}
        variances, nats = {}, []
        for name in sorted(gaussian_names(weights, RAW)):
            cavity = context[name + MEAN], context[name + PRECISION]
            variances[name], apart = _Law.apply(means[name], weights[name + RAW], *cavity, self.site == "nonneg")
            nats.append(apart)
        return means, variances, sum(nats[1:], nats[0])


def _told(means: Weights, variances: Weights, nats: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    return {**means, **{name + DEVIATION: variance.sqrt() for name, variance in variances.items()}}, nats


class _Law(torch.autograd.Function):
    """The variance of a weight and the divergence of all its numbers, as in `Tilted._law`, with slopes by hand.

    A step on 10 clients' 89,400 weights takes a third of what autograd's own slopes take. It is memory, of which what is new
    costs three times what is written over: so the text is in place where it can be.
    """

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, raw: Tensor, cavity: Tensor, precision: Tensor, nonneg: bool
    ) -> tuple[Tensor, Tensor]:
        """(clients, ...) and (clients,)."""
        trained = positive(raw)
        variance = trained.square()
        shrunk = torch.addcmul(variance.new_ones(()), precision, variance).reciprocal_() if nonneg else None
        if shrunk is not None:
            variance.mul_(shrunk)
        ratio, offset = precision * variance, mean - cavity
        pull = precision * offset
        nats = ratio.log()
        torch.sub(ratio, nats, out=nats).sub_(1).addcmul_(pull, offset)
        ctx.save_for_backward(raw, trained, variance, shrunk, pull, precision)
        return variance, nats.flatten(1).sum(1) / 2

    @staticmethod
    def backward(ctx: Any, by_variance: Tensor, by_nats: Tensor) -> tuple[Tensor | None, ...]:
        """Slopes in the mean and in raw, of which sigmoid(raw) is softplus's."""
        raw, trained, variance, shrunk, pull, precision = ctx.saved_tensors
        weight = by_nats.view(-1, *[1] * (pull.dim() - 1))
        slope = torch.addcmul(by_variance, weight / 2, precision).addcdiv_(weight / 2, variance, value=-1)
        slope.mul_(raw.sigmoid()).mul_(trained).mul_(2)
        if shrunk is not None:
            slope.mul_(shrunk).mul_(shrunk)
        return pull * weight, slope, None, None, None
