"""The server looks at the clients' updates: how long they are, and which of them go the same way.

`current` names the weights that count, as they were before; updates may hold more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models import clustering
from models.server_state import Weights
from tasks.execution.task_types import server_step
from tasks.messages.update_messages import Update


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
