"""`siloflow data`: the versions of data/, what changed between two, and the way back to one."""

from pathlib import Path
from typing import Any

from flows.experiment.project import changing
from flows.params_file import read
from silos.errors import UserError
from silos.stored.store import read_manifest
from silos.versions import changes, dvc_version, history


def log(root: Path) -> dict[str, Any]:
    """Every version that git knows, newest first, and the one that data.dvc records now."""
    versions = [
        {"revision": v.revision, "date": v.date, "subject": v.subject, "digest": v.digest, "partitions": v.partitions}
        for v in history.log(root)
    ]
    return {"now": dvc_version.recorded(root), "versions": versions}


def diff(root: Path, revision: str, to: str | None) -> dict[str, Any]:
    """What changed from `revision` to `to`, or to what data.dvc records now."""
    before = history.find(root, revision)
    after = history.find(root, to) if to else dvc_version.recorded(root)
    if after is None:
        raise UserError("data.dvc is missing; `siloflow partition` makes and records data.")
    return {"before": before, "after": after, **changes.diff(root, before, after)}


def use(root: Path, revision: str) -> dict[str, Any]:
    """Brings a version back; `params_differ` says what in params.yaml a run on it would refuse, if anything.

    UserError while a run works on data/.
    """
    with changing(root, f"`siloflow data use {revision}`"):
        digest = history.use(root, revision)
    partitions = history.partitions(root, digest)
    data = read(root).data
    differ = None
    if data.name in partitions:
        try:
            dvc_version.matches(read_manifest(root / "data" / data.name), data)
        except UserError as error:
            differ = str(error)
    return {"digest": digest, "partitions": partitions, "params_differ": differ}
