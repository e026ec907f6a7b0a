"""The words of a stack's clients, open to be changed.

Cluster the tokens of clients' features: each client reports centroids, and the server makes common codes of them.

A token is a piece of the features as long as a code. No centroid stands for a few rows only.

Where a client's features and words lie, as two numbers each: for a picture.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network import Member
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED, centres, centres_of_many
from models.prng import client_streams
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Training
from models.training.execution_plan import Kind, resolve
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from silos.errors import DivergedError
from tasks.execution.load_client_data import different, load_rows, load_weights
from tasks.execution.task_types import server_step, step
from tasks.messages.codebook_messages import Centroids, CodebookExtension
from tasks.messages.diagnosis_messages import ProjectedRows
from tasks.messages.message_policy import LEAST_ROWS


@dataclass(frozen=True)
class Codebooks:
    """What stays with the clients, by the names that members have for it."""

    cohort: Cohort
    stack: Stack
    section: str
    weights: Weights
    context: Weights
    kept: dict[str, Tensor]  # (clients, ...)
    count: dict[str, Tensor]  # how many words of its own each has, by the member's prefix: (clients,)
    engine: Kind
    device: str

    @classmethod
    def opened(
        cls, cohort: Cohort, stack: Stack, model: Model, private: ClientStore, room: int, engine: Kind, device: str
    ) -> "Codebooks":
        """As they are, with room for so many of a client's own."""
        assert isinstance(model.personal, ClientStateRefs)
        weights, context = load_weights(model, stack, private, device)
        size = len(stack.clients)
        kept = {name: w[:size].cpu().clone() for name, w in weights.items() if name not in model.shared}
        count = {}
        for one in model.network.single_networks:
            words = torch.zeros(size, room, one.network.length)
            words[:, : one.network.room] = kept[one.prefix + OWN]
            kept[one.prefix + OWN] = words
            count[one.prefix] = _held(one, context, size)
        return cls(cohort, stack, model.personal.section, weights, context, kept, count, engine, device)

    def held(self, one: Member, client: str) -> int:
        """How many words of its own a client has."""
        return int(self.count[one.prefix][self._at(client)])

    def append(self, one: Member, client: str, fresh: np.ndarray) -> None:
        """More words after those that it has."""
        self._write(one, client, self.held(one, client), fresh)

    def replace_own(self, one: Member, client: str, fresh: np.ndarray) -> None:
        """Words in the place of its last ones."""
        self._write(one, client, 0, fresh)

    def replace_shared(self, one: Member, client: str, fresh: np.ndarray) -> None:
        """Words in the place of its copy of the shared ones."""
        self.kept[one.prefix + SHARED][self._at(client), : len(fresh)] = torch.from_numpy(fresh)

    def stored(self, private: ClientStore) -> list[CodebookExtension]:
        """Written down beside the clients' rows; one record a member."""
        refs = private.save(self.section, self.stack.clients, {name: w.numpy() for name, w in self.kept.items()})
        return [
            CodebookExtension(self.stack.clients, count, refs, prefix=prefix) for prefix, count in self.count.items()
        ]

    def _write(self, one: Member, client: str, first: int, fresh: np.ndarray) -> None:
        at, last = self._at(client), first + len(fresh)
        self.kept[one.prefix + OWN][at, first:last] = torch.from_numpy(fresh)
        self.count[one.prefix][at] = max(self.held(one, client), last)

    def _at(self, client: str) -> int:
        return self.stack.clients.index(client)


def _held(one: Member, context: Weights, clients: int) -> Tensor:
    """How many words of its own each client has in this member, (clients,)."""
    if not one.network.room:
        return torch.zeros(clients, dtype=torch.int64)
    return context[one.prefix + COUNT][:clients].cpu().clone()


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


_POINTS = 60  # of a client: more would hide each other


@step
def projection(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    axes: Tensor,
    seed: int,
    split: str = "validation",
    device: str = "cpu",
) -> list[ProjectedRows]:
    """One record a stack: where centres of every client's tokens of a split, and its own words, lie on axes (d, 2).

    Of a deep ensemble, those of the first member.
    """
    one, messages = model.network.single_networks[0], []
    network = one.network
    for stack in cohort.stacks:
        weights, context = map(one.of, load_weights(model, stack, private, device))
        seeds = client_streams(seed, stack.clients, 0, "projection").tolist()
        pairs = reportable_centroids(
            cohort, stack, one, weights, context, seeds, _POINTS, split, training.engine, device
        )
        tokens = tuple(torch.from_numpy(centres) @ axes for centres, _ in pairs)
        words = weights[OWN].cpu() @ axes
        held = context[COUNT].tolist() if network.room else [0] * stack.size
        messages.append(
            ProjectedRows(stack.clients, tokens, tuple(words[at, : held[at]] for at in range(len(stack.clients))))
        )
    return messages


def plane(words: Tensor) -> Tensor:
    """The two directions in which words (words, d) spread most: (d, 2); of one number the second is empty."""
    _, _, directions = torch.linalg.svd(words - words.mean(0), full_matrices=False)
    axes = directions[:2].T
    return torch.cat([axes, axes.new_zeros(len(axes), 2 - axes.shape[1])], 1)
