"""Cluster the tokens of clients' features: each client reports centroids, and the server makes common codes of them.

A token is a piece of the features as long as a code. No centroid stands for a few rows only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network import Member
from models.networks.wrappers.codebook_network import centres, centres_of_many
from models.prng import client_streams
from models.server_state import Weights
from models.training.engine import Training
from models.training.execution_plan import Kind, resolve
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from silos.errors import DivergedError
from tasks.execution.load_client_data import different, load_rows, load_weights
from tasks.execution.task_types import server_step, step
from tasks.messages.codebook_messages import Centroids
from tasks.messages.message_policy import LEAST_ROWS

_ROWS_AT_ONCE = 256


def tokens_of(
    cohort: Cohort,
    stack: Stack,
    one: Member,
    weights: Weights,
    context: Weights,
    engine: Kind,
    device: str,
    split: str = "train",
) -> dict[str, np.ndarray]:
    """Client to the tokens (tokens, d) of its rows in one member, by the running statistics and without dropout."""
    network, plan = one.network, resolve(one.network, engine)
    rows = load_rows(cohort.silos, stack, split, device)
    parts = []
    with torch.no_grad():
        for at in range(0, rows.x.shape[1], _ROWS_AT_ONCE):
            z = plan.features(weights, context, rows.x[:, at : at + _ROWS_AT_ONCE])
            parts.append(network.cut(z).cpu())
    tokens = torch.cat(parts, 1)
    counts = (rows.counts * network.tokens).tolist()
    return {c: tokens[at, : counts[at]].numpy() for at, c in enumerate(stack.clients)}


@contextmanager
def named(cohort: Cohort, client: str) -> Iterator[None]:
    """Whose features are no numbers."""
    try:
        yield
    except ValueError as error:
        raise DivergedError(f"client {client} of {cohort.silos.folder}: {error}.") from None


@step
def report_centroids(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    words: int,
    seed: int,
    round: int,
    device: str = "cpu",
) -> list[Centroids]:
    """One record a stack and member: centres of each client's training tokens, and the tokens of each centre.

    None stands for tokens of fewer different rows than LEAST_ROWS, and a client of fewer rows tells none.
    """
    messages = []
    for stack in cohort.stacks:
        weights, context = load_weights(model, stack, private, device)
        streams = client_streams(seed, stack.clients, round, "token_centres")
        for one in model.network.single_networks:
            arguments = (one, one.of(weights), one.of(context), one.stream(streams).tolist())
            pairs = reportable_centroids(cohort, stack, *arguments, words, "train", training.engine, device)
            centre, weight = zip(*pairs, strict=True)
            messages.append(Centroids(stack.clients, centre, weight, prefix=one.prefix))
    return messages


def reportable_centroids(
    cohort: Cohort,
    stack: Stack,
    one: Member,
    weights: Weights,
    context: Weights,
    seeds: Sequence[int],
    words: int,
    split: str,
    engine: Kind,
    device: str,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each client may tell of its features in one member: centres (words, d) and how many tokens each is of."""
    tokens = tokens_of(cohort, stack, one, weights, context, engine, device, split)
    x, pairs = load_rows(cohort.silos, stack, split, device).x, []
    for at, (client, seed) in enumerate(zip(stack.clients, seeds, strict=True)):
        rows = len(tokens[client]) // one.network.tokens
        owner = different(x[at, :rows]).repeat(one.network.tokens)
        with named(cohort, client):
            pairs.append(centres_of_many(tokens[client], owner, words, seed & 0x7FFFFFFF, LEAST_ROWS))
    return pairs


@server_step
def common_codes(messages: Sequence[Centroids], words: int, seed: int) -> Tensor:
    """The server's k-means over all clients' centres of a member, weighted: (words, d) float32, fewer if fewer differ.

    There are none if none are wanted, or if nobody tells any centres.
    """
    of = {c: (x, w) for m in messages for c, x, w in zip(m.clients, m.centres, m.weights, strict=True)}
    clients = sorted(of)
    together, weight = (np.concatenate([of[c][part] for c in clients]) for part in (0, 1))
    return torch.from_numpy(centres(together, words, seed, weight)[0] if words and len(together) else together[:0])
