"""What the page of UEFL asks clients, what it says, and which words a client reads that never took part in training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from flows.round import Round
from models.codebook import COUNT, OWN
from models.model import Model
from models.state import Private
from silos.errors import UserError
from tasks.codebook_extend import borrow_words, codebook_extend
from tasks.messages import Doubts
from tasks.uncertainty_check import uncertainty_check

_COLLAPSED = 3.0  # a perplexity below which hardly anything of a feature is left


def doubts(round: Round, model: Model, split: str, passes: int) -> dict[str, dict[str, float]]:
    """What uncertainty_check finds of the clients that take part, by name and client.

    UserError if one has no rows to be unsure of.
    """
    problem = round.problem
    options: dict[str, Any] = {"training": problem.training, "seed": problem.seed, "round": round.number}
    told: Sequence[Doubts] = round.each(uncertainty_check, model, split=split, passes=passes, **options)
    for client, rows in ((c, n) for m in told for c, n in zip(m.clients, m.rows.tolist(), strict=True)):
        if not rows:
            raise UserError(
                f"client {client} has no {split} rows, from which its uncertainty is told; give data.split.{split} "
                "a share, or set method.uefl.check_on to train."
            )
    names = told[0].numbers
    return {n: {c: float(v) for m in told for c, v in zip(m.clients, m.numbers[n], strict=True)} for n in names}


def said(told: Mapping[str, Mapping[str, float]], limit: float, what: str, words: int) -> tuple[str, ...]:
    """Why a stage ended as it did; and that a book of so many words has collapsed, if clients use next to none of it."""
    entropy = list(told["entropy"].values())
    range_ = f"entropies {min(entropy):.3f} to {max(entropy):.3f} nats, limit {limit:.3f}"
    why = {"certain": "no client is uncertain", "stages": "the last stage is over"}.get(what, what)
    use = sorted(told["perplexity"].values())[len(entropy) // 2]
    if use >= min(_COLLAPSED, words / 2):
        return (f"{range_}: {why}",)
    return f"{range_}: {why}", (
        f"the codebook has collapsed: the median client uses as much of it as {use:.1f} words used equally; "
        "start: centres with a warm_up, or the arm ours, prevents that"
    )


Unseen = Literal["shared", "own", "union", "nearest"]
"""The shared words alone; words of its own besides, k-means centres of its training features, without any training; all
clients' words; or those of the client whose words are nearest to its training features.

The last two show a client's own words to another, which training never does.
"""


def choose(unseen: Unseen, model: Model, round: Round, fresh: Sequence[str], words: int) -> Model:
    """The model in which these clients read such words, so many if they are its own.

    Where nobody has words of its own, there are none to lend.
    """
    personal = model.personal
    assert isinstance(personal, Private)
    if unseen == "own":
        return _joining(model, round, fresh, words)
    sources = [client for client, own in _own(model).items() if own]
    if not sources:
        return model
    if unseen == "union":
        return _union(model, round, fresh, sources)
    own = {client: _nearest(model, round, client, sources) for client in fresh}
    refs = {**personal.refs, **{client: personal.refs[source] for client, source in own.items() if source}}
    counts = _own(model) | {client: _own(model)[source] for client, source in own.items() if source}
    return _with(model, refs, counts)


def _joining(model: Model, round: Round, fresh: Sequence[str], words: int) -> Model:
    """What a stage does for an uncertain client, for these."""
    problem, own = round.problem, _own(model)
    assert isinstance(model.personal, Private)
    room = max([words, *own.values()])
    options: dict[str, Any] = {"training": problem.training, "seed": problem.seed, "round": round.number}
    refs = dict(model.personal.refs)
    asked = [client for client in model.clients if client in refs or client in fresh]
    for message in round.each(
        codebook_extend,
        model,
        silos=problem.silos.select(asked),
        extend=tuple(fresh),
        words=words,
        room=room,
        **options,
    ):
        refs |= message.refs
        own |= dict(zip(message.clients, message.words.tolist(), strict=True))
    return _with(model, refs, own, room)


def _own(model: Model) -> dict[str, int]:
    """How many words of its own each client has."""
    counts = model.context[COUNT].tolist() if COUNT in model.context else [0] * len(model.clients)  # type: ignore[operator, index]
    return dict(zip(model.clients, counts, strict=True))


def _with(model: Model, refs: dict[str, str], counts: dict[str, int], room: int | None = None) -> Model:
    personal = model.personal
    assert isinstance(personal, Private)
    network = model.network if room is None else replace(model.network, room=room)  # type: ignore[type-var]
    start = dict(personal.start)
    if room is not None:
        start[OWN] = start[OWN].new_zeros(room, start[OWN].shape[1])
    context = {COUNT: torch.tensor([counts[c] for c in model.clients])}
    return replace(model, network=network, personal=replace(personal, refs=refs, start=start), context=context)


def _nearest(model: Model, round: Round, client: str, sources: Sequence[str]) -> str | None:
    """The source whose words are least far from the client's training tokens; None if the shared ones are as near."""
    personal = model.personal
    assert isinstance(personal, Private)
    silos = round.problem.silos.select([client])
    options: dict[str, Any] = {"training": round.problem.training, "seed": round.problem.seed, "round": round.number}
    far = {}
    for source in (None, *sources):
        refs = {} if source is None else {client: personal.refs[source]}
        counts = _own(model) | {client: 0 if source is None else _own(model)[source]}
        tried = _with(model, {**personal.refs, **refs}, counts)
        (told,) = round.each(uncertainty_check, tried, silos=silos, split="train", passes=0, **options)
        far[source] = float(told.numbers["code_loss"][0])
    return min(far, key=lambda source: (far[source] != far[source], far[source]))


def _union(model: Model, round: Round, fresh: Sequence[str], sources: Sequence[str]) -> Model:
    """Everybody's words stored with room for all of them, and all of them with the fresh clients."""
    personal, own = model.personal, _own(model)
    assert isinstance(personal, Private)
    room, problem = sum(own[source] for source in sources), round.problem
    options: dict[str, Any] = {"training": problem.training, "words": 0, "room": room, "seed": problem.seed}
    there = problem.silos.select([client for client in model.clients if client in personal.refs])
    padded = round.each(codebook_extend, model, silos=there, extend=(), round=round.number, **options)
    refs = {client: ref for message in padded for client, ref in message.refs.items()}
    lent = Private(personal.section, {source: personal.refs[source] for source in sources}, personal.start)
    for message in round.each(
        borrow_words, model, silos=problem.silos.select(fresh), lent=lent, words=[own[s] for s in sources], room=room
    ):
        refs |= message.refs
    return _with(model, refs, own | dict.fromkeys(fresh, room), room)
