"""The server groups clients that are right on the same rows.

The server looks at the clients' updates: how long they are, and which of them go the same way.

`current` names the weights that count, as they were before; updates may hold more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models import clustering
from models.clustering import Assign, Overlap, cluster_by_threshold, joined, largest_gap, overlaps, right_counts
from models.server_state import Weights
from tasks.execution.task_types import server_step
from tasks.messages.clustering_messages import CorrectnessBits
from tasks.messages.update_messages import Update

_MOST_CUTS = 200  # thresholds that groups are made at: of 1,000 clients each takes about a second


@dataclass(frozen=True)
class Overlapping:
    """Groups of names, the threshold that made them, and who was kept alone since its model is right on no row.

    `within` is the least overlap of a pair in a group, `across` the largest of a pair that was parted; None without one.
    Who was kept alone is in no pair.
    """

    groups: tuple[tuple[str, ...], ...]
    threshold: float
    flagged: tuple[str, ...]
    within: float | None
    across: float | None


def halves(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the rows that a threshold is chosen on, and of those that it is used on; of one row both are that row."""
    order = np.random.default_rng(seed).permutation(rows)
    return order[: max(rows // 2, 1)], order[rows // 2 :]


@server_step
def overlap(
    answers: Sequence[CorrectnessBits],
    rows: int,
    kind: Overlap,
    threshold: float | None,
    assign: Assign,
    seed: int | None = None,
) -> Overlapping:
    """All clients that answered, in groups; without a threshold it is that of the largest gap.

    With a seed groups are made on one half of the rows, since the threshold was found on the other (see `halves`): what was
    chosen is not judged by itself. ValueError with neither.
    """
    names, bits = known(answers)
    if seed is not None:
        first, second = halves(rows, seed)
        chosen, bits, rows = _of_rows(bits, first), _of_rows(bits, second), len(second)
        if threshold is None:
            threshold = largest_gap(overlaps(chosen[right_counts(chosen) > 0], len(first), kind))
    if threshold is None:
        raise ValueError("a threshold that is not given is found on one half of the rows: give a seed")
    likeness = overlaps(bits, rows, kind)
    dead = right_counts(bits) == 0  # like each other, where equal bits count, and good for nothing
    places = np.flatnonzero(~dead)
    living = likeness[np.ix_(places, places)]
    made = cluster_by_threshold(living, threshold, assign)
    groups = sorted([*(places[group].tolist() for group in made), *([at] for at in np.flatnonzero(dead).tolist())])
    return Overlapping(
        tuple(tuple(names[at] for at in group) for group in groups),
        threshold,
        tuple(names[at] for at in np.flatnonzero(dead)),
        *_margins(living, made),
    )


@server_step
def candidates(
    answers: Sequence[CorrectnessBits], rows: int, kind: Overlap, assign: Assign, seed: int, most: int = 20
) -> list[tuple[float, tuple[tuple[str, ...], ...]]]:
    """Thresholds from the least on with the groups that each makes on the half that thresholds are chosen on.

    One of all thresholds that make the same groups, half-way between two overlaps of pairs; of more than `most` so many,
    evenly by rank. Clients that are right on no row are in none. Of many pairs not every threshold is looked at, but
    _MOST_CUTS, evenly by value: no gap that is wider is missed.
    """
    names, bits = known(answers)
    first, _ = halves(rows, seed)
    chosen = _of_rows(bits, first)
    alive = np.flatnonzero(right_counts(chosen) > 0)
    likeness = overlaps(chosen[alive], len(first), kind)
    values = np.unique(likeness[np.triu_indices(len(alive), 1)])
    between = [0.0, *((values[:-1] + values[1:]) / 2).tolist(), 1.0]
    made: dict[tuple[tuple[str, ...], ...], float] = {}
    if len(between) > _MOST_CUTS:
        between = [between[at] for at in np.unique(np.searchsorted(between, np.linspace(0, 1, _MOST_CUTS)))]
    for threshold in between:
        groups = tuple(
            tuple(names[alive[at]] for at in group) for group in cluster_by_threshold(likeness, threshold, assign)
        )
        made.setdefault(groups, threshold)
    ranked = sorted((threshold, groups) for groups, threshold in made.items())
    places = np.unique(np.linspace(0, len(ranked) - 1, min(most, len(ranked))).round().astype(int))
    return [ranked[at] for at in places.tolist()]


@server_step
def admit(
    newcomers: Sequence[CorrectnessBits],
    groups: Sequence[Sequence[str]],
    members: CorrectnessBits,
    rows: int,
    kind: Overlap,
    threshold: float,
) -> list[list[str]]:
    """The groups with each newcomer in the one that it fits, or in one of its own; nobody else moves.

    `members` is what those in the groups told.
    """
    made = [list(group) for group in groups]
    names, bits = list(members.clients), members.bits.numpy()
    for name, mine in zip(*known(newcomers), strict=True):
        likeness = np.where(bits.any(1), overlaps(mine[None], rows, kind, bits)[0], -np.inf)
        at = joined(likeness, [[names.index(member) for member in group] for group in made], threshold)
        if at is None or not mine.any():
            made.append([name])
        else:
            made[at].append(name)
        names, bits = [*names, name], np.concatenate([bits, mine[None]])
    return made


def known(answers: Sequence[CorrectnessBits]) -> tuple[list[str], np.ndarray]:
    """Names, sorted, and their bits (names, bytes): the order of listing and of stacks is nothing."""
    bits = {client: answer.bits[at].numpy() for answer in answers for at, client in enumerate(answer.clients)}
    names = sorted(bits)
    return names, np.stack([bits[name] for name in names])


def _of_rows(bits: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The bits of these rows."""
    return np.packbits(np.unpackbits(bits, axis=1)[:, np.sort(places)], axis=1)


def _margins(likeness: np.ndarray, groups: Sequence[Sequence[int]]) -> tuple[float | None, float | None]:
    label = np.zeros(len(likeness), np.int64)
    for number, group in enumerate(groups):
        label[list(group)] = number
    first, second = np.triu_indices(len(likeness), 1)
    same, values = label[first] == label[second], likeness[first, second]
    within, across = values[same], values[~same]
    return (float(within.min()) if len(within) else None), (float(across.max()) if len(across) else None)


@dataclass(frozen=True)
class Halves:
    """Two parts of a cluster: `toward` has the mean direction of each one's clients, `across` the largest cosine between."""

    clients: tuple[tuple[str, ...], tuple[str, ...]]
    toward: tuple[Weights, Weights]
    across: float


@server_step
def lengths(updates: Sequence[Update], current: Weights) -> dict[str, float]:
    """client to ||w_k - w||, for updates with `each`."""
    clients, deltas = _deltas(updates, current)
    return dict(zip(clients, np.linalg.norm(deltas, axis=1).tolist(), strict=True))


@server_step
def bipartition(updates: Sequence[Update], current: Weights, linkage: clustering.Linkage) -> Halves:
    """The cluster in two, by the cosines of its clients' updates; the part with the first name comes first."""
    clients, deltas = _deltas(updates, current)
    alpha, unit = clustering.cosines(deltas), clustering.normalize_rows(deltas)
    first, second = clustering.bipartition(alpha, linkage)
    toward = (_shaped(unit[first].mean(0), current), _shaped(unit[second].mean(0), current))
    names = (tuple(clients[i] for i in first), tuple(clients[i] for i in second))
    return Halves(names, toward, clustering.across_clusters(alpha, first, second))


@server_step
def nearer(updates: Sequence[Update], current: Weights, toward: Sequence[Weights]) -> dict[str, int]:
    """client to the place in `toward` that its update is most like, the first of equals."""
    clients, deltas = _deltas(updates, current)
    targets = np.stack([_flat(t) for t in toward])
    return dict(zip(clients, (clustering.normalize_rows(deltas) @ targets.T).argmax(1).tolist(), strict=True))


def _deltas(updates: Sequence[Update], current: Weights) -> tuple[list[str], np.ndarray]:
    """Names, sorted, and (clients, numbers) float64: sorted, the order of listing and of stacks is nothing."""
    start = _flat(current)
    deltas = {}
    for update in updates:
        for at, client in enumerate(update.clients):
            deltas[client] = _flat({name: update.each[name][at] for name in current}) - start
    clients = sorted(deltas)
    return clients, np.stack([deltas[client] for client in clients])


def _flat(weights: Weights) -> np.ndarray:
    return torch.cat([weights[name].double().ravel() for name in sorted(weights)]).numpy()


def _shaped(numbers: np.ndarray, like: Weights) -> dict[str, Tensor]:
    names = sorted(like)
    parts = torch.from_numpy(numbers).split([like[name].numel() for name in names])
    return {n: part.reshape(like[n].shape).to(like[n].dtype) for n, part in zip(names, parts, strict=True)}
