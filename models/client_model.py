"""A trained model as a function of one client, independent of the method that trained it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from .networks.network_factory import Network
from .server_state import ClientStateRefs, Weights


@dataclass(frozen=True)
class GroupedWeights(Mapping[str, Tensor]):
    """Weights that clients share by group: names to (clients, ...), expanded when they are read.

    `groups` maps names to (groups, ...) and is stored once, however many clients there are. `group_of` is each client's
    group index, in the clients' order.
    """

    groups: Weights
    group_of: tuple[int, ...]

    def __getitem__(self, name: str) -> Tensor:
        return self.groups[name][list(self.group_of)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def take(self, clients: Sequence[int]) -> "GroupedWeights":
        """Select the clients at these indices, with only their groups."""
        group_of = [self.group_of[client] for client in clients]
        used = sorted({*group_of})
        return GroupedWeights({name: w[used] for name, w in self.groups.items()}, tuple(map(used.index, group_of)))

    @property
    def bytes_per_client(self) -> int:
        """Return the bytes of one group's weights as sent."""
        return sum(int(w[0].numel() * w.element_size()) for w in self.groups.values())


@dataclass(frozen=True)
class Model:
    """A network with `shared` weights, trainable `personal` weights, and `context` that is not trained.

    personal and context have a leading axis over `clients` (see GroupedWeights), or are `ClientStateRefs`. With
    references the server holds only hashes; the task that works on a client loads the tensors on that client's side.
    """

    network: Network
    shared: Weights
    personal: Weights | ClientStateRefs = field(default_factory=dict)
    context: Weights | ClientStateRefs = field(default_factory=dict)
    clients: tuple[str, ...] = ()

    @property
    def is_personal(self) -> bool:
        """Whether clients differ in weights or context."""
        return any(isinstance(part, ClientStateRefs) or bool(part) for part in (self.personal, self.context))

    @property
    def bytes_down(self) -> int:
        """Return the bytes that one client receives; private state is not sent, because the client has it already."""
        per_client = sum(self._bytes_per_client(part) for part in (self.personal, self.context))
        return size_in_bytes(self.shared) + per_client

    def select(self, clients: Sequence[str]) -> "Model":
        """Restrict the model to these clients, as it is sent to their cohort."""

        def select_part(part: Weights | ClientStateRefs) -> Weights | ClientStateRefs:
            if isinstance(part, ClientStateRefs):
                return replace(part, refs={c: part.refs[c] for c in clients if c in part.refs})
            if not part:
                return part
            indices = [self._index[client] for client in clients]
            return part.take(indices) if isinstance(part, GroupedWeights) else {n: t[indices] for n, t in part.items()}

        return replace(
            self, personal=select_part(self.personal), context=select_part(self.context), clients=tuple(clients)
        )

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.clients)}

    def _bytes_per_client(self, part: Weights | ClientStateRefs) -> int:
        """Return the bytes of this part that one client receives."""
        if isinstance(part, GroupedWeights):
            return part.bytes_per_client
        return 0 if isinstance(part, ClientStateRefs) else size_in_bytes(part) // max(len(self.clients), 1)


def first_client(part: Weights | ClientStateRefs) -> Weights:
    """Return the first client's tensors of a model's part, without a client axis.

    For private state these are its initial tensors.
    """
    return part.start if isinstance(part, ClientStateRefs) else {name: tensor[0] for name, tensor in part.items()}


def size_in_bytes(weights: Weights) -> int:
    """Return the bytes of the tensors as sent."""
    return sum(int(t.numel() * t.element_size()) for t in weights.values())
