"""Fill in missing values by means of training rows."""

from dataclasses import replace

import numpy as np

from silos.dataset import SPLITS, Clients, Partition
from silos.errors import some
from silos.privacy.differencing import LEAST_ROWS


def impute_means(partition: Partition) -> Partition:
    """Replace missing values by the mean of the client's training rows, in features with `fill: mean`.

    A client without a value in its training rows gets a mean over other clients, and so do common rows. It is the mean
    over the federated clients with at least LEAST_ROWS values in their training rows, or 0 if there are none. A note
    lists such clients.
    """
    clients, common, notes = partition.clients, partition.common, list(partition.notes)
    columns = [index for index, feature in enumerate(partition.features) if feature.fill == "mean"]
    if not columns:
        return partition
    x, common_x = clients.x.copy(), None if common is None else common.x.copy()
    for column in columns:
        counts, sums = _training_sums(clients, column)
        reporting = (counts >= LEAST_ROWS) & (np.array(clients.roles) == "federated")
        fallback = sums[reporting].sum() / max(counts[reporting].sum(), 1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), fallback)
        _fill_missing(x, clients.missing, column, means[clients.owner])
        if common is not None and common_x is not None:
            _fill_missing(common_x, common.missing, column, np.full(len(common_x), fallback))
        of_others = f"the mean over federated clients with at least {LEAST_ROWS} values"
        filled_in = of_others if reporting.any() else f"0, since no federated client has {LEAST_ROWS} values,"
        lacking = [clients.names[index] for index in np.flatnonzero(counts == 0).tolist()]
        if lacking:
            notes.append(
                f"missing: {partition.features[column].name} has no value in training rows of {some(lacking, 4)}; "
                f"{filled_in} is filled in"
            )
    if common is not None and common_x is not None:
        common = replace(common, x=common_x)
    return replace(partition, clients=replace(clients, x=x), common=common, notes=tuple(notes))


def _training_sums(clients: Clients, column: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number and the sum of each client's training values in the column: (clients,) each."""
    assert clients.missing is not None
    present = ~clients.missing[:, column]
    if clients.split is not None:
        present &= clients.split == SPLITS.index("train")
    owner, values = clients.owner[present], clients.x[present, column].astype(np.float64)
    return np.bincount(owner, minlength=len(clients)), np.bincount(owner, values, len(clients))


def _fill_missing(x: np.ndarray, missing: np.ndarray | None, column: int, means: np.ndarray) -> None:
    """Write the means, (rows,), where the column's value is missing."""
    assert missing is not None
    is_missing = missing[:, column]
    x[is_missing, column] = means[is_missing]
