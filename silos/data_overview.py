"""What the silos look like: counts, label shares and how far the clients are apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from silos.dataset import SPLITS, natural
from silos.storage.partition_store import ClientEntry, Manifest, open_client

MANY = 1_000  # clients up to which all are opened; of more, as many are
_LAWS = 30  # that are told of


def heterogeneity_of(manifest: Manifest) -> list[ClientEntry]:
    """The clients that an overview opens: all, or of very many as many as it takes, evenly from their list."""
    count = len(manifest.clients)
    return [manifest.clients[int(at)] for at in np.linspace(0, count - 1, min(count, MANY)).round()]


def overview(manifest: Manifest, folder: Path) -> dict[str, Any]:
    """Figures of the clients that are looked at and of their spread, ready for JSON; of all where it says so.

    Over all splits of a client; pixels (uint8) in [0, 1], as clients train on them. `common` counts the rows
    that no client owns, by split, and `left_out` those that the scheme dropped. `count`, `rows`, `sizes` (the least, the
    median and the largest number of rows of a client, by split) and the numbers of `laws` are of all clients; what is said
    of labels, targets and spread is of those that are opened.

    - `label_spread`, in [0, 1]: the mean over clients of the total variation distance (half the sum of
      absolute differences) between the client's label shares and those of all rows together. None where the
      targets are numbers.
    - `feature_spread`, 0 or more: sqrt(mean over clients of |m_c − m|² / s²), with m_c the mean row of client
      c, m the mean of all N rows, and s² = (1/N) Σ_c Σ_(x in c) |x − m_c|² the variance within clients.
      So it is 0 where all clients have the same mean, and 1 where client means lie as far from the common one
      as rows lie from their client's. None where rows do not vary within clients but clients differ.
    - `target_spread`: the same of y, where the targets are numbers; else None.
    """
    shares, means, within = [], [], 0.0
    clients, targets = [], []
    entries = heterogeneity_of(manifest)
    for entry in entries:
        x, y = _opened(manifest, folder, entry)
        mean = x.mean(axis=0)
        within += float(((x - mean) ** 2).sum())
        shares.append(_shares(manifest, y))
        targets.append(y)
        means.append(mean)
        clients.append(_figures(manifest, entry, x, y))
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
        "rows": dict(zip(SPLITS, table.rows.sum(axis=0, dtype=int).tolist(), strict=True)),
        "sizes": dict(zip(SPLITS, map(_sizes, table.rows.T), strict=True)),
        "laws": _laws(manifest, entries, shares, targets),
        "common": dict(manifest.common),
        "left_out": manifest.left_out,
        "classes": list(manifest.classes),
        "shape": list(manifest.shape),
        "clients": clients,
        "label_shares": dict(zip(manifest.classes, pooled_share.tolist(), strict=True)),
        "label_spread": label_spread if manifest.classes else None,
        "feature_spread": _relative(between, within / sum(counts)),
        "target_spread": None if manifest.classes else _target_spread(targets),
    }


def figures(manifest: Manifest, folder: Path, entry: ClientEntry) -> dict[str, Any]:
    """What an overview says of one client."""
    return _figures(manifest, entry, *_opened(manifest, folder, entry))


def _figures(manifest: Manifest, entry: ClientEntry, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {
        "name": entry.name,
        "domain": entry.domain,
        "role": entry.role,
        "rows": dict(entry.rows),
        "label_shares": dict(zip(manifest.classes, _shares(manifest, y).tolist(), strict=True)),
        "target": None if manifest.classes else {"mean": float(y.mean()), "standard_deviation": float(y.std())},
        "mean": float(x.mean()),
        "standard_deviation": float(x.std()),
    }


def _sizes(rows: np.ndarray) -> dict[str, float]:
    return {"least": int(rows.min()), "median": float(np.median(rows)), "most": int(rows.max())}


def _laws(
    manifest: Manifest, entries: Sequence[ClientEntry], shares: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> list[dict[str, Any]]:
    """Of the first laws: their clients and rows, and of those of these clients the label shares or the mean target."""
    table, laws = manifest.clients, []
    clients = np.bincount(table.domain, minlength=len(table.domains))
    for domain in sorted(table.domains, key=natural)[:_LAWS]:
        code = table.domains.index(domain)
        mine = [at for at, entry in enumerate(entries) if entry.domain == domain]
        counts = np.array([len(targets[at]) for at in mine])
        share = counts @ np.array([shares[at] for at in mine]) / counts.sum() if mine else np.empty(0)
        laws.append(
            {
                "domain": domain,
                "clients": int(clients[code]),
                "rows": dict(
                    zip(SPLITS, table.rows[table.domain == code].sum(axis=0, dtype=int).tolist(), strict=True)
                ),
                "label_shares": dict(zip(manifest.classes, share.tolist(), strict=False)),
                "target": float(np.concatenate([targets[at] for at in mine]).mean())
                if mine and not manifest.classes
                else None,
            }
        )
    return laws


def _opened(manifest: Manifest, folder: Path, entry: ClientEntry) -> tuple[np.ndarray, np.ndarray]:
    """A client's rows, (rows, features) float64, and their labels, or targets in float64."""
    parts = [open_client(folder, entry, split) for split in SPLITS if entry.rows[split]]
    x = np.concatenate([part[0] for part in parts]).astype(np.float64)
    x = x.reshape(len(x), -1) / (255 if manifest.dtype == "uint8" else 1)
    y = np.concatenate([part[1] for part in parts])
    return x, y if manifest.classes else y.astype(np.float64)


def _shares(manifest: Manifest, labels: np.ndarray) -> np.ndarray:
    """Of each class; none where the targets are numbers."""
    if not manifest.classes:
        return np.empty(0)
    return np.bincount(labels, minlength=len(manifest.classes)) / len(labels)


def _target_spread(targets: list[np.ndarray]) -> float | None:
    """See `overview`; targets: (rows,) float64 of each client."""
    means = np.array([y.mean() for y in targets])
    everything = np.concatenate(targets)
    within = sum(float(((y - m) ** 2).sum()) for y, m in zip(targets, means, strict=True))
    return _relative(float(((means - everything.mean()) ** 2).mean()), within / len(everything))


def _relative(between: float, within: float) -> float | None:
    if within > 0:
        return float(np.sqrt(between / within))
    return 0.0 if between == 0 else None
