"""Cluster clients on the server by correct rows, descriptors or cosines of updates, and assign new clients.

`current` holds the server's weights before the round, and names the weights that are compared. Updates may hold more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models import clustering
from models.clustering import (
    CHANCE,
    Assign,
    Overlap,
    chance_of_groups,
    cluster_by_density,
    cluster_by_threshold,
    count_correct,
    find_cluster,
    largest_gap,
    overlaps,
)
from models.server_state import Weights
from tasks.execution.steps import server_step
from tasks.messages.round_messages import CorrectnessBits, Descriptor, Update

_MOST_CUTS = 200  # thresholds that are tried: with 1,000 clients each takes about a second


@dataclass(frozen=True)
class OverlapClusters:
    """Clusters of client names, the threshold that formed them, and the clients whose models are correct on no row.

    These flagged clients are clusters of their own and count in no pair. `within` is the smallest overlap of a pair in
    one cluster. `across` is the largest of a pair in two clusters. Both are None if there is no such pair. `chance` is the
    p-value of clients of one law, if it was tested (see `chance_of_groups`).
    """

    groups: tuple[tuple[str, ...], ...]
    threshold: float
    flagged: tuple[str, ...]
    within: float | None
    across: float | None
    chance: float | None = None


def split_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split the row indices in two: the rows that choose a threshold, and the rows that it is applied to.

    If there is one row, both halves are that row.
    """
    order = np.random.default_rng(seed).permutation(rows)
    return order[: max(rows // 2, 1)], order[rows // 2 :]


@server_step
def overlap(
    messages: Sequence[CorrectnessBits],
    rows: int,
    kind: Overlap,
    threshold: float | None,
    assign: Assign,
    seed: int | None = None,
    labels: np.ndarray | None = None,
) -> OverlapClusters:
    """Cluster all clients that reported, by `threshold` or else by the threshold of the largest gap between overlaps.

    With a seed, one half of the rows chooses the threshold and the other forms the clusters (see `split_rows`). So the
    choice is not judged on its own rows.

    Args:
        messages: The correctness bits of the clients.
        rows: The number of common rows.
        kind: The measure of overlap.
        threshold: The least overlap within a cluster; None to choose it.
        assign: The rule that forms clusters from overlaps.
        seed: The seed that halves the rows; None uses all rows, and then `threshold` must be given.
        labels: The classes of the rows, (rows,). With them, all clients form one cluster if their overlaps may be
            those of one law.

    Raises:
        ValueError: If both the threshold and the seed are None.
    """
    names, bits = correctness_by_client(messages)
    chance = None
    if threshold is None and seed is not None and labels is not None:
        chance = chance_of_groups(bits[count_correct(bits) > 0], labels, np.random.default_rng([seed, 1]))
        threshold = 0.0 if chance is not None and chance > CHANCE else None
    if seed is not None:
        choosing, clustering_rows = split_rows(rows, seed)
        choosing_bits, bits, rows = _of_rows(bits, choosing), _of_rows(bits, clustering_rows), len(clustering_rows)
        if threshold is None:
            threshold = largest_gap(overlaps(choosing_bits[count_correct(choosing_bits) > 0], len(choosing), kind))
    if threshold is None:
        raise ValueError("seed: got none, expected one, since the threshold is found on one half of the rows")
    never_correct = count_correct(bits) == 0  # equal to each other if equal bits count, yet of no use to each other
    flagged, usable = np.flatnonzero(never_correct).tolist(), np.flatnonzero(~never_correct)
    affinity = overlaps(bits, rows, kind)[np.ix_(usable, usable)]
    clusters = cluster_by_threshold(affinity, threshold, assign)
    groups = sorted([*(usable[cluster].tolist() for cluster in clusters), *([client] for client in flagged)])
    return OverlapClusters(
        tuple(tuple(names[client] for client in group) for group in groups),
        threshold,
        tuple(names[client] for client in flagged),
        *_margins(affinity, clusters),
        chance,
    )


@server_step
def candidates(
    messages: Sequence[CorrectnessBits], rows: int, kind: Overlap, assign: Assign, seed: int, most: int = 20
) -> list[tuple[float, tuple[tuple[str, ...], ...]]]:
    """Return candidate thresholds in ascending order, each with the clusters that it forms on the first half of the rows.

    A threshold lies half-way between two overlaps of pairs, and stands for all that form the same clusters. If pairs
    have more than _MOST_CUTS overlaps, thresholds are tried evenly by value, so no wider gap is missed. Clients whose
    models are correct on no row are in no cluster.

    Args:
        messages: The correctness bits of the clients.
        rows: The number of common rows.
        kind: The measure of overlap.
        assign: The rule that forms clusters from overlaps.
        seed: The seed that halves the rows.
        most: The most candidates; more are thinned evenly by rank.
    """
    names, bits = correctness_by_client(messages)
    choosing, _ = split_rows(rows, seed)
    choosing_bits = _of_rows(bits, choosing)
    usable = np.flatnonzero(count_correct(choosing_bits) > 0)
    affinity = overlaps(choosing_bits[usable], len(choosing), kind)
    values = np.unique(affinity[np.triu_indices(len(usable), 1)])
    between = [0.0, *((values[:-1] + values[1:]) / 2).tolist(), 1.0]
    threshold_of: dict[tuple[tuple[str, ...], ...], float] = {}
    if len(between) > _MOST_CUTS:
        between = [between[index] for index in np.unique(np.searchsorted(between, np.linspace(0, 1, _MOST_CUTS)))]
    for threshold in between:
        clusters = cluster_by_threshold(affinity, threshold, assign)
        groups = tuple(tuple(names[usable[index]] for index in cluster) for cluster in clusters)
        threshold_of.setdefault(groups, threshold)
    ranked = sorted((threshold, groups) for groups, threshold in threshold_of.items())
    ranks = np.unique(np.linspace(0, len(ranked) - 1, min(most, len(ranked))).round().astype(int))
    return [ranked[index] for index in ranks.tolist()]


@server_step
def admit(
    newcomers: Sequence[CorrectnessBits],
    groups: Sequence[Sequence[str]],
    members: CorrectnessBits,
    rows: int,
    kind: Overlap,
    threshold: float,
) -> list[list[str]]:
    """Add each newcomer to the cluster that it fits, or as a new cluster; earlier members keep theirs.

    Args:
        newcomers: The correctness bits of clients without a cluster.
        groups: The clients of each cluster.
        members: The correctness bits of the clients in `groups`.
        rows: The number of common rows.
        kind: The measure of overlap.
        threshold: The least overlap within a cluster.
    """
    clusters = [list(group) for group in groups]
    names, bits = list(members.clients), members.bits.numpy()
    for name, newcomer in zip(*correctness_by_client(newcomers), strict=True):
        affinity = np.where(bits.any(1), overlaps(newcomer[None], rows, kind, bits)[0], -np.inf)
        joined_cluster = find_cluster(
            affinity, [[names.index(member) for member in group] for group in clusters], threshold
        )
        if joined_cluster is None or not newcomer.any():
            clusters.append([name])
        else:
            clusters[joined_cluster].append(name)
        names, bits = [*names, name], np.concatenate([bits, newcomer[None]])
    return clusters


def correctness_by_client(messages: Sequence[CorrectnessBits]) -> tuple[list[str], np.ndarray]:
    """Return the client names, sorted, and their bits (names, bytes), whatever the order of messages and stacks."""
    bits = {client: message.bits[index].numpy() for message in messages for index, client in enumerate(message.clients)}
    names = sorted(bits)
    return names, np.stack([bits[name] for name in names])


def _of_rows(bits: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Select the bits of these rows."""
    return np.packbits(np.unpackbits(bits, axis=1)[:, np.sort(indices)], axis=1)


def _margins(affinity: np.ndarray, groups: Sequence[Sequence[int]]) -> tuple[float | None, float | None]:
    """Return the smallest affinity of a pair within a cluster and the largest of a pair across; None if absent."""
    label = np.zeros(len(affinity), np.int64)
    for index, group in enumerate(groups):
        label[list(group)] = index
    first, second = np.triu_indices(len(affinity), 1)
    same, values = label[first] == label[second], affinity[first, second]
    within, across = values[same], values[~same]
    return (float(within.min()) if len(within) else None), (float(across.max()) if len(across) else None)


@dataclass(frozen=True)
class DescriptorClusters:
    """Clusters by descriptors, the one with most training rows first, and what a later client is assigned by.

    Each statistic of each part of a descriptor, its mean or deviation, has one scale: `lowest` is subtracted, and `span`
    divides. `centroids` are means of scaled descriptors, (clusters, parts, 2, components) float64.
    """

    cluster: dict[str, int]
    centroids: Tensor
    lowest: Tensor  # (parts, 2, 1) float64
    span: Tensor


@server_step
def cluster_descriptors(messages: Sequence[Descriptor], radius_scale: float) -> DescriptorClusters:
    """Cluster the clients that sent a descriptor by density; the silent ones are in the first cluster."""
    descriptors, rows = _descriptors(messages), _rows(messages)
    names = sorted(descriptors)
    parts = messages[0].moments.shape[1:]
    points = torch.stack([*map(descriptors.__getitem__, names)]) if names else torch.zeros(1, *parts).double()
    lowest, highest = points.amin((0, 3)).unsqueeze(-1), points.amax((0, 3)).unsqueeze(-1)
    span = torch.where(highest > lowest, highest - lowest, 1.0)
    points = (points - lowest) / span
    clusters = cluster_by_density(points.flatten(1).numpy(), radius_scale)
    if names:
        clusters.sort(key=lambda members: -sum(rows[names[index]] for index in members))
    cluster = dict.fromkeys(sorted(rows), 0)
    for number, members in enumerate(clusters if names else ()):
        cluster |= {names[index]: number for index in members}
    centroids = torch.stack([points[members].mean(0) for members in clusters])
    return DescriptorClusters(cluster, centroids, lowest, span)


@server_step
def assign_descriptors(
    messages: Sequence[Descriptor], centroids: Tensor, lowest: Tensor, span: Tensor
) -> dict[str, int]:
    """Return the cluster of each client: the one with the nearest centroid.

    The first of equally near clusters is taken, and the first cluster for a silent client. Descriptors without parts by
    class are compared in the part that they have.

    Args:
        messages: The descriptors of the clients.
        centroids: (clusters, parts, 2, components) float64, scaled to the clustered descriptors.
        lowest: The least value of each statistic among these, (parts, 2, 1).
        span: The span of each statistic, (parts, 2, 1).
    """
    parts = messages[0].moments.shape[1]
    assigned = dict.fromkeys(_rows(messages), 0)
    for client, descriptor in _descriptors(messages).items():
        scaled = (descriptor - lowest[:parts]) / span[:parts]
        assigned[client] = int((centroids[:, :parts] - scaled).flatten(1).norm(dim=1).numpy().argmin())
    return assigned


def _descriptors(messages: Sequence[Descriptor]) -> dict[str, Tensor]:
    """Return the descriptor of each client that sent one, (parts, 2, components) float64."""
    return {
        client: moments.double()
        for message in messages
        for client, moments in zip(message.clients, message.moments, strict=True)
        if client not in message.silent
    }


def _rows(messages: Sequence[Descriptor]) -> dict[str, int]:
    return {c: rows for m in messages for c, rows in zip(m.clients, m.rows.tolist(), strict=True)}


@dataclass(frozen=True)
class Bipartition:
    """Two parts of a cluster.

    `toward` has the mean direction of each part's clients, `across` the largest cosine between clients of the two parts.
    """

    clients: tuple[tuple[str, ...], tuple[str, ...]]
    toward: tuple[Weights, Weights]
    across: float


@server_step
def lengths(updates: Sequence[Update], current: Weights) -> dict[str, float]:
    """Return each client's ||w_k - w||, for updates with `each`."""
    clients, deltas = _deltas(updates, current)
    return dict(zip(clients, np.linalg.norm(deltas, axis=1).tolist(), strict=True))


@server_step
def bipartition(updates: Sequence[Update], current: Weights, linkage: clustering.Linkage) -> Bipartition:
    """Split a cluster in two by the cosines of its clients' updates; the part with the first name comes first.

    Args:
        updates: Updates with each client's weights (`each`).
        current: The weights that the clients started from.
        linkage: How the parts are joined from single clients, see models.clustering.bipartition.
    """
    clients, deltas = _deltas(updates, current)
    cosines, unit = clustering.cosines(deltas), clustering.normalize_rows(deltas)
    first, second = clustering.bipartition(cosines, linkage)
    toward = (_shaped(unit[first].mean(0), current), _shaped(unit[second].mean(0), current))
    names = (tuple(clients[i] for i in first), tuple(clients[i] for i in second))
    return Bipartition(names, toward, clustering.across_clusters(cosines, first, second))


@server_step
def nearer(updates: Sequence[Update], current: Weights, toward: Sequence[Weights]) -> dict[str, int]:
    """Return for each client the index in `toward` that its update is most similar to, the first of equals.

    Args:
        updates: Updates with each client's weights (`each`).
        current: The weights that the clients started from.
        toward: Mean directions of the parts of a split, by name as `current`.
    """
    clients, deltas = _deltas(updates, current)
    targets = np.stack([_flat(t) for t in toward])
    return dict(zip(clients, (clustering.normalize_rows(deltas) @ targets.T).argmax(1).tolist(), strict=True))


def _deltas(updates: Sequence[Update], current: Weights) -> tuple[list[str], np.ndarray]:
    """Return the client names, sorted, and their updates (clients, numbers) float64, whatever the order of stacks."""
    start = _flat(current)
    deltas = {}
    for update in updates:
        for index, client in enumerate(update.clients):
            deltas[client] = _flat({name: update.each[name][index] for name in current}) - start
    clients = sorted(deltas)
    return clients, np.stack([deltas[client] for client in clients])


def _flat(weights: Weights) -> np.ndarray:
    return torch.cat([weights[name].double().ravel() for name in sorted(weights)]).numpy()


def _shaped(values: np.ndarray, like: Weights) -> dict[str, Tensor]:
    names = sorted(like)
    parts = torch.from_numpy(values).split([like[name].numel() for name in names])
    return {n: part.reshape(like[n].shape).to(like[n].dtype) for n, part in zip(names, parts, strict=True)}
