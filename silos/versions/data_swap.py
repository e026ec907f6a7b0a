"""Replaces data/ and data.dvc by another version, so that a kill or a failure leaves the old or the new one whole."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from silos.errors import UserError
from silos.machine.files import restore_moved, write_bytes
from silos.rows import some
from silos.versions.digest import file_hashes, folder_digest
from silos.versions.dvc_version import DATA, RECORD, digest_in, listed, object_path

CheckOut = Callable[[Path], None]
"""Fetches what a data.dvc of any folder records, and writes it into data/ beside that file."""

# in the project's folder, so that a rename suffices
_BESIDE, _DONE = ".data-use", ".data-used"


def replace_data(root: Path, text: str, check_out: CheckOut) -> None:
    """Makes `root`/data.dvc this text and `root`/data what the text records; on any failure both stay as they are.

    The new folder is made and checked beside the old one, and takes its place by a rename. What a kill in between leaves
    is cleaned by `recover`. Raises UserError if the contents are damaged, and whatever `check_out` raises.
    """
    recover(root)
    data, beside = root / DATA, root / _BESIDE
    try:
        write_bytes(beside / RECORD, text.encode())
        check_out(beside / RECORD)
        if folder_digest(beside / DATA) != digest_in(text):
            raise UserError(_damage(root, digest_in(text), file_hashes(beside / DATA, None)))
        if data.is_mount():  # no rename replaces it
            return _check_out_in_place(root, text, check_out)
        if data.exists():
            data.rename(beside / "old")
        (beside / DATA).rename(data)
        (beside / RECORD).replace(root / RECORD)
    finally:
        recover(root)


def recover(root: Path) -> None:
    """Ends what a killed process had begun with data/: afterwards it is whole, as it was before or as it was to be."""
    data, beside, done = root / DATA, root / _BESIDE, root / _DONE
    restore_moved(data)
    with contextlib.suppress(FileNotFoundError):  # another process does the same
        if (beside / "old").exists() and not data.exists():
            (beside / "old").rename(data)
        if (beside / RECORD).exists() and not (beside / DATA).exists() and data.is_dir():
            text = (beside / RECORD).read_bytes()
            if folder_digest(data) == digest_in(text):
                (beside / RECORD).replace(root / RECORD)
        if beside.exists():
            beside.rename(done)
    shutil.rmtree(done, ignore_errors=True)


def _damage(root: Path, digest: str, found: Mapping[str, str]) -> str:
    """Name the files of DVC's cache that do not hold what they should; found: the hashes of what they hold."""
    wrong = [
        str(object_path(root, md5)) for path, md5 in (listed(root, digest) or {}).items() if found.get(path) != md5
    ]
    return (
        f"DVC's cache: got damaged files of version {digest} ({some(wrong)}), expected their contents to match their "
        "names. Delete these files and `dvc fetch`, or partition with the params of that version."
    )


def _check_out_in_place(root: Path, text: str, check_out: CheckOut) -> None:
    """Writes into data/ itself; if that fails, the version before it is written back."""
    before = (root / RECORD).read_bytes()
    write_bytes(root / RECORD, text.encode())
    try:
        check_out(root / RECORD)
    except BaseException:
        write_bytes(root / RECORD, before)
        check_out(root / RECORD)
        raise
