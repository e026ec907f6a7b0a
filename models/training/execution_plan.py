"""Which form of the engine computes a network: decided once, from what the network offers, and asked by everyone.

Which form of the engine a run uses, and how many clients stand in one stack.

Both are read from a table and follow from the network, the batch and the device alone: never from the number of workers,
and never from a timing, which on a busy machine would change a run's bits. `siloflow bench --tune` measures the table.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..networks.network import Network
from ..networks.network_factory import kind_of, size
from ..networks.protocols import BatchedNetwork, EncoderHead, EncoderHeadStack, FusedSGD
from ..server_state import Weights
from .batch import Batch, ClientBatch
from .objectives import Objective
from .optimizers import SGD, Optimizer

Kind = Literal["batched", "vmap", "sequential"]

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Plan:
    """How a stack of clients is computed; `resolve` makes it.

    `stacked` is the network's form by hand, and None where its functions of one client are mapped or run one after another;
    `encoder_head` and `fused_sgd` are what that form can do besides. `as_one`: the rows of all clients are computed as
    one client's.
    """

    network: Network
    kind: Kind
    stacked: BatchedNetwork | None
    encoder_head: EncoderHeadStack | None
    fused_sgd: FusedSGD | None
    as_one: bool

    def logits(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape), streams (clients,) or None, to (clients, rows, outputs)."""
        if self.as_one:
            return self._as_one(weights, context, x, streams)
        if self.stacked:
            return self.stacked.apply_stack(weights, context, x, streams)
        return self._each(self.network.apply, weights, context, x, streams)

    def features(self, weights: Weights, context: Weights, x: Tensor) -> Tensor:
        """What a network in parts encodes, by its running statistics: (clients, rows, channels, places)."""
        if self.encoder_head:
            return self.encoder_head.encode_stack(weights, context, x)[0]
        return self._each(cast(EncoderHead, self.network).encode, weights, context, x)[0]

    def cost(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What each client minimises, (clients,), and the buffers as they are after the step."""
        if self.stacked:
            return self.stacked.cost_stack(weights, context, batch, objective)
        if not self.network.costed:  # then the objective needs no mapping
            return batch.loss(objective, self.logits(weights, context, batch.x, batch.streams)), {}

        def of_one(weights: Weights, context: Weights, *parts: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return self.network.cost(weights, context, ClientBatch(*parts), objective)

        return self._each(of_one, weights, context, *batch.each)

    def run(self, of_stack: Callable[..., _Found], of_one: Callable[..., _Found], *stack: Any) -> _Found:
        """One more function of the network, over everything with a client axis: its form by hand, or that of one client."""
        return of_stack(*stack) if self.stacked else self._each(of_one, *stack)

    def _each(self, of_one: Callable[..., _Found], *stack: Any) -> _Found:
        """A function of one client mapped, or run for one client after another."""
        if self.kind == "vmap":
            return _mapped(self.network, of_one, stack)
        found: _Found = tree_map(lambda *parts: torch.stack(parts), *(of_one(*one) for one in _clients(stack)))
        return found

    def _as_one(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        rows = x.flatten(0, 1)
        if self.stacked and self.stacked.pays_alone:
            logits = self.stacked.apply_stack({n: w[:1] for n, w in weights.items()}, context, rows[None], streams)
        else:
            logits = self.network.apply({n: w[0] for n, w in weights.items()}, context, rows, streams)
        return logits.view(*x.shape[:2], -1)


def resolve(network: Network, kind: Kind, optimiser: Optimizer | None = None, shared: bool = False) -> Plan:
    """The plan for a network of which this form is asked, and this optimiser if it trains.

    `batched` is by hand where the network has such a form, else mapped. A step of plain gradient descent by hand needs no
    gradient in memory. With `shared` all clients have the same weights and no context: where they are not kept apart on
    purpose, one product serves their rows.
    """
    by_hand = network.stacked if kind == "batched" else None
    if kind == "batched" and by_hand is None:
        kind = "vmap"
    plain = isinstance(optimiser, SGD) and not optimiser.momentum and not network.rates
    return Plan(
        network=network,
        kind=kind,
        stacked=by_hand,
        encoder_head=by_hand if isinstance(by_hand, EncoderHeadStack) and network.encoder_head else None,
        fused_sgd=network.fused_sgd if by_hand and plain else None,
        as_one=shared and kind != "sequential",
    )


def forms(network: Network) -> tuple[Kind, ...]:
    """The forms that there are of this network."""
    return ("batched", "vmap", "sequential") if network.stacked else ("vmap", "sequential")


def _mapped(network: Network, function: Callable[..., _Found], stack: tuple[Any, ...]) -> _Found:
    """The function of one client over everything with a client axis; ValueError if torch cannot map it."""
    try:
        mapped: _Found = torch.func.vmap(function, tuple(None if part is None else 0 for part in stack))(*stack)
        return mapped
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        name = network.kind or type(network).__name__
        raise ValueError(f"torch cannot map the network {name} over clients; set engine.kind to sequential") from error


def _clients(stack: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Each client's own of everything with a client axis; what is None stays so."""
    for at in range(len(next(leaf for leaf in tree_leaves(stack) if isinstance(leaf, Tensor)))):
        yield tree_map(lambda t, at=at: None if t is None else t[at], stack)


_MOST = 512  # clients in a stack, however small they are


@dataclass(frozen=True)
class Kernel:
    """The engine's form and the most clients of one stack."""

    kind: Kind
    stack: int


class _Line(NamedTuple):
    kind: Kind
    megabytes: float  # that the weights and one layer's activations of a stack may take


_TABLE: dict[tuple[str, str], _Line] = {
    ("mlp", "cpu"): _Line("batched", 4),
    ("cnn", "cpu"): _Line("batched", 8),
    ("cnn_bn", "cpu"): _Line("batched", 8),
    ("residual", "cpu"): _Line("batched", 8),
    ("vgg16_bn", "cpu"): _Line("batched", 8),
    ("resnet18", "cpu"): _Line("batched", 8),
    ("mlp", "cuda"): _Line("batched", 1024),
    ("cnn", "cuda"): _Line("batched", 1024),
    ("cnn_bn", "cuda"): _Line("batched", 1024),
    ("residual", "cuda"): _Line("batched", 1024),
    ("vgg16_bn", "cuda"): _Line("batched", 1024),
    ("resnet18", "cuda"): _Line("batched", 1024),
}
_OTHERWISE = _Line("vmap", 4)


def pick_kernel(
    network: Network,
    batch: int,
    device: str,
    kind: Kind | Literal["auto"] = "auto",
    stack: int | Literal["auto"] = "auto",
) -> Kernel:
    """The table's choice for what is `auto`; ValueError if the network has no form of the kind that is asked for."""
    line = _TABLE.get((kind_of(network.single_networks[0].network), device), _OTHERWISE)
    if kind != "auto" and kind not in forms(network):
        raise ValueError(f"the network {kind_of(network)} has no {kind} form; use vmap or auto.")
    chosen: Kind = kind if kind != "auto" else line.kind if network.maps else "sequential"
    return Kernel(chosen, fitting(network, batch, line.megabytes) if stack == "auto" else stack)


def fitting(network: Network, batch: int, megabytes: float) -> int:
    """The clients whose weights and activations fit, at least one."""
    footprint = 4 * (size(network) + batch * network.max_width)
    return int(min(_MOST, max(1, megabytes * 2**20 // footprint)))


def even_stack_size(clients: int, most: int) -> int:
    """The size of the fewest equal stacks that hold so many clients: 9 clients at most 5 to a stack are 5 and 4."""
    stacks = -(-clients // most)
    return -(-clients // stacks)
