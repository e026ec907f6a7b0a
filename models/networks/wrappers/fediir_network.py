"""The last layer's gradient held near one that all clients share (FedIIR, ICML 2023)."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ...server_state import Weights
from ...training.batch import Batch, ClientBatch
from ...training.engine import Rows
from ...training.execution_plan import Kind, resolve
from ...training.objectives import Objective, slopes
from ..mlp import dense
from ..network import register
from ..wrapper import EncoderHeadWrapper

_NUMBERS_AT_ONCE = 2**22  # of a layer; activations of more leave the cache


@register("matched")
@dataclass(frozen=True)
class GradientMatching(EncoderHeadWrapper):
    """The inner network; training adds penalty ||grad_W loss - target||^2, W being its last dense layer with the bias.

    The context holds the target under the names of that layer. The gradient is that of the batch, for a stack in closed form
    from what the layer reads and the slope of its outputs (for cross-entropy (p - y) h^T / rows); the penalty's own gradient
    goes through both.
    """

    penalty: float = 0.01

    @property
    def parts(self) -> tuple[str, str]:
        """The names of the last layer's weights."""
        return f"{self.head}.weight", f"{self.head}.bias"

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """The inner network's."""
        weights: dict[str, Tensor] = self.inner.init(stream)
        return weights

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective, and the squared distance of its gradient in the last layer from the target."""
        z, moved = self.encode(weights, context, batch.x, batch.used)
        read = self.inner.represent(weights, self.settle(weights, context, z), batch.stream)

        def loss_of(head: Weights) -> Tensor:
            return batch.loss(objective, self.inner.conclude(dense(head, self.inner.last, read), batch.stream))

        head = {name: weights[name] for name in self.parts}
        if not self.penalty:
            return loss_of(head), moved
        gradients = torch.func.grad(loss_of)(head)
        distance = torch.stack([((gradients[name] - context[name]) ** 2).sum() for name in self.parts]).sum()
        return loss_of(head) + self.penalty * distance, moved

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack, in closed form."""
        z, moved = self.encode_stack(weights, context, batch.x, batch.used, batch.whole)
        read = self.inner.represent(weights, self.settle_stack(weights, context, z), batch.streams)
        scores = dense(weights, self.inner.last, read)
        logits = self.inner.conclude(scores, batch.streams)
        if not self.penalty:
            return batch.loss(objective, logits), moved
        per_row = objective(logits.flatten(0, 1), batch.y.flatten())
        (slope,) = torch.autograd.grad(per_row.sum(), scores, create_graph=True)
        share = batch.used / batch.rows.clamp_min(1).unsqueeze(1)
        gradients = _gradient(read, slope * share.unsqueeze(-1))
        distance = sum(
            ((g - context[name]) ** 2).flatten(1).sum(1) for name, g in zip(self.parts, gradients, strict=True)
        )
        return batch.mean(per_row.view(batch.y.shape)) + self.penalty * cast(Tensor, distance), moved

    def gradient(
        self, weights: Weights, context: Weights, x: Tensor, y: Tensor, used: Tensor, objective: Objective
    ) -> dict[str, Tensor]:
        """Of one client's loss in the last layer's weights, summed over those of its rows that are used, dropout off."""

        def loss_of(head: Weights) -> Tensor:
            return (objective(self.apply({**weights, **head}, context, x, None), y) * used).sum()

        gradient: dict[str, Tensor] = torch.func.grad(loss_of)({name: weights[name] for name in self.parts})
        return gradient

    def gradient_stack(
        self, weights: Weights, context: Weights, x: Tensor, y: Tensor, used: Tensor, objective: Objective
    ) -> dict[str, Tensor]:
        """`gradient` for a stack, in closed form."""
        with torch.no_grad():
            z, _ = self.encode_stack(weights, context, x)
            read = self.inner.represent(weights, self.settle_stack(weights, context, z), None)
            logits = self.inner.conclude(dense(weights, self.inner.last, read), None)
        _, slope = slopes(objective, logits.flatten(0, 1), y.flatten())
        return dict(zip(self.parts, _gradient(read, slope.view(logits.shape) * used.unsqueeze(-1)), strict=True))


def gradients(
    network: GradientMatching, weights: Weights, context: Weights, rows: Rows, objective: Objective, engine: Kind
) -> dict[str, Tensor]:
    """Of each client's loss in the last layer's weights, summed over its rows: names to (clients, ...).

    Dropout is off, and running statistics normalise.
    """
    plan, width = resolve(network, engine), rows.y.shape[1]
    chunk = max(64, _NUMBERS_AT_ONCE // (network.max_width * len(rows.y)))
    used = (torch.arange(width, device=rows.y.device) < rows.counts[:, None]).to(rows.x.dtype)
    forms = [partial(form, objective=objective) for form in (network.gradient_stack, network.gradient)]
    pieces = []
    for at in range(0, width, chunk):
        read = (part[:, at : at + chunk] for part in (rows.x, rows.y, used))
        pieces.append(plan.run(*forms, weights, context, *read))
    return {name: sum((p[name] for p in pieces[1:]), pieces[0][name]) for name in network.parts}


class _Gradient(NamedTuple):
    weight: Tensor  # (clients, in, out)
    bias: Tensor  # (clients, out)


def _gradient(read: Tensor, slope: Tensor) -> _Gradient:
    """read: (clients, rows, in), slope: (clients, rows, out), shares of the rows included."""
    return _Gradient(torch.bmm(read.transpose(1, 2), slope), slope.sum(1))
