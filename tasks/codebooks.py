"""Change the codebooks of a stack's clients, cluster their tokens to common codes, and project codes for figures.

A token is a piece of a client's features as long as a code. No reported centroid stands for a few rows only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.networks.network import Member
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED, kmeans_centroids, pooled_centroids
from models.prng import client_streams
from models.server_state import ClientStateRefs, Weights
from models.training.engine import Training
from models.training.execution_plan import Kind, resolve
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from silos.errors import DivergedError
from silos.privacy.owner_file import policy_of_run
from tasks.execution.load_client_data import load_rows, load_weights, number_different_rows
from tasks.execution.steps import server_step, step
from tasks.messages.round_messages import Centroids, CodebookExtension
from tasks.messages.statistics_messages import ProjectedRows


@dataclass(frozen=True)
class Codebooks:
    """The private codebooks of a stack's clients, by the tensor names of ensemble members."""

    cohort: Cohort
    stack: Stack
    section: str
    weights: Weights
    context: Weights
    tensors: dict[str, Tensor]  # the private tensors, (clients, ...)
    count: dict[str, Tensor]  # number of private codes of each client, by the member's prefix: (clients,)
    engine: Kind
    device: str

    @classmethod
    def load(
        cls, cohort: Cohort, stack: Stack, model: Model, private: ClientStore, room: int, engine: Kind, device: str
    ) -> "Codebooks":
        """Load the stack's codebooks, with `room` rows for private codes."""
        assert isinstance(model.personal, ClientStateRefs)
        weights, context = load_weights(model, stack, private, device)
        size = len(stack.clients)
        tensors = {name: w[:size].cpu().clone() for name, w in weights.items() if name not in model.shared}
        count = {}
        for member in model.network.single_networks:
            words = torch.zeros(size, room, member.network.length)
            words[:, : member.network.room] = tensors[member.prefix + OWN]
            tensors[member.prefix + OWN] = words
            count[member.prefix] = torch.zeros(size, dtype=torch.int64)
            if member.network.room:
                count[member.prefix] = context[member.prefix + COUNT][:size].cpu().clone()
        return cls(cohort, stack, model.personal.section, weights, context, tensors, count, engine, device)

    def num_codes(self, member: Member, client: str) -> int:
        """Return the number of a client's private codes."""
        return int(self.count[member.prefix][self._index(client)])

    def append(self, member: Member, client: str, fresh: np.ndarray) -> None:
        """Add codes after the client's private codes."""
        self._write(member, client, self.num_codes(member, client), fresh)

    def replace_own(self, member: Member, client: str, fresh: np.ndarray) -> None:
        """Overwrite the client's private codes from the first on."""
        self._write(member, client, 0, fresh)

    def replace_shared(self, member: Member, client: str, fresh: np.ndarray) -> None:
        """Replace codes in the client's copy of the shared codes."""
        self.tensors[member.prefix + SHARED][self._index(client), : len(fresh)] = torch.from_numpy(fresh)

    def store(self, private: ClientStore) -> list[CodebookExtension]:
        """Store the codebooks in the clients' private state; return one record per ensemble member."""
        refs = private.save(self.section, self.stack.clients, {name: w.numpy() for name, w in self.tensors.items()})
        return [
            CodebookExtension(self.stack.clients, count, refs, prefix=prefix) for prefix, count in self.count.items()
        ]

    def _write(self, member: Member, client: str, start: int, fresh: np.ndarray) -> None:
        index, end = self._index(client), start + len(fresh)
        self.tensors[member.prefix + OWN][index, start:end] = torch.from_numpy(fresh)
        self.count[member.prefix][index] = max(self.num_codes(member, client), end)

    def _index(self, client: str) -> int:
        return self.stack.clients.index(client)


_ROWS_AT_ONCE = 256


def compute_tokens(
    cohort: Cohort,
    stack: Stack,
    member: Member,
    weights: Weights,
    context: Weights,
    engine: Kind,
    device: str,
    split: str = "train",
) -> dict[str, np.ndarray]:
    """Compute each client's tokens (tokens, d) of a split in one member, with running statistics and without dropout."""
    network, plan = member.network, resolve(member.network, engine)
    rows = load_rows(cohort.silos, stack, split, device)
    parts = []
    with torch.no_grad():
        for start in range(0, rows.x.shape[1], _ROWS_AT_ONCE):
            z = plan.features(weights, context, rows.x[:, start : start + _ROWS_AT_ONCE])
            parts.append(network.to_tokens(z).cpu())
    tokens = torch.cat(parts, 1)
    counts = (rows.counts * network.tokens).tolist()
    return {client: tokens[i, : counts[i]].numpy() for i, client in enumerate(stack.clients)}


@contextmanager
def name_diverged_client(cohort: Cohort, client: str) -> Iterator[None]:
    """Turn a ValueError about features that are not finite into a DivergedError that names the client."""
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
    """Report centres of each client's training tokens with their numbers of tokens; one record per stack and member.

    Each centre stands for tokens of as many different rows as the client's policy requires; with fewer it reports none.
    """
    messages = []
    for stack in cohort.stacks:
        weights, context = load_weights(model, stack, private, device)
        streams = client_streams(seed, stack.clients, round, "token_centres")
        for member in model.network.single_networks:
            arguments = (member, member.of(weights), member.of(context), member.stream(streams).tolist())
            pairs = reportable_centroids(cohort, stack, *arguments, words, "train", training.engine, private, device)
            centre, weight = zip(*pairs, strict=True)
            messages.append(Centroids(stack.clients, centre, weight, prefix=member.prefix))
    return messages


def reportable_centroids(
    cohort: Cohort,
    stack: Stack,
    member: Member,
    weights: Weights,
    context: Weights,
    seeds: Sequence[int],
    words: int,
    split: str,
    engine: Kind,
    private: ClientStore,
    device: str,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each client's centres (words, d) in one member that it may report, and the number of tokens of each."""
    tokens = compute_tokens(cohort, stack, member, weights, context, engine, device, split)
    x, pairs = load_rows(cohort.silos, stack, split, device).x, []
    for index, (client, seed) in enumerate(zip(stack.clients, seeds, strict=True)):
        rows = len(tokens[client]) // member.network.tokens
        row_of_token = number_different_rows(x[index, :rows]).repeat(member.network.tokens)
        least = policy_of_run(Path(private.folder), client).least_rows
        with name_diverged_client(cohort, client):
            pairs.append(pooled_centroids(tokens[client], row_of_token, words, seed & 0x7FFFFFFF, least))
    return pairs


@server_step
def common_codes(messages: Sequence[Centroids], words: int, seed: int) -> Tensor:
    """Run weighted k-means over all clients' centres of a member: (words, d) float32, fewer if fewer centres differ.

    Returns no codes if `words` is 0, or if no client reports centres.
    """
    by_client = {c: (x, w) for m in messages for c, x, w in zip(m.clients, m.centres, m.weights, strict=True)}
    clients = sorted(by_client)
    points, weight = (np.concatenate([by_client[c][part] for c in clients]) for part in (0, 1))
    return torch.from_numpy(kmeans_centroids(points, words, seed, weight)[0] if words and len(points) else points[:0])


_POINTS = 60  # per client; more would hide each other


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
    """Project each client's token centres of a split, and its private codes, on axes (d, 2); one record per stack.

    For a deep ensemble, the first member is projected.
    """
    member, messages = model.network.single_networks[0], []
    network = member.network
    for stack in cohort.stacks:
        weights, context = map(member.of, load_weights(model, stack, private, device))
        seeds = client_streams(seed, stack.clients, 0, "projection").tolist()
        pairs = reportable_centroids(
            cohort, stack, member, weights, context, seeds, _POINTS, split, training.engine, private, device
        )
        tokens = tuple(torch.from_numpy(centres) @ axes for centres, _ in pairs)
        words = weights[OWN].cpu() @ axes
        counts = context[COUNT].tolist() if network.room else [0] * stack.size
        messages.append(
            ProjectedRows(stack.clients, tokens, tuple(words[i, : counts[i]] for i in range(len(stack.clients))))
        )
    return messages


def principal_plane(words: Tensor) -> Tensor:
    """Return the two directions (d, 2) in which codes (words, d) vary most; if d is 1, the second is zero."""
    _, _, directions = torch.linalg.svd(words - words.mean(0), full_matrices=False)
    axes = directions[:2].T
    return torch.cat([axes, axes.new_zeros(len(axes), 2 - axes.shape[1])], 1)
