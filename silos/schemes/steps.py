"""How rows become clients: the steps of `data.scheme`, one after another."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from silos.data_params import SplitParams
from silos.rows import SPLITS, At, ClientRows, Partition, Rows, blocks, labelled, natural
from silos.schemes.change import imbalance, merge_labels, noise, permute_labels
from silos.schemes.change_params import (
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
from silos.schemes.deal import Owners, column, equal, quantity
from silos.schemes.labels import balanced, classes_per_cluster, dirichlet, shards
from silos.schemes.pixels import permute_pixels, rotation
from silos.schemes.roles import fresh, hold_out
from silos.schemes.scheme_params import (
    Assignment,
    Balanced,
    Change,
    ClassesPerCluster,
    Column,
    Dirichlet,
    Equal,
    Quantity,
    Shards,
    assignment_at,
)
from silos.schemes.splits import split_rows, take_common, without_effect
from silos.schemes.subsample import subsample, subsample_source

_DEALS: dict[type, Callable[[Any, Rows, At], Owners]] = {
    Column: column,
    Equal: equal,
    Quantity: quantity,
    Dirichlet: dirichlet,
    Shards: shards,
    Balanced: balanced,
    ClassesPerCluster: classes_per_cluster,
}
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


def make_clients(rows: Rows, steps: tuple[Assignment | Change, ...], split: SplitParams, seed: int) -> Partition:
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
    clients = [_split(client, split, seed) for client in _owned(dealt, owners, at)]
    left_out = len(rows.y) - len(dealt.y) + int((owners.owner < 0).sum())
    said = (*rows.notes, *notes, *owners.notes)
    made = Partition(clients, list(rows.classes), common, left_out, rows.task, said, rows.features)
    for index, step in enumerate(steps[place + 1 :], start=place + 1):
        _same_units(step, rows, made, At(seed, index, step.kind))
        made = _CHANGES[type(step)](step, made, At(seed, index, step.kind))
    lost = [f"The scheme leaves out {made.left_out} rows of the source."] if made.left_out else []
    return replace(made, notes=(*made.notes, *lost))


def _same_units(step: Assignment | Change, rows: Rows, made: Partition, at: At) -> None:
    """UserError for noise, of 255 for pixels, on pixels that an earlier step has made 255ths."""
    if isinstance(step, Noise) and rows.x.dtype == np.uint8 and made.clients[0].x.dtype != np.uint8:
        raise at.error(
            "comes after noise with clip: false, by which pixels are no longer of 255 as its sd and mean are; give clip: "
            "false to the last noise only."
        )


def _thinned(rows: Rows, steps: tuple[Assignment | Change, ...], split: SplitParams, seed: int) -> Rows:
    """The rows that steps before the one that makes clients keep."""
    for index, step in enumerate(steps):
        assert isinstance(step, Subsample)
        rows = subsample_source(step, rows, split, At(seed, index, step.kind))
    return rows


def _deal(step: Any, rows: Rows, at: At) -> Owners:
    if isinstance(step, Column) or step.within is None:
        return _DEALS[type(step)](step, rows, at)
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
        dealt = _DEALS[type(step)](part, rows.take(mine), at.within(domain))
        owner[mine] = np.where(dealt.owner < 0, -1, dealt.owner + len(labels))
        labels += dealt.labels
        notes += dealt.notes
    return Owners.counted(owner, step.clients, labels, notes)


def _owned(rows: Rows, owners: Owners, at: At) -> list[ClientRows]:
    order = np.argsort(owners.owner, kind="stable")
    ends = np.searchsorted(owners.owner[order], np.arange(len(owners.names) + 1))
    clients = []
    for index, (name, label) in enumerate(zip(owners.names, owners.labels, strict=True)):
        mine = order[ends[index] : ends[index + 1]]
        if len(mine) == 0:
            raise at.error(f"leaves client {name} without rows; lower clients, or give it classes that have rows.")
        domains = [] if rows.domain is None else sorted(set(rows.domain[mine].tolist()), key=natural)
        domain = labelled("+".join(domains), label) if label else "+".join(domains)
        own = rows.take(mine)
        clients.append(ClientRows(name, domain, own.x, own.y, own.split, missing=own.missing))
    return clients


def _split(client: ClientRows, params: SplitParams, seed: int) -> ClientRows:
    split = np.empty(len(client.y), dtype="<U10")
    for name, mine in split_rows(client, params, seed).items():
        split[mine] = name
    assert set(np.unique(split)) <= set(SPLITS)
    return replace(client, split=split)
