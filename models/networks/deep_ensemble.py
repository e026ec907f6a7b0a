"""Deep ensembles: networks of one kind that train side by side (Lakshminarayanan et al. 2017).

Other modules see one network, with the members' weights under prefixed names. Code that inspects single members uses
`single_networks`, which every network has.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..server_state import Weights
from ..training.objectives import Batch, ClientBatch, Objective
from .network import Member, Network, register
from .network_abilities import BatchedNetwork


@register("deep_ensemble")
@dataclass(frozen=True)
class DeepEnsemble(BatchedNetwork, Network):
    """An ensemble of `members` networks like `inner`: "0/dense0.weight" is the first member's "dense0.weight".

    Each member has its own initial weights and dropout; the first has those of `inner`. All members see the same
    batches. The ensemble predicts the logarithm of the members' mean probabilities. The paper's adversarial examples
    are left out.
    """

    pays_alone = True

    inner: Any
    members: int

    @property
    def single_networks(self) -> tuple[Member, ...]:
        """Return the members in order."""
        return tuple(Member(self.inner, index, f"{index}/") for index in range(self.members))

    @property
    def stacked(self) -> BatchedNetwork | None:
        """Return itself if the members have a batched form."""
        return self if self.inner.stacked else None

    @property
    def dropout(self) -> float:
        return float(self.inner.dropout)

    @property
    def max_width(self) -> int:
        """Return the number of values of one row in the largest layer of all members together."""
        return self.members * int(self.inner.max_width)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Return every member's buffers."""
        return tuple(member.prefix + name for member in self.single_networks for name in self.inner.buffers)

    @property
    def normalising(self) -> tuple[str, ...]:
        """Return every member's normalisation weights."""
        return tuple(member.prefix + name for member in self.single_networks for name in self.inner.normalising)

    @property
    def lr_multipliers(self) -> dict[str, float]:
        """Return every member's learning-rate multipliers."""
        return {
            member.prefix + name: rate
            for member in self.single_networks
            for name, rate in self.inner.lr_multipliers.items()
        }

    @property
    def random(self) -> bool:
        return bool(self.inner.random)

    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Draw each member's weights, the first member's as for the inner network alone."""
        return {
            n: w
            for member in self.single_networks
            for n, w in member.named(member.network.init(member.stream(stream))).items()
        }

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """Map x (rows, *shape) to (rows, classes), whose softmax is the mean of the members'."""
        return self._mean_probabilities(
            m.network.apply(m.of(weights), m.of(context), x, None if stream is None else m.stream(stream))
            for m in self.single_networks
        )

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        return self._mean_probabilities(
            m.network.apply_stack(m.of(weights), m.of(context), x, None if streams is None else m.stream(streams))
            for m in self.single_networks
        )

    def _mean_probabilities(self, outputs: Iterable[Tensor]) -> Tensor:
        """Return the logarithm of the members' mean softmax."""
        return torch.logsumexp(torch.stack([torch.log_softmax(o, -1) for o in outputs]), 0) - math.log(self.members)

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the members' separate losses, and all their buffers.

        No member learns from another.
        """
        return self._sum_costs(
            m.network.cost(m.of(weights), m.of(context), batch._replace(stream=m.stream(batch.stream)), objective)
            for m in self.single_networks
        )

    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self._sum_costs(
            m.network.cost_stack(
                m.of(weights), m.of(context), batch._replace(streams=m.stream(batch.streams)), objective
            )
            for m in self.single_networks
        )

    def _sum_costs(self, results: Iterable[tuple[Tensor, dict[str, Tensor]]]) -> tuple[Tensor, dict[str, Tensor]]:
        costs: list[Tensor] = []
        buffers: dict[str, Tensor] = {}
        for member, (cost, member_buffers) in zip(self.single_networks, results, strict=True):
            costs.append(cost)
            buffers |= member.named(member_buffers)
        return torch.stack(costs).sum(0), buffers


def map_members(network: Any, make: Callable[[Any], Any]) -> Any:
    """Apply `make` to a network, or to the member network of an ensemble."""
    return replace(network, inner=make(network.inner)) if isinstance(network, DeepEnsemble) else make(network)


def plain(name: str) -> str:
    """Remove a member's prefix from a weight's name."""
    return name.rpartition("/")[2]
