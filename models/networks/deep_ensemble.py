"""Networks of one kind that learn side by side and answer together: a deep ensemble (Lakshminarayanan et al. 2017).

Everything around it sees one network, whose weights are the members' under prefixed names. What has to look at single
members asks `members_of`, which also takes a network that stands alone: so there is one way for both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..state import Weights
from ..streams import fold
from ..training.batch import Batch
from ..training.objectives import Objective
from .stacking import StackOnly

_MEMBERS = 2**21  # of a stream; layers and wrapped networks have smaller numbers


@dataclass(frozen=True)
class Member:
    """One network of an ensemble; or, with an empty prefix, a network that stands alone."""

    network: Any
    number: int = 0
    prefix: str = ""

    def of(self, named: Weights) -> Weights:
        """Its own, under the names that they have alone; what has no member's prefix is for every member."""
        if not self.prefix:
            return named
        return {n.removeprefix(self.prefix): t for n, t in named.items() if "/" not in n or n.startswith(self.prefix)}

    def named(self, own: Weights) -> dict[str, Tensor]:
        """The inverse of `of`."""
        return {self.prefix + name: t for name, t in own.items()}

    def stream(self, stream: Tensor) -> Tensor:
        """A stream of its own for every stream; the first member's is the stream itself."""
        return fold(stream, _MEMBERS + self.number) if self.number else stream


@dataclass(frozen=True)
class DeepEnsemble(StackOnly):
    """So many networks like `inner`: "0/dense0.weight" is the first one's "dense0.weight". A whole stack is its only form.

    Every member has a start and dropout of its own, the first those of `inner` alone; all see the same batches. The answer
    is the logarithm of the mean of their probabilities. The paper's adversarial examples are left out.
    """

    inner: Any
    members: int

    @property
    def dropout(self) -> float:
        """The inner network's."""
        return float(self.inner.dropout)

    @property
    def widest(self) -> int:
        """Numbers of one row in the largest layer of all members together."""
        return self.members * int(self.inner.widest)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Every member's."""
        return tuple(one.prefix + name for one in members_of(self) for name in getattr(self.inner, "buffers", ()))

    @property
    def rates(self) -> dict[str, float]:
        """Every member's."""
        rates = getattr(self.inner, "rates", {})
        return {one.prefix + name: rate for one in members_of(self) for name, rate in rates.items()}

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """A draw for each member, the first being the inner network's own."""
        return {n: w for one in members_of(self) for n, w in one.named(one.network.init(one.stream(stream))).items()}

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape) to (clients, rows, classes), whose softmax is the mean of the members'."""
        said = []
        for one in members_of(self):
            own = None if streams is None else one.stream(streams)
            logits = one.network.apply_stack(one.of(weights), one.of(context), x, own)
            said.append(torch.log_softmax(logits, -1))
        return torch.logsumexp(torch.stack(said), 0) - math.log(self.members)

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sum of what each member minimises alone, so that no member learns from another, and all their buffers."""
        costs: list[Tensor] = []
        moved: dict[str, Tensor] = {}
        for one in members_of(self):
            own = batch._replace(streams=one.stream(batch.streams))
            cost, after = _cost(one.network, one.of(weights), one.of(context), own, objective)
            costs.append(cost)
            moved |= one.named(after)
        return torch.stack(costs).sum(0), moved


def members_of(network: Any) -> list[Member]:
    """The ensemble's members in order; a network that is none is its own only one."""
    if not isinstance(network, DeepEnsemble):
        return [Member(network)]
    return [Member(network.inner, number, f"{number}/") for number in range(network.members)]


def each_made(network: Any, make: Callable[[Any], Any]) -> Any:
    """What `make` makes of a network, or the ensemble of what it makes of a member."""
    return replace(network, inner=make(network.inner)) if isinstance(network, DeepEnsemble) else make(network)


def plain(name: str) -> str:
    """A weight's name without a member's prefix."""
    return name.rpartition("/")[2]


def _cost(
    network: Any, weights: Weights, context: Weights, batch: Batch, objective: Objective
) -> tuple[Tensor, dict[str, Tensor]]:
    if hasattr(network, "cost_stack"):
        found: tuple[Tensor, dict[str, Tensor]] = network.cost_stack(weights, context, batch, objective)
        return found
    return batch.loss(objective, network.apply_stack(weights, context, batch.x, batch.streams)), {}
