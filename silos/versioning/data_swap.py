"""Replaces data/ and data.dvc by another version, so that a kill or a failure leaves the old or the new one whole."""

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from silos.dataset import some
from silos.errors import UserError
from silos.io.atomic_io import restore_moved, write_bytes
from silos.versioning.dvc_files import DATA, RECORD, digest_in, listed_files, object_path
from silos.versioning.hashing import file_hashes, folder_digest

CheckOut = Callable[[Path], None]
"""Fetches what a data.dvc of any folder records, and writes it into the data/ folder next to that file."""

# in the project's folder, so that a rename suffices
_STAGED, _DONE = ".data-use", ".data-used"


def replace_data(root: Path, text: str, check_out: CheckOut) -> None:
    """Makes `root`/data.dvc this text and `root`/data what the text records; on any failure both stay as they are.

    The new folder is built and checked under another name, and replaces the old one by a rename. `recover`
    cleans what a kill in between leaves. Raises UserError if the contents are damaged, and whatever `check_out` raises.
    """
    recover(root)
    data, staged = root / DATA, root / _STAGED
    try:
        write_bytes(staged / RECORD, text.encode())
        check_out(staged / RECORD)
        if folder_digest(staged / DATA) != digest_in(text):
            raise UserError(_damage(root, digest_in(text), file_hashes(staged / DATA, None)))
        if data.is_mount():  # no rename replaces it
            return _check_out_in_place(root, text, check_out)
        if data.exists():
            data.rename(staged / "old")
        (staged / DATA).rename(data)
        (staged / RECORD).replace(root / RECORD)
    finally:
        recover(root)


def recover(root: Path) -> None:
    """Ends what a killed process had begun with data/: afterwards it is whole, as it was before or as it was to be."""
    data, staged, done = root / DATA, root / _STAGED, root / _DONE
    restore_moved(data)
    with contextlib.suppress(FileNotFoundError):  # another process does the same
        if (staged / "old").exists() and not data.exists():
            (staged / "old").rename(data)
        if (staged / RECORD).exists() and not (staged / DATA).exists() and data.is_dir():
            text = (staged / RECORD).read_bytes()
            if folder_digest(data) == digest_in(text):
                (staged / RECORD).replace(root / RECORD)
        if staged.exists():
            staged.rename(done)
    shutil.rmtree(done, ignore_errors=True)


def _damage(root: Path, digest: str, found: Mapping[str, str]) -> str:
    """Name the files of DVC's cache that do not hold what they should; found: the hashes of what they hold."""
    wrong = [
        str(object_path(root, md5))
        for path, md5 in (listed_files(root, digest) or {}).items()
        if found.get(path) != md5
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
