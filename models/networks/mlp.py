"""Dense layers with ReLU between them."""

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
from .protocols import Descent, EncoderHeadStack, FusedSGD, LinearHead
from .wrappers.per_row_context import join


class Ending(LinearHead):
    """What networks share that end in dense layers: how their third part is made, of one client and of a stack.

    `finish` is dense layer number `last` of what `represent` gives, then `conclude`.
    """

    hidden: tuple[int, ...]
    dropout: float

    @property
    def last(self) -> int:
        """The number of the last dense layer."""
        return len(self.hidden)

    def represent(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """What the last dense layer reads, from the first dropout on."""
        return before_last(weights, self.last, settled, self.dropout, stream, self.last > 0)

    def conclude(self, scores: Tensor, stream: Tensor | None) -> Tensor:
        """What the last dense layer gives, to logits: nothing is left to do."""
        return scores

    def finish(self, weights: Weights, settled: Tensor, stream: Tensor | None) -> Tensor:
        """The other dense layers, from the first dropout on."""
        return self.conclude(dense(weights, self.last, self.represent(weights, settled, stream)), stream)


@register("mlp")
@dataclass(frozen=True)
class MLP(Ending, EncoderHeadStack, FusedSGD, Network):
    """Flatten, then dense layers with ReLU between them; no hidden layer is multinomial logistic or linear regression.

    `outputs` is the number of classes; a regression has 1. `statistics` numbers of the client join each row.
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    dropout: float = 0.0
    statistics: int = 0

    def reading(self, statistics: int, planes: int = 0) -> "MLP | None":
        """Beside its inputs."""
        return None if planes else replace(self, statistics=statistics)

    @classmethod
    def for_rows(cls, shape: Sequence[int], outputs: int, **options: Any) -> Self:
        """For rows of this shape."""
        return cls(inputs=math.prod(shape), outputs=outputs, **options)

    @property
    def max_width(self) -> int:
        """Numbers of one row in its largest layer."""
        return max(self.inputs + self.statistics, *self.hidden, self.outputs)

    @property
    def encoded(self) -> tuple[int, int]:
        """Channels and places of what `encode` gives."""
        return (self.hidden[0] if self.hidden else self.inputs + self.statistics), 1

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Uniform in ±1/√fan_in, weights and biases, as torch.nn.Linear starts."""
        widths = (self.inputs + self.statistics, *self.hidden, self.outputs)
        weights: dict[str, Tensor] = {}
        for layer, sizes in enumerate(pairwise(widths)):
            weights |= dense_weights(fold_in(stream, layer), layer, *sizes)
        return weights

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Dropout acts on the hidden activations, each kept value scaled by 1 / (1 - rate)."""
        return self._layers(weights, join(x.flatten(1), context, self.statistics), stream)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """`apply` for a stack: x (clients, rows, *shape) to (clients, rows, outputs)."""
        return self._layers(weights, join(x.flatten(2), context, self.statistics), streams)

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The first hidden layer with its ReLU, one place a row: (rows, units, 1)."""
        return self._encoded(weights, join(x.flatten(1), context, self.statistics)), {}

    def encode_stack(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`encode` for a stack: (clients, rows, units, 1)."""
        return self._encoded(weights, join(x.flatten(2), context, self.statistics)), {}

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Nothing: dropout acts on the first hidden layer."""
        return z.squeeze(-1)

    def settle_stack(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """Nothing either."""
        return z.squeeze(-1)

    def _encoded(self, weights: Weights, x: Tensor) -> Tensor:
        return (torch.relu(dense(weights, 0, x)) if self.hidden else x).unsqueeze(-1)

    def _layers(self, weights: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        return dense_layers(weights, len(self.hidden) + 1, x, self.dropout, stream)

    def descend(self, weights: Weights, context: Weights, x: Tensor, step: Descent) -> None:
        """The step for a stack, in place; x: (clients, rows, *shape).

        The weights' gradient, as large as they are, is never written: its product is added to them as it is computed.
        """
        inputs, slope_of = [join(x.flatten(2), context, self.statistics)], []
        for layer in range(len(self.hidden)):
            out = dense(weights, layer, inputs[-1]).relu_()
            slope_of.append((out > 0).to(out.dtype))
            if self.dropout:
                slope_of[-1] = drop(slope_of[-1], self.dropout, step.streams, layer + 1)
                out = drop(out, self.dropout, step.streams, layer + 1)
            inputs.append(out)
        slope = step.slopes(dense(weights, len(self.hidden), inputs[-1]))
        for layer in reversed(range(len(self.hidden) + 1)):
            weight, bias = weights[f"dense{layer}.weight"], weights[f"dense{layer}.bias"]
            below = torch.bmm(slope, weight.transpose(1, 2)).mul_(slope_of[layer - 1]) if layer else slope
            weight.baddbmm_(inputs[layer].transpose(1, 2), slope, beta=step.keep, alpha=-step.rate)
            bias.mul_(step.keep).sub_(slope.sum(1), alpha=step.rate)
            slope = below


def dense_layers(weights: Weights, layers: int, x: Tensor, dropout: float, stream: Tensor | None) -> Tensor:
    """So many dense layers with ReLU and dropout between them, of one client or of a stack (see `dense`)."""
    return dense(weights, layers - 1, before_last(weights, layers - 1, x, dropout, stream))


def before_last(
    weights: Weights,
    last: int,
    x: Tensor,
    dropout: float,
    stream: Tensor | None,
    done: bool = False,
    activation: Callable[[Tensor], Tensor] = torch.relu,
) -> Tensor:
    """What dense layer number `last` reads: those before it, each with its activation and dropout.

    `done`: x has been through the first layer and its activation.
    """
    for layer in range(last):
        if layer or not done:
            x = activation(dense(weights, layer, x))
        x = drop(x, dropout, stream, layer + 1)
    return x


def dense(weights: Weights, layer: int, x: Tensor) -> Tensor:
    """Dense layer number `layer`, see `linear`."""
    return linear(weights, f"dense{layer}", x)


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    """One dense layer of one client, (rows, in) to (rows, out), or of every client of a stack, (clients, rows, in)."""
    if isinstance(weights, Noisy):
        return weights.layer(name, x, lambda drawn, x: linear(drawn, name, x), _OF_ROWS)
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    if bias is None:
        return x @ weight
    return x @ weight + bias if x.dim() == 2 else torch.baddbmm(bias.unsqueeze(1), x, weight)


def _as_rows(draw: Draw, x: Tensor) -> Tensor:
    """A number for each of the last two axes, rows and units."""
    return draw(x.shape[-2:])


_OF_ROWS = Layout(_as_rows, _as_rows)


def dense_weights(stream: Tensor, layer: int, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    """Fresh weights (in, out) and bias of one dense layer, uniform in ±1/√fan_in."""
    return within(
        stream, 1 / math.sqrt(fan_in), {f"dense{layer}.weight": (fan_in, fan_out), f"dense{layer}.bias": (fan_out,)}
    )


def within(stream: Tensor, bound: float, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Tensors of these shapes, uniform in ±bound, each from a stream of its own."""
    return {
        name: (2 * uniform(fold_in(stream, part), shape) - 1) * bound
        for part, (name, shape) in enumerate(shapes.items())
    }


def drop(x: Tensor, rate: float, stream: Tensor | None, layer: int) -> Tensor:
    """Dropout of one client (stream: ()) or of a stack (streams: (clients,)); none without a stream."""
    if not rate or stream is None:
        return x
    mask = uniform(fold_in(stream, layer), x.shape[stream.dim() :]) >= rate
    return x * mask / (1 - rate)
