"""Words for clients: of a client's own, found in its training rows, or for all, from what clients tell of theirs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from models.method_networks.codebook import COUNT, OWN, SHARED, centres, centres_of_many
from models.model import Model
from models.networks.deep_ensemble import Member, members_of
from models.state import Private, Weights
from models.streams import client_streams, normal
from models.training.engine import Training
from silos.cohort import Cohort, Stack
from silos.errors import UserError
from silos.private import PrivateStore
from tasks.messages import LEAST_ROWS, Centres, Extended
from tasks.running.opening import different, open_rows, open_weights
from tasks.running.step import server_step, step

Fill = Literal["kmeans", "random"]
_ROWS_AT_ONCE = 256


@step
def codebook_extend(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: PrivateStore,
    extend: Sequence[str],
    words: int,
    room: int,
    seed: int,
    round: int,
    fill: Fill = "kmeans",
    latest: bool = False,
    everybody: bool = False,
    device: str = "cpu",
) -> list[Extended]:
    """One record a stack and member: every client's own words are stored anew with `room` rows, those of `extend` with more.

    New words are k-means centres of the client's training tokens under the frozen encoder, or N(0, 1). What was there stays
    bit for bit, but with `latest`, where new words take the place of the client's last ones. `everybody` is what the
    authors' code does: clients outside `extend` get new words in place of their last, or of their copy of the shared ones.
    """
    assert isinstance(model.personal, Private)
    done = []
    for stack in cohort.stacks:
        weights, context = open_weights(model, stack, private, device)
        mine = [client for client in stack.clients if everybody or client in extend]
        kept = {name: w[: len(stack.clients)].cpu() for name, w in weights.items() if name not in model.shared}
        counts = {}
        for one in members_of(model.network):
            found = _fill(
                cohort, stack, one, one.of(weights), one.of(context), mine, words, fill, (seed, round), device
            )
            own = torch.zeros(len(stack.clients), room, one.network.length)
            own[:, : one.network.room] = kept[one.prefix + OWN]
            count = _held(one, context, len(stack.clients))
            for at, client in enumerate(stack.clients):
                if client not in mine:
                    continue
                fresh = torch.from_numpy(found[client])
                if client in extend or count[at]:
                    first = 0 if latest else int(count[at])
                    own[at, first : first + len(fresh)] = fresh
                    count[at] = max(int(count[at]), first + len(fresh))
                else:
                    kept[one.prefix + SHARED][at, : len(fresh)] = fresh
            kept[one.prefix + OWN], counts[one.prefix] = own, count
        refs = private.save(model.personal.section, stack.clients, {name: w.numpy() for name, w in kept.items()})
        done += [Extended(stack.clients, count, refs, prefix=prefix) for prefix, count in counts.items()]
    return done


@step
def token_centres(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: PrivateStore,
    words: int,
    seed: int,
    round: int,
    device: str = "cpu",
) -> list[Centres]:
    """One record a stack and member: centres of each client's training tokens, and the tokens of each centre.

    None stands for tokens of fewer different rows than LEAST_ROWS, and a client of fewer rows tells none.
    """
    told = []
    for stack in cohort.stacks:
        weights, context = open_weights(model, stack, private, device)
        streams = client_streams(seed, stack.clients, round, "token_centres")
        for one in members_of(model.network):
            own = (one, one.of(weights), one.of(context), one.stream(streams).tolist())
            found = told_centres(cohort, stack, *own, words, "train", device)
            centre, weight = zip(*found, strict=True)
            told.append(Centres(stack.clients, centre, weight, prefix=one.prefix))
    return told


def told_centres(
    cohort: Cohort,
    stack: Stack,
    one: Member,
    weights: Weights,
    context: Weights,
    seeds: Sequence[int],
    words: int,
    split: str,
    device: str,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each client may tell of its features in one member: centres (words, d) and how many tokens each is of."""
    tokens = _tokens(cohort, stack, one, weights, context, device, split)
    x, found = open_rows(cohort.silos, stack, split, device).x, []
    for at, (client, seed) in enumerate(zip(stack.clients, seeds, strict=True)):
        rows = len(tokens[client]) // one.network.tokens
        owner = different(x[at, :rows]).repeat(one.network.tokens)
        with _named(cohort, client):
            found.append(centres_of_many(tokens[client], owner, words, seed & 0x7FFFFFFF, LEAST_ROWS))
    return found


@step
def borrow_words(
    cohort: Cohort,
    model: Model,
    private: PrivateStore,
    lent: Private,
    words: Mapping[str, int],
    room: int,
    device: str = "cpu",
) -> list[Extended]:
    """One record a stack and member: every client stores the words of all that lend their own, one after another.

    `words` says how many of their own they have, by name behind the member's prefix.
    """
    books = private.load_stack(lent.section, lent.refs, list(lent.refs))
    union = {}
    for one in members_of(model.network):
        lenders = zip(lent.refs, books[one.prefix + OWN], strict=True)
        union[one.prefix] = np.concatenate([book[: words[one.prefix + client]] for client, book in lenders])
    done = []
    for stack in cohort.stacks:
        size = len(stack.clients)
        kept = {name: w.expand(size, *w.shape).numpy() for name, w in lent.start.items()}
        for prefix, own in union.items():
            kept[prefix + OWN] = np.zeros((size, room, own.shape[1]), np.float32)
            kept[prefix + OWN][:, : len(own)] = own
        refs = private.save(lent.section, stack.clients, kept)
        done += [Extended(stack.clients, torch.full((size,), len(own)), refs, prefix=p) for p, own in union.items()]
    return done


@server_step
def common_words(told: Sequence[Centres], words: int, seed: int) -> Tensor:
    """The server's k-means over all clients' centres of a member, weighted: (words, d) float32, fewer if fewer differ.

    There are none if none are wanted, or if nobody tells any centres.
    """
    of = {c: (x, w) for m in told for c, x, w in zip(m.clients, m.centres, m.weights, strict=True)}
    clients = sorted(of)
    together, weight = (np.concatenate([of[c][part] for c in clients]) for part in (0, 1))
    return torch.from_numpy(centres(together, words, seed, weight)[0] if words and len(together) else together[:0])


def _fill(
    cohort: Cohort,
    stack: Stack,
    one: Member,
    weights: Weights,
    context: Weights,
    clients: Sequence[str],
    words: int,
    fill: Fill,
    when: tuple[int, int],
    device: str,
) -> dict[str, np.ndarray]:
    """New words (words, d) of each client in one member."""
    if not clients:
        return {}
    streams = one.stream(client_streams(when[0], clients, when[1], "codebook_extend"))
    if fill == "random":
        drawn = normal(streams, (words, one.network.length))
        return dict(zip(clients, drawn.numpy(), strict=True))
    tokens = _tokens(cohort, stack, one, weights, context, device)
    seeds = dict(zip(clients, streams.tolist(), strict=True))
    return {client: _centres(cohort, client, tokens[client], words, seeds[client])[0] for client in clients}


def _tokens(
    cohort: Cohort,
    stack: Stack,
    one: Member,
    weights: Weights,
    context: Weights,
    device: str,
    split: str = "train",
) -> dict[str, np.ndarray]:
    """Client to the tokens (tokens, d) of its rows in one member, by the running statistics and without dropout."""
    network = one.network
    rows = open_rows(cohort.silos, stack, split, device)
    parts = []
    with torch.no_grad():
        for at in range(0, rows.x.shape[1], _ROWS_AT_ONCE):
            z, _ = network.encode_stack(weights, context, rows.x[:, at : at + _ROWS_AT_ONCE])
            parts.append(network.cut(z).cpu())
    tokens = torch.cat(parts, 1)
    counts = (rows.counts * network.tokens).tolist()
    return {c: tokens[at, : counts[at]].numpy() for at, c in enumerate(stack.clients)}


def _centres(cohort: Cohort, client: str, tokens: np.ndarray, words: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    if not len(tokens):
        return np.zeros((0, tokens.shape[1]), np.float32), np.zeros(0)
    with _named(cohort, client):
        return centres(tokens, words, seed & 0x7FFFFFFF)


@contextmanager
def _named(cohort: Cohort, client: str) -> Iterator[None]:
    """Whose features are no numbers."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"client {client} of {cohort.silos.folder}: {error}.") from None


def _held(one: Member, context: Weights, clients: int) -> Tensor:
    """How many words of its own each client has in this member, (clients,)."""
    if not one.network.room:
        return torch.zeros(clients, dtype=torch.int64)
    return context[one.prefix + COUNT][:clients].cpu().clone()
