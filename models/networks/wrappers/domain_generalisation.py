"""Networks trained for clients that take no part: FedSR's representations, and FedIIR's matched gradients.

FedSR draws a representation from a Gaussian per row, kept short and simple (NeurIPS 2022). FedIIR matches the gradient
of the last layer to one that all clients share (ICML 2023).
"""

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import softplus

from ...prng import fold_in, normal
from ...server_state import Weights
from ...training.engine import Rows
from ...training.execution_plan import Kind, resolve
from ...training.objectives import Batch, ClientBatch, Objective, loss_and_gradient
from ..mlp import dense, dense_weights, linear, linear_weights
from ..network import register
from ..wrapper import EncoderHeadWrapper

SPREAD, CENTRE = "spread", "centre"
"""Layers that compute sigma and, with a `width`, mu."""

MEAN, DEVIATION, SCALE = "reference.mean", "reference.spread", "reference.scale"
"""Each client's references for the representations of a class: r_mu, r_sigma before its softplus, and C."""

_HEAD, _SPREAD, _CENTRE, _NOISE = (2**20 + index for index in range(4))  # stream numbers; layers use small ones
_MIN_DEVIATION = 1e-6  # keeps the logarithm of the standard deviation finite

_VALUES_PER_CHUNK = 2**22  # of one layer; larger activations no longer fit the cache


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


@register("matched")
@dataclass(frozen=True)
class GradientMatching(EncoderHeadWrapper):
    """The inner network; training adds penalty ||grad_W loss - target||^2.

    W is the last dense layer with its bias, and the context contains the target under the names of that layer. The
    gradient is that of the batch. For a stack it has a closed form: the layer's inputs times the gradient of its
    outputs (for cross-entropy (p - y) h^T / rows). The penalty's own gradient passes through both.
    """

    penalty: float = 0.01

    @property
    def parts(self) -> tuple[str, str]:
        """Return the names of the last layer's weights."""
        return f"{self.head}.weight", f"{self.head}.bias"

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective, plus the squared distance of its last-layer gradient from the target."""
        z, buffers = self.encode(weights, context, batch.x, batch.used)
        inputs = self.inner.represent(weights, self.pre_head(weights, context, z), batch.stream)

        def loss_of(head: Weights) -> Tensor:
            return batch.loss(objective, self.inner.to_logits(dense(head, self.inner.last, inputs), batch.stream))

        head = {name: weights[name] for name in self.parts}
        if not self.penalty:
            return loss_of(head), buffers
        gradients = torch.func.grad(loss_of)(head)
        distance = torch.stack([((gradients[name] - context[name]) ** 2).sum() for name in self.parts]).sum()
        return loss_of(head) + self.penalty * distance, buffers

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `cost` for a stack, in closed form."""
        z, buffers = self.encode_stack(weights, context, batch.x, batch.used, batch.unpadded)
        inputs = self.inner.represent(weights, self.pre_head_stack(weights, context, z), batch.streams)
        scores = dense(weights, self.inner.last, inputs)
        logits = self.inner.to_logits(scores, batch.streams)
        if not self.penalty:
            return batch.loss(objective, logits), buffers
        per_row = objective(logits.flatten(0, 1), batch.y.flatten())
        (gradient,) = torch.autograd.grad(per_row.sum(), scores, create_graph=True)
        share = batch.used / batch.rows.clamp_min(1).unsqueeze(1)
        gradients = _head_gradient(inputs, gradient * share.unsqueeze(-1))
        distance = sum(
            ((g - context[name]) ** 2).flatten(1).sum(1) for name, g in zip(self.parts, gradients, strict=True)
        )
        return batch.mean(per_row.view(batch.y.shape)) + self.penalty * cast(Tensor, distance), buffers

    def gradient(
        self, weights: Weights, context: Weights, x: Tensor, y: Tensor, used: Tensor, objective: Objective
    ) -> dict[str, Tensor]:
        """Compute the gradient of one client's loss in the last layer's weights, with dropout off.

        The loss is summed over used rows.
        """

        def loss_of(head: Weights) -> Tensor:
            return (objective(self.apply({**weights, **head}, context, x, None), y) * used).sum()

        gradient: dict[str, Tensor] = torch.func.grad(loss_of)({name: weights[name] for name in self.parts})
        return gradient

    def gradient_stack(
        self, weights: Weights, context: Weights, x: Tensor, y: Tensor, used: Tensor, objective: Objective
    ) -> dict[str, Tensor]:
        """Run `gradient` for a stack, in closed form."""
        with torch.no_grad():
            z, _ = self.encode_stack(weights, context, x)
            inputs = self.inner.represent(weights, self.pre_head_stack(weights, context, z), None)
            logits = self.inner.to_logits(dense(weights, self.inner.last, inputs), None)
        _, gradient = loss_and_gradient(objective, logits.flatten(0, 1), y.flatten())
        gradient = gradient.view(logits.shape) * used.unsqueeze(-1)
        return dict(zip(self.parts, _head_gradient(inputs, gradient), strict=True))


def gradients(
    network: GradientMatching, weights: Weights, context: Weights, rows: Rows, objective: Objective, engine: Kind
) -> dict[str, Tensor]:
    """Compute the gradient of each client's loss in the last layer's weights, summed over its rows.

    Returns names to (clients, ...). Dropout is off, and normalisation uses running statistics.
    """
    plan, width = resolve(network, engine), rows.y.shape[1]
    chunk = max(64, _VALUES_PER_CHUNK // (network.max_width * len(rows.y)))
    used = (torch.arange(width, device=rows.y.device) < rows.counts[:, None]).to(rows.x.dtype)
    functions = [partial(function, objective=objective) for function in (network.gradient_stack, network.gradient)]
    chunks = []
    for start in range(0, width, chunk):
        fields = (part[:, start : start + chunk] for part in (rows.x, rows.y, used))
        chunks.append(plan.run(*functions, weights, context, *fields))
    return {name: sum((c[name] for c in chunks[1:]), chunks[0][name]) for name in network.parts}


def _head_gradient(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the weight (clients, in, out) and the bias (clients, out).

    inputs: (clients, rows, in). gradient: output gradients (clients, rows, out), already weighted by row.
    """
    return torch.bmm(inputs.transpose(1, 2), gradient), gradient.sum(1)
