"""Keeps the optimizer states of clients from one round to the next, for any method; they stay with the clients."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from models.client_model import Model, first_client
from models.networks.network_factory import learned
from models.server_state import ClientStateRefs, ServerState, Weights
from models.training.engine import Training, broadcast_weights
from tasks.messages.round_messages import Update

OPTIMISER = "optimiser"
"""Section of a client's store: the optimizer state after the last step, one section for every training of a round."""

_SECTION = re.compile(rf"{OPTIMISER}\d+\.[0-9a-f]{{8}}")

Refs = Mapping[str, Mapping[str, str]]  # section, client, hash


@dataclass
class ClientOptimizerStates:
    """Tracks a round's trainings: a client's first training continues from its first one of the last round, and so on.

    The optimizer is reset if the shapes of the weights differ from those of the last round.
    """

    before: Refs = field(default_factory=dict)
    after: dict[str, dict[str, str]] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    def of(self, model: Model, training: Training, clients: Sequence[str]) -> ClientStateRefs | None:
        """Return the state that these clients' next training continues from; None without clients or state."""
        if not clients:
            return None
        training_index = max(self.times[client] for client in clients)
        self.times.update(clients)
        weights = {**model.shared, **first_client(model.personal)}
        fresh = training.optimiser.init(learned(model.network, broadcast_weights(weights, 1)), 1)
        if not fresh:
            return None
        start = {name: tensor[0] for name, tensor in fresh.items()}
        section = f"{OPTIMISER}{training_index}.{_shapes(start)}"
        return ClientStateRefs(section, {**self.before.get(section, {}), **self.after.get(section, {})}, start)

    def remember(self, section: str, updates: Sequence[Update]) -> None:
        """Store the hashes of the states that clients saved after a training."""
        for update in updates:
            self.after.setdefault(section, {}).update(update.private[section])

    def forget(self, clients: Sequence[str]) -> None:
        """Reset these clients' optimizers: their next training starts as the first one of a first round."""
        forgotten = {*clients}
        self.before, self.after = (
            {
                section: {client: ref for client, ref in refs.items() if client not in forgotten}
                for section, refs in sections.items()
            }
            for sections in (self.before, self.after)
        )
        self.next_round(clients)

    def next_round(self, clients: Sequence[str]) -> None:
        """Let these clients' next training continue from this round's, as if it were a round later."""
        for client in clients:
            del self.times[client]

    def into(self, state: ServerState) -> ServerState:
        """Return the server state with these sections; states of outdated shapes are dropped."""
        if not self.before and not self.after:
            return state
        saved = {section: {**self.before.get(section, {}), **refs} for section, refs in self.after.items()}
        renewed = {_training_of(section) for section in saved}
        others = {section: refs for section, refs in self.before.items() if _training_of(section) not in renewed}
        of_method = {section: refs for section, refs in state.private.items() if not _SECTION.fullmatch(section)}
        return replace(state, private={**of_method, **others, **saved})


def client_optimizer_states(state: ServerState) -> ClientOptimizerStates:
    """Read the optimizer sections of the server state."""
    return ClientOptimizerStates({name: refs for name, refs in state.private.items() if _SECTION.fullmatch(name)})


def _training_of(section: str) -> str:
    """Return which of a round's trainings a section belongs to, without its shapes."""
    return section.partition(".")[0]


def _shapes(tensors: Weights) -> str:
    named = str([(name, tuple(tensor.shape)) for name, tensor in sorted(tensors.items())])
    return hashlib.sha256(named.encode()).hexdigest()[:8]
