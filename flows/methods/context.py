"""A round as a method sees it: who takes part, and how its tasks are run."""

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from flows.experiment.client_optimizer_state import ClientOptimizerStates
from models.client_model import Model
from models.networks.network_factory import Network
from models.prng import client_streams, uniform
from models.training.engine import Training
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from tasks.execution.round_cost import RoundCost
from tasks.execution.task_runner import Runner, cohort_calls
from tasks.execution.task_types import ClientStep, ServerStep
from tasks.messages.update_messages import Update


@dataclass(frozen=True)
class TrainingSetup:
    """What stays the same over all rounds of a run.

    Attributes:
        silos: The clients that have a model: in training the federated ones, in evaluation also fresh and unseen ones.
        network: The network that every client trains.
        training: The engine, the optimizer, the objective and the local epochs.
        seed: The seed of training; the partition has its own.
        stack: The most clients of a stack.
    """

    silos: Silos
    network: Network
    training: Training
    seed: int
    stack: int = 16

    @cached_property
    def own_streams(self) -> Tensor:
        """The random stream of each client, in the order of `silos.clients`: (clients,) int64, hashed once."""
        return client_streams(self.seed, self.silos.clients, 0, "own")


@dataclass(frozen=True)
class RoundContext:
    """One round, as `Method.run_round` gets it: its clients, and the calls that run tasks on them.

    Attributes:
        number: The number of the round, from 1.
        setup: What stays the same over all rounds.
        clients: The clients that take part.
        dropped: The clients that were sampled and dropped out.
        runner: Where tasks run.
        private: The store of what clients keep for themselves.
        device: The device that clients are computed on.
        tally: What the round's tasks cost so far; `map_clients` and `train` count it.
        optimisers: The state of optimizers that clients keep from round to round.
        validation: Client to its mean loss on validation rows before and after its last training; None if no sampler
            needs it.
        leaving: The clients that leave for good before this round.
    """

    number: int
    setup: TrainingSetup
    clients: tuple[str, ...]
    dropped: tuple[str, ...]
    runner: Runner
    private: ClientStore
    device: str = "cpu"
    tally: RoundCost = field(default_factory=RoundCost)
    optimisers: ClientOptimizerStates = field(default_factory=ClientOptimizerStates)
    validation: dict[str, tuple[float, float]] | None = None
    leaving: tuple[str, ...] = ()

    @property
    def silos(self) -> Silos:
        """The silos of the clients that take part."""
        return self.setup.silos.select(self.clients)

    def map_clients(
        self, task: ClientStep, model: Model, silos: Silos | None = None, received: bool = False, **options: Any
    ) -> list[Any]:
        """Run a task on clients, and return its messages in stack order; an empty list if there are no clients.

        Whole stacks are assigned to workers. Each task gets its clients' part of the model and of the options.

        Args:
            task: The step that runs on each cohort.
            model: The model that clients receive.
            silos: The clients; those that take part if not given.
            received: The clients have the model from an earlier task of this round, so its bytes are not counted again.
            options: Keyword arguments of the task.

        Raises:
            TypeError: If the task returns no messages, or messages of other clients than its own.
        """
        silos = silos or self.silos
        if not silos.clients:
            return []
        options |= {"private": self.private, "device": self.device}
        calls = cohort_calls(silos, self.setup.stack, self.runner.workers, model, **options)
        return self.tally.count(
            task.name, 0 if received else model.bytes_down, self.runner.map_cohorts(task, calls), silos
        )

    def train(
        self,
        task: ClientStep,
        model: Model,
        silos: Silos | None = None,
        epochs: int | None = None,
        since: int = 0,
        **options: Any,
    ) -> list[Update]:
        """Run a task that trains on clients, and return its updates; the task also gets the training settings and the round.

        Args:
            task: The step that trains on each cohort.
            model: The model that clients receive.
            silos: The clients; those that take part if not given.
            epochs: The local epochs that the task makes, if not those of `setup.training`; only the count of steps needs it.
            since: The round after which the weights were drawn: random streams count rounds from it.
            options: Keyword arguments of the task.

        Raises:
            TypeError: If the task does not return one update for each client: their mean would be wrong.
            UserError: If the settings need an argument that the task does not take.
        """
        setup, silos = self.setup, silos or self.silos
        for client, rows in silos.rows("train").items():
            steps = (epochs or setup.training.epochs) * -(-rows // setup.training.batch)
            self.tally.add_steps(client, steps)
        when: dict[str, Any] = {"training": setup.training, "seed": setup.seed, "round": self.number - since}
        kept = self.optimisers.of(model, setup.training, silos.clients) if self._keeps(task, options) else None
        if kept is not None:
            options["optimiser"] = kept
        if self.validation is not None:
            _must_take(task, "validate", _NOT_TOLD)
            options["validate"] = True
        updates = self.map_clients(task, model, silos, **when, **options)
        times = Counter(client for update in updates for client in update.clients)
        for client in silos.clients:
            if times[client] != 1:
                raise TypeError(
                    f"{task.name} answers for client {client} {times[client]} times; a task that trains does once"
                )
        if kept is not None:
            self.optimisers.remember(kept.section, updates)
        if self.validation is not None:
            self.validation.update(pair for update in updates for pair in update.validation.items())
        return updates

    def run_on_server(self, task: ServerStep, *args: Any) -> Any:
        """Run a task once, on the server."""
        return self.runner.run_on_server(task, *args)

    def _keeps(self, task: ClientStep, options: Mapping[str, Any]) -> bool:
        """Return whether clients keep optimizer states, and the method does not pass them; UserError if the task cannot."""
        if not self.setup.training.keeps or "optimiser" in options:
            return False
        _must_take(task, "optimiser", _NOT_KEPT)
        return True


def uniform_by_client(setup: TrainingSetup, clients: Iterable[str], number: int, purpose: str) -> dict[str, float]:
    """Draw a number in [0, 1) for each client; it depends on the seed, the round, the purpose and the client's name."""
    clients = list(clients)
    drawn = uniform(client_streams(setup.seed, clients, number, purpose), (1,))[:, 0]
    return dict(zip(clients, drawn.tolist(), strict=True))


_NOT_KEPT = (
    "params.yaml: training.optimiser.state is kept, and {} of this method's page starts its optimiser anew; "
    "set it to reset"
)
_NOT_TOLD = (
    "params.yaml: clients.sampling.kind is improving, and {} of this method's page tells no validation loss; "
    "use uniform or by_size"
)


def _must_take(task: ClientStep, argument: str, otherwise: str) -> None:
    """Raise a UserError if the task has no such argument; `otherwise` says the consequence, with {} for the task's name."""
    if argument not in inspect.signature(task.fn).parameters:
        raise UserError(f"{otherwise.format(task.name)}, or give that step an argument {argument}, as local_train has.")
