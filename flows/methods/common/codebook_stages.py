"""Stages of training, at whose end clients tell how unsure they are and some get words of their own (UEFL's algorithm 1)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from flows.methods.base import RoundReport
from flows.methods.common.codebook_transfer import codebook_message, counted, local_codes
from flows.methods.common.network_checks import apart
from flows.methods.context import RoundContext
from models.client_model import Model
from models.networks.deep_ensemble import plain
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import OWN, SHARED
from models.server_state import ClientStateRefs, ServerState, Weights
from tasks.aggregate import aggregate
from tasks.execution.task_types import ClientStep
from tasks.local_train import local_train

SECTION = "codewords"
"""Of a client's own words, in its store."""

Until = Literal["certain", "budget"]
"""What a run does when nobody is uncertain, or the last stage is over: it ends, or trains on."""


def begin(weights: Weights, copies: Collection[str] = ()) -> ServerState:
    """The first stage, in which nobody has words of its own; of these weights every client has a copy that starts there."""
    sections, start = apart(weights, copies)
    numbers: dict[str, Any] = {"stage": 1, "since": 0, "limit": None, "room": 0, "words": {}, "settled": None}
    return ServerState({}, numbers).with_tensors(**sections, start=start).with_private(SECTION, {})


def everything(state: ServerState) -> dict[str, Tensor]:
    """Weights and what clients start with, shared words among them wherever they are."""
    return {**state.tensors["start"], **state.tensors["weights"]}


def common(state: ServerState) -> int:
    """How many words a shared book has; those of an ensemble's members have as many."""
    return next(len(w) for name, w in everything(state).items() if plain(name) == SHARED)


def worded(state: ServerState, network: Network, clients: Sequence[str]) -> Model:
    """The network, which has the state's room for words, with the words of each client."""
    room = state.numbers["room"]
    empty = {one.prefix + OWN: torch.zeros(room, one.network.length) for one in network.single_networks}
    personal = ClientStateRefs(SECTION, state.private[SECTION], {**state.tensors["start"], **empty})
    context = counted(network, clients, state.numbers["words"]) if room else {}
    return Model(network, state.tensors["weights"], personal, context, tuple(clients))


def newcomers(state: ServerState, round: RoundContext) -> list[str]:
    """Who takes part for the first time, and too late for the first check."""
    checked = state.numbers["stage"] > 1 or state.numbers["settled"]
    return [client for client in round.clients if checked and client not in state.private[SECTION]]


def greeting(late: Sequence[str]) -> tuple[str, ...]:
    """What is said of newcomers that get words."""
    return (f"joined with words of their own: {', '.join(late)}",)


def train(
    state: ServerState, round: RoundContext, model: Model, news: tuple[str, ...] = ()
) -> tuple[ServerState, RoundReport]:
    """Everybody trains, weights are averaged, and what is a client's own stays with it; the report begins with the news."""
    updates = round.train(local_train, model)
    state = state.with_tensors(weights=round.run_on_server(aggregate, updates, model.shared))
    refs = {client: ref for update in updates for client, ref in update.private[SECTION].items()}
    state = state.with_private(SECTION, refs)
    return state, replace(RoundReport.of(updates), messages=news)


def is_over(state: ServerState, first_rounds: int, more_rounds: int) -> bool:
    """Whether the stage has had its rounds; the last one has no end."""
    length = first_rounds if state.numbers["stage"] == 1 else more_rounds
    return state.numbers["since"] >= length and not state.numbers["settled"]


@dataclass(frozen=True)
class Check:
    """What clients told of their doubts, by name and client, and the limit of their entropy."""

    doubts: Mapping[str, Mapping[str, float]]
    limit: float

    @property
    def uncertain(self) -> list[str]:
        """Who is above the limit, the most uncertain first."""
        entropy = self.doubts["entropy"]
        return sorted((client for client, e in entropy.items() if e > self.limit), key=lambda c: (-entropy[c], c))


def storing(state: ServerState, round: RoundContext, extended: Collection[str] = ()) -> tuple[str, ...]:
    """Who has stored words, and those who are to have more, in listing order: all are stored with the same room."""
    silos = round.setup.silos
    return tuple(sorted((c for c in {*state.private[SECTION], *extended} if c in silos), key=silos.index))


def extend(
    state: ServerState,
    round: RoundContext,
    task: ClientStep,
    model: Model,
    extended: Sequence[str],
    words: int,
    room: int,
    **options: Any,
) -> ServerState:
    """The state in which these clients have more words, which the task finds, of an ensemble in every member.

    model: of those `storing` words.
    """
    setup, counts, refs = round.setup, dict(state.numbers["words"]), dict[str, str]()
    options |= {"training": setup.training, "seed": setup.seed, "round": round.number}
    options |= {"extend": tuple(extended), "words": words, "room": room}
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
    words: int,
    until: Until,
) -> tuple[ServerState, RoundReport]:
    """The next stage if somebody was extended, else the end; and what the round reports of the check.

    How many words of its own a client has is reported of those that take part, and of all together.
    """
    setup, stage, uncertain = round.setup, state.numbers["stage"], check.uncertain
    numbers = {"stage": stage, "check/limit": check.limit, "clients/uncertain": len(uncertain)}
    numbers |= {"clients/extended": len(extended)}
    numbers |= {f"check/{name}": sum(of.values()) / len(of) for name, of in check.doubts.items()}
    rows = {f"check_{name}": of for name, of in check.doubts.items()}
    more = {*extended}
    rows["extended"] = {client: float(client in more) for client in check.doubts["entropy"]}
    state = state.with_numbers(limit=check.limit)
    if extended:
        each = " in each member" if len(setup.network.single_networks) > 1 else ""
        what = f"{len(extended)} get {words} words{each}: {', '.join(extended)}"
        counts = local_codes(setup.network, storing(state, round), state.numbers["words"])
        rows["words"] = {client: words + counts[client] for client in round.clients if client in counts}
        numbers["words/own"] = sum(counts.values())
        state = state.with_numbers(stage=stage + 1, since=0)
    else:
        what = "stages" if uncertain else "certain"
        state = state.with_numbers(settled=what) if until == "budget" else replace(state, finished=what)
    return state, also(report, numbers, rows, codebook_message(check.doubts, check.limit, what, words))


def also(
    report: RoundReport,
    numbers: Mapping[str, float],
    rows: Mapping[str, Mapping[str, float]] | None = None,
    said: tuple[str, ...] = (),
) -> RoundReport:
    """The report with more of a round."""
    return RoundReport(
        {**report.metrics, **numbers}, {**report.client_metrics, **(rows or {})}, (*report.messages, *said)
    )
