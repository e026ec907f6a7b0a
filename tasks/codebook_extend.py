"""Words of a client's own: found in its training rows, or those of others. They stay with it."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network import Member
from models.networks.wrappers.codebook_network import OWN, centres
from models.prng import client_streams, normal
from models.server_state import ClientStateRefs
from models.training.engine import Training
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.codebooks import Codebooks, named, tokens_of
from tasks.execution.task_types import step
from tasks.messages.codebook_messages import CodebookExtension

Fill = Literal["kmeans", "random"]


@step
def codebook_extend(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    extend: Sequence[str],
    words: int,
    room: int,
    seed: int,
    round: int,
    fill: Fill = "kmeans",
    device: str = "cpu",
) -> list[CodebookExtension]:
    """One record a stack and member: every client's own words are stored anew with `room` rows, those of `extend` with more.

    New words are k-means centres of the client's training tokens under the frozen encoder, or N(0, 1). What was there stays
    bit for bit.
    """
    find, done, extended = {"kmeans": _clustered, "random": _drawn}[fill], [], frozenset(extend)
    for stack in cohort.stacks:
        books = Codebooks.opened(cohort, stack, model, private, room, training.engine, device)
        for one in model.network.single_networks:
            mine = [client for client in stack.clients if client in extended]
            for client, fresh in find(books, one, mine, words, (seed, round)).items():
                books.append(one, client, fresh)
        done += books.stored(private)
    return done


@step
def codebook_replace(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    extend: Sequence[str],
    words: int,
    room: int,
    seed: int,
    round: int,
    device: str = "cpu",
) -> list[CodebookExtension]:
    """The same in the authors' way: every client gets k-means centres, and they take the place of words that were there.

    Of its last own words, if it has any or is one of `extend`; else of its copy of the shared ones.
    """
    done, extended = [], frozenset(extend)
    for stack in cohort.stacks:
        books = Codebooks.opened(cohort, stack, model, private, room, training.engine, device)
        for one in model.network.single_networks:
            for client, fresh in _clustered(books, one, stack.clients, words, (seed, round)).items():
                if client in extended or books.held(one, client):
                    books.replace_own(one, client, fresh)
                else:
                    books.replace_shared(one, client, fresh)
        done += books.stored(private)
    return done


@step
def borrow_words(
    cohort: Cohort,
    model: Model,
    private: ClientStore,
    lent: ClientStateRefs,
    words: Mapping[str, int],
    room: int,
    device: str = "cpu",
) -> list[CodebookExtension]:
    """One record a stack and member: every client stores the words of all that lend their own, one after another.

    `words` says how many of their own they have, by name behind the member's prefix.
    """
    books = private.load_stack(lent.section, lent.refs, list(lent.refs))
    union = {}
    for one in model.network.single_networks:
        lenders = zip(lent.refs, books[one.prefix + OWN], strict=True)
        union[one.prefix] = np.concatenate([book[: words[one.prefix + client]] for client, book in lenders])
    done = []
    for stack in cohort.stacks:
        size = len(stack.clients)
        kept = {name: w.expand(size, *w.shape).numpy() for name, w in lent.start.items()}
        for prefix, vectors in union.items():
            kept[prefix + OWN] = np.zeros((size, room, vectors.shape[1]), np.float32)
            kept[prefix + OWN][:, : len(vectors)] = vectors
        refs = private.save(lent.section, stack.clients, kept)
        done += [
            CodebookExtension(stack.clients, torch.full((size,), len(vectors)), refs, prefix=p)
            for p, vectors in union.items()
        ]
    return done


def _clustered(
    books: Codebooks, one: Member, clients: Sequence[str], words: int, when: tuple[int, int]
) -> dict[str, np.ndarray]:
    """New words (words, d) of each client in one member: k-means centres of its own tokens, as many as there are."""
    if not clients:
        return {}
    weights, context = one.of(books.weights), one.of(books.context)
    tokens = tokens_of(books.cohort, books.stack, one, weights, context, books.engine, books.device)
    by_client = {}
    for client, stream in zip(clients, _streams(one, clients, when).tolist(), strict=True):
        features = tokens[client]
        with named(books.cohort, client):
            by_client[client] = centres(features, words, stream & 0x7FFFFFFF)[0] if len(features) else features
    return by_client


def _drawn(
    books: Codebooks, one: Member, clients: Sequence[str], words: int, when: tuple[int, int]
) -> dict[str, np.ndarray]:
    """The same from N(0, 1)."""
    if not clients:
        return {}
    drawn = normal(_streams(one, clients, when), (words, one.network.length))
    return dict(zip(clients, drawn.numpy(), strict=True))


def _streams(one: Member, clients: Sequence[str], when: tuple[int, int]) -> Tensor:
    seed, round = when
    return one.stream(client_streams(seed, clients, round, "codebook_extend"))
