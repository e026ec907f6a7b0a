"""Statistics of the silos: row counts, label shares, and how far the clients differ."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from silos.dataset import SPLITS, natural_sort_key
from silos.schema import is_table
from silos.storage.manifest import ClientEntry, Manifest
from silos.storage.partition_store import open_client

Shares = dict[str, float | None]
"""The share of rows by class, null if the silo withholds it; empty for a regression, or if it withholds all."""


class TargetMoments(TypedDict):
    """The mean and the standard deviation of a client's targets."""

    mean: float
    standard_deviation: float


class ClientOverview(TypedDict):
    """A client's rows by split, and statistics over all its splits, with pixels scaled to [0, 1].

    Of data of one's own they are what the silo's ledger reports of its training rows; null where it reports nothing.
    """

    name: str
    domain: str
    role: str
    rows: dict[str, int]
    label_shares: Shares
    target: TargetMoments | None
    """Null unless the task is a regression."""
    mean: float | None
    standard_deviation: float | None


class DomainOverview(TypedDict):
    """All clients of a domain and their rows by split; label shares and the mean target are of the opened clients."""

    domain: str
    clients: int
    rows: dict[str, int]
    label_shares: Shares
    target: float | None
    """Null unless the task is a regression, and without an opened client."""


class SizeRange(TypedDict):
    """The numbers of rows of a client in a split."""

    least: int
    median: float
    most: int


class Overview(TypedDict):
    """Clients and how they differ; `overview` explains what each number covers."""

    name: str
    count: int
    mixed_units: bool
    rows: dict[str, int]
    sizes: dict[str, SizeRange]
    laws: list[DomainOverview]
    common: dict[str, int]
    left_out: int
    classes: list[str]
    shape: list[int]
    clients: list[ClientOverview]
    label_shares: Shares
    label_spread: float | None
    feature_spread: float | None
    target_spread: float | None


MAX_OPENED = 1_000  # clients that are opened at most
_LAWS = 30  # domains that are listed at most


def opened_clients(manifest: Manifest) -> list[ClientEntry]:
    """Return the clients that an overview opens: all, or MAX_OPENED of them, evenly spaced in their list."""
    count = len(manifest.clients)
    return [manifest.clients[int(index)] for index in np.linspace(0, count - 1, min(count, MAX_OPENED)).round()]


def overview(manifest: Manifest, folder: Path) -> Overview:
    """Summarise the clients and how they differ, ready for JSON.

    `count`, `rows`, `sizes` (the least, the median and the largest number of rows of a client, by split) and the counts
    of `laws` cover all clients. Statistics of labels, targets and spread cover the opened clients, over all their
    splits, with pixels (uint8) scaled to [0, 1] as in training. `common` counts the rows that no client owns, by split;
    `left_out` counts the rows that the scheme dropped. `mixed_units` says that rows are tables of several columns, over
    which no mean has a meaning.

    - `label_spread`, in [0, 1]: the mean over clients of the total variation distance (half the sum of
      absolute differences) between the client's label shares and those of all rows together. None for
      regression.
    - `feature_spread`, 0 or more: sqrt(mean over clients of |m_c − m|² / s²), with m_c the mean row of client
      c, m the mean of all N rows, and s² = (1/N) Σ_c Σ_(x in c) |x − m_c|² the variance within clients.
      It is 0 if all clients have the same mean. It is 1 if client means lie as far from the common mean as
      rows lie from their client's mean. None if rows do not vary within clients but clients differ.
    - `target_spread`: the same of y for regression; else None.
    """
    shares, means, within = [], [], 0.0
    clients, targets = [], []
    entries = opened_clients(manifest)
    # one client's rows are in memory at a time; only its mean, shares and labels are kept
    for entry in entries:
        x, y = _load(manifest, folder, entry)
        mean = x.mean(axis=0)
        within += float(((x - mean) ** 2).sum())
        shares.append(_label_shares(manifest, y))
        targets.append(y)
        means.append(mean)
        clients.append(_client_overview(manifest, entry, x, y))
    counts = np.array([len(y) for y in targets])
    weights = counts / sum(counts)
    pooled_share = weights @ np.array(shares)
    pooled_mean = weights @ np.array(means)
    between = float(((np.array(means) - pooled_mean) ** 2).sum(axis=1).mean())
    label_spread = float(np.abs(np.array(shares) - pooled_share).sum(axis=1).mean() / 2)
    table = manifest.clients
    return {
        "name": manifest.name,
        "count": len(table),
        "mixed_units": is_table(manifest.shape, manifest.dtype) and math.prod(manifest.shape) > 1,
        "rows": dict(zip(SPLITS, table.rows.sum(axis=0, dtype=int).tolist(), strict=True)),
        "sizes": dict(zip(SPLITS, map(size_range, table.rows.T), strict=True)),
        "laws": _domain_statistics(manifest, entries, shares, targets),
        "common": dict(manifest.common),
        "left_out": manifest.left_out,
        "classes": list(manifest.classes),
        "shape": list(manifest.shape),
        "clients": clients,
        "label_shares": dict(zip(manifest.classes, pooled_share.tolist(), strict=True)),
        "label_spread": label_spread if manifest.classes else None,
        "feature_spread": relative_spread(between, within / sum(counts)),
        "target_spread": None if manifest.classes else _target_spread(targets),
    }


def relative_spread(between: float, within: float) -> float | None:
    """Return the root of the variation between clients as a share of that within them; None without the latter."""
    if within > 0:
        return float(np.sqrt(between / within))
    return 0.0 if between == 0 else None


def size_range(counts: np.ndarray) -> SizeRange:
    """Return the least, the median and the largest number of rows of a client, counts (clients,)."""
    return {"least": int(counts.min()), "median": float(np.median(counts)), "most": int(counts.max())}


def client_overview(manifest: Manifest, folder: Path, entry: ClientEntry) -> ClientOverview:
    """Open one client, and return its entry in an overview."""
    return _client_overview(manifest, entry, *_load(manifest, folder, entry))


def _client_overview(manifest: Manifest, entry: ClientEntry, x: np.ndarray, y: np.ndarray) -> ClientOverview:
    return {
        "name": entry.name,
        "domain": entry.domain,
        "role": entry.role,
        "rows": dict(entry.rows),
        "label_shares": dict(zip(manifest.classes, _label_shares(manifest, y).tolist(), strict=True)),
        "target": None if manifest.classes else {"mean": float(y.mean()), "standard_deviation": float(y.std())},
        "mean": float(x.mean()),
        "standard_deviation": float(x.std()),
    }


def _domain_statistics(
    manifest: Manifest, entries: Sequence[ClientEntry], shares: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[DomainOverview]:
    """Count clients and rows of the first domains; average labels or targets over their opened clients."""
    table, statistics = manifest.clients, list[DomainOverview]()
    clients = np.bincount(table.domain, minlength=len(table.domains))
    for domain in sorted(table.domains, key=natural_sort_key)[:_LAWS]:
        code = table.domains.index(domain)
        members = [index for index, entry in enumerate(entries) if entry.domain == domain]
        counts = np.array([len(targets[index]) for index in members])
        share = counts @ np.array([shares[index] for index in members]) / counts.sum() if members else np.empty(0)
        statistics.append(
            {
                "domain": domain,
                "clients": int(clients[code]),
                "rows": dict(
                    zip(SPLITS, table.rows[table.domain == code].sum(axis=0, dtype=int).tolist(), strict=True)
                ),
                "label_shares": dict(zip(manifest.classes, share.tolist(), strict=False)),
                "target": float(np.concatenate([targets[index] for index in members]).mean())
                if members and not manifest.classes
                else None,
            }
        )
    return statistics


def _load(manifest: Manifest, folder: Path, entry: ClientEntry) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's rows, (rows, features) float64, and its labels, or its targets as float64."""
    parts = [open_client(folder, entry, split) for split in SPLITS if entry.rows[split]]
    x = np.concatenate([part[0] for part in parts]).astype(np.float64)
    x = x.reshape(len(x), -1) / (255 if manifest.dtype == "uint8" else 1)
    y = np.concatenate([part[1] for part in parts])
    return x, y if manifest.classes else y.astype(np.float64)


def _label_shares(manifest: Manifest, labels: np.ndarray) -> np.ndarray:
    """Return the share of each class; empty for regression."""
    if not manifest.classes:
        return np.empty(0)
    return np.bincount(labels, minlength=len(manifest.classes)) / len(labels)


def _target_spread(targets: list[np.ndarray]) -> float | None:
    """See `overview`; targets: (rows,) float64 of each client."""
    means = np.array([y.mean() for y in targets])
    pooled = np.concatenate(targets)
    within = sum(float(((y - mean) ** 2).sum()) for y, mean in zip(targets, means, strict=True))
    return relative_spread(float(((means - pooled.mean()) ** 2).mean()), within / len(pooled))
