"""Make clients of rows: run the steps of `data.scheme`, and impute missing values."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from silos.data_params import (
    PARTITIONERS,
    Assignment,
    Change,
    Column,
    Equal,
    Fresh,
    HoldOut,
    Imbalance,
    MergeLabels,
    Noise,
    OwnPartitioner,
    PermuteLabels,
    PermutePixels,
    Quantity,
    Rotation,
    SplitParams,
    Subsample,
    assignment_at,
)
from silos.dataset import (
    SPLITS,
    At,
    Clients,
    Partition,
    Rows,
    contiguous_blocks,
    distinct_values,
    extend_domain,
    natural_sort_key,
    split_codes,
)
from silos.errors import some
from silos.partitioners.copied_rows import copied_row_notes
from silos.partitioners.iid_partitioners import Owners
from silos.partitioners.imputation import impute_means
from silos.partitioners.perturbations import imbalance, merge_labels, noise, permute_labels, permute_pixels, rotation
from silos.partitioners.splits import (
    check_marked_units,
    fresh,
    hold_out,
    split_rows,
    subsample,
    subsample_source,
    take_common,
    without_effect,
)
from silos.plugin_registry import run_entry

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
    """Make clients of `rows` by the steps of a scheme, sorted by name (numbers by value), each with its splits.

    Common rows are taken first. Then the step that makes clients deals the rows that earlier steps keep. The clients
    are split before later steps change them, so that test rows follow the distribution of training rows.
    """
    position = assignment_at(tuple(steps))
    check_marked_units(rows)
    notes = [*without_effect(rows, split), *_unit_notes(rows)]
    rows, common = take_common(rows, split, seed)
    dealt = rows
    for index, step in enumerate(steps[:position]):
        assert isinstance(step, Subsample)
        dealt = subsample_source(step, dealt, split, At(seed, index, step.kind))
    step = steps[position]
    assert isinstance(step, Assignment | OwnPartitioner), "the step at this position deals rows"
    at = At(seed, position, step.kind)
    owners = _deal(step, dealt, at)
    notes += _shared_unit_notes(dealt, owners, step, at)
    clients = _clients_of_owners(dealt, owners, at)
    if isinstance(step, Column) and rows.unit is None and clients.x.ndim == 2:
        notes += copied_row_notes(clients)
    clients = replace(clients, split=split_rows(clients, split, seed))
    left_out = len(rows.y) - len(dealt.y) + int((owners.owner < 0).sum())
    all_notes = (*rows.notes, *notes, *owners.notes)
    raw = None if rows.cells is None else rows.cells.columns
    partition = Partition(clients, list(rows.classes), common, left_out, rows.task, all_notes, rows.features, raw)
    for index, step in enumerate(steps[position + 1 :], start=position + 1):
        _check_noise_units(step, rows, partition, At(seed, index, step.kind))
        partition = _CHANGES[type(step)](step, partition, At(seed, index, step.kind))
    # last, since the mean is that of the training rows that a client has in the end
    partition = impute_means(partition)
    partition = replace(partition, notes=(*partition.notes, *_untrained_notes(partition)))
    left_out_notes = [f"The scheme leaves out {partition.left_out} rows of the source."] if partition.left_out else []
    return replace(partition, notes=(*partition.notes, *left_out_notes))


def _untrained_notes(partition: Partition) -> list[str]:
    """Return notes on classes and categories that test rows have, and no training row of a federated client."""
    clients, common = partition.clients, partition.common
    assert clients.split is not None
    federated = np.array(clients.roles)[clients.owner] == "federated"
    train, test = federated & (clients.split == SPLITS.index("train")), clients.split == SPLITS.index("test")
    y, common_test = clients.y, None if common is None else common.take(np.asarray(common.split == "test"))
    notes = []
    if partition.classes:
        counts = np.bincount(y[test], minlength=len(partition.classes))
        counts += 0 if common_test is None else np.bincount(common_test.y, minlength=len(counts))
        learnt = np.bincount(y[train], minlength=len(counts)) > 0
        absent = [f"{partition.classes[i]!r} ({counts[i]:,})" for i in np.flatnonzero((counts > 0) & ~learnt).tolist()]
        notes += [f"no training row has the class {some(absent, 4)}, which test rows have"] if absent else []
    if len(partition.classes) == 1:
        notes.append(
            f"every row has the class {partition.classes[0]!r}, so there is nothing to predict: name another column as the "
            "label"
        )
    absent = []
    for index, feature in enumerate(partition.features):
        if feature.categories == (0.0, 1.0) and not clients.x[train, index].any():
            count = np.count_nonzero(clients.x[test, index])
            count += 0 if common_test is None else np.count_nonzero(common_test.x[:, index])
            absent += [f"{feature.name!r} ({count:,})"] if count else []
    notes += [f"no training row has the category {some(absent, 4)}, which test rows have"] if absent else []
    return notes


def _unit_notes(rows: Rows) -> list[str]:
    if rows.unit is None:
        return []
    units = len(np.unique(rows.unit))
    return [f"unit: {len(rows.y):,} rows of {units:,} units, each whole in training, validation or test"]


def _shared_unit_notes(rows: Rows, owners: Owners, step: Assignment | OwnPartitioner, at: At) -> list[str]:
    """Return a note if units have rows at several clients, which natural clients or domains may give."""
    if rows.unit is None:
        return []
    units, number = np.unique(rows.unit, return_inverse=True)
    dealt = owners.owner >= 0
    pairs = np.unique(np.stack([number[dealt], owners.owner[dealt]]), axis=1)
    shared = int((np.bincount(pairs[0]) > 1).sum())
    if shared and not isinstance(step, Column) and getattr(step, "within", None) is None:
        raise at.error(
            f"got {shared:,} of {len(units):,} units with rows at several clients, expected whole units. {_WHOLE}."
        )
    return (
        [f"unit: {shared:,} of {len(units):,} have rows at several clients, and count once at each"] if shared else []
    )


_WHOLE = "Deal whole units by `column`, `equal` or `quantity`, or leave out data.source.unit"


def _check_noise_units(step: Assignment | OwnPartitioner | Change, rows: Rows, partition: Partition, at: At) -> None:
    """Raise UserError for noise, in units of 0 to 255, on pixels that an earlier step divided by 255."""
    if isinstance(step, Noise) and rows.x.dtype == np.uint8 and partition.clients.x.dtype != np.uint8:
        raise at.error(
            "got this step after noise with clip: false, expected it before, since its sd and mean are in pixel units "
            "of 255. Set clip: false only in the last noise step."
        )


def _deal(step: Assignment | OwnPartitioner, rows: Rows, at: At) -> Owners:
    if isinstance(step, OwnPartitioner):
        return _deal_by_plugin(step, rows, at)
    if rows.unit is not None and not isinstance(step, Column | Equal | Quantity):
        raise at.error(
            f"got a step that deals single rows, expected one that keeps the rows of a unit together. {_WHOLE}."
        )
    deal = PARTITIONERS.find(step.kind)
    if isinstance(step, Column) or step.within is None:
        return cast(Owners, deal(step, rows, at))
    if rows.domain is None:
        raise at.error(
            "within: got a source without domains, expected a column `domain`. Drop within, or add the column."
        )
    domains = sorted(np.unique(rows.domain).tolist(), key=natural_sort_key)
    if step.clients < len(domains):
        raise at.error(
            f"clients: got {step.clients} for {len(domains)} domains, expected at least one client a "
            "domain. Raise clients."
        )
    owner = np.empty(len(rows.y), np.int64)
    labels: list[str] = []
    notes: list[str] = []
    counts = np.bincount(contiguous_blocks(step.clients, len(domains)))
    for domain, count in zip(domains, counts.tolist(), strict=True):
        in_domain = rows.domain == domain
        domain_step = step.model_copy(update={"clients": count})
        dealt = deal(domain_step, rows.take(in_domain), at.within(domain))
        owner[in_domain] = np.where(dealt.owner < 0, -1, dealt.owner + len(labels))
        labels += dealt.labels
        notes += dealt.notes
    return Owners.counted(owner, step.clients, labels, notes)


def _deal_by_plugin(step: OwnPartitioner, rows: Rows, at: At) -> Owners:
    """Deal rows by a plugin's partitioner.

    The plugin returns Owners, or an array with the index of each row's client, from 0, or -1 to leave a row out.
    """
    owners = run_entry(step, rows=rows, at=at)
    if isinstance(owners, Owners):
        return owners
    owner = np.asarray(owners)
    if owner.shape != rows.y.shape or owner.dtype.kind not in "iu" or owner.min(initial=-1) < -1:
        raise at.error(
            f"got {owner.shape} {owner.dtype} from the partitioner, expected {rows.y.shape} whole numbers, the "
            "index of each row's client from 0, or -1 to leave it out. Correct the plugin."
        )
    return Owners.counted(owner.astype(np.int64), int(owner.max(initial=-1)) + 1)


def _clients_of_owners(rows: Rows, owners: Owners, at: At) -> Clients:
    """Return the clients with their rows, each in the order of the source."""
    sizes = np.bincount(owners.owner + 1, minlength=len(owners.names) + 1)[1:]
    if not sizes.all():
        name = owners.names[int((sizes == 0).argmax())]
        raise at.error(
            f"got no rows for client {name}, expected at least one. Lower clients, or give the client "
            "classes that have rows."
        )
    if (np.diff(owners.owner, prepend=0) < 0).any():
        order = np.argsort(owners.owner, kind="stable")[-int(sizes.sum()) :]
        rows, owners = rows.take(order), replace(owners, owner=owners.owner[order])
    return Clients(
        names=owners.names,
        domains=[
            extend_domain(*names) if names[1] else names[0]
            for names in zip(_domains_by_client(rows, owners), owners.labels, strict=True)
        ],
        roles=["federated"] * len(owners.names),
        ends=np.cumsum(sizes),
        x=rows.x,
        y=rows.y,
        split=None if rows.split is None else split_codes(rows.split),
        missing=rows.missing,
        unit=rows.unit,
        cells=None if rows.cells is None else rows.cells.hashes,
    )


def _domains_by_client(rows: Rows, owners: Owners) -> list[str]:
    """Return the domains of each client's rows; rows are sorted by client."""
    if rows.domain is None:
        return [""] * len(owners.names)
    names, codes = distinct_values(rows.domain)
    pairs = owners.owner * len(names) + codes
    pairs = np.unique(pairs[np.flatnonzero(np.diff(pairs, prepend=-1))])
    domains_of: list[list[str]] = [[] for _ in owners.names]
    for owner, code in zip(*(indices.tolist() for indices in np.divmod(pairs, len(names))), strict=True):
        domains_of[owner].append(names[code])
    return ["+".join(domains) for domains in domains_of]
