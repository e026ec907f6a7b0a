"""Which rows of a client are for training, validation and test."""

import numpy as np

from silos.errors import UserError
from silos.params import SplitParams
from silos.schemes import ClientRows
from silos.streams import stream


def split_rows(client: ClientRows, params: SplitParams, seed: int) -> dict[str, np.ndarray]:
    """The client's rows in three: {"train", "validation", "test"} to sorted row numbers, int64.

    A split of the source's own is kept; where it marks no validation rows of this client, they are carved
    from its training rows. Everything else is drawn at random from a stream of the client's own, so that a
    change of one client leaves the others alone. At least one row is left for training.
    """
    rng = stream(seed, "split", client.name)
    if client.split is None:
        return _drawn(np.arange(len(client.y)), params.validation, params.test, rng)
    given = {name: np.flatnonzero(client.split == name) for name in ("train", "validation", "test")}
    if len(given["train"]) == 0:
        raise UserError(
            f"Client {client.name} has no training rows in the source's own split; mark at least one of its "
            f"{len(client.y)} rows as train, or leave the client out."
        )
    if len(given["validation"]) == 0:
        carved = _drawn(given["train"], params.validation, 0.0, rng)
        given |= {"train": carved["train"], "validation": carved["validation"]}
    return given


def _drawn(rows: np.ndarray, validation: float, test: float, rng: np.random.RandomState) -> dict[str, np.ndarray]:
    n_test = min(int(len(rows) * test + 0.5), len(rows) - 1)
    n_validation = min(int(len(rows) * validation + 0.5), len(rows) - 1 - n_test)
    order = rng.permutation(rows)
    return {
        "train": np.sort(order[n_test + n_validation :]),
        "validation": np.sort(order[n_test : n_test + n_validation]),
        "test": np.sort(order[:n_test]),
    }
