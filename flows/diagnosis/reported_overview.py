"""The overview that `siloflow show` prints of data of one's own: what the silos' ledgers report of their training rows.

The silos are asked for the moments by class that a diagnosis asks for first, so that the answers reveal nothing more.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flows.diagnosis.query_clients import collect_answers, moments_query
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from models.diagnosis.client_summaries.client_summary import mixture
from silos.data_overview import (
    ClientOverview,
    DomainOverview,
    Overview,
    Shares,
    TargetMoments,
    relative_spread,
    size_range,
)
from silos.dataset import SPLITS, natural_sort_key
from silos.errors import UserError
from silos.schema import is_table
from silos.storage.manifest import ClientEntry, Manifest
from tasks.diagnosis.report_summary import report_summary
from tasks.messages.statistics_messages import ShiftNumbers

_LAWS = 30  # domains that are listed at most


def reported_overview(project: Project, entries: Sequence[ClientEntry]) -> tuple[Overview, Mapping[str, str]]:
    """Return the overview of the silos in terms of what these report, and why others report nothing.

    Label shares are of a client's training rows; a class that it withholds has null. A client that refuses has its
    numbers of rows only.

    Args:
        project: The project, whose data are its silos' own.
        entries: The clients to ask.
    """
    silos = project.silos
    manifest, private = silos.manifest, project.ledgers
    query = moments_query(silos)
    try:
        asked = silos.select([entry.name for entry in entries])
        received, refusals = collect_answers(
            plain_runner(project), report_summary, asked, private=private, query=query, command="show"
        )
    except UserError as error:  # the owner's file cannot be read
        received, refusals = [], dict.fromkeys([entry.name for entry in entries], str(error))
    labels, moments = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for message in received:
        assert isinstance(message, ShiftNumbers), "without noise"
        labels |= dict(zip(message.clients, message.labels.numpy(), strict=True))
        moments |= dict(zip(message.clients, mixture(message.moments.numpy()), strict=True))
    clients = [_client(manifest, entry, labels.get(entry.name), moments.get(entry.name)) for entry in entries]
    pooled = _pooled(manifest, list(labels.values()))
    table, features = manifest.clients, len(query.layout.names) - bool(query.targets)
    is_flat = is_table(manifest.shape, manifest.dtype)
    overview: Overview = {
        "name": manifest.name,
        "count": len(table),
        "mixed_units": is_flat and features > 1,
        "rows": dict(zip(SPLITS, table.rows.sum(axis=0, dtype=int).tolist(), strict=True)),
        "sizes": dict(zip(SPLITS, map(size_range, table.rows.T), strict=True)),
        "laws": _domains(manifest, entries, clients, labels),
        "common": dict(manifest.common),
        "left_out": manifest.left_out,
        "classes": list(manifest.classes),
        "shape": list(manifest.shape),
        "clients": clients,
        "label_shares": pooled,
        "label_spread": _label_spread(clients, pooled) if manifest.classes else None,
        "feature_spread": _spread([each[:features] for each in moments.values()]) if is_flat else None,
        "target_spread": None if manifest.classes else _spread([each[features:] for each in moments.values()]),
    }
    return overview, refusals


def _client(
    manifest: Manifest, entry: ClientEntry, labels: np.ndarray | None, moments: np.ndarray | None
) -> ClientOverview:
    """Return a client's entry: labels (classes,) numbers of rows; moments (features, 5), those of a table."""
    mean, deviation = None, None
    target: TargetMoments | None = None
    if moments is not None and is_table(manifest.shape, manifest.dtype):
        if not manifest.classes and np.isfinite(moments[-1, 1]):
            target = {"mean": float(moments[-1, 1]), "standard_deviation": float(moments[-1, 2])}
        if manifest.shape == (1,) and np.isfinite(moments[0, 1]):
            mean, deviation = float(moments[0, 1]), float(moments[0, 2])
    return {
        "name": entry.name,
        "domain": entry.domain,
        "role": entry.role,
        "rows": dict(entry.rows),
        "label_shares": {} if labels is None or not manifest.classes else _shares(manifest, labels),
        "target": target,
        "mean": mean,
        "standard_deviation": deviation,
    }


def _shares(manifest: Manifest, labels: np.ndarray) -> Shares:
    """Return the shares of classes, (classes,) numbers of rows, NaN if withheld: of the rows of all reported classes."""
    total = float(np.nansum(labels))
    values = [
        None if np.isnan(count) or not total else float(count / total) for count in labels[: len(manifest.classes)]
    ]
    return dict(zip(manifest.classes, values, strict=True))


def _pooled(manifest: Manifest, labels: Sequence[np.ndarray]) -> Shares:
    if not labels or not manifest.classes:
        return {}
    stacked = np.stack(labels)
    counts = np.where(np.isnan(stacked).all(0), np.nan, np.nansum(stacked, 0))
    return _shares(manifest, counts)


def _label_spread(clients: Sequence[ClientOverview], pooled: Shares) -> float | None:
    """Return the mean distance of the clients' reported shares from those of all; None if no client reports any."""
    found = [
        sum(abs((share or 0.0) - (pooled[name] or 0.0)) for name, share in client["label_shares"].items()) / 2
        for client in clients
        if client["label_shares"]
    ]
    return float(np.mean(found)) if found else None


def _spread(moments: Sequence[np.ndarray]) -> float | None:
    """Return the relative spread of clients' means; moments: for each client (columns, 5)."""
    known = np.stack(moments) if moments else np.zeros((0, 1, 5))
    known = known[np.isfinite(known[..., 1:3]).all((1, 2))]
    if not len(known):
        return None
    rows, means, deviations = known[..., 0], known[..., 1], known[..., 2]
    pooled = (rows * means).sum(0) / rows.sum(0)
    within = float(((rows - 1) * deviations**2).sum() / rows[:, 0].sum())
    return relative_spread(float(((means - pooled) ** 2).sum(1).mean()), within)


def _domains(
    manifest: Manifest,
    entries: Sequence[ClientEntry],
    clients: Sequence[ClientOverview],
    labels: Mapping[str, np.ndarray],
) -> list[DomainOverview]:
    table, found = manifest.clients, list[DomainOverview]()
    for domain in sorted(table.domains, key=natural_sort_key)[:_LAWS]:
        inside = table.domain == table.domains.index(domain)
        members = [client for client, entry in zip(clients, entries, strict=True) if entry.domain == domain]
        targets = [(each["target"]["mean"], each["rows"]["train"]) for each in members if each["target"]]
        rows = sum(count for _, count in targets)
        found.append(
            {
                "domain": domain,
                "clients": int(inside.sum()),
                "rows": dict(zip(SPLITS, table.rows[inside].sum(axis=0, dtype=int).tolist(), strict=True)),
                "label_shares": _pooled(manifest, [labels[c["name"]] for c in members if c["name"] in labels]),
                "target": sum(mean * count for mean, count in targets) / rows if rows else None,
            }
        )
    return found
