"""A trained thing as a function of one client; evaluation, training and export never ask which method made it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from .networks.network_factory import Network
from .server_state import ClientStateRefs, Weights


@dataclass(frozen=True)
class OfGroups(Mapping[str, Tensor]):
    """Weights of which every client has its group's: name to (clients, ...), put together when it is asked for.

    `groups`: name to (groups, ...), of which there is one copy however many clients there are; `place`: the group of each
    client, in the clients' order.
    """

    groups: Weights
    place: tuple[int, ...]

    def __getitem__(self, name: str) -> Tensor:
        return self.groups[name][list(self.place)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, clients: Sequence[int]) -> "OfGroups":
        """Of the clients at these places, with their groups alone."""
        place = [self.place[client] for client in clients]
        used = sorted({*place})
        return OfGroups({name: w[used] for name, w in self.groups.items()}, tuple(map(used.index, place)))

    @property
    def bytes_of_one(self) -> int:
        """Of a group's weights as they travel."""
        return sum(int(w[0].numel() * w.element_size()) for w in self.groups.values())


@dataclass(frozen=True)
class Model:
    """`shared` weights, `personal` weights (which train too) and `context` (which does not).

    personal and context either have a leading axis over `clients` (see also OfGroups), or are `ClientStateRefs`: then
    the server holds hashes only, and the task that works on a client opens them on that client's side.
    """

    network: Network
    shared: Weights
    personal: Weights | ClientStateRefs = field(default_factory=dict)
    context: Weights | ClientStateRefs = field(default_factory=dict)
    clients: tuple[str, ...] = ()

    @property
    def is_personal(self) -> bool:
        """Whether clients differ in the weights or the context they use."""
        return any(isinstance(part, ClientStateRefs) or bool(part) for part in (self.personal, self.context))

    @property
    def bytes_down(self) -> int:
        """Bytes that one client receives: the shared weights; what is private is with it already."""
        of_client = sum(self._bytes_of_one(part) for part in (self.personal, self.context))
        return size_in_bytes(self.shared) + of_client

    def select(self, clients: Sequence[str]) -> "Model":
        """The model of these clients only: what travels to their cohort."""

        def of(part: Weights | ClientStateRefs) -> Weights | ClientStateRefs:
            if isinstance(part, ClientStateRefs):
                return replace(part, refs={c: part.refs[c] for c in clients if c in part.refs})
            if not part:
                return part
            places = [self._place[client] for client in clients]
            return part.take(places) if isinstance(part, OfGroups) else {n: t[places] for n, t in part.items()}

        return replace(self, personal=of(self.personal), context=of(self.context), clients=tuple(clients))

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: at for at, name in enumerate(self.clients)}

    def _bytes_of_one(self, part: Weights | ClientStateRefs) -> int:
        """Of what one client gets of it."""
        if isinstance(part, OfGroups):
            return part.bytes_of_one
        return 0 if isinstance(part, ClientStateRefs) else size_in_bytes(part) // max(len(self.clients), 1)


def of_one(part: Weights | ClientStateRefs) -> Weights:
    """What one client has of a model's part, without the client axis: the first one's, or the start of what is private."""
    return part.start if isinstance(part, ClientStateRefs) else {name: tensor[0] for name, tensor in part.items()}


def size_in_bytes(weights: Weights) -> int:
    """Bytes of the tensors as they travel."""
    return sum(int(t.numel() * t.element_size()) for t in weights.values())
