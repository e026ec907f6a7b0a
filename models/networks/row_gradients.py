"""Sums gradients of rows, each scaled by its norm, from the inputs and deltas of layers in one backward pass.

Deltas are the loss's derivatives by a layer's outputs. They are linear in those of the logits, so scaling a row's deltas
scales its gradient without a second pass (Goodfellow 2015).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ..server_state import Weights
from .grouped_layers import GroupedLayers, unfold_images


class RowGradients(Protocol):
    """The gradients of one layer's weights, of each row (clients, rows)."""

    def squares(self) -> Tensor:
        """Return the squared norms, (clients, rows)."""

    def sums(self, scale: Tensor, finite: Tensor | None) -> dict[str, Tensor]:
        """Sum the gradients over rows, names of weights to (clients, ...).

        Args:
            scale: (clients, rows), the factors of the rows.
            finite: (clients, rows), the rows whose gradients are finite; None if all are.
        """


@dataclass(frozen=True)
class DenseRows:
    """A dense layer's inputs (clients, rows, in) and deltas (clients, rows, out); a row's gradient is their product."""

    name: str
    inputs: Tensor
    deltas: Tensor

    def squares(self) -> Tensor:
        """Return |a|^2 |d|^2 for the weights, and |d|^2 for the bias."""
        return self.deltas.square().sum(-1) * (self.inputs.square().sum(-1) + 1)

    def sums(self, scale: Tensor, finite: Tensor | None) -> dict[str, Tensor]:
        inputs, deltas = _clean(self.inputs, finite), _clean(self.deltas, finite) * scale.unsqueeze(-1)
        return {f"{self.name}.weight": torch.bmm(inputs.transpose(1, 2), deltas), f"{self.name}.bias": deltas.sum(1)}


@dataclass(frozen=True)
class KernelRows:
    """A convolution's gradients of each row: kernels (in, clients, rows, out, kernel, kernel), bias (clients, rows, out)."""

    name: str
    kernels: Tensor
    bias: Tensor

    @classmethod
    def from_images(cls, name: str, inputs: Tensor, deltas: Tensor, clients: int, margin: int) -> "KernelRows":
        """Correlate each row's inputs with its deltas; both are folded images, margin is the convolution's padding."""
        images, changes = unfold_images(inputs, clients), unfold_images(deltas, clients)
        rows, channels = images.shape[1], images.shape[2]
        below = images.flatten(0, 1).transpose(0, 1).contiguous()
        kernels = changes.flatten(0, 2).unsqueeze(1).contiguous()
        found = conv2d(below, kernels, padding=margin, groups=clients * rows)
        return cls(name, found.view(channels, clients, rows, -1, *found.shape[2:]), changes.sum((3, 4)))

    def squares(self) -> Tensor:
        return self.kernels.square().sum((0, 3, 4, 5)) + self.bias.square().sum(-1)

    def sums(self, scale: Tensor, finite: Tensor | None) -> dict[str, Tensor]:
        weights = scale.unsqueeze(1)
        kernels = _clean(self.kernels.flatten(3), finite)
        summed = torch.matmul(weights, kernels).view(*kernels.shape[:2], *self.kernels.shape[3:])
        bias = torch.bmm(weights, _clean(self.bias, finite)).squeeze(1)
        return {f"{self.name}.weight": summed.permute(1, 2, 0, 3, 4).contiguous(), f"{self.name}.bias": bias}


class RecordedLayers(GroupedLayers):
    """Records the inputs and outputs of each convolution, of which autograd computes deltas; weights have no gradient."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.passed: list[tuple[str, Tensor, Tensor]] = []

    def convolve(self, name: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
        output = super().convolve(name, x, padding, stride).requires_grad_()
        self.passed.append((name, x.detach(), output))
        return output


def _clean(tensor: Tensor, finite: Tensor | None) -> Tensor:
    """Replace rows that are not finite by 0, since 0 times infinity is no number; tensor: (..., clients, rows, numbers)."""
    return tensor if finite is None else tensor.where(finite.unsqueeze(-1), 0.0)


def scaled_sums(layers: Sequence[RowGradients], scale: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Sum each client's row gradients of all layers, each scaled by what `scale` returns for its squared norm."""
    squares = layers[0].squares()
    for layer in layers[1:]:
        squares = squares + layer.squares()
    finite = squares.isfinite()
    unclean = None if bool(finite.all()) else finite
    factors = scale(squares)
    return {name: total for layer in layers for name, total in layer.sums(factors, unclean).items()}
