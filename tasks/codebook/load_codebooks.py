"""The words of a stack's clients, open to be changed."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network import Member
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED
from models.server_state import ClientStateRefs, Weights
from models.training.execution_plan import Kind
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from tasks.execution.load_client_data import load_weights
from tasks.messages.codebook_messages import CodebookExtension


@dataclass(frozen=True)
class Codebooks:
    """What stays with the clients, by the names that members have for it."""

    cohort: Cohort
    stack: Stack
    section: str
    weights: Weights
    context: Weights
    kept: dict[str, Tensor]  # (clients, ...)
    count: dict[str, Tensor]  # how many words of its own each has, by the member's prefix: (clients,)
    engine: Kind
    device: str

    @classmethod
    def opened(
        cls, cohort: Cohort, stack: Stack, model: Model, private: ClientStore, room: int, engine: Kind, device: str
    ) -> "Codebooks":
        """As they are, with room for so many of a client's own."""
        assert isinstance(model.personal, ClientStateRefs)
        weights, context = load_weights(model, stack, private, device)
        size = len(stack.clients)
        kept = {name: w[:size].cpu().clone() for name, w in weights.items() if name not in model.shared}
        count = {}
        for one in model.network.single_networks:
            words = torch.zeros(size, room, one.network.length)
            words[:, : one.network.room] = kept[one.prefix + OWN]
            kept[one.prefix + OWN] = words
            count[one.prefix] = _held(one, context, size)
        return cls(cohort, stack, model.personal.section, weights, context, kept, count, engine, device)

    def held(self, one: Member, client: str) -> int:
        """How many words of its own a client has."""
        return int(self.count[one.prefix][self._at(client)])

    def append(self, one: Member, client: str, fresh: np.ndarray) -> None:
        """More words after those that it has."""
        self._write(one, client, self.held(one, client), fresh)

    def replace_own(self, one: Member, client: str, fresh: np.ndarray) -> None:
        """Words in the place of its last ones."""
        self._write(one, client, 0, fresh)

    def replace_shared(self, one: Member, client: str, fresh: np.ndarray) -> None:
        """Words in the place of its copy of the shared ones."""
        self.kept[one.prefix + SHARED][self._at(client), : len(fresh)] = torch.from_numpy(fresh)

    def stored(self, private: ClientStore) -> list[CodebookExtension]:
        """Written down beside the clients' rows; one record a member."""
        refs = private.save(self.section, self.stack.clients, {name: w.numpy() for name, w in self.kept.items()})
        return [
            CodebookExtension(self.stack.clients, count, refs, prefix=prefix) for prefix, count in self.count.items()
        ]

    def _write(self, one: Member, client: str, first: int, fresh: np.ndarray) -> None:
        at, last = self._at(client), first + len(fresh)
        self.kept[one.prefix + OWN][at, first:last] = torch.from_numpy(fresh)
        self.count[one.prefix][at] = max(self.held(one, client), last)

    def _at(self, client: str) -> int:
        return self.stack.clients.index(client)


def _held(one: Member, context: Weights, clients: int) -> Tensor:
    """How many words of its own each client has in this member, (clients,)."""
    if not one.network.room:
        return torch.zeros(clients, dtype=torch.int64)
    return context[one.prefix + COUNT][:clients].cpu().clone()
