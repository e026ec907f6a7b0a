"""The last layer's gradient held near one that all clients share (FedIIR, ICML 2023)."""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..networks.dense import dense
from ..networks.network import register
from ..networks.wrapped import Wrapped
from ..state import Weights
from ..training.batch import Batch, ClientBatch
from ..training.engine import Rows
from ..training.objectives import Objective, slopes

_NUMBERS_AT_ONCE = 2**22  # of a layer; activations of more leave the cache


@register("matched")
@dataclass(frozen=True)
class Matched(Wrapped):
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

    def gradients(self, weights: Weights, context: Weights, rows: Rows, objective: Objective) -> dict[str, Tensor]:
        """Of the loss in the last layer's weights, summed over each client's rows: names to (clients, ...).

        Dropout is off, and running statistics normalise.
        """
        width = rows.y.shape[1]
        chunk = max(64, _NUMBERS_AT_ONCE // (self.widest * len(rows.y)))
        used = (torch.arange(width, device=rows.y.device) < rows.counts[:, None]).to(rows.x.dtype)
        pieces = [
            self._gradients(weights, context, rows, used, objective, slice(at, at + chunk))
            for at in range(0, width, chunk)
        ]
        return {name: sum(p[1:], p[0]) for name, p in zip(self.parts, zip(*pieces, strict=True), strict=True)}

    def _gradients(
        self, weights: Weights, context: Weights, rows: Rows, used: Tensor, objective: Objective, at: slice
    ) -> "_Gradient":
        with torch.no_grad():
            z, _ = self.encode_stack(weights, context, rows.x[:, at])
            read = self.inner.represent(weights, self.settle_stack(weights, context, z), None)
            logits = self.inner.conclude(dense(weights, self.inner.last, read), None)
        _, slope = slopes(objective, logits.flatten(0, 1), rows.y[:, at].flatten())
        return _gradient(read, slope.view(logits.shape) * used[:, at].unsqueeze(-1))


class _Gradient(NamedTuple):
    weight: Tensor  # (clients, in, out)
    bias: Tensor  # (clients, out)


def _gradient(read: Tensor, slope: Tensor) -> _Gradient:
    """read: (clients, rows, in), slope: (clients, rows, out), shares of the rows included."""
    return _Gradient(torch.bmm(read.transpose(1, 2), slope), slope.sum(1))
