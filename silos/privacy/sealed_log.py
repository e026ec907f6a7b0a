"""An append-only file of records, sealed in a chain: what a silo reported, and what was asked of all silos of a store."""

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from silos.errors import UserError
from silos.io.atomic_io import file_stamp, sync_folder
from silos.privacy.secret import Secret

WAY_OUT = "Restore its folder from a copy. Nothing is reported until then."

Record = Mapping[str, Any]


@dataclass(frozen=True)
class SealedLog:
    """A file of lines: a record as JSON, and a keyed hash of the record and of the hash before.

    A line that was changed, moved or deleted is noticed, also the last one, since `count` holds the number of lines. A
    process that is killed leaves a line without its end, which the next one replaces, or a line that is not counted yet.
    Processes that append take turns; the caller has the lock. Older copies of both files together are not noticed.

    Attributes:
        path: The file.
        count: The file with the number of its lines.
        secret: Keys the hashes.
        name: What the file is, for errors.
        way_out: What its owner may do if it is damaged.
    """

    path: Path
    count: Path
    secret: Secret
    name: str
    way_out: str = WAY_OUT

    def read(self) -> Sequence[Record]:
        """Return all records, to be read only; UserError if lines were changed or are missing."""
        return self._open().records

    def append(self, record: Record) -> None:
        """Add a record, which survives a kill and a power cut once this returns; OSError if the disk is full."""
        opened, is_new = self._open(), not self.path.exists()
        line, seal = self._line(json.dumps(record).encode(), opened.seal)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.truncate(file, opened.end)  # a line without its end was not acted on
            _write_whole(file, line, opened.end)
            os.fsync(file)
        finally:
            os.close(file)
        if is_new:
            sync_folder(self.path.parent)
        opened.records.append(record)
        _opened[self.path] = replace(opened, stamp=file_stamp(self.path), seal=seal, end=opened.end + len(line))
        # of one length and written at once, so that a kill leaves the old number or the new
        self.count.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.count.exists()
        file = os.open(self.count, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            _write_whole(file, b"%12d\n" % len(opened.records), 0)
            if is_new:
                os.fsync(file)  # later a power cut leaves an older number, which lines written since exceed
        finally:
            os.close(file)
        if is_new:
            sync_folder(self.count.parent)

    def _open(self) -> "_Opened":
        least = self._counted()  # before the lines, of which another process may append one meanwhile
        known = _opened.get(self.path)
        if not self.path.exists():
            known = _Opened((), self.secret, list[Record](), b"", 0)
        elif known is None or (known.stamp, known.secret) != (file_stamp(self.path), self.secret):
            known = self._read()
            if len(_opened) >= _MOST_OPENED:
                _opened.clear()
            _opened[self.path] = known
        if len(known.records) < least:
            raise self._damaged()
        return known

    def _read(self) -> "_Opened":
        stamp, records, seal, end = file_stamp(self.path), list[Record](), b"", 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            text = line[: -1 - _SEAL]
            expected, seal = self._line(text, seal)
            if line != expected:
                raise self._damaged()
            records.append(json.loads(text))
            end += len(line)
        return _Opened(stamp, self.secret, records, seal, end)

    def _line(self, text: bytes, before: bytes) -> tuple[bytes, bytes]:
        """Return the line of a record, and its hash."""
        seal = self.secret.seal(before + text).encode()
        return text + b" " + seal + b"\n", seal

    def _counted(self) -> int:
        try:
            return int(self.count.read_bytes().strip(b"\0") or 0)  # a power cut leaves zero bytes in a new file
        except FileNotFoundError:
            return 0
        except ValueError:
            raise UserError(
                f"{self.count}, the number of lines of {self.path.name}, is damaged. {self.way_out}"
            ) from None

    def _damaged(self) -> UserError:
        return UserError(
            f"{self.path}, {self.name}, is damaged, lacks lines, or is sealed with another secret. {self.way_out}"
        )


def _write_whole(file: int, data: bytes, at: int) -> None:
    """Write all bytes at once; OSError if the disk has room for some only, which are taken back from the file's end."""
    end = os.fstat(file).st_size
    if os.pwrite(file, data, at) < len(data):
        os.truncate(file, end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_SEAL = 65  # a space, and 64 hexadecimal digits


@dataclass(frozen=True)
class _Opened:
    """What was read of a file: its stamp, and the end and the hash of its last complete line."""

    stamp: tuple[int, ...]
    secret: Secret
    records: list[Record]
    seal: bytes
    end: int


_MOST_OPENED = 1024
_opened: dict[Path, _Opened] = {}
