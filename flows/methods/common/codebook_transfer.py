"""Which words a client reads that never took part in UEFL's training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from flows.methods.common.codewords import Held, counted, local_codes
from flows.methods.context import RoundContext
from models.client_model import Model
from models.networks.deep_ensemble import each_made, plain
from models.networks.wrappers.codebook_network import COUNT, OWN
from models.server_state import ClientStateRefs
from tasks.codebook_extend import borrow_words, codebook_extend
from tasks.execution.task_runner import Broadcast
from tasks.uncertainty_check import uncertainty_check

Unseen = Literal["shared", "own", "union", "nearest"]
"""The shared words alone; words of its own besides, k-means centres of its training features, without any training; all
clients' words; or those of the client whose words are nearest to its training features.

The last two show a client's own words to another, which training never does.
"""


def lend(unseen: Literal["union", "nearest"], model: Model, round: RoundContext, fresh: Sequence[str]) -> Model:
    """The model in which these clients read others' words.

    Where nobody has words of its own, there are none to lend.
    """
    personal = model.personal
    assert isinstance(personal, ClientStateRefs)
    sources = list(local_codes(model.network, model.clients, _held(model)))
    if not sources:
        return model
    if unseen == "union":
        return _union(model, round, fresh, sources)
    refs, held = dict(personal.refs), _held(model)
    for client in fresh:
        source = _nearest(model, round, client, sources)
        refs |= {client: personal.refs[source]} if source else {}
        held |= _as_of(model, client, source)
    return _with(model, refs, held)


def _held(model: Model) -> dict[str, int]:
    """What the model's context says, zeros included."""
    assert not isinstance(model.context, ClientStateRefs)
    held: dict[str, int] = {}
    for one in model.network.single_networks:
        counts = model.context.get(one.prefix + COUNT, torch.zeros(len(model.clients), dtype=torch.int64))
        held |= {one.prefix + client: n for client, n in zip(model.clients, counts.tolist(), strict=True)}
    return held


def _as_of(model: Model, client: str, source: str | None) -> dict[str, int]:
    """The counts of a client that has the words of this one, or of nobody."""
    held = _held(model)
    return {
        one.prefix + client: 0 if source is None else held[one.prefix + source] for one in model.network.single_networks
    }


def _with(model: Model, refs: dict[str, str], held: Held, room: int | None = None) -> Model:
    personal = model.personal
    assert isinstance(personal, ClientStateRefs)
    network, start = model.network, dict(personal.start)
    if room is not None:
        network = each_made(network, lambda inner: replace(inner, room=room))
        start |= {name: w.new_zeros(room, w.shape[1]) for name, w in start.items() if plain(name) == OWN}
    context = counted(network, model.clients, held)
    return replace(model, network=network, personal=replace(personal, refs=refs, start=start), context=context)


def _nearest(model: Model, round: RoundContext, client: str, sources: Sequence[str]) -> str | None:
    """The source whose words are least far from the client's training tokens; None if the shared ones are as near."""
    personal = model.personal
    assert isinstance(personal, ClientStateRefs)
    silos = round.setup.silos.select([client])
    options: dict[str, Any] = {"training": round.setup.training, "seed": round.setup.seed, "round": round.number}
    far = {}
    for source in (None, *sources):
        refs = {} if source is None else {client: personal.refs[source]}
        tried = _with(model, {**personal.refs, **refs}, _held(model) | _as_of(model, client, source))
        (message,) = round.map_clients(uncertainty_check, tried, silos=silos, split="train", passes=0, **options)
        far[source] = float(message.numbers["code_loss"][0])
    return min(far, key=lambda source: (far[source] != far[source], far[source]))


def _union(model: Model, round: RoundContext, fresh: Sequence[str], sources: Sequence[str]) -> Model:
    """Everybody's words stored with room for all of them, and all of them with the fresh clients."""
    personal, held, setup = model.personal, _held(model), round.setup
    assert isinstance(personal, ClientStateRefs)
    union = max(sum(held[one.prefix + source] for source in sources) for one in model.network.single_networks)
    stored = model.network.single_networks[0].network.room  # more than words, where a silo had fewer different tokens
    room = max(union, stored)
    options: dict[str, Any] = {"training": setup.training, "words": 0, "room": room, "seed": setup.seed}
    there = setup.silos.select([client for client in model.clients if client in personal.refs])
    padded = round.map_clients(codebook_extend, model, silos=there, extend=(), round=round.number, **options)
    refs = {client: ref for message in padded for client, ref in message.refs.items()}
    lent = ClientStateRefs(personal.section, {source: personal.refs[source] for source in sources}, personal.start)
    asked: dict[str, Any] = {"lent": Broadcast(lent), "words": Broadcast(held), "room": room}
    for message in round.map_clients(borrow_words, model, silos=setup.silos.select(fresh), **asked):
        refs |= message.refs
        held |= message.held
    return _with(model, refs, held, room)
