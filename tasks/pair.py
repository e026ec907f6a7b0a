"""Two methods are compared row by row on the client's side; only sums leave."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.quantities import QUANTITIES
from silos.cohort import Silos
from silos.private import PrivateStore
from silos.store import open_client
from tasks.evaluate import OUTCOMES
from tasks.messages import PairedSums
from tasks.step import step

Kept = tuple[PrivateStore, dict[str, str]]
"""Where a run's clients keep their outcomes, and each client's hash."""


@step
def pair(
    silos: Silos, first: Sequence[Kept], second: Sequence[Kept], classes: Sequence[str] | None = None
) -> list[PairedSums]:
    """One record a client: first minus second, both lists by seed and over the same rows, or those of some classes.

    Clients without such rows have no record. Where the test rows are common, clients are no strata: a row's difference is
    its mean over clients, in one record.
    """
    common = silos.common("test")
    if classes is not None:
        return _of_classes(silos, first, second, classes)
    if common:
        return [_sums("common", _mean_over_clients(silos, common, first, second))]
    rows = silos.rows("test")
    name = QUANTITIES[silos.manifest.task].outcome
    return [_sums(c, _difference(first, second, name, c, n)) for c, n in rows.items() if n]


def own_labels(silos: Silos, client: str) -> np.ndarray:
    """The classes of a client's own test rows, (rows,) int64."""
    (entry,) = silos.entries(client)
    return open_client(Path(silos.folder), entry, "test")[1]


def _of_classes(
    silos: Silos, first: Sequence[Kept], second: Sequence[Kept], classes: Sequence[str]
) -> list[PairedSums]:
    """Of clients' own rows alone."""
    codes, name = [silos.manifest.classes.index(each) for each in classes], QUANTITIES[silos.manifest.task].outcome
    found = []
    for client, rows in silos.rows("test").items():
        chosen = np.isin(own_labels(silos, client), codes)
        if chosen.any():
            found.append(_sums(client, _difference(first, second, name, client, rows)[:, chosen]))
    return found


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
