"""A trained thing as a function of one client; evaluation, training and export never ask which method made it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .networks.registry import Network
from .state import Private, Weights


@dataclass(frozen=True)
class Model:
    """`shared` weights, `personal` weights (which train too) and `context` (which does not).

    personal and context either have a leading axis over `clients`, or are `Private`: then the server holds hashes only,
    and the task that works on a client opens them on that client's side.
    """

    network: Network
    shared: Weights
    personal: Weights | Private = field(default_factory=dict)
    context: Weights | Private = field(default_factory=dict)
    clients: tuple[str, ...] = ()

    @property
    def is_personal(self) -> bool:
        """Whether clients differ in the weights or the context they use."""
        return any(isinstance(part, Private) or bool(part) for part in (self.personal, self.context))

    @property
    def bytes_down(self) -> int:
        """Bytes that one client receives: the shared weights; what is private is with it already."""
        per_client = [p for p in (self.personal, self.context) if not isinstance(p, Private)]
        share = sum(size_in_bytes(p) for p in per_client) // max(len(self.clients), 1)
        return size_in_bytes(self.shared) + share

    def select(self, clients: Sequence[str]) -> "Model":
        """The model of these clients only: what travels to their cohort."""
        place = {name: i for i, name in enumerate(self.clients)}

        def of(part: Weights | Private) -> Weights | Private:
            if isinstance(part, Private):
                return replace(part, refs={c: part.refs[c] for c in clients if c in part.refs})
            return {name: tensor[[place[c] for c in clients]] for name, tensor in part.items()}

        return replace(self, personal=of(self.personal), context=of(self.context), clients=tuple(clients))


def of_one(part: Weights | Private) -> Weights:
    """What one client has of a model's part, without the client axis: the first one's, or the start of what is private."""
    return part.start if isinstance(part, Private) else {name: tensor[0] for name, tensor in part.items()}


def size_in_bytes(weights: Weights) -> int:
    """Bytes of the tensors as they travel."""
    return sum(int(t.numel() * t.element_size()) for t in weights.values())
