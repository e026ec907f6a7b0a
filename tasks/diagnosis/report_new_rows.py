"""How the training rows that a client has got since an earlier version differ from its training rows of then.

New rows are diluted in a whole version: a few that are far from all others hardly move its means. So the client compares
them with its earlier rows by itself, with the tests of the diagnosis. A row is new if no split of the earlier version has
it; a row that another draw of splits moved is none.

What the client reports is a decision, and no sum over its new rows. Still, its ledger treats it as a report on these rows:
each class or pool that takes part has the least rows of the client's policy, they differ from the rows behind every earlier
report by none or as many, and new rows are compared once.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch

from models.diagnosis.client_summaries.client_summary import Summaries
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.fomichev_distances import Readings
from models.diagnosis.guarded_tests import LEAST_EFFECT
from models.diagnosis.magnitudes import feature_change
from models.diagnosis.screen_clients import MIN_SHARE
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from silos.dataset import SPLITS
from silos.errors import RefusalError
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.report_rules import NEW_ROWS, Kind
from silos.storage.partition_store import open_client, open_common_rows, open_missing
from tasks.diagnosis.compare_silos import Verdict, VersionComparison, compare_summaries
from tasks.diagnosis.report_summary import (
    FLAGS,
    LocalSummary,
    answers_by_stack,
    check_request,
    summary_without_noise,
)
from tasks.execution.load_client_data import load_rows
from tasks.execution.steps import step
from tasks.messages.statistics_messages import NewRowsShift, Refusal

_KIND = Kind(
    NEW_ROWS,
    "a class",
    "compare whole versions only, or wait until the class has ten new rows or more",
    once="use the version and params of the first query, or wait until there are ten new rows or more",
)
_PARTS = ("rows", "worth", "types", "grades", "undetermined", "features", "means")
_MOST_COPIES = 0.1  # of the rows that have copies among earlier ones, if rows were removed
_DECIMALS = 1  # of deviations


@step
def report_new_rows(
    cohort: Cohort, private: ClientStore, before: Silos, query: Query, verdict: Verdict, readings: Readings
) -> list[NewRowsShift | Refusal]:
    """Report how new training rows differ from those of an earlier version: one message a stack, and one of refusals.

    A client without new rows, or with new rows only, is in neither.

    Args:
        cohort: The clients, which the earlier version has, too.
        private: Where their ledgers are.
        before: The earlier version, in a folder of its own next to the present one.
        query: What whole versions were queried for, without noise.
        verdict: The tests.
        readings: How grades are read from the paper.
    """
    messages: list[NewRowsShift | Refusal] = []

    def answer(ledger: Ledger, local: LocalSummary) -> list[np.ndarray]:
        return _answer(ledger, local, cohort.silos, before, query, verdict, readings)

    for answers, refusals in answers_by_stack(cohort, private, answer, NewRowsShift.__name__):
        reports = {client: parts for client, parts in answers.items() if parts}
        if reports:
            arrays = [torch.from_numpy(np.stack(part)) for part in zip(*reports.values(), strict=True)]
            messages.append(NewRowsShift(tuple(reports), *arrays))
        messages += refusals
    return messages


def _answer(
    ledger: Ledger,
    local: LocalSummary,
    silos: Silos,
    before: Silos,
    query: Query,
    verdict: Verdict,
    readings: Readings,
) -> list[np.ndarray]:
    check_request(ledger, local, query, None, None)
    is_new = find_new_rows(silos, before, local.client, local.version)
    if not is_new.any() or is_new.all():
        return []
    new, old = local.select(is_new), _earlier_rows(before, local)
    new.least_cell = old.least_cell  # no cell is reported, but what the tests say
    values = new.covered(ledger, query)
    if not values.groups:
        raise RefusalError(
            f"client {ledger.client}: got no class with {local.least_rows} different new training rows, expected one, since "
            f"fewer rows would be revealed. {_KIND.way_out[:1].upper()}{_KIND.way_out[1:]}."
        )

    def compute(_: Draw) -> dict[str, np.ndarray]:
        earlier, later = (Summaries(**_without_flags(summary_without_noise(rows, query))) for rows in (old, new))
        found = compare_summaries((local.client,), earlier, later, query, verdict, readings, lambda _: None)
        rows = np.array([len(new.y), len(old.y)], np.int64)
        return dict(zip(_PARTS, [rows, *_described(found, query)], strict=True))

    question = f"{verdict} {readings} {old.version} {query.id}"
    digest = hashlib.sha256(question.encode()).hexdigest()
    answer = ledger.answer(new.version, digest, compute, values, kind=_KIND)
    return [answer[part] for part in _PARTS]


def _earlier_rows(before: Silos, local: LocalSummary) -> LocalSummary:
    opened = load_rows(before, Stack((local.client,), 1), "train", "cpu")
    count = int(opened.counts[0])
    return LocalSummary(before, local.client, opened.x[0, :count], opened.y[0, :count], local.least_rows)


def _without_flags(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: part for name, part in parts.items() if name not in FLAGS}


def _described(found: VersionComparison, query: Query) -> list[np.ndarray]:
    """Return the parts of the report after the rows; means are those of the named features, rounded."""
    pairs = found.pairs
    differs = pairs.verdicts.types[0]
    parts = pairs.parts[0]
    named = parts >= max(LEAST_EFFECT, MIN_SHARE * parts.max(initial=0.0))
    named &= bool(differs[[0, 2]].any())
    means = np.full(len(parts), np.nan)
    later_first = found.summaries.take([1, 0])
    for feature in np.flatnonzero(named).tolist():
        change = feature_change(later_first, query.layout, feature)
        if change is not None and change.deviations is not None and change.is_clear:
            means[feature] = round(change.deviations, _DECIMALS)
    worth = pairs.rows[0, ::-1].astype(np.float64)
    grades = found.effect_sizes.grades[0].astype(np.int64)
    return [worth.copy(), differs, grades, pairs.verdicts.undetermined[:1], named, means]


def find_new_rows(silos: Silos, before: Silos, client: str, seed: str) -> np.ndarray:
    """Return which training rows of a client no split of an earlier version has: (rows,) bool.

    Of copies of a row, as many are new as there are more of them in the whole version. Which splits have these is drawn,
    by `seed`, a hexadecimal number, since copies cannot be told apart.

    Raises:
        RefusalError: If rows were removed and many rows have copies, so that new rows are not known.
    """
    train, *others = (_row_keys(silos, client, split) for split in SPLITS)
    earlier = np.concatenate([_row_keys(before, client, split) for split in SPLITS])
    found = copies_that_are_new(train, np.concatenate(others), earlier, np.random.default_rng(int(seed, 16)))
    if found is None:
        raise RefusalError(
            f"client {client}: got removed rows and copies of a tenth of the rows or more, so the client cannot tell which "
            "rows are new. Compare whole versions only."
        )
    return found


def copies_that_are_new(
    train: np.ndarray, others: np.ndarray, earlier: np.ndarray, rng: np.random.Generator
) -> np.ndarray | None:
    """Return which training rows are new: (rows,) bool; None if rows were removed and a tenth or more have copies.

    Args:
        train: The keys of the training rows, equal for copies.
        others: Those of the present version's other rows.
        earlier: Those of all rows of the earlier version.
        rng: Draws which of the copies of a row are new, and so in which split they are.
    """
    parts = [train, others, earlier]
    distinct, index = np.unique(np.concatenate(parts), return_inverse=True)
    ends = np.cumsum([len(part) for part in parts])[:-1]
    in_train, in_others, then = (np.bincount(part, minlength=len(distinct)) for part in np.split(index, ends))
    now = in_train + in_others
    if (then > now).any() and now[(now > 1) | (then > 1)].sum() >= _MOST_COPIES * max(now.sum(), 1):
        return None
    more = np.maximum(now - then, 0)
    new = rng.hypergeometric(more, now - more, in_train)
    order = np.argsort(index[: len(train)], kind="stable")
    of_row = index[: len(train)][order]
    place = np.arange(len(train)) - np.searchsorted(of_row, of_row)
    is_new = np.empty(len(train), bool)
    is_new[order] = place >= (in_train - new)[of_row]
    return is_new


def _row_keys(silos: Silos, client: str, split: str) -> np.ndarray:
    """Hash the rows of a split as they are stored, with labels, and missing values as such: (rows,) uint64.

    Rows of a common split belong to no client, and may have been a client's before.
    """
    folder = Path(silos.folder)
    if silos.common(split):
        return _hashed(*open_common_rows(folder, silos.manifest, split), None)
    parts = [
        _hashed(*open_client(folder, entry, split), open_missing(folder, entry, split))
        for entry in silos.entries(client)
    ]
    return np.concatenate(parts)


def _hashed(x: np.ndarray, y: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
    flat = np.array(x.reshape(len(x), int(np.prod(x.shape[1:]))))
    if missing is not None:
        flat[missing] = 0
        flat = np.concatenate([flat, missing.astype(flat.dtype)], 1)
    rows = (hashlib.blake2b(row.tobytes() + label.tobytes(), digest_size=8) for row, label in zip(flat, y, strict=True))
    return np.frombuffer(b"".join(row.digest() for row in rows), np.uint64)
