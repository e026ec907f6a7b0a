"""Matches the gradient of the last layer to one that all clients share (FedIIR, ICML 2023)."""

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.engine import Rows
from ...training.execution_plan import Kind, resolve
from ...training.objectives import Objective, loss_and_gradient
from ..mlp import dense
from ..network import register
from ..wrapper import EncoderHeadWrapper

_VALUES_PER_CHUNK = 2**22  # of one layer; larger activations no longer fit the cache


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
