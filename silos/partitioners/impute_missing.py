"""Missing values of a table for which each client's own mean stands, once it is known which rows it trains on."""

from dataclasses import replace

import numpy as np

from silos.dataset import SPLITS, Clients, Partition, some
from silos.privacy.differencing import LEAST_ROWS


def impute_means(made: Partition) -> Partition:
    """The partition with the mean of a client's training rows where it misses a value of a feature that is so filled.

    A client without a value in its training rows, and rows that no client owns, are given the mean of the training rows of
    those federated clients that have LEAST_ROWS values or more, 0 where there are none; a note says so of clients.
    """
    clients, common, notes = made.clients, made.common, list(made.notes)
    columns = [at for at, feature in enumerate(made.features) if feature.fill == "mean"]
    if not columns:
        return made
    x, common_x = clients.x.copy(), None if common is None else common.x.copy()
    for column in columns:
        counts, sums = _of_training(clients, column)
        told = (counts >= LEAST_ROWS) & (np.array(clients.roles) == "federated")
        others = sums[told].sum() / max(counts[told].sum(), 1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), others)
        _fill(x, clients.missing, column, means[clients.owner])
        if common is not None and common_x is not None:
            _fill(common_x, common.missing, column, np.full(len(common_x), others))
        without = [clients.names[at] for at in np.flatnonzero(counts == 0).tolist()]
        if without:
            notes.append(
                f"missing: {made.features[column].name} has no value in training rows of {some(without, 4)}; the mean of "
                "other clients' stands there"
            )
    if common is not None and common_x is not None:
        common = replace(common, x=common_x)
    return replace(made, clients=replace(clients, x=x), common=common, notes=tuple(notes))


def _of_training(clients: Clients, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each client how many values its training rows have in the column, and their sum: (clients,) each."""
    assert clients.missing is not None
    there = ~clients.missing[:, column]
    if clients.split is not None:
        there &= clients.split == SPLITS.index("train")
    owner, values = clients.owner[there], clients.x[there, column].astype(np.float64)
    return np.bincount(owner, minlength=len(clients)), np.bincount(owner, values, len(clients))


def _fill(x: np.ndarray, missing: np.ndarray | None, column: int, means: np.ndarray) -> None:
    """means: (rows,)."""
    assert missing is not None
    gaps = missing[:, column]
    x[gaps, column] = means[gaps]
