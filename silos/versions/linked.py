"""A partition of some version, opened without touching data/: links to what DVC's cache holds, under its names."""

from pathlib import Path

from silos.errors import UserError
from silos.versions.dvc_version import listed, object_path


def files_of(root: Path, digest: str) -> dict[str, str]:
    """The files of a version of data/ and their hashes; UserError where DVC's cache does not hold their list."""
    files = listed(root, digest)
    if files is None:
        raise UserError(
            f"DVC's cache does not hold version {digest}; `siloflow data use` brings it back from a remote."
        )
    return files


def inside(files: dict[str, str], name: str) -> dict[str, str]:
    """Those of one partition, by their paths in it."""
    return {path.split("/", 1)[1]: md5 for path, md5 in files.items() if path.startswith(f"{name}/")}


def link(root: Path, name: str, hashes: dict[str, str], folder: Path) -> None:
    """Makes `folder` that partition, of links; UserError where DVC's cache misses a file of it."""
    for path, md5 in hashes.items():
        source = object_path(root, md5)
        if not source.is_file():
            raise UserError(
                f"DVC's cache misses data/{name}/{path} of that version; `siloflow data use` brings it back."
            )
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(source)
