"""What clients' optimisers remember from one round to the next, whatever the method: it stays with the clients."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.client_model import Model, first_client
from models.networks.network_factory import learned
from models.server_state import ClientStateRefs, ServerState, Weights
from models.training.engine import Training, broadcast_weights
from tasks.messages.update_messages import Update

OPTIMISER = "optimiser"
"""Of a client, in its store: the state of the optimiser after the last step, a section for every training of a round."""

_SECTION = re.compile(rf"{OPTIMISER}\d+\.[0-9a-f]{{8}}")

Refs = Mapping[str, Mapping[str, str]]  # section, client, hash


@dataclass
class ClientOptimizerStates:
    """A round's trainings: the first of a client goes on from the first of its last round, the second from the second.

    Where the weights are of other shapes than then, the optimiser starts anew.
    """

    before: Refs = field(default_factory=dict)
    after: dict[str, dict[str, str]] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def of(self, model: Model, training: Training, clients: Sequence[str]) -> ClientStateRefs | None:
        """What these clients' next training goes on from; None if there are none, or such an optimiser remembers nothing."""
        if not clients:
            return None
        number = max(self.times[client] for client in clients)
        self.times.update(clients)
        weights = {**model.shared, **first_client(model.personal)}
        fresh = training.optimiser.init(learned(model.network, broadcast_weights(weights, 1)), 1)
        if not fresh:
            return None
        start = {name: tensor[0] for name, tensor in fresh.items()}
        section = f"{OPTIMISER}{number}.{_shapes(start)}"
        return ClientStateRefs(section, {**self.before.get(section, {}), **self.after.get(section, {})}, start)

    def remember(self, section: str, updates: Sequence[Update]) -> None:
        """The hashes of what clients kept after a training."""
        for update in updates:
            self.after.setdefault(section, {}).update(update.private[section])

    def forget(self, clients: Sequence[str]) -> None:
        """These clients' next training starts anew, as their first of a first round."""
        gone = {*clients}
        self.before, self.after = (
            {
                section: {client: ref for client, ref in refs.items() if client not in gone}
                for section, refs in part.items()
            }
            for part in (self.before, self.after)
        )
        self.next_round(clients)

    def next_round(self, clients: Sequence[str]) -> None:
        """What these clients train next goes on from what they trained in this round, as if it were a round later."""
        for client in clients:
            del self.times[client]

    def into(self, state: ServerState) -> ServerState:
        """The state with them; what was kept of other shapes, and is of no use any more, is forgotten."""
        if not self.before and not self.after:
            return state
        kept = {section: {**self.before.get(section, {}), **refs} for section, refs in self.after.items()}
        renewed = {_training_of(section) for section in kept}
        others = {section: refs for section, refs in self.before.items() if _training_of(section) not in renewed}
        page = {section: refs for section, refs in state.private.items() if not _SECTION.fullmatch(section)}
        return replace(state, private={**page, **others, **kept})


def client_optimizer_states(state: ServerState) -> ClientOptimizerStates:
    """Those that the state knows of."""
    return ClientOptimizerStates({name: refs for name, refs in state.private.items() if _SECTION.fullmatch(name)})


def _training_of(section: str) -> str:
    """Which of a round's trainings, without the shapes."""
    return section.partition(".")[0]


def _shapes(tensors: Weights) -> str:
    named = str([(name, tuple(tensor.shape)) for name, tensor in sorted(tensors.items())])
    return hashlib.sha256(named.encode()).hexdigest()[:8]
