"""Which data versions there still are: in data/, in DVC's cache, and in git's history of data.dvc."""

from pathlib import Path

from silos.errors import UserError
from silos.versions import dvc_version, history


def live_versions(root: Path) -> set[str] | None:
    """The versions of partitions that can be had; None where that cannot be known, and so nothing may be called gone."""
    live = {dvc_version.folder_digest(folder) for folder in (root / "data").glob("*") if folder.is_dir()}
    try:
        digests = {*history.listed_digests(root), *(version.digest for version in history.log(root))}
        for digest in digests:
            partitions = history.partitions(root, digest)
            if not partitions:  # its list is in no cache here, and may be in a remote
                return None
            live.update(partitions.values())
    except UserError:
        return None
    return live
