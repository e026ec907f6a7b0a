"""`siloflow data`: the versions of data/, what changed between two, and the way back to one."""

from pathlib import Path
from typing import Any

from flows.experiment.project import changing
from flows.experiment.recipe_settings import as_overrides, settings_between
from flows.params_file import read
from silos.errors import UserError
from silos.storage.partition_store import read_manifest
from silos.versioning import diff as changes
from silos.versioning import dvc_files, history


def log(root: Path) -> dict[str, Any]:
    """Every version that git knows, newest first, and the one that data.dvc records now."""
    versions = [
        {
            "revision": v.revision,
            "date": v.date,
            "subject": v.subject,
            "digest": v.digest,
            "partitions": [*v.partitions],
        }
        for v in history.log(root)
    ]
    return {"now": dvc_files.recorded(root), "versions": versions}


def diff(root: Path, revision: str, to: str | None) -> dict[str, Any]:
    """What changed from `revision` to `to`, or to what data.dvc records now."""
    before = history.find(root, revision)
    after = history.find(root, to) if to else dvc_files.recorded(root)
    if after is None:
        raise UserError("data.dvc is missing; `siloflow partition` makes and records data.")
    return {"before": before, "after": after, **changes.diff(root, before, after)}


def use(root: Path, revision: str) -> dict[str, Any]:
    """Brings a version back; `settings` are what `--set` must give for a run on it, and `params_differ` says why not.

    UserError while a run works on data/.
    """
    with changing(root, f"`siloflow data use {revision}`"):
        digest = history.use(root, revision)
    partitions = list(history.partitions(root, digest))
    settings, differ = _params_for(root, partitions)
    return {"digest": digest, "partitions": partitions, "settings": settings, "params_differ": differ}


def _params_for(root: Path, partitions: list[str]) -> tuple[list[str], str | None]:
    """What must be set over params.yaml for a run on the data that are there now; or the reason why that is not known."""
    data = read(root).data
    name = data.name if data.name in partitions or len(partitions) != 1 else partitions[0]
    if name not in partitions:
        return [], f"params.yaml: data.name is {name}, and this version has {', '.join(partitions) or 'no data'}."
    manifest = read_manifest(root / "data" / name)
    settings = settings_between(data, manifest.params)
    if settings is not None:
        return as_overrides(settings), None
    try:
        dvc_files.matches(manifest, data)
    except UserError as error:
        return [], str(error)
    return [], None
