"""How rows become clients: the steps of `data.scheme`, one after another.

Missing values of a table for which each client's own mean stands, once it is known which rows it trains on.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from silos.data_params import PARTITIONERS, Assignment, Change, Column, OwnPartitioner, SplitParams, assignment_at
from silos.dataset import (
    SPLITS,
    At,
    Clients,
    Partition,
    Rows,
    blocks,
    labelled,
    natural,
    quantized_codes,
    some,
    split_codes,
)
from silos.partitioners.iid_partitioners import Owners
from silos.partitioners.image_transforms import permute_pixels, rotation
from silos.partitioners.perturbation_params import (
    Fresh,
    HoldOut,
    Imbalance,
    MergeLabels,
    Noise,
    PermuteLabels,
    PermutePixels,
    Rotation,
    Subsample,
)
from silos.partitioners.perturbations import imbalance, merge_labels, noise, permute_labels
from silos.partitioners.splits import (
    fresh,
    hold_out,
    split_rows,
    subsample,
    subsample_source,
    take_common,
    without_effect,
)
from silos.plugin_registry import run_entry
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


_CHANGES: dict[type, Callable[[Any, Partition, At], Partition]] = {
    Rotation: rotation,
    PermutePixels: permute_pixels,
    Noise: noise,
    PermuteLabels: permute_labels,
    MergeLabels: merge_labels,
    Imbalance: imbalance,
    Subsample: subsample,
    HoldOut: hold_out,
    Fresh: fresh,
}


def make_clients(
    rows: Rows, steps: tuple[Assignment | OwnPartitioner | Change, ...], split: SplitParams, seed: int
) -> Partition:
    """The clients that a scheme makes of `rows`, sorted by name (numbers in it by value), each split in three.

    Common rows are taken first, then the step that makes clients deals the others, of which steps before it keep some;
    its clients are split before they are made to differ, so that their test rows are of the law of their training rows.
    """
    place = assignment_at(tuple(steps))
    notes = without_effect(rows, split)
    rows, common = take_common(rows, split, seed)
    dealt = _thinned(rows, steps[:place], split, seed)
    at = At(seed, place, steps[place].kind)
    owners = _deal(steps[place], dealt, at)
    clients = _owned(dealt, owners, at)
    clients = replace(clients, split=split_rows(clients, split, seed))
    left_out = len(rows.y) - len(dealt.y) + int((owners.owner < 0).sum())
    said = (*rows.notes, *notes, *owners.notes)
    made = Partition(clients, list(rows.classes), common, left_out, rows.task, said, rows.features)
    for index, step in enumerate(steps[place + 1 :], start=place + 1):
        _same_units(step, rows, made, At(seed, index, step.kind))
        made = _CHANGES[type(step)](step, made, At(seed, index, step.kind))
    made = impute_means(made)
    lost = [f"The scheme leaves out {made.left_out} rows of the source."] if made.left_out else []
    return replace(made, notes=(*made.notes, *lost))


def _same_units(step: Assignment | OwnPartitioner | Change, rows: Rows, made: Partition, at: At) -> None:
    """UserError for noise, of 255 for pixels, on pixels that an earlier step has made 255ths."""
    if isinstance(step, Noise) and rows.x.dtype == np.uint8 and made.clients.x.dtype != np.uint8:
        raise at.error(
            "comes after noise with clip: false, by which pixels are no longer of 255 as its sd and mean are; give clip: "
            "false to the last noise only."
        )


def _thinned(
    rows: Rows, steps: tuple[Assignment | OwnPartitioner | Change, ...], split: SplitParams, seed: int
) -> Rows:
    """The rows that steps before the one that makes clients keep."""
    for index, step in enumerate(steps):
        assert isinstance(step, Subsample)
        rows = subsample_source(step, rows, split, At(seed, index, step.kind))
    return rows


def _deal(step: Any, rows: Rows, at: At) -> Owners:
    if isinstance(step, OwnPartitioner):
        return _own(step, rows, at)
    deal = PARTITIONERS.find(step.kind)
    if isinstance(step, Column) or step.within is None:
        return cast(Owners, deal(step, rows, at))
    if rows.domain is None:
        raise at.error("deals within domains, and the source has none; drop `within`, or add a column `domain`.")
    domains = sorted(np.unique(rows.domain).tolist(), key=natural)
    if step.clients < len(domains):
        raise at.error(f"has {step.clients} clients for {len(domains)} domains; give each domain a client.")
    owner = np.empty(len(rows.y), np.int64)
    labels: list[str] = []
    notes: list[str] = []
    counts = np.bincount(blocks(step.clients, len(domains)))
    for domain, count in zip(domains, counts.tolist(), strict=True):
        mine = rows.domain == domain
        part = step.model_copy(update={"clients": count})
        dealt = deal(part, rows.take(mine), at.within(domain))
        owner[mine] = np.where(dealt.owner < 0, -1, dealt.owner + len(labels))
        labels += dealt.labels
        notes += dealt.notes
    return Owners.counted(owner, step.clients, labels, notes)


def _own(step: OwnPartitioner, rows: Rows, at: At) -> Owners:
    """What a plugin's partitioner deals; an array is the number of each row's client, from 0, and -1 leaves a row out."""
    owners = run_entry(step, rows=rows, at=at)
    if isinstance(owners, Owners):
        return owners
    owner = np.asarray(owners)
    if owner.shape != rows.y.shape or owner.dtype.kind not in "iu" or owner.min(initial=-1) < -1:
        raise at.error(
            f"deals {owner.shape} {owner.dtype}, and must answer with {rows.y.shape} whole numbers: the number of each "
            "row's client, from 0, or -1."
        )
    return Owners.counted(owner.astype(np.int64), int(owner.max(initial=-1)) + 1)


def _owned(rows: Rows, owners: Owners, at: At) -> Clients:
    """The clients with their rows, each one's in the order of the source."""
    sizes = np.bincount(owners.owner + 1, minlength=len(owners.names) + 1)[1:]
    if not sizes.all():
        name = owners.names[int((sizes == 0).argmax())]
        raise at.error(f"leaves client {name} without rows; lower clients, or give it classes that have rows.")
    if (np.diff(owners.owner, prepend=0) < 0).any():
        order = np.argsort(owners.owner, kind="stable")[-int(sizes.sum()) :]
        rows, owners = rows.take(order), replace(owners, owner=owners.owner[order])
    return Clients(
        names=owners.names,
        domains=[
            labelled(*names) if names[1] else names[0] for names in zip(_laws(rows, owners), owners.labels, strict=True)
        ],
        roles=["federated"] * len(owners.names),
        ends=np.cumsum(sizes),
        x=rows.x,
        y=rows.y,
        split=None if rows.split is None else split_codes(rows.split),
        missing=rows.missing,
    )


def _laws(rows: Rows, owners: Owners) -> list[str]:
    """The domains of each client's rows, which stand together in the order of the clients."""
    if rows.domain is None:
        return [""] * len(owners.names)
    names, codes = quantized_codes(rows.domain)
    pairs = owners.owner * len(names) + codes
    pairs = np.unique(pairs[np.flatnonzero(np.diff(pairs, prepend=-1))])
    held: list[list[str]] = [[] for _ in owners.names]
    for owner, code in zip(*(part.tolist() for part in np.divmod(pairs, len(names))), strict=True):
        held[owner].append(names[code])
    return ["+".join(domains) for domains in held]
