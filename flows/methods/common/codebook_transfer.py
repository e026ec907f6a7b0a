"""Which words a client reads that never took part in UEFL's training.

What pages with codewords make of a network, ask clients, count and say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from flows.methods.common.network_checks import offering
from flows.methods.context import RoundContext, TrainingSetup
from models.client_model import Model
from models.networks.deep_ensemble import each_made, plain
from models.networks.network_factory import Network
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED, QuantizedNetwork, most_segments
from models.prng import server_stream
from models.server_state import ClientStateRefs
from silos.errors import UserError
from tasks.codebook_extend import borrow_words, codebook_extend
from tasks.codebooks import common_codes, report_centroids
from tasks.execution.task_runner import Broadcast
from tasks.messages.codebook_messages import UncertaintyScores
from tasks.uncertainty_check import uncertainty_check

_COLLAPSED = 3.0  # a perplexity below which hardly anything of a feature is left


Held = Mapping[str, int]
"""How many words of its own each client has in each member, by its name behind the member's prefix; 0 may be left out."""


def counted(network: Network, clients: Sequence[str], held: Held) -> dict[str, Tensor]:
    """`held` as the context of a model: every member's counts, (clients,) int64."""
    return {
        one.prefix + COUNT: torch.tensor([held.get(one.prefix + c, 0) for c in clients])
        for one in network.single_networks
    }


def local_codes(network: Network, clients: Sequence[str], held: Held) -> dict[str, float]:
    """How many words of its own each client has, if any; in an ensemble the mean over members."""
    counts = counted(network, clients, held).values()
    mean = torch.stack(list(counts)).double().mean(0).tolist()
    return {client: count for client, count in zip(clients, mean, strict=True) if count}


def common_codebooks(round: RoundContext, models: Sequence[Model], words: int) -> list[dict[str, Tensor]]:
    """For the clients of each model shared words anew, of every member by name: k-means over the centres that they tell.

    Where fewer centres than words differ somewhere, all books have as few: their networks are of one shape. They have none
    where all clients of a model have too few rows to tell any.
    """
    setup = round.setup
    options: dict[str, Any] = {"training": setup.training, "seed": setup.seed, "round": round.number}
    stream = server_stream(setup.seed, round.number, "common_words")
    answers = [
        round.map_clients(report_centroids, m, round.silos.select(m.clients), words=words, **options) for m in models
    ]

    def books(words: int) -> list[dict[str, Tensor]]:
        made: list[dict[str, Tensor]] = []
        for model, messages in zip(models, answers, strict=True):
            made.append({})
            for one in model.network.single_networks:
                mine = [message for message in messages if message.prefix == one.prefix]
                seed = int(one.stream(stream)) & 0x7FFFFFFF
                made[-1][one.prefix + SHARED] = round.run_on_server(common_codes, mine, words, seed)
        return made

    by_model = books(words)
    lengths = {len(book) for by_member in by_model for book in by_member.values()}
    return by_model if len(lengths) == 1 else books(min(lengths))


def with_codes(method: str, network: Network, segments: int | Literal["auto"], **options: Any) -> Network:
    """The network, or every member of an ensemble, with words in place of features; UserError naming the method's option."""

    def quantised(inner: Network) -> QuantizedNetwork:
        channels = offering(inner, inner.encoder_head, "features that words could stand for").encoded[0]
        return QuantizedNetwork(inner, segments=most_segments(channels) if segments == "auto" else segments, **options)

    try:
        made: Network = each_made(network, quantised)
    except ValueError as error:
        raise UserError(f"params.yaml: method.{method}.{error}.") from None
    return made


def with_classes(method: str, setup: TrainingSetup) -> TrainingSetup:
    """The problem; UserError for a regression, of whose predictions there is no entropy."""
    if setup.training.objective.task == "regression":
        raise UserError(
            f"params.yaml: the method {method} asks how unsure a client is of its classes, and predicted numbers have none; "
            "use a source with classes, or another method."
        )
    return setup


def doubts(round: RoundContext, model: Model, split: str, passes: int) -> dict[str, dict[str, float]]:
    """What uncertainty_check finds of the clients that take part, by name and client.

    UserError if one has no rows to be unsure of.
    """
    setup = round.setup
    options: dict[str, Any] = {"training": setup.training, "seed": setup.seed, "round": round.number}
    messages: Sequence[UncertaintyScores] = round.map_clients(
        uncertainty_check, model, split=split, passes=passes, **options
    )
    for client, rows in ((c, n) for m in messages for c, n in zip(m.clients, m.rows.tolist(), strict=True)):
        if not rows:
            other = "" if split == "test" else ", or set method.uefl.check_on to train"
            raise UserError(
                f"client {client} has no {split} rows, from which its uncertainty is told; give data.split.{split} "
                f"a share{other}."
            )
    names = messages[0].numbers
    return {n: {c: float(v) for m in messages for c, v in zip(m.clients, m.numbers[n], strict=True)} for n in names}


def codebook_message(
    numbers: Mapping[str, Mapping[str, float]], limit: float, what: str, words: int
) -> tuple[str, ...]:
    """Why a stage ended as it did; and that a book of so many words has collapsed, if clients use next to none of it."""
    entropy = list(numbers["entropy"].values())
    range_ = f"entropies {min(entropy):.3f} to {max(entropy):.3f} nats, limit {limit:.3f}"
    why = {"certain": "no client is uncertain", "stages": "the last stage is over"}.get(what, what)
    use = sorted(numbers["perplexity"].values())[len(entropy) // 2]
    if use >= min(_COLLAPSED, words / 2):
        return (f"{range_}: {why}",)
    return f"{range_}: {why}", (
        f"the codebook has collapsed: the median client uses as much of it as {use:.1f} words used equally; "
        "uefl's start: centres with a warm_up, or its arm ours, prevents that"
    )


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
