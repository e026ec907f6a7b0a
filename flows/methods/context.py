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
from models.training.execution_plan import even_stack_size
from silos.client_store import ClientStore
from silos.cohort import Silos, make_stacks
from silos.errors import UserError
from tasks.execution.task_runner import Runner, assign_stacks, bind_arguments
from tasks.execution.task_types import ClientStep, ServerStep
from tasks.messages.message_policy import Message, check_few
from tasks.messages.update_messages import Update


@dataclass(frozen=True)
class TrainingSetup:
    """What stays the same over all rounds of a run.

    `silos` are the clients that a model is asked for: in training the federated ones, in evaluation also fresh and unseen.
    """

    silos: Silos
    network: Network
    training: Training
    seed: int
    stack: int = 16  # most clients of a stack

    @cached_property
    def own_streams(self) -> Tensor:
        """A stream of each client's own, by its place in `silos.clients`: (clients,) int64, hashed once."""
        return client_streams(self.seed, self.silos.clients, 0, "own")


@dataclass
class RoundCost:
    """What a round's tasks cost: seconds inside each task by name (the longest cohort counts), bytes, clients' steps."""

    seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    steps: dict[str, int] = field(default_factory=dict)

    def stepped(self, client: str, steps: int) -> None:
        """The client's weights, or the server's on its behalf, made so many steps more."""
        self.steps[client] = self.steps.get(client, 0) + steps


@dataclass(frozen=True)
class RoundContext:
    """One round: its number, the clients that take part, dropped out, or leave for good before it, and where tasks run."""

    number: int
    setup: TrainingSetup
    clients: tuple[str, ...]
    dropped: tuple[str, ...]
    runner: Runner
    private: ClientStore
    device: str = "cpu"
    tally: RoundCost = field(default_factory=RoundCost)
    optimisers: ClientOptimizerStates = field(default_factory=ClientOptimizerStates)
    # of each client's last training what it told: its mean loss on validation rows before and after; None if nobody asks
    validation: dict[str, tuple[float, float]] | None = None
    leaving: tuple[str, ...] = ()

    @property
    def silos(self) -> Silos:
        """The silos of the clients that take part."""
        return self.setup.silos.select(self.clients)

    def map_clients(
        self, task: ClientStep, model: Model, silos: Silos | None = None, received: bool = False, **options: Any
    ) -> list[Any]:
        """The task on every stack of the silos (those that take part, unless others are named), in stack order.

        Deals whole stacks to the runner's workers; every task gets what is its clients' own of the model and of the options.
        `received`: the clients have the model from an earlier task of this round, so it is not counted again. Nobody is
        asked where there is no client, and nothing answered. TypeError for a task that answers with no messages, for others
        than its clients, or with few numbers that are more of some clients than of others.
        """
        silos = silos or self.silos
        if not silos.clients:
            return []
        options |= {"private": self.private, "device": self.device}
        answers = on_cohorts(self.runner, task, silos, self.setup.stack, model, **options)
        self._count(task.name, 0 if received else model.bytes_down, answers, silos)
        return [message for cohort in answers for message in cohort]

    def train(
        self,
        task: ClientStep,
        model: Model,
        silos: Silos | None = None,
        epochs: int | None = None,
        since: int = 0,
        **options: Any,
    ) -> list[Update]:
        """`map_clients` for a task that trains: it also gets the schedule and this round's streams.

        `epochs`: how many it makes, where that is not what the schedule says; for the count of steps. `since`: the round
        after which the weights were drawn, from which streams count. TypeError for a task that does not answer for every
        client once: a mean of its updates would be of some, or count one twice.
        """
        setup, silos = self.setup, silos or self.silos
        for client, rows in silos.rows("train").items():
            steps = (epochs or setup.training.epochs) * -(-rows // setup.training.batch)
            self.tally.stepped(client, steps)
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
        """The task once, on the server."""
        return self.runner.once(task, *args)

    def _keeps(self, task: ClientStep, options: Mapping[str, Any]) -> bool:
        """Whether optimisers go on from round to round, and no page sees to it; UserError for a step that cannot."""
        if not self.setup.training.keeps or "optimiser" in options:
            return False
        _must_take(task, "optimiser", _NOT_KEPT)
        return True

    def _count(self, name: str, bytes_down: int, answers: list[list[Any]], silos: Silos) -> None:
        """Pooled rows are in one place, and no weights travel."""
        messages: list[Message] = [m for cohort in answers for m in cohort]
        wrong = [type(m).__name__ for m in messages if not isinstance(m, Message)]
        wrong += ["nothing" for cohort in answers if not cohort]
        if wrong:
            raise TypeError(f"{name} answers with {wrong[0]}, and a step on clients answers with messages")
        check_few(messages)
        strangers = {client for m in messages for client in m.clients} - {*silos.clients}
        if strangers:
            raise TypeError(f"{name} answers for {min(strangers)!r}, which is none of the clients that were asked")
        seconds = max(cohort[0].seconds for cohort in answers)
        self.tally.seconds[name] = self.tally.seconds.get(name, 0.0) + seconds
        for message in (m for m in messages if m.travels and not silos.pooled):
            self.tally.bytes_up += message.bytes_up
            self.tally.bytes_down += len(message.clients) * bytes_down if message.with_model else 0


def on_cohorts(
    runner: Runner, task: ClientStep, silos: Silos, stack: int, *args: Any, **options: Any
) -> list[list[Any]]:
    """Each cohort's messages, one a stack of at most `stack` clients; a cohort is given itself and its part of the rest."""
    cohorts = assign_stacks(silos, make_stacks(silos, even_stack_size(len(silos.clients), stack)), runner.workers)
    return runner.each(task, [bind_arguments(cohort, args, options) for cohort in cohorts])


def uniform_by_client(setup: TrainingSetup, clients: Iterable[str], number: int, purpose: str) -> dict[str, float]:
    """A number in [0, 1) for each client, which follows from the seed, the round, the purpose and its name."""
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
    """UserError for a step that has no such argument; `otherwise`: what that means, with a place for the step's name."""
    if argument not in inspect.signature(task.fn).parameters:
        raise UserError(f"{otherwise.format(task.name)}, or give that step an argument {argument}, as local_train has.")
