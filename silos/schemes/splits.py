"""Which rows are for training, validation and test: a client's own, and those that no client owns."""

from dataclasses import replace

import numpy as np

from silos.data_params import SplitParams
from silos.errors import UserError
from silos.rows import SPLITS, Clients, Rows
from silos.schemes.named_draws import Streams, stream


def take_common(rows: Rows, params: SplitParams, seed: int) -> tuple[Rows, Rows | None]:
    """The rows to deal to clients, and those that nobody will own, if params ask for such.

    Common test rows are those that the source marks as test, else a fraction of all rows drawn at random, and
    common validation rows likewise (then a fraction of the rows that the source does not mark as test, or with
    `validation_from: start` the first of them that are no common test rows).
    """
    splits = [name for name in ("test", "validation") if getattr(params, f"{name}_rows") == "common"]
    if not splits:
        return rows, None
    split = np.full(len(rows.y), "train", dtype="<U10") if rows.split is None else rows.split.astype("<U10")
    rng = stream(seed, "split", "common rows")
    candidates = np.flatnonzero(split == "train")
    order = rng.permutation(candidates)
    taken = 0
    common = np.zeros(len(rows.y), bool)
    for name in splits:
        marked = split == name
        if not marked.any():
            count = int(len(candidates) * getattr(params, name) + 0.5)
            if count == 0:
                raise UserError(
                    f"params.yaml: data.split.{name}_rows is common, but the source marks no {name} rows and a share "
                    f"of {getattr(params, name):g} of its {len(candidates)} rows is none; raise data.split.{name}."
                )
            in_order = name == "validation" and params.validation_from == "start"
            free = np.flatnonzero(split == "train") if in_order else order[taken:]
            marked[free[:count]] = True
            split[marked] = name
            taken += count
        common |= marked
    owned = rows.take(~common)
    if len(owned.parts()[0]) == 0:
        raise UserError(
            f"params.yaml: data.split takes all {len(candidates)} rows that could train for common ones; lower "
            "data.split.test or validation."
        )
    return owned, replace(rows, split=split).take(common)


def without_effect(rows: Rows, params: SplitParams) -> list[str]:
    """What the params ask for to no effect, since the source marks rows itself: sentences for a person."""
    if params.validation_from == "start" and rows.split is not None and (rows.split == "validation").any():
        return ["data.split.validation_from: start has no effect, since the source marks its validation rows itself."]
    return []


def split_rows(clients: Clients, params: SplitParams, seed: int) -> np.ndarray:
    """Which split each row is of: (n,) uint8, places in SPLITS.

    A split of the source's own is kept; where it marks no validation rows of a client, they are carved
    from its training rows. Everything else is drawn at random from a stream of the client's own, so that a
    change of one client leaves the others alone. At least one row is left for training. Of a kind whose rows
    are common, a client has none.
    """
    codes = np.zeros(len(clients.y), np.uint8) if clients.split is None else clients.split.copy()
    given = np.bincount(clients.owner * len(SPLITS) + codes, minlength=len(clients) * len(SPLITS)).reshape(
        len(clients), -1
    )
    if (given[:, 0] == 0).any():
        first = int((given[:, 0] == 0).argmax())
        raise UserError(
            f"Client {clients.names[first]} has no training rows in the source's own split; mark at least one of its "
            f"{given[first].sum()} rows as train, or leave the client out."
        )
    n_test = _count(given[:, 0], params.test if clients.split is None and params.test_rows == "own" else 0.0)
    n_validation = _count(given[:, 0], params.validation if params.validation_rows == "own" else 0.0, n_test)
    n_validation[given[:, 1] > 0] = 0
    streams = Streams()
    for at in np.flatnonzero(n_test + n_validation).tolist():
        mine = slice(int(clients.ends[at - 1]) if at else 0, int(clients.ends[at]))
        order = (
            streams.begin(seed, "split", clients.names[at]).permutation(np.flatnonzero(codes[mine] == 0)) + mine.start
        )
        codes[order[: n_test[at]]] = SPLITS.index("test")
        codes[order[n_test[at] : n_test[at] + n_validation[at]]] = SPLITS.index("validation")
    return codes


def _count(rows: np.ndarray, share: float, taken: np.ndarray | int = 0) -> np.ndarray:
    """How many of each client's rows are drawn, where others were taken before and one is left: (clients,) int64."""
    return np.minimum(np.floor(rows * share + 0.5).astype(np.int64), rows - 1 - taken)
