"""Networks of one kind that learn side by side and answer together: a deep ensemble (Lakshminarayanan et al. 2017).

Everything around it sees one network, whose weights are the members' under prefixed names. What has to look at single
members asks for its `singles`, which a network that stands alone has too: so there is one way for both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..server_state import Weights
from ..training.batch import Batch, ClientBatch
from ..training.objectives import Objective
from .network import Member, Network, register
from .protocols import BatchedNetwork


@register("deep_ensemble")
@dataclass(frozen=True)
class DeepEnsemble(BatchedNetwork, Network):
    """So many networks like `inner`: "0/dense0.weight" is the first one's "dense0.weight".

    Every member has a start and dropout of its own, the first those of `inner` alone; all see the same batches. The answer
    is the logarithm of the mean of their probabilities. The paper's adversarial examples are left out.
    """

    pays_alone = True

    inner: Any
    members: int

    @property
    def single_networks(self) -> tuple[Member, ...]:
        """The members in order."""
        return tuple(Member(self.inner, number, f"{number}/") for number in range(self.members))

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Its own form, if the members have one."""
        return self if self.inner.stacked else None

    @property
    def dropout(self) -> float:
        """The inner network's."""
        return float(self.inner.dropout)

    @property
    def max_width(self) -> int:
        """Numbers of one row in the largest layer of all members together."""
        return self.members * int(self.inner.max_width)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Every member's."""
        return tuple(one.prefix + name for one in self.single_networks for name in self.inner.buffers)

    @property
    def normalising(self) -> tuple[str, ...]:
        """Every member's."""
        return tuple(one.prefix + name for one in self.single_networks for name in self.inner.normalising)

    @property
    def rates(self) -> dict[str, float]:
        """Every member's."""
        return {one.prefix + name: rate for one in self.single_networks for name, rate in self.inner.rates.items()}

    @property
    def random(self) -> bool:
        """The inner network's."""
        return bool(self.inner.random)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """A draw for each member, the first being the inner network's own."""
        return {
            n: w for one in self.single_networks for n, w in one.named(one.network.init(one.stream(stream))).items()
        }

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) to (rows, classes), whose softmax is the mean of the members'."""
        outputs = []
        for one in self.single_networks:
            substream = None if stream is None else one.stream(stream)
            outputs.append(torch.log_softmax(one.network.apply(one.of(weights), one.of(context), x, substream), -1))
        return torch.logsumexp(torch.stack(outputs), 0) - math.log(self.members)

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape) to (clients, rows, classes), whose softmax is the mean of the members'."""
        outputs = []
        for one in self.single_networks:
            substreams = None if streams is None else one.stream(streams)
            logits = one.network.apply_stack(one.of(weights), one.of(context), x, substreams)
            outputs.append(torch.log_softmax(logits, -1))
        return torch.logsumexp(torch.stack(outputs), 0) - math.log(self.members)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of what each member minimises alone, so that no member learns from another, and all their buffers."""
        costs: list[Tensor] = []
        moved: dict[str, Tensor] = {}
        for one in self.single_networks:
            member_batch = batch._replace(stream=one.stream(batch.stream))
            cost, after = one.network.cost(one.of(weights), one.of(context), member_batch, objective)
            costs.append(cost)
            moved |= one.named(after)
        return torch.stack(costs).sum(), moved

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`cost` for a stack."""
        costs: list[Tensor] = []
        moved: dict[str, Tensor] = {}
        for one in self.single_networks:
            member_batch = batch._replace(streams=one.stream(batch.streams))
            cost, after = one.network.cost_stack(one.of(weights), one.of(context), member_batch, objective)
            costs.append(cost)
            moved |= one.named(after)
        return torch.stack(costs).sum(0), moved


def each_made(network: Any, make: Callable[[Any], Any]) -> Any:
    """What `make` makes of a network, or the ensemble of what it makes of a member."""
    return replace(network, inner=make(network.inner)) if isinstance(network, DeepEnsemble) else make(network)


def plain(name: str) -> str:
    """A weight's name without a member's prefix."""
    return name.rpartition("/")[2]
