"""A representation that is drawn from a Gaussian of the row, kept short and simple (FedSR, NeurIPS 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softplus

from ...prng import fold_in, normal
from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.objectives import Objective
from ..mlp import dense, dense_weights, linear, within
from ..network import register
from ..wrapper import EncoderHeadWrapper

SPREAD, CENTRE = "spread", "centre"
"""The layers that give sigma and, with a `width`, mu."""

MEAN, DEVIATION, SCALE = "reference.mean", "reference.spread", "reference.scale"
"""What representations of a class are held near, each client's own: r_mu, r_sigma before its softplus, and C."""

_HEAD, _SPREAD, _CENTRE, _NOISE = (2**20 + number for number in range(4))  # the layers' streams have small numbers
_LEAST = 1e-6  # standard deviation, so that its logarithm is finite


@register("represented")
@dataclass(frozen=True)
class StochasticRepresentation(EncoderHeadWrapper):
    """logits = W z + b, z ~ N(mu, sigma^2), with sigma the softplus of a dense layer of what the inner network's last reads.

    mu is what that layer reads, or with a `width` another dense layer of it, so wide, and W is as wide then.
    Training adds norm_weight E||z|| + conditional_weight KL(N(C mu, (C sigma)^2) || N(r_mu[y], r_sigma[y]^2)), summed over
    z's numbers. Without a stream, and with `sampled` false, z is mu. Of a regression all rows have one reference.
    """

    norm_weight: float = 0.01
    conditional_weight: float = 0.001
    sampled: bool = True
    width: int | None = None

    @property
    def random(self) -> bool:
        """Draws are, and so is dropout."""
        return self.sampled or super().random

    @property
    def personal(self) -> tuple[str, ...]:
        """The references."""
        return MEAN, DEVIATION, SCALE

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The inner network's weights, new layers uniform in ±1/√fan_in; r_mu is 0, r_sigma softplus(1), C is 1."""
        weights = dict(self.inner.init(stream))
        read, outputs = weights[f"{self.head}.weight"].shape
        width = self.width or read
        weights |= _layer(fold_in(stream, _SPREAD), SPREAD, read, width)
        if self.width:
            weights |= _layer(fold_in(stream, _CENTRE), CENTRE, read, width)
            weights |= dense_weights(fold_in(stream, _HEAD), self.inner.last, width, outputs)
        references = {MEAN: torch.zeros(outputs, width), DEVIATION: torch.ones(outputs, width), SCALE: torch.ones(1)}
        return {**weights, **references}

    def finish(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """One draw of z for every row, and the last layer."""
        return self._answer(weights, self._draw(*self._law(weights, settled, stream), stream), stream)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective, z's length, and how far z's law is from the reference of the row's class."""
        features, moved = self.encode(weights, context, batch.x, batch.used)
        mean, deviation = self._law(weights, self.settle(weights, context, features), batch.stream)
        z = self._draw(mean, deviation, batch.stream)
        loss = batch.loss(objective, self._answer(weights, z, batch.stream))
        scale, label = weights[SCALE], _label(batch.y)
        of_class = weights[MEAN][label], softplus(weights[DEVIATION][label]) + _LEAST
        distance = divergence(scale * mean, scale.abs() * deviation + _LEAST, *of_class)
        return loss + batch.mean(self.norm_weight * vector_norm(z, dim=-1) + self.conditional_weight * distance), moved

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack."""
        features, moved = self.encode_stack(weights, context, batch.x, batch.used, batch.whole)
        mean, deviation = self._law(weights, self.settle_stack(weights, context, features), batch.streams)
        z = self._draw(mean, deviation, batch.streams)
        loss = batch.loss(objective, self._answer(weights, z, batch.streams))
        scale = weights[SCALE].unsqueeze(1)
        of_class = (_of_rows(weights[MEAN], batch.y), softplus(_of_rows(weights[DEVIATION], batch.y)) + _LEAST)
        distance = divergence(scale * mean, scale.abs() * deviation + _LEAST, *of_class)
        length = self.norm_weight * batch.mean(vector_norm(z, dim=-1))
        return loss + length + self.conditional_weight * batch.mean(distance), moved

    def _law(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> tuple[Tensor, Tensor]:
        """mu and sigma of every row, of one client or of a stack."""
        read = self.inner.represent(weights, settled, stream)
        deviation = softplus(linear(weights, SPREAD, read)) + _LEAST
        return linear(weights, CENTRE, read) if self.width else read, deviation

    def _draw(self, mean: Tensor, deviation: Tensor, stream: Tensor | None) -> Tensor:
        if stream is None or not self.sampled:
            return mean
        return mean + deviation * normal(fold_in(stream, _NOISE), mean.shape[stream.dim() :]).to(mean.dtype)

    def _answer(self, weights: Weights, z: Tensor, stream: Tensor | None) -> Tensor:
        logits: Tensor = self.inner.conclude(dense(weights, self.inner.last, z), stream)
        return logits


def divergence(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """KL(N(mean, deviation^2) || N(other_mean, other_deviation^2)) in nats, summed over the last axis."""
    ratio = deviation / other_deviation
    apart = (mean - other_mean) / other_deviation
    return ((ratio**2 + apart**2 - 1) / 2 - ratio.log()).sum(-1)


def _layer(stream: Tensor, name: str, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    return within(stream, fan_in**-0.5, {f"{name}.weight": (fan_in, fan_out), f"{name}.bias": (fan_out,)})


def _of_rows(table: Tensor, y: Tensor) -> Tensor:
    """Each row's line of its client's table: (clients, classes, numbers) to (clients, rows, numbers)."""
    label = _label(y)
    return table.gather(1, label.unsqueeze(-1).expand(*label.shape, table.shape[-1]))


def _label(y: Tensor) -> Tensor:
    """Each row's class; of a regression all rows have one."""
    return torch.zeros_like(y, dtype=torch.int64) if y.is_floating_point() else y
