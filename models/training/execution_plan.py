"""Plans how a network is computed: in a hand-written batched form, by vmap, or one client after another."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..networks.network import Network
from ..networks.network_abilities import BatchedNetwork, EncoderHead, EncoderHeadStack, FusedSGD
from ..server_state import Weights
from .objectives import Batch, ClientBatch, Objective
from .optimizers import SGD, Optimizer

Kind = Literal["batched", "vmap", "sequential"]

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Plan:
    """How a stack of clients is computed; `resolve` builds it.

    `stacked` is the network's batched form, or None if its functions of one client are mapped or run sequentially.
    `encoder_head` and `fused_sgd` are further abilities of the batched form. `as_one` means that all clients' rows are
    computed as one client's.
    """

    network: Network
    kind: Kind
    stacked: BatchedNetwork | None
    encoder_head: EncoderHeadStack | None
    fused_sgd: FusedSGD | None
    as_one: bool

    def logits(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """Compute the logits of a stack.

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            x: (clients, rows, *shape) float32.
            streams: Random streams, (clients,); None switches dropout off.

        Returns:
            (clients, rows, outputs).
        """
        if self.as_one:
            return self._as_one(weights, context, x, streams)
        if self.stacked:
            return self.stacked.apply_stack(weights, context, x, streams)
        return self._each(self.network.apply, weights, context, x, streams)

    def common_logits(self, weights: Weights, context: Weights, x: Tensor) -> Tensor:
        """Compute the logits of a stack on rows that its clients have in common: (clients, rows, outputs).

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            x: (rows, *shape) float32.
        """
        if self.stacked:
            return self.stacked.apply_to_common(weights, context, x)
        clients = len(next(iter(weights.values())))
        return self.logits(weights, context, x.expand(clients, *x.shape), None)

    def features(self, weights: Weights, context: Weights, x: Tensor) -> Tensor:
        """Encode rows with running statistics, for networks of an encoder and a head.

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            x: (clients, rows, *shape) float32.

        Returns:
            (clients, rows, channels, positions).
        """
        if self.encoder_head:
            return self.encoder_head.encode_stack(weights, context, x)[0]
        return self._each(cast(EncoderHead, self.network).encode, weights, context, x)[0]

    def cost(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute each client's training loss, and the buffers after the step.

        Args:
            weights: Names to (clients, ...).
            context: Names to (clients, ...); it may be empty.
            batch: The padded batch of the stack.
            objective: The loss of a row.

        Returns:
            The losses, (clients,), and buffers by name, (clients, ...).

        Raises:
            ValueError: If torch cannot map the network over clients.
        """
        if self.stacked:
            return self.stacked.cost_stack(weights, context, batch, objective)
        if not self.network.has_custom_cost:  # the objective needs no mapping
            return batch.loss(objective, self.logits(weights, context, batch.x, batch.streams)), {}

        def cost_of_client(weights: Weights, context: Weights, *fields: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return self.network.cost(weights, context, ClientBatch(*fields), objective)

        return self._each(cost_of_client, weights, context, *batch.each)

    def run(self, batched: Callable[..., _Result], single: Callable[..., _Result], *stack: object) -> _Result:
        """Call another function of the network on stacked arguments.

        Args:
            batched: The network's form for a stack, called if there is one.
            single: The function of one client, otherwise mapped or run client by client.
            stack: Arguments with a leading client axis, or None.
        """
        return batched(*stack) if self.stacked else self._each(single, *stack)

    def _each(self, single: Callable[..., _Result], *stack: object) -> _Result:
        """Map a function of one client over the stack, or run it client by client."""
        if self.kind == "vmap":
            return _mapped(self.network, single, stack)
        results = (single(*client) for client in _clients(stack))
        return cast(_Result, tree_map(lambda *parts: torch.stack(parts), *results))

    def _as_one(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        rows = x.flatten(0, 1)
        if self.stacked and self.stacked.pays_alone:
            logits = self.stacked.apply_stack({n: w[:1] for n, w in weights.items()}, context, rows[None], streams)
        else:
            logits = self.network.apply({n: w[0] for n, w in weights.items()}, context, rows, streams)
        return logits.view(*x.shape[:2], -1)


def resolve(network: Network, kind: Kind, optimiser: Optimizer | None = None, shared: bool = False) -> Plan:
    """Build the plan for a network in the requested form.

    Args:
        network: The network.
        kind: The requested form; `batched` falls back to `vmap` if the network has no batched form.
        optimiser: The optimiser of a training plan. Plain gradient descent enables the fused step, which stores no
            gradient.
        shared: Whether all clients have the same weights and no context. Then one product computes all rows, unless
            the form is `sequential`.
    """
    batched = network.stacked if kind == "batched" else None
    if kind == "batched" and batched is None:
        kind = "vmap"
    plain_sgd = isinstance(optimiser, SGD) and not optimiser.momentum and not network.lr_multipliers
    return Plan(
        network=network,
        kind=kind,
        stacked=batched,
        encoder_head=batched if isinstance(batched, EncoderHeadStack) and network.encoder_head else None,
        fused_sgd=network.fused_sgd if batched and plain_sgd else None,
        as_one=shared and kind != "sequential",
    )


def forms(network: Network) -> tuple[Kind, ...]:
    """Return the forms in which the network can be computed."""
    return ("batched", "vmap", "sequential") if network.stacked else ("vmap", "sequential")


def _mapped(network: Network, function: Callable[..., _Result], stack: tuple[object, ...]) -> _Result:
    """Map a function of one client over everything with a client axis; ValueError if torch cannot map it."""
    try:
        axes = tuple(None if part is None else 0 for part in stack)
        return torch.func.vmap(function, axes)(*stack)
    except RuntimeError as error:
        if "vmap" not in str(error):
            raise
        name = network.kind or type(network).__name__
        raise ValueError(
            f"engine.kind: torch cannot map the network {name} over clients. Set engine.kind to sequential"
        ) from error


def _clients(stack: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    """Yield each client's part of everything with a client axis; None stays None."""
    for client in range(len(next(leaf for leaf in tree_leaves(stack) if isinstance(leaf, Tensor)))):
        yield tree_map(lambda t, client=client: None if t is None else t[client], stack)
