"""Representations drawn from a Gaussian per row, kept short and simple (FedSR, NeurIPS 2022)."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softplus

from ...prng import fold_in, normal
from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.objectives import Objective
from ..mlp import dense, dense_weights, linear, linear_weights
from ..network import register
from ..wrapper import EncoderHeadWrapper

SPREAD, CENTRE = "spread", "centre"
"""Layers that compute sigma and, with a `width`, mu."""

MEAN, DEVIATION, SCALE = "reference.mean", "reference.spread", "reference.scale"
"""Each client's references for the representations of a class: r_mu, r_sigma before its softplus, and C."""

_HEAD, _SPREAD, _CENTRE, _NOISE = (2**20 + index for index in range(4))  # stream numbers; layers use small ones
_MIN_DEVIATION = 1e-6  # keeps the logarithm of the standard deviation finite


@register("represented")
@dataclass(frozen=True)
class StochasticRepresentation(EncoderHeadWrapper):
    """logits = W z + b, z ~ N(mu, sigma^2), where sigma is the softplus of a dense layer on the last layer's input.

    mu is the last layer's input or, with a `width`, another dense layer of that width, and W then has that width too.
    Training adds norm_weight E||z|| + conditional_weight KL(N(C mu, (C sigma)^2) || N(r_mu[y], r_sigma[y]^2)), summed
    over z's numbers. Without a stream, or with `sampled` false, z is mu. In a regression all rows share one reference.
    """

    norm_weight: float = 0.01
    conditional_weight: float = 0.001
    sampled: bool = True
    width: int | None = None

    @property
    def random(self) -> bool:
        """Whether representations are drawn, or dropout is on."""
        return self.sampled or super().random

    @property
    def personal(self) -> tuple[str, ...]:
        """Return the names of the references."""
        return MEAN, DEVIATION, SCALE

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw the inner network's weights, and new layers uniformly from ±1/√fan_in.

        r_mu is 0, r_sigma is softplus(1), and C is 1.
        """
        weights = dict(self.inner.init(stream))
        read, outputs = weights[f"{self.head}.weight"].shape
        width = self.width or read
        weights |= linear_weights(fold_in(stream, _SPREAD), SPREAD, read, width)
        if self.width:
            weights |= linear_weights(fold_in(stream, _CENTRE), CENTRE, read, width)
            weights |= dense_weights(fold_in(stream, _HEAD), self.inner.last, width, outputs)
        references = {MEAN: torch.zeros(outputs, width), DEVIATION: torch.ones(outputs, width), SCALE: torch.ones(1)}
        return {**weights, **references}

    def apply_head(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Draw z for every row and apply the last layer."""
        return self._last_layer(weights, self._draw(*self._distribution(weights, embedding, stream), stream), stream)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective, plus penalties on z's length and on its distribution.

        The latter is the divergence of z's distribution from the reference of the row's class.
        """
        features, buffers = self.encode(weights, context, batch.x, batch.used)
        mean, deviation = self._distribution(weights, self.pre_head(weights, context, features), batch.stream)
        z = self._draw(mean, deviation, batch.stream)
        loss = batch.loss(objective, self._last_layer(weights, z, batch.stream))
        scale, label = weights[SCALE], _label(batch.y)
        reference = weights[MEAN][label], softplus(weights[DEVIATION][label]) + _MIN_DEVIATION
        distance = divergence(scale * mean, scale.abs() * deviation + _MIN_DEVIATION, *reference)
        return loss + batch.mean(
            self.norm_weight * vector_norm(z, dim=-1) + self.conditional_weight * distance
        ), buffers

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        features, buffers = self.encode_stack(weights, context, batch.x, batch.used, batch.unpadded)
        mean, deviation = self._distribution(weights, self.pre_head_stack(weights, context, features), batch.streams)
        z = self._draw(mean, deviation, batch.streams)
        loss = batch.loss(objective, self._last_layer(weights, z, batch.streams))
        scale = weights[SCALE].unsqueeze(1)
        ref_deviation = softplus(_select_rows(weights[DEVIATION], batch.y)) + _MIN_DEVIATION
        reference = _select_rows(weights[MEAN], batch.y), ref_deviation
        distance = divergence(scale * mean, scale.abs() * deviation + _MIN_DEVIATION, *reference)
        length = self.norm_weight * batch.mean(vector_norm(z, dim=-1))
        return loss + length + self.conditional_weight * batch.mean(distance), buffers

    def _distribution(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute mu and sigma of every row, for one client or a stack."""
        inputs = self.inner.represent(weights, embedding, stream)
        deviation = softplus(linear(weights, SPREAD, inputs)) + _MIN_DEVIATION
        return linear(weights, CENTRE, inputs) if self.width else inputs, deviation

    def _draw(self, mean: Tensor, deviation: Tensor, stream: Tensor | None) -> Tensor:
        if stream is None or not self.sampled:
            return mean
        return mean + deviation * normal(fold_in(stream, _NOISE), mean.shape[stream.dim() :]).to(mean.dtype)

    def _last_layer(self, weights: Weights, z: Tensor, stream: Tensor | None) -> Tensor:
        return cast(Tensor, self.inner.to_logits(dense(weights, self.inner.last, z), stream))


def divergence(mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor) -> Tensor:
    """Compute KL(N(mean, deviation^2) || N(other_mean, other_deviation^2)) in nats, summed over the last axis."""
    ratio = deviation / other_deviation
    offset = (mean - other_mean) / other_deviation
    return ((ratio**2 + offset**2 - 1) / 2 - ratio.log()).sum(-1)


def _select_rows(table: Tensor, y: Tensor) -> Tensor:
    """Select each row's class from its client's table: (clients, classes, numbers) to (clients, rows, numbers)."""
    label = _label(y)
    return table.gather(1, label.unsqueeze(-1).expand(*label.shape, table.shape[-1]))


def _label(y: Tensor) -> Tensor:
    """Return each row's class; in a regression all rows have class 0."""
    return torch.zeros_like(y, dtype=torch.int64) if y.is_floating_point() else y
