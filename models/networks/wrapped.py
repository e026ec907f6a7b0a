"""What networks share that are made around another one in parts that ends in a dense layer."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..state import Weights
from ..training.batch import Batch
from ..training.objectives import Objective
from .stacking import StackOnly


@dataclass(frozen=True)
class Wrapped(StackOnly):
    """A network around `inner`, whose names of weights stay; it has one form, that of a whole stack."""

    inner: Any

    @property
    def dropout(self) -> float:
        """The inner network's."""
        return float(self.inner.dropout)

    @property
    def widest(self) -> int:
        """The inner network's."""
        return int(self.inner.widest)

    @property
    def buffers(self) -> tuple[str, ...]:
        """The inner network's."""
        return tuple(getattr(self.inner, "buffers", ()))

    @property
    def personal(self) -> tuple[str, ...]:
        """Names of weights that stay with the client."""
        return ()

    @property
    def head(self) -> str:
        """The name of the last dense layer."""
        return f"dense{self.inner.last}"

    @abstractmethod
    def init(self, stream: Tensor) -> dict[str, Tensor]:
        """Fresh weights, the inner network's as it draws them."""

    @abstractmethod
    def cost_stack(
        self, weights: Weights, context: Weights, batch: Batch, objective: Objective
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What each client minimises, (clients,), and the buffers as they are after the step."""

    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape) to logits (clients, rows, outputs)."""
        z, _ = self.encode(weights, context, x)
        return self.finish(weights, self.settle(weights, context, z), streams)

    def encode(
        self, weights: Weights, context: Weights, x: Tensor, used: Tensor | None = None, whole: bool = True
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The inner network's features."""
        found: tuple[Tensor, dict[str, Tensor]] = self.inner.encode(weights, context, x, used, whole)
        return found

    def settle(self, weights: Weights, context: Weights, z: Tensor) -> Tensor:
        """The inner network's."""
        settled: Tensor = self.inner.settle(weights, context, z)
        return settled

    def finish(self, weights: Weights, settled: Tensor, streams: Tensor | None) -> Tensor:
        """The inner network's."""
        logits: Tensor = self.inner.finish(weights, settled, streams)
        return logits
