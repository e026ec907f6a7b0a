"""Two methods are compared row by row on the client's side; only sums leave."""

from collections.abc import Sequence

import numpy as np

from silos.private import PrivateStore
from silos.store import Manifest
from tasks.evaluate import OUTCOMES
from tasks.messages import PairedSums
from tasks.step import step

Kept = tuple[PrivateStore, dict[str, str]]
"""Where a run's clients keep their outcomes, and each client's hash."""


@step
def pair(manifest: Manifest, first: Sequence[Kept], second: Sequence[Kept]) -> list[PairedSums]:
    """One record a client: first minus second, both lists by seed and over the same rows."""
    return [
        _sums(client.name, client.rows["test"], first, second) for client in manifest.clients if client.rows["test"]
    ]


def _sums(client: str, rows: int, first: Sequence[Kept], second: Sequence[Kept]) -> PairedSums:
    a, b = (np.stack([_right(kept, client, rows) for kept in runs]) for runs in (first, second))
    d = a - b  # (seeds, rows)
    by_seed = tuple(float(v) for v in d.sum(1))
    return PairedSums(client, rows, by_seed, float((d.mean(0) ** 2).sum()), float((d**2).sum()))


def _right(kept: Kept, client: str, rows: int) -> np.ndarray:
    store, refs = kept
    return store.load(OUTCOMES, refs, client)["correct"][:rows].astype(float)
