"""Describe data/ in figures and a plot, and list, compare and restore its versions."""

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from flows.core.config.data_settings import as_overrides, settings_between
from flows.core.config.load_config import load_params
from flows.project.project import Project
from flows.project.project_data import exclusive_data_access
from models.privacy_accounting import epsilon
from silos import data_overview
from silos.errors import UserError
from silos.privacy.ledger import Entry
from silos.privacy.owned_source import store_of
from silos.privacy.owner_file import OWNER_FILE, make_store, policy_file, policy_of_run, read_owner_file
from silos.privacy.request_log import forget_missing_requests, read_requests
from silos.privacy.sum_ledger import SumLedger
from silos.privacy.training_ledger import TRAINING
from silos.storage.manifest import ClientEntry, Manifest, read_manifest
from silos.storage.partition_store import open_client
from silos.versioning import data_versions, dvc_files
from silos.versioning import data_versions as changes
from tasks.tracking.plots.silo_figure import Examples, draw_silos
from tasks.tracking.result_types.data_results import (
    LedgerRecord,
    LedgersResult,
    LoggedRequest,
    LoggedVersion,
    RestoredVersion,
    ShownOverview,
    VersionDiff,
    VersionLog,
)

CLIENTS_SHOWN, CLASSES_SHOWN = 20, 10


def overview_with_figure(project: Project) -> ShownOverview:
    """Return the silos' overview with their version, and draw the figure that it names, if matplotlib is installed.

    Of very many clients only some are opened, which `opened` counts, and a few of these are listed. Rows of one's own are
    not read here: their silos report as to a diagnosis, unless the owner's file lets `show` read them. At places they do.

    Raises:
        UserError: If the data are not as recorded.
    """
    silos, folder = project.silos, Path(project.silos.folder)
    entries = data_overview.opened_clients(silos.manifest)
    names = [entry.name for entry in entries]
    checked = names if silos.is_here else []  # a place checks its own rows
    silos.check(checked)
    refused: Mapping[str, str] = {}
    if checked and (
        silos.manifest.is_public or all(policy_of_run(Path(project.ledgers.folder), name).owners_view for name in names)
    ):
        overview, may_draw = data_overview.overview(silos.manifest, folder), True
    else:
        from flows.diagnosis.reported_overview import reported_overview  # imports torch

        (overview, refused), may_draw = reported_overview(project, entries), False
    few = (
        slice(0, CLIENTS_SHOWN) if len(entries) == len(silos.clients) else slice(0, None, len(entries) // CLIENTS_SHOWN)
    )
    figure = project.store.runs / f"show-{silos.manifest.name}.png"
    pictures = examples(silos.manifest, folder, entries[few]) if may_draw else {}
    silos.check(checked)  # the data have not changed since
    is_drawn = find_spec("matplotlib") is not None  # which a place does without
    if is_drawn:
        draw_silos(figure, overview, pictures)
    if len(entries) < len(silos.clients):
        overview["clients"] = overview["clients"][few]
    return {
        **overview,
        "data_version": silos.version,
        "opened": len(entries),
        "reported": not may_draw,
        "refused": dict(refused),
        "figure": str(figure.relative_to(project.root)) if is_drawn else None,
    }


def examples(manifest: Manifest, folder: Path, clients: Sequence[ClientEntry]) -> Examples:
    """Find the first training row of each of the first classes, of these clients.

    Returns an empty mapping if rows are no images, or if no client has such a row.
    """
    if len(manifest.shape) not in (2, 3) or not manifest.classes:
        return {}
    rows = {}
    for client in clients:
        x, y = open_client(folder, client, "train")
        first = [np.flatnonzero(y == label)[:1] for label in range(min(len(manifest.classes), CLASSES_SHOWN))]
        rows[client.name] = [x[at[0]] if len(at) else None for at in first]
    return rows if any(image is not None for images in rows.values() for image in images) else {}


def log(root: Path) -> VersionLog:
    """Return every version that git knows, newest first, and the one that data.dvc records now."""
    versions: list[LoggedVersion] = [
        {
            "revision": v.revision,
            "date": v.date,
            "subject": v.subject,
            "digest": v.digest,
            "partitions": [*v.partitions],
        }
        for v in data_versions.version_log(root)
    ]
    return {"now": dvc_files.recorded_version(root), "versions": versions}


def diff(root: Path, revision: str, to: str | None) -> VersionDiff:
    """Return what changed from `revision` to `to`, or to what data.dvc records now."""
    before = data_versions.find_digest(root, revision)
    after = data_versions.find_digest(root, to) if to else dvc_files.recorded_version(root)
    if after is None:
        raise UserError("data.dvc is missing. Run `siloflow partition` to make data and record their version.")

    def is_open(manifest: Manifest, client: str) -> bool:
        source = manifest.params.get("source", {})
        store = store_of(root, manifest.name, str(source.get("kind")), source.get("path"))
        return manifest.is_public or policy_of_run(store, client).owners_view

    return {"before": before, "after": after, **changes.diff(root, before, after, is_open)}


def use(root: Path, revision: str) -> RestoredVersion:
    """Restore a version of data/, and return what params.yaml must say for a run on it.

    Returns:
        `settings`, to be given by `--set`; `params_differ` has the reason if no settings fit.

    Raises:
        UserError: While a run works on data/.
    """
    with exclusive_data_access(root, f"`siloflow data use {revision}`"):
        digest = data_versions.use_version(root, revision)
    partitions = list(data_versions.partitions(root, digest))
    settings, differ = _params_for(root, partitions)
    return {"digest": digest, "partitions": partitions, "settings": settings, "params_differ": differ}


def ledgers(project: Project, new: bool, keys: bool = False, log: bool = False) -> LedgersResult:
    """Return what each silo reported and may report.

    Args:
        project: The project.
        new: Whether to make the store and ledgers that are missing first.
        keys: Whether to return the keys of secure sums; a silo without a secret gets one.
        log: Whether to return what was asked, reported and refused.

    Raises:
        RefusalError: If the store is missing.
        UserError: If a log is damaged.
    """
    folder, names = Path(project.ledgers.folder), [*project.silos.manifest.names]
    project.silos.must_be_here()  # ledgers lie where rows do
    if new:
        make_store(folder, project.params.data)
        for name in names:
            SumLedger(str(folder), name).forget()
        forget_missing_requests(folder)
    opened = [SumLedger.of(str(folder), name) for name in names]
    return {
        "policy": str(policy_file(folder).relative_to(project.root)),
        "silos": [_reported(ledger, keys) for ledger in opened],
        "unknown": sorted({*read_owner_file(folder / OWNER_FILE).silos} - {*names}),
        "log": _log(folder, opened) if log else [],
    }


def _log(folder: Path, opened: Sequence[SumLedger]) -> list[LoggedRequest]:
    """Return what was asked of the store, and what silos reported and refused, in the order of time."""
    lines, begun = list[LoggedRequest](), dict[int, LoggedRequest]()

    def add(record: Mapping[str, Any], silo: str, asked: str, answer: str) -> LoggedRequest:
        when, by = record["when"], record["by"]
        lines.append(
            LoggedRequest(when=when, by=by, silo=silo, asked=asked, answer=answer, rows=None, rho=None, epsilon=None)
        )
        return lines[-1]

    for number, record in enumerate(read_requests(folder)):
        if "of" in record:
            start = begun.get(record["of"])
            if start is not None and start["when"] == record.get("began"):  # else it began before the log was renewed
                start["answer"] = record["answer"]
        elif "asked" in record:
            begun[number] = add(record, "", record["asked"], record["answer"] or "has not ended, or was killed")
        elif "approved" in record:
            add(record, "", record["approved"], "approved by its owner")
        for silo, why in record.get("refused", {}).items():
            add(record, silo, "report", f"refused: {why}")
    for ledger in opened:
        for entry in [] if ledger.is_missing() else ledger.entries():
            kind = entry.question.rpartition(": ")[0] or "counts and moments"
            answer = f"stood in for by version {entry.earlier[:7]}" if entry.earlier else "reported"
            line = add(vars(entry), ledger.client, f"{kind} {'with' if entry.rho else 'without'} noise", answer)
            line["rho"], line["epsilon"] = entry.rho, epsilon(entry.rho, ledger.policy.delta)
            line["rows"] = ledger.rows_of(entry)
    return sorted(lines, key=lambda line: line["when"])


def _reported(ledger: SumLedger, keys: bool) -> LedgerRecord:
    policy, missing = ledger.policy, ledger.is_missing()
    entries = [] if missing else ledger.entries()
    training = [entry for entry in entries if TRAINING.includes(entry.question)]
    return {
        "name": ledger.client,
        "missing": missing,
        "exact": sum(not entry.rho for entry in entries),
        "noisy": sum(entry.rho > 0 for entry in entries) - len(training),
        "runs": _runs(training),
        "spent": epsilon(math.fsum(entry.rho for entry in entries), policy.delta),
        "last": f"{entries[-1].when}{f' by {entries[-1].by}' * bool(entries[-1].by)}" if entries else "",
        "budget": policy.budget,
        "delta": policy.delta,
        "least_rows": policy.least_rows,
        "least_cell": policy.least_cell,
        "bins": policy.bins,
        "without_noise": policy.without_noise,
        "other_bins": policy.other_bins,
        "other_silos": policy.other_silos,
        "key": ledger.public_key() if keys and not missing else "",
    }


def _runs(entries: Sequence[Entry]) -> int:
    """Return how many runs entries pay for: the first of a question pays for a run, some later ones for one answer."""
    prices: dict[str, list[float]] = {}
    for entry in entries:
        prices.setdefault(entry.question, []).append(entry.rho)
    return sum(math.ceil(math.fsum(own) / max(own) - 1e-9) for own in prices.values())


def _params_for(root: Path, partitions: list[str]) -> tuple[list[str], str | None]:
    """Return the overrides that a run on the current data needs, or the reason why there are none."""
    data = load_params(root).data
    name = data.name if data.name in partitions or len(partitions) != 1 else partitions[0]
    if name not in partitions:
        return [], (
            f"params.yaml: data.name: got {name}, expected {', '.join(partitions) or 'no data'} as in this "
            "version. Correct data.name."
        )
    manifest = read_manifest(root / "data" / name)
    settings = settings_between(data, manifest.params)
    if settings is not None:
        return as_overrides(settings), None
    try:
        dvc_files.must_match_params(manifest, data)
    except UserError as error:
        return [], str(error)
    return [], None
