"""Replace data/ and data.dvc by another version; a kill or a failure leaves the old or the new version complete."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from silos.dataset import some
from silos.errors import UserError
from silos.io.atomic_io import restore_moved, write_bytes
from silos.versioning.dvc_files import DATA, RECORD, listed_files, object_path, parse_digest
from silos.versioning.hashing import file_hashes, folder_digest

CheckOut = Callable[[Path], None]
"""Fetches what a data.dvc of any folder records into the data/ folder next to that file."""

# in the project's folder, so that a rename is enough
_STAGED, _DONE = ".data-use", ".data-used"


def replace_data(root: Path, text: str, check_out: CheckOut) -> None:
    """Make `root`/data.dvc this text and `root`/data what it records; on any failure, both stay as they are.

    The new folder is built and checked under another name, and replaces the old one by a rename. `recover` cleans up
    after a kill in between. Raises UserError if the contents are damaged, and whatever `check_out` raises.
    """
    recover(root)
    data, staged = root / DATA, root / _STAGED
    try:
        write_bytes(staged / RECORD, text.encode())
        check_out(staged / RECORD)
        if folder_digest(staged / DATA) != parse_digest(text):
            raise UserError(_damage(root, parse_digest(text), file_hashes(staged / DATA, None)))
        if data.is_mount():  # a rename cannot replace a mount
            return _check_out_in_place(root, text, check_out)
        if data.exists():
            data.rename(staged / "old")
        (staged / DATA).rename(data)
        (staged / RECORD).replace(root / RECORD)
    finally:
        recover(root)


def recover(root: Path) -> None:
    """Finish or undo a replacement of data/ that was killed."""
    data, staged, done = root / DATA, root / _STAGED, root / _DONE
    restore_moved(data)
    with contextlib.suppress(FileNotFoundError):  # another process recovers at the same time
        if (staged / "old").exists() and not data.exists():
            (staged / "old").rename(data)
        if (staged / RECORD).exists() and not (staged / DATA).exists() and data.is_dir():
            text = (staged / RECORD).read_bytes()
            if folder_digest(data) == parse_digest(text):
                (staged / RECORD).replace(root / RECORD)
        if staged.exists():
            staged.rename(done)
    shutil.rmtree(done, ignore_errors=True)


def _damage(root: Path, digest: str, hashes: Mapping[str, str]) -> str:
    """Name the files of DVC's cache with wrong contents; hashes: those of their contents."""
    damaged = [
        str(object_path(root, md5))
        for path, md5 in (listed_files(root, digest) or {}).items()
        if hashes.get(path) != md5
    ]
    return (
        f"DVC's cache: got damaged files of version {digest} ({some(damaged)}), expected their contents to match their "
        "names. Delete these files and `dvc fetch`, or partition with the params of that version."
    )


def _check_out_in_place(root: Path, text: str, check_out: CheckOut) -> None:
    """Write into data/ itself; if that fails, write the previous version back."""
    before = (root / RECORD).read_bytes()
    write_bytes(root / RECORD, text.encode())
    try:
        check_out(root / RECORD)
    except BaseException:
        write_bytes(root / RECORD, before)
        check_out(root / RECORD)
        raise
