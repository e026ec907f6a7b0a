"""Networks whose only form is that of a whole stack."""

from abc import ABC, abstractmethod

from torch import Tensor

from ..state import Weights


class StackOnly(ABC):
    """A client alone is a stack of one."""

    def apply(self, weights: Weights, context: Weights, x: Tensor, stream: Tensor | None) -> Tensor:
        """x: (rows, *shape) float32 to logits (rows, outputs); a stream switches dropout on."""
        stack, about = ({name: w[None] for name, w in part.items()} for part in (weights, context))
        return self.apply_stack(stack, about, x[None], None if stream is None else stream[None])[0]

    @abstractmethod
    def apply_stack(self, weights: Weights, context: Weights, x: Tensor, streams: Tensor | None) -> Tensor:
        """x: (clients, rows, *shape) to logits (clients, rows, outputs)."""
