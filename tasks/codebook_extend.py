"""Add private codes to clients' codebooks: from their own training rows, at random, or borrowed from other clients."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network import Member
from models.networks.wrappers.codebook_network import OWN, kmeans_centroids
from models.prng import client_streams, normal
from models.server_state import ClientStateRefs
from models.training.engine import Training
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.codebooks import Codebooks, compute_tokens, name_diverged_client
from tasks.execution.steps import step
from tasks.messages.round_messages import CodebookExtension

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
    """Add codes for the clients of `extend`, and store every client's private codes (Zhang, Cao and Liu 2025).

    Codes are k-means centres of the client's training tokens under the frozen encoder, or N(0, 1). Earlier codes stay
    bit for bit.

    Args:
        cohort: The clients, in stacks.
        model: The model, with shared codes and each client's private ones.
        training: The local training, of which only the engine is used.
        private: Where clients keep private state.
        extend: The clients that get codes.
        words: The number of new codes; a client with fewer tokens gets fewer centres.
        room: Rows of every stored codebook.
        seed: The seed of the run.
        round: The round of the run.
        fill: Whether new codes are centres or random.
        device: Where clients are computed, such as "cpu".

    Returns:
        One record per stack and ensemble member.
    """
    new_codes, messages, extended = {"kmeans": _clustered, "random": _random}[fill], [], frozenset(extend)
    for stack in cohort.stacks:
        books = Codebooks.load(cohort, stack, model, private, room, training.engine, device)
        for member in model.network.single_networks:
            extended_here = [client for client in stack.clients if client in extended]
            # members of an ensemble have codebooks of their own, and so their own tokens and centres
            for client, fresh in new_codes(books, member, extended_here, words, (seed, round)).items():
                books.append(member, client, fresh)
        messages += books.store(private)
    return messages


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
    """Replace codes by k-means centres for every client, as the authors' code does.

    Centres replace the client's last private codes if it has any or is in `extend`; else its copy of the shared codes.

    Args:
        cohort: The clients, in stacks.
        model: The model, with shared codes and each client's private ones.
        training: The local training, of which only the engine is used.
        private: Where clients keep private state.
        extend: The clients whose private codes are replaced, also if they have none yet.
        words: The number of codes that are replaced.
        room: Rows of the stored codebook.
        seed: The seed of the run.
        round: The round of the run.
        device: Where clients are computed, such as "cpu".

    Returns:
        One record per stack and ensemble member.
    """
    messages, extended = [], frozenset(extend)
    for stack in cohort.stacks:
        books = Codebooks.load(cohort, stack, model, private, room, training.engine, device)
        for member in model.network.single_networks:
            # at every client, also at certain ones: here the authors' code differs from their text
            for client, fresh in _clustered(books, member, stack.clients, words, (seed, round)).items():
                if client in extended or books.num_codes(member, client):
                    books.replace_own(member, client, fresh)
                else:
                    books.replace_shared(member, client, fresh)
        messages += books.store(private)
    return messages


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
    """Store at every client the private codes of all lenders, one after another; one record per stack and member.

    Args:
        lent: The private state of the lenders.
        words: The number of private codes of each lender, by the client's name behind the member's prefix.
        room: Rows of the private codebook.
    """
    codebooks = private.load_stack(lent.section, lent.refs, list(lent.refs), "weights")
    borrowed = {}
    for member in model.network.single_networks:
        lenders = zip(lent.refs, codebooks[member.prefix + OWN], strict=True)
        borrowed[member.prefix] = np.concatenate([codes[: words[member.prefix + client]] for client, codes in lenders])
    messages = []
    for stack in cohort.stacks:
        size = len(stack.clients)
        stored = {name: w.expand(size, *w.shape).numpy() for name, w in lent.start.items()}
        for prefix, vectors in borrowed.items():
            stored[prefix + OWN] = np.zeros((size, room, vectors.shape[1]), np.float32)
            stored[prefix + OWN][:, : len(vectors)] = vectors
        refs = private.save(lent.section, stack.clients, stored)
        messages += [
            CodebookExtension(stack.clients, torch.full((size,), len(vectors)), refs, prefix=p)
            for p, vectors in borrowed.items()
        ]
    return messages


def _clustered(
    books: Codebooks, member: Member, clients: Sequence[str], words: int, when: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Return new codes (words, d) for each client in one member: k-means centres of its tokens, fewer if it has fewer."""
    if not clients:
        return {}
    weights, context = member.of(books.weights), member.of(books.context)
    tokens = compute_tokens(books.cohort, books.stack, member, weights, context, books.engine, books.device)
    by_client = {}
    for client, stream in zip(clients, _streams(member, clients, when).tolist(), strict=True):
        features = tokens[client]
        with name_diverged_client(books.cohort, client):
            by_client[client] = kmeans_centroids(features, words, stream & 0x7FFFFFFF)[0] if len(features) else features
    return by_client


def _random(
    books: Codebooks, member: Member, clients: Sequence[str], words: int, when: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Draw new codes (words, d) for each client in one member from N(0, 1)."""
    if not clients:
        return {}
    codes = normal(_streams(member, clients, when), (words, member.network.length))
    return dict(zip(clients, codes.numpy(), strict=True))


def _streams(member: Member, clients: Sequence[str], when: tuple[int, int]) -> Tensor:
    seed, round = when
    return member.stream(client_streams(seed, clients, round, "codebook_extend"))
