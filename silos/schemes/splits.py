"""Which rows are for training, validation and test: a client's own, and those that no client owns."""

from dataclasses import replace

import numpy as np

from silos.data_params import SplitParams
from silos.errors import UserError
from silos.rows import SPLITS, ClientRows, Rows
from silos.schemes.named_draws import stream


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


def split_rows(client: ClientRows, params: SplitParams, seed: int) -> dict[str, np.ndarray]:
    """The client's rows in three: {"train", "validation", "test"} to sorted row numbers, int64.

    A split of the source's own is kept; where it marks no validation rows of this client, they are carved
    from its training rows. Everything else is drawn at random from a stream of the client's own, so that a
    change of one client leaves the others alone. At least one row is left for training. Of a kind whose rows
    are common, the client has none.
    """
    rng = stream(seed, "split", client.name)
    validation = params.validation if params.validation_rows == "own" else 0.0
    if client.split is None:
        test = params.test if params.test_rows == "own" else 0.0
        return _drawn(np.arange(len(client.y)), validation, test, rng)
    given = {name: np.flatnonzero(client.split == name) for name in SPLITS}
    if len(given["train"]) == 0:
        raise UserError(
            f"Client {client.name} has no training rows in the source's own split; mark at least one of its "
            f"{len(client.y)} rows as train, or leave the client out."
        )
    if len(given["validation"]) == 0:
        carved = _drawn(given["train"], validation, 0.0, rng)
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
