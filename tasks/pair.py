"""Two methods are compared row by row on the client's side; only sums leave."""

from collections.abc import Sequence

import numpy as np

from models.quantities import QUANTITIES
from silos.cohort import Silos
from silos.private import PrivateStore
from tasks.evaluate import OUTCOMES
from tasks.messages import PairedSums
from tasks.step import step

Kept = tuple[PrivateStore, dict[str, str]]
"""Where a run's clients keep their outcomes, and each client's hash."""


@step
def pair(silos: Silos, first: Sequence[Kept], second: Sequence[Kept]) -> list[PairedSums]:
    """One record a client: first minus second, both lists by seed and over the same rows.

    Where the test rows are common, clients are no strata: a row's difference is its mean over clients, in one record.
    """
    common = silos.common("test")
    if common:
        return [_sums("common", _mean_over_clients(silos, common, first, second))]
    rows = silos.rows("test")
    name = QUANTITIES[silos.manifest.task].outcome
    return [_sums(c, _difference(first, second, name, c, n)) for c, n in rows.items() if n]


def _mean_over_clients(silos: Silos, rows: int, first: Sequence[Kept], second: Sequence[Kept]) -> np.ndarray:
    difference, name = np.zeros((len(first), rows)), QUANTITIES[silos.manifest.task].outcome
    for client in silos.clients:
        difference += _difference(first, second, name, client, rows)
    return difference / len(silos.clients)


def _sums(client: str, d: np.ndarray) -> PairedSums:
    """d: (seeds, rows)."""
    by_seed = tuple(float(v) for v in d.sum(1))
    return PairedSums(client, d.shape[1], by_seed, float((d.mean(0) ** 2).sum()), float((d**2).sum()))


def _difference(first: Sequence[Kept], second: Sequence[Kept], name: str, client: str, rows: int) -> np.ndarray:
    """(seeds, rows); NaN where both methods' squared errors are infinite."""
    with np.errstate(invalid="ignore"):
        return _outcomes(first, name, client, rows) - _outcomes(second, name, client, rows)


def _outcomes(runs: Sequence[Kept], name: str, client: str, rows: int) -> np.ndarray:
    """(seeds, rows): 1 where that seed's model was right, or its squared error."""
    found = [store.load(OUTCOMES, refs, client)[name][:rows] for store, refs in runs]
    return np.stack(found).astype(float)
