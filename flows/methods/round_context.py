"""Defines what a method reads in a round: the setup of the run, the clients, and the calls that run tasks."""

import inspect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from torch import Tensor

from models.client_model import Model
from models.networks.network_factory import Network
from models.prng import client_streams, server_stream, uniform
from models.server_state import Weights
from models.training.engine import Training
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import MethodError
from tasks.aggregate import Aggregation, aggregate
from tasks.client_optimizer_state import ClientOptimizerStates
from tasks.execution.steps import ClientStep, Returned, ServerStep
from tasks.execution.task_runner import RoundCost, Runner, map_clients
from tasks.local_train import local_train
from tasks.messages.message_policy import SentMessage
from tasks.messages.round_messages import Update
from tasks.privacy.secure_sums import SecureRound

SentUpdate = TypeVar("SentUpdate", bound=Update)


@dataclass(frozen=True)
class TrainingSetup:
    """What stays the same over all rounds of a run.

    Attributes:
        silos: The clients that have a model: in training the federated ones, in evaluation also fresh and unseen ones.
        network: The network that every client trains.
        training: The engine, the optimizer, the objective and the local epochs.
        seed: The seed of training; the partition has its own.
        stack: The maximum number of clients in a stack.
        aggregation: How `aggregate` averages clients.
        device: The device that runs the clients' tasks.
    """

    silos: Silos
    network: Network
    training: Training
    seed: int
    stack: int = 16
    aggregation: Aggregation = field(default_factory=Aggregation)
    device: str = "cpu"

    def initial_weights(self, network: Network | None = None, purpose: str = "init") -> Weights:
        """Initialize the weights of a network, by default the run's; they depend on the seed and the purpose only."""
        return (self.network if network is None else network).init(server_stream(self.seed, 0, purpose))

    @cached_property
    def sampling_streams(self) -> Tensor:
        """The random streams of the clients, in the order of `silos.clients`: (clients,) int64, hashed once a run."""
        return client_streams(self.seed, self.silos.clients, 0, "own")


@dataclass(frozen=True)
class RoundContext:
    """Holds one round, as `Method.run_round` receives it: its clients, and the calls that run tasks on them.

    Attributes:
        number: The round, counted from 1.
        setup: What stays the same over all rounds.
        clients: The clients that take part.
        dropped: The clients that were sampled and dropped out.
        runner: Where tasks run.
        private: The store of the state that stays with clients.
        tally: The cost of the round's tasks so far, counted by `map_clients` and `train`.
        optimisers: The optimizer states that clients keep from round to round.
        validation: Client to its mean validation loss before and after its last training; None unless the sampler needs
            it.
        leaving: The clients that leave for good before this round.
    """

    number: int
    setup: TrainingSetup
    clients: tuple[str, ...]
    dropped: tuple[str, ...]
    runner: Runner
    private: ClientStore
    tally: RoundCost = field(default_factory=RoundCost)
    optimisers: ClientOptimizerStates = field(default_factory=ClientOptimizerStates)
    validation: dict[str, tuple[float, float]] | None = None
    leaving: tuple[str, ...] = ()

    @property
    def silos(self) -> Silos:
        """The silos of the clients that take part."""
        return self.setup.silos.select(self.clients)

    @property
    def training_arguments(self) -> dict[str, Any]:
        """The arguments that tasks with random numbers share: the training settings, the seed and the round."""
        return {"training": self.setup.training, "seed": self.setup.seed, "round": self.number}

    def map_clients(
        self,
        task: ClientStep[SentMessage],
        model: Model,
        silos: Silos | None = None,
        received: bool = False,
        **options: Any,
    ) -> list[SentMessage]:
        """Run a task on clients and return its messages in stack order; return an empty list if there are no clients.

        Whole stacks are assigned to workers. Each task receives its clients' part of the model and of the options.

        Args:
            task: The step that runs on each cohort.
            model: The model that clients receive.
            silos: The clients; by default those of the round.
            received: Whether clients have the model from an earlier task of the round, so that its bytes do not count.
            options: Keyword arguments of the task.

        Raises:
            TypeError: If the task returns no messages, or messages of clients that it was not given.
        """
        silos = silos or self.silos
        if not silos.clients:
            return []
        options |= {"private": self.private, "device": self.setup.device}
        messages = map_clients(self.runner, task, silos, model, stack=self.setup.stack, **options)
        self.tally.count(task.name, 0 if received else model.bytes_down, messages, silos)
        return messages

    def train(
        self,
        task: ClientStep[SentUpdate],
        model: Model,
        silos: Silos | None = None,
        epochs: int | None = None,
        since: int = 0,
        **options: Any,
    ) -> list[SentUpdate]:
        """Run a training task on clients and return its updates; the task also receives training settings and the round.

        Args:
            task: The step that trains on each cohort.
            model: The model that clients receive.
            silos: The clients; by default those of the round.
            epochs: The local epochs of the task, if not those of `setup.training`; used only to count steps.
            since: The round after which the weights were initialized; random streams count rounds from it.
            options: Keyword arguments of the task.

        Raises:
            TypeError: If the task does not return exactly one update for each client.
            MethodError: If the settings need an argument that the task does not take.
        """
        setup, silos = self.setup, silos or self.silos
        training: Training = options.get("training", setup.training)  # that of weights that stay has no noise
        secure = training.privacy.secure if training.privacy else None
        for client, rows in silos.rows("train").items():
            batches = 1 if setup.training.privacy else -(-rows // setup.training.batch)
            steps = (epochs or setup.training.epochs) * batches
            self.tally.add_steps(client, steps)
        optimizer_states = None
        if setup.training.keeps and "optimiser" not in options:  # a method may pass states of its own
            _require_argument(task, "optimiser", _STATE_NOT_KEPT)
            optimizer_states = self.optimisers.of(model, setup.training, silos.clients)
        if optimizer_states is not None:
            options["optimiser"] = optimizer_states
        if self.validation is not None:
            _require_argument(task, "validate", _LOSS_NOT_REPORTED)
            options["validate"] = True
        if setup.aggregation.is_robust and model.shared and not silos.members:  # pooled rows are one client's
            _require_argument(task, "each", _WEIGHTS_NOT_SENT.replace("SETTING", setup.aggregation.setting))
            options["each"] = True
        if secure is not None and not silos.members:  # pooled rows already share one noise
            if task is not local_train or options.keys() - {"proximal", "training"}:
                raise MethodError(_NOT_SUMMED.format(task.name))
            if len(silos.clients) < max(secure.least, secure.colluders + 1, 2):
                return []  # such a round trains nothing
            # a first step from the anchor has no proximal term
            where = (self.private, setup.stack, setup.device, self.tally)
            update = SecureRound(self.runner, silos, model, training, secure, *where).train(
                f"{setup.seed} {self.number}"
            )
            return [cast(SentUpdate, update)]  # local_train sends updates
        arguments = self.training_arguments | {"round": self.number - since}
        updates = self.map_clients(task, model, silos, **{**arguments, **options})
        counts = Counter(client for update in updates for client in update.clients)
        for client in silos.clients:
            if counts[client] != 1:
                raise TypeError(
                    f"{task.name}: got {counts[client]} results for client {client}, expected one from a task "
                    "that trains"
                )
        if optimizer_states is not None:
            self.optimisers.remember(optimizer_states.section, updates)
        if self.validation is not None:
            self.validation.update(pair for update in updates for pair in update.validation.items())
        return updates

    def run_on_server(self, task: ServerStep[Returned], *args: object) -> Returned:
        """Run a task once, on the server, and return its result.

        Args:
            task: A server step. `aggregate` averages as params.yaml says (`aggregation`).
            args: The arguments of the task; none of them may be able to open clients' rows.

        Raises:
            TypeError: If the task is a client step, or an argument could open rows.
        """
        if task is aggregate and self.setup.aggregation.is_robust:
            args = (*args, self.setup.aggregation, frozenset(self.setup.network.buffers))
        return self.runner.run_on_server(task, *args)


def without_noise(training: Training) -> Training:
    """Return the training of weights that clients keep: without noise, and without losses if noise is set."""
    return replace(training, privacy=None, reports_loss=training.privacy is None) if training.privacy else training


def uniform_by_client(
    setup: TrainingSetup, clients: Iterable[str], round_number: int, purpose: str
) -> dict[str, float]:
    """Draw a value in [0, 1) for each client; it depends on the seed, the round, the purpose and the client's name.

    Args:
        setup: Holds the seed of the run.
        clients: The clients.
        round_number: The round, counted from 1.
        purpose: Tells apart the values of one round.
    """
    clients = list(clients)
    values = uniform(client_streams(setup.seed, clients, round_number, purpose), (1,))[:, 0]
    return dict(zip(clients, values.tolist(), strict=True))


_STATE_NOT_KEPT = (
    "params.yaml: training.optimiser.state: got kept, expected reset, since {} of this method resets its "
    "optimiser. Set it to reset"
)
_NOT_SUMMED = (
    "params.yaml: training.privacy.secure_sums: got true, expected false, since {} of this method sends more than sums of "
    "gradients. Use fedavg, fedprox, fedopt or finetune, or set it to false."
)
_LOSS_NOT_REPORTED = (
    "params.yaml: clients.sampling.kind: got improving, expected uniform or by_size, since {} of this method "
    "reports no validation loss. Use one of these"
)
_WEIGHTS_NOT_SENT = (
    "params.yaml: aggregation: got SETTING, expected clip: null and rule: mean, since {} of this method "
    "takes no argument `each`, which asks for each client's weights. Use these, set `takes_aggregation = False`"
)


def _require_argument(task: ClientStep[SentMessage], argument: str, error: str) -> None:
    """Raise a MethodError if the task has no such argument; `error` has {} for the task's name."""
    if argument not in inspect.signature(task.fn).parameters:
        raise MethodError(f"{error.format(task.name)}, or add an argument {argument} to that step, as in local_train.")
