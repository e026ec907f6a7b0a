"""Runs the stages of UEFL (algorithm 1): at the end of a stage, uncertain clients get codewords of their own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from flows.methods.base import RoundReport
from flows.methods.common.codebook_transfer import codebook_message, count_context, local_codes
from flows.methods.common.network_checks import split_personal
from flows.methods.fedavg import fedavg_round
from flows.methods.round_context import RoundContext
from models.client_model import Model
from models.networks.deep_ensemble import plain
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import OWN, SHARED
from models.server_state import ClientStateRefs, ServerState, Weights
from tasks.execution.steps import ClientStep

SECTION = "codewords"
"""Section of a client's own codewords in its store."""

Until = Literal["certain", "budget"]
"""Whether a run ends when no client is uncertain or the last stage is over, or trains to the last round."""


def initial_state(weights: Weights, copies: Collection[str] = ()) -> ServerState:
    """Return the state of the first stage, without own codewords; each client trains its own copy of weights `copies`."""
    sections, start = split_personal(weights, copies)
    numbers: dict[str, Any] = {"stage": 1, "since": 0, "limit": None, "room": 0, "words": {}, "settled": None}
    return ServerState({}, numbers).with_tensors(**sections, start=start).with_private(SECTION, {})


def num_shared_codewords(state: ServerState) -> int:
    """Return the length of the shared codebook; it is the same for all members of an ensemble."""
    weights = {**state.tensors["start"], **state.tensors["weights"]}
    return next(len(w) for name, w in weights.items() if plain(name) == SHARED)


def model_with_codewords(state: ServerState, network: Network, clients: Sequence[str]) -> Model:
    """Return the model of the clients with their own codewords; the network has the state's room for codewords."""
    room = state.numbers["room"]
    empty = {member.prefix + OWN: torch.zeros(room, member.network.length) for member in network.single_networks}
    personal = ClientStateRefs(SECTION, state.private[SECTION], {**state.tensors["start"], **empty})
    context = count_context(network, clients, state.numbers["words"]) if room else {}
    return Model(network, state.tensors["weights"], personal, context, tuple(clients))


def late_clients(state: ServerState, round: RoundContext) -> list[str]:
    """List the clients that take part for the first time, after the first uncertainty check."""
    checked = state.numbers["stage"] > 1 or state.numbers["settled"]
    return [client for client in round.clients if checked and client not in state.private[SECTION]]


def late_clients_message(late: Sequence[str]) -> tuple[str, ...]:
    """Return the message about late clients that get codewords."""
    return (f"joined, with codewords of their own: {', '.join(late)}",)


def train(
    state: ServerState, round: RoundContext, model: Model, messages: tuple[str, ...] = ()
) -> tuple[ServerState, RoundReport]:
    """Run a round of FedAvg; codewords of a client stay with it, and the report has the messages."""
    state, report = fedavg_round(state, round, model, SECTION)
    return state, replace(report, messages=messages)


def is_over(state: ServerState, first_rounds: int, more_rounds: int) -> bool:
    """Return whether the stage has had all of its rounds; a settled run has no further stages."""
    length = first_rounds if state.numbers["stage"] == 1 else more_rounds
    return state.numbers["since"] >= length and not state.numbers["settled"]


@dataclass(frozen=True)
class Check:
    """Result of an uncertainty check: score to client to value, and the limit of the entropy in nats."""

    scores: Mapping[str, Mapping[str, float]]
    limit: float

    @property
    def uncertain(self) -> list[str]:
        """The clients above the limit, the most uncertain first."""
        entropy = self.scores["entropy"]
        return sorted((client for client, e in entropy.items() if e > self.limit), key=lambda c: (-entropy[c], c))


def clients_with_codewords(state: ServerState, round: RoundContext, extended: Collection[str] = ()) -> tuple[str, ...]:
    """List the clients that have stored codewords or are to be extended, in listing order; all store the same room."""
    silos = round.setup.silos
    return tuple(sorted((c for c in {*state.private[SECTION], *extended} if c in silos), key=silos.index))


def extend(
    state: ServerState,
    round: RoundContext,
    task: ClientStep,
    model: Model,
    extended: Sequence[str],
    num_codewords: int,
    room: int,
    **options: Any,
) -> ServerState:
    """Give clients more codewords, in each member of an ensemble.

    Args:
        task: The step that finds the codewords.
        model: The model of all `clients_with_codewords`.
        extended: The clients that get codewords.
        num_codewords: The codewords that each of these clients gets.
        room: The codewords for which each client's store has room.
        options: Further arguments of the task.
    """
    setup, counts, refs = round.setup, dict(state.numbers["words"]), dict[str, str]()
    options |= {**round.training_arguments, "extend": tuple(extended), "words": num_codewords, "room": room}
    for message in round.map_clients(task, model, silos=setup.silos.select(model.clients), **options):
        refs |= message.refs
        counts |= message.held
    return state.with_private(SECTION, refs).with_numbers(
        room=room, words={client: count for client, count in counts.items() if count}
    )


def conclude(
    state: ServerState,
    round: RoundContext,
    report: RoundReport,
    check: Check,
    extended: Sequence[str],
    num_codewords: int,
    until: Until,
) -> tuple[ServerState, RoundReport]:
    """Begin the next stage if a client was extended, else settle or finish the run; report the check.

    The report counts the codewords of each client that takes part, and the own codewords of all clients together.

    Args:
        state: The state after the extension.
        report: The report of training.
        check: The result of the uncertainty check.
        extended: The clients that got codewords.
        num_codewords: The codewords that each of these clients got.
        until: Whether the run ends when it is settled.
    """
    setup, stage, uncertain = round.setup, state.numbers["stage"], check.uncertain
    metrics = {"stage": stage, "check/limit": check.limit, "clients/uncertain": len(uncertain)}
    metrics |= {"clients/extended": len(extended)}
    metrics |= {f"check/{name}": sum(values.values()) / len(values) for name, values in check.scores.items()}
    client_metrics = {f"check_{name}": values for name, values in check.scores.items()}
    extended_clients = {*extended}
    client_metrics["extended"] = {client: float(client in extended_clients) for client in check.scores["entropy"]}
    state = state.with_numbers(limit=check.limit)
    if extended:
        each = " in each member" if len(setup.network.single_networks) > 1 else ""
        outcome = f"{len(extended)} get {num_codewords} codewords{each}: {', '.join(extended)}"
        counts = local_codes(setup.network, clients_with_codewords(state, round), state.numbers["words"])
        # the shared codebook has as many codewords as one extension adds: V of Zhang, Cao and Liu (2025)
        client_metrics["words"] = {
            client: num_codewords + counts[client] for client in round.clients if client in counts
        }
        metrics["words/own"] = sum(counts.values())
        state = state.with_numbers(stage=stage + 1, since=0)
    else:
        outcome = "stages" if uncertain else "certain"
        # with a budget training goes on to the last round, and only the checks have ended
        state = state.with_numbers(settled=outcome) if until == "budget" else replace(state, finished=outcome)
    messages = codebook_message(check.scores, check.limit, outcome, num_codewords)
    return state, report.merge(RoundReport(metrics, client_metrics, messages))
