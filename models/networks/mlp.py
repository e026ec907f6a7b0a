"""Dense networks with ReLU, and the dense-layer functions that all networks share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from ..gaussians import Draw, Layout, Noisy
from ..prng import fold_in, uniform
from ..server_state import Weights
from .network import Network, register
from .network_abilities import ClippedGradients, EncoderHeadStack, FusedSGD, LinearHead, RowScale, SGDStep
from .row_gradients import DenseRows, scaled_sums
from .statistics_context import append_statistics


class DenseHead(LinearHead):
    """Implements a head of dense layers, for one client and for a stack.

    `apply_head` is `represent`, dense layer `last`, then `to_logits`.
    """

    hidden: tuple[int, ...]
    dropout: float

    @property
    def last(self) -> int:
        """Return the index of the last dense layer."""
        return len(self.hidden)

    def represent(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Compute the last dense layer's inputs, from the first dropout on."""
        return hidden_layers(weights, self.last, embedding, self.dropout, stream, self.last > 0)

    def to_logits(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """Return the last dense layer's outputs as logits."""
        return scores

    def apply_head(self, weights: Weights, embedding: Tensor, stream: Tensor | None) -> Tensor:
        """Apply the dense layers from the first dropout on."""
        return self.to_logits(dense(weights, self.last, self.represent(weights, embedding, stream)), stream)

    def dense_activations(
        self, weights: Weights, below: Tensor, streams: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return each dense layer's inputs for a stack, and the derivatives of hidden activations, dropout included."""
        inputs, derivatives = [below], []
        for layer in range(self.last):
            activation = dense(weights, layer, inputs[-1]).relu_()
            derivatives.append((activation > 0).to(activation.dtype))
            if self.dropout and streams is not None:
                derivatives[-1] = drop(derivatives[-1], self.dropout, streams, layer + 1)
                activation = drop(activation, self.dropout, streams, layer + 1)
            inputs.append(activation)
        return inputs, derivatives

    def dense_rows(
        self, weights: Weights, below: Tensor, logit_gradient: Callable[[Tensor], Tensor]
    ) -> list[DenseRows]:
        """Return the row gradients of the dense layers for a stack without dropout, from inputs (clients, rows, in)."""
        inputs, derivatives = self.dense_activations(weights, below, None)
        deltas = [logit_gradient(dense(weights, self.last, inputs[-1]))]
        for layer in reversed(range(1, self.last + 1)):
            deltas.insert(0, delta_below(weights[f"dense{layer}.weight"], deltas[0]).mul_(derivatives[layer - 1]))
        return [DenseRows(f"dense{layer}", *of) for layer, of in enumerate(zip(inputs, deltas, strict=True))]


@register("mlp")
@dataclass(frozen=True)
class MLP(DenseHead, EncoderHeadStack, FusedSGD, ClippedGradients, Network):
    """Flattens rows and applies dense layers with ReLU between them.

    Without hidden layers it is multinomial logistic or linear regression. `outputs` is the number of classes, or 1 for
    regression. `statistics` client statistics are appended to each row.
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    dropout: float = 0.0
    statistics: int = 0

    def with_statistics(self, statistics: int, planes: int = 0) -> "MLP | None":
        """Append the statistics to the inputs."""
        return None if planes else replace(self, statistics=statistics)

    @classmethod
    def for_rows(cls, shape: Sequence[int], outputs: int, **options: Any) -> Self:
        return cls(inputs=math.prod(shape), outputs=outputs, **options)

    @property
    def max_width(self) -> int:
        return max(self.inputs + self.statistics, *self.hidden, self.outputs)

    @property
    def encoded(self) -> tuple[int, int]:
        return (self.hidden[0] if self.hidden else self.inputs + self.statistics), 1

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw weights and biases uniformly from ±1/√fan_in, as torch.nn.Linear does."""
        widths = (self.inputs + self.statistics, *self.hidden, self.outputs)
        weights: dict[str, Tensor] = {}
        for layer, sizes in enumerate(pairwise(widths)):
            weights |= dense_weights(fold_in(stream, layer), layer, *sizes)
        return weights

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, *shape) to logits. Dropout zeroes hidden activations and scales the others by 1 / (1 - rate)."""
        return self._layers(weights, append_statistics(x.flatten(1), context, self.statistics), stream)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        return self._layers(weights, append_statistics(x.flatten(2), context, self.statistics), streams)

    def apply_to_common(self, weights: Weights, context: Weights, x: Tensor) -> Tensor:
        """Compute the first hidden layer of all clients by one product of the rows with all their weights."""
        if not self.hidden or self.statistics or isinstance(weights, Noisy):
            return super().apply_to_common(weights, context, x)
        weight, bias = weights["dense0.weight"], weights["dense0.bias"]
        of_all = torch.addmm(bias.flatten(), x.flatten(1), weight.transpose(0, 1).flatten(1)).relu_()
        first = of_all.view(len(x), *bias.shape).transpose(0, 1)
        return dense(weights, self.last, hidden_layers(weights, self.last, first, 0.0, None, first_applied=True))

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Apply the first hidden layer with its ReLU, as one position: (rows, units, 1)."""
        return self._encoded(weights, append_statistics(x.flatten(1), context, self.statistics)), {}

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, unpadded: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run `encode` for a stack: (clients, rows, units, 1)."""
        return self._encoded(weights, append_statistics(x.flatten(2), context, self.statistics)), {}

    def pre_head(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Remove the position axis; nothing else precedes dropout, which acts on the first hidden layer."""
        return z.squeeze(-1)

    def _encoded(self, weights: Weights, x: Tensor) -> Tensor:
        return (torch.relu(dense(weights, 0, x)) if self.hidden else x).unsqueeze(-1)

    def _layers(self, weights: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        return dense(weights, self.last, hidden_layers(weights, self.last, x, self.dropout, stream))

    def sgd_step(self, weights: Weights, context: Weights, x: Tensor, step: SGDStep) -> None:
        """Take the step for a stack in place; x: (clients, rows, *shape).

        The gradient is as large as the weights and is not stored: its product is added to the weights while it is
        computed.
        """
        below = append_statistics(x.flatten(2), context, self.statistics)
        inputs, derivatives = self.dense_activations(weights, below, step.streams)
        gradient = step.logit_gradient(dense(weights, len(self.hidden), inputs[-1]))
        for layer in reversed(range(len(self.hidden) + 1)):
            weight, bias = weights[f"dense{layer}.weight"], weights[f"dense{layer}.bias"]
            below = delta_below(weight, gradient).mul_(derivatives[layer - 1]) if layer else gradient
            weight.baddbmm_(inputs[layer].transpose(1, 2), gradient, beta=step.keep, alpha=-step.rate)
            bias.mul_(step.keep).sub_(gradient.sum(1), alpha=step.rate)
            gradient = below

    @property
    def clipped_width(self) -> int:
        return self.max_width

    def clipped_gradients(self, weights: Weights, context: Weights, x: Tensor, rows: RowScale) -> dict[str, Tensor]:
        below = append_statistics(x.flatten(2), context, self.statistics)
        return scaled_sums(self.dense_rows(weights, below, rows.logit_gradient), rows.scale)


def delta_below(weight: Tensor, delta: Tensor) -> Tensor:
    """Propagate deltas (clients, rows, out) to the inputs of a dense layer (clients, in, out)."""
    return torch.bmm(delta, weight.transpose(1, 2))


def hidden_layers(
    weights: Weights,
    last: int,
    x: Tensor,
    dropout: float,
    stream: Tensor | None,
    first_applied: bool = False,
    activation: Callable[[Tensor], Tensor] = torch.relu,
) -> Tensor:
    """Compute the inputs of dense layer `last`: the layers before it, each with activation and dropout.

    `first_applied` means that x is already the activation of the first layer.
    """
    for layer in range(last):
        if layer or not first_applied:
            x = activation(dense(weights, layer, x))
        x = drop(x, dropout, stream, layer + 1)
    return x


def dense(weights: Weights, layer: int, x: Tensor) -> Tensor:
    """Apply dense layer `layer`, see `linear`."""
    return linear(weights, f"dense{layer}", x)


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Apply a dense layer of one client, (rows, in) to (rows, out), or of a stack, (clients, rows, in)."""
    if isinstance(weights, Noisy):
        return weights.layer(name, x, lambda weights, x: linear(weights, name, x), _ROW_LAYOUT)
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if bias is None:
        return x @ weight
    return x @ weight + bias if x.dim() == 2 else torch.baddbmm(bias.unsqueeze(1), x, weight)


def _as_rows(draw: Draw, x: Tensor) -> Tensor:
    """Draw one number for each element of the last two axes, rows and units."""
    return draw(x.shape[-2:])


_ROW_LAYOUT = Layout(_as_rows, _as_rows)


def dense_weights(stream: Tensor, layer: int, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    """Draw weights (in, out) and bias of one dense layer uniformly from ±1/√fan_in."""
    return uniform_weights(
        stream, 1 / math.sqrt(fan_in), {f"dense{layer}.weight": (fan_in, fan_out), f"dense{layer}.bias": (fan_out,)}
    )


def linear_weights(stream: Tensor, name: str, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    """Draw the weights of layer `name` like `dense_weights`; the bounds differ in the last bit for some widths."""
    return uniform_weights(stream, fan_in**-0.5, {f"{name}.weight": (fan_in, fan_out), f"{name}.bias": (fan_out,)})


def uniform_weights(stream: Tensor, bound: float, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Draw tensors of these shapes uniformly from ±bound, each from its own stream."""
    return {
        name: (2 * uniform(fold_in(stream, index), shape) - 1) * bound
        for index, (name, shape) in enumerate(shapes.items())
    }


def drop(x: Tensor, rate: float, stream: Tensor | None, layer: int) -> Tensor:
    """Apply dropout for one client (stream: ()) or a stack (streams: (clients,)); without a stream return x."""
    if not rate or stream is None:
        return x
    mask = uniform(fold_in(stream, layer), x.shape[stream.dim() :]) >= rate
    return x * mask / (1 - rate)
