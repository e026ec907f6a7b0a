"""Sums gradients of rows, each scaled by its norm, from the inputs and deltas of layers in one backward pass.

Deltas are the loss's derivatives by a layer's outputs. They are linear in those of the logits, so scaling a row's deltas
scales its gradient without a second pass (Goodfellow 2015).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..server_state import Weights
from .grouped_layers import GroupedLayers

_LAST = torch.channels_last
_LEAST_DELTA = 1e-15


class RowGradients(Protocol):
    """The gradients of one layer's weights, of each row (clients, rows)."""

    def squares(self) -> Tensor:
        """Return the squared norms, (clients, rows)."""

    def sums(self, scale: Tensor, finite: Tensor | None) -> dict[str, Tensor]:
        """Sum the gradients over rows, names of weights to (clients, ...).

        Args:
            scale: (clients, rows), the factors of the rows.
            finite: (clients, rows), the rows with finite gradients; None if all have.
        """


@dataclass(frozen=True)
class DenseRows:
    """A dense layer's inputs (clients, rows, in) and deltas (clients, rows, out); a row's gradient is their product.

    Deltas of at most 1e-15 are 0, since squares of far smaller ones are 0 in float32: a row of such deltas and huge inputs
    would seem to have no gradient, and would not be clipped.
    """

    name: str
    inputs: Tensor
    deltas: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "deltas", torch.nn.functional.hardshrink(self.deltas, _LEAST_DELTA))

    def squares(self) -> Tensor:
        """Return |a|^2 |d|^2 for the weights, and |d|^2 for the bias."""
        return self.deltas.square().sum(-1) * (self.inputs.square().sum(-1) + 1)

    def sums(self, scale: Tensor, finite: Tensor | None) -> dict[str, Tensor]:
        inputs, deltas = _clean(self.inputs, finite), _clean(self.deltas, finite) * scale.unsqueeze(-1)
        return {f"{self.name}.weight": torch.bmm(inputs.transpose(1, 2), deltas), f"{self.name}.bias": deltas.sum(1)}


@dataclass(frozen=True)
class KernelRows:
    """A convolution's gradients of each row: kernels (rows, clients, numbers) and bias (rows, clients, out)."""

    name: str
    kernels: Tensor
    bias: Tensor
    shape: torch.Size  # of the kernels of all clients, in the order of the numbers: (clients, out, kernel, kernel, in)

    @classmethod
    def from_images(cls, name: str, inputs: Tensor, deltas: Tensor, weight: Tensor, margin: int) -> "KernelRows":
        """Compute each row's gradient as that of one more group of channels.

        Args:
            name: The layer.
            inputs: Folded images, (rows, clients * in, height, width).
            deltas: Folded images, (rows, clients * out, height, width).
            weight: The kernels, (clients, out, in, kernel, kernel).
            margin: The convolution's padding.
        """
        rows, groups = len(inputs), len(inputs) * len(weight)
        # only the shape and layout of the kernels are read
        kernels = torch.empty_like(weight[:1].expand(groups, *weight.shape[1:]).flatten(0, 1), memory_format=_LAST)
        settings = ([0], [1, 1], [margin, margin], [1, 1], False, [0, 0], groups, [False, True, False])
        images, changes = _rows_as_channels(inputs), _rows_as_channels(deltas)
        found = torch.ops.aten.convolution_backward(changes, images, kernels, *settings)[1].permute(0, 2, 3, 1)
        shape = weight.permute(0, 1, 3, 4, 2).shape
        return cls(name, found.reshape(rows, len(weight), -1), deltas.sum((2, 3)).view(rows, len(weight), -1), shape)

    def squares(self) -> Tensor:
        return (self.kernels.square().sum(-1) + self.bias.square().sum(-1)).T

    def sums(self, scale: Tensor, finite: Tensor | None) -> dict[str, Tensor]:
        kernels, bias = (
            torch.bmm(scale.unsqueeze(1), _clean(of.transpose(0, 1), finite)) for of in (self.kernels, self.bias)
        )
        return {
            f"{self.name}.weight": kernels.view(self.shape).permute(0, 1, 4, 2, 3).contiguous(),
            f"{self.name}.bias": bias.squeeze(1),
        }


def _rows_as_channels(images: Tensor) -> Tensor:
    """Fold images (rows, channels, height, width) to one image, (1, rows * channels, height, width), channels last."""
    return images.permute(2, 3, 0, 1).contiguous().flatten(2).permute(2, 0, 1).unsqueeze(0)


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
    """Replace rows that are not finite by 0, since 0 times infinity is no number; tensor: (clients, rows, numbers)."""
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
