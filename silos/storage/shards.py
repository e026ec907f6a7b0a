"""Files of clients' rows: one client's, or a shard of many, whose rows stand one after another; and their digests."""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from silos.dataset import SPLITS, Clients
from silos.errors import UserError
from silos.storage.client_table import DIGEST, ClientEntry, ClientTable
from silos.storage.manifest import MANIFEST, WAYS_BACK

_KINDS = ("x", "y", "missing")


def write_shard(path: Path, clients: Clients, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Writes the rows of the clients from `first` to `end`; answers with the columns `rows` and `digest` of the table.

    A split's rows of one client stand together, in the order of the source: {split}_x, {split}_y and, where values may be
    missing, {split}_missing (rows, features) of 0 and 1.
    """
    from safetensors.numpy import save

    assert clients.split is not None
    mine = slice(int(clients.ends[first - 1]) if first else 0, int(clients.ends[end - 1]))
    split, owner = clients.split[mine], np.repeat(np.arange(end - first), clients.sizes[first:end])
    rows = np.zeros((end - first, len(SPLITS)), np.int32)
    tensors = {}
    for code, name in enumerate(SPLITS):
        chosen = np.flatnonzero(split == code)
        rows[:, code] = np.bincount(owner[chosen], minlength=end - first)
        tensors[f"{name}_x"] = clients.x[mine][chosen]
        tensors[f"{name}_y"] = clients.y[mine][chosen]
        if clients.missing is not None:
            tensors[f"{name}_missing"] = clients.missing[mine][chosen].astype(np.uint8)
    path.write_bytes(save(tensors))  # safetensors orders by type and name, whatever the order here
    return rows, _digests(tensors, rows)


def part(path: Path, file: Any, entry: ClientEntry, split: str, kind: str) -> np.ndarray:
    """One client's x, y or mask of missing values of one split, of the file that `reading` gave."""
    there = file.get_slice(f"{split}_{kind}")
    start, count, held = entry.start[split], entry.rows[split], entry.held[split]
    rows = there.get_shape()[0]
    if rows != held:
        whose = f"client {entry.name}" + ("" if count == held else " and others")
        raise UserError(f"{path} {_other_count(rows, split, whose, held)}")
    if count == held:
        return file.get_tensor(f"{split}_{kind}")
    start = start if count else 0  # a slice that begins at the end is refused
    return there[start : start + count]


class Sound:
    """Which clients' rows this process found to be what the table says, for as long as their files stay as they were."""

    def __init__(self, table: ClientTable) -> None:
        self._table = table
        self._found: dict[int, tuple[tuple[int, ...], np.ndarray]] = {}

    def first_unsound(self, folder: Path, at: np.ndarray) -> tuple[ClientEntry, OSError | None] | None:
        """Of the clients at these places one whose rows are something else, or cannot be read; None if all are sound."""
        at = np.unique(at)
        files = self._table.file[at]
        for mine in np.split(at, np.flatnonzero(np.diff(files)) + 1) if len(at) else ():
            wrong = self._in_file(folder, int(self._table.file[mine[0]]), mine)
            if wrong is not None:
                return wrong
        return None

    def _in_file(self, folder: Path, file: int, at: np.ndarray) -> tuple[ClientEntry, OSError | None] | None:
        path, first = folder / self._table.files[file], self._table.first
        try:
            # the last time cannot be put back; it also moves when nothing was written, and then the digest decides
            status = path.stat()
        except OSError as error:
            return self._table[int(at[0])], error
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
        held = self._found.get(file)
        if held is None or held[0] != stamp:
            held = self._found[file] = (stamp, np.zeros(first[file + 1] - first[file], bool))
        for place in at[~held[1][at - first[file]]].tolist():
            entry = self._table[place]
            try:
                if client_digest(path, entry) != entry.digest:
                    return entry, None
            except UserError:  # cannot be opened at all
                return entry, None
            held[1][place - first[file]] = True
        return None


def client_digest(path: Path, entry: ClientEntry) -> bytes:
    """Of all rows of a client as its file has them; UserError where that is missing or damaged."""
    with reading(path, f"client {entry.name}") as file:
        kinds = [kind for kind in _KINDS if f"train_{kind}" in file.keys()]  # noqa: SIM118
        held = {f"{s}_{kind}": part(path, file, entry, s, kind) for s in SPLITS for kind in kinds}
    return _digest(_row(held), struct.pack("<3i", *entry.rows.values()), (each.tobytes() for each in held.values()))


def check_count(path: Path, split: str, whose: str, count: int, *tensors: np.ndarray) -> None:
    """UserError where one has another number of rows than the manifest says."""
    for tensor in tensors:
        if len(tensor) != count:
            raise UserError(f"{path} {_other_count(len(tensor), split, whose, count)}")


@contextmanager
def reading(path: Path, whose: str) -> Iterator[Any]:
    """The file, mapped; UserError with whose rows it holds where it is missing or damaged."""
    from safetensors import SafetensorError

    try:
        status = path.stat()
        yield _mapped(str(path), status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)
    except FileNotFoundError:
        raise UserError(f"{path}, the rows of {whose}, is missing; {WAYS_BACK}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}, the rows of {whose}, is damaged ({error}); {WAYS_BACK}") from error


@lru_cache(maxsize=1024)
def _mapped(path: str, *_stamp: int) -> Any:
    """A file mapped into memory, its header read once a process; another stamp is another file."""
    from safetensors import safe_open

    return safe_open(path, framework="numpy")


def _other_count(rows: int, split: str, whose: str, count: int) -> str:
    return f"holds {rows} {split} rows of {whose}, and {MANIFEST} says {count}; {WAYS_BACK}"


def _digests(tensors: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Of each client whose rows (clients, 3) int32 follow each other in these tensors, by their names: (clients, 16) uint8.

    Over what a row is, how many there are of each split, and their bytes, in the order of the tensors.
    """
    row = _row(tensors)
    before = np.concatenate([np.zeros((1, len(SPLITS)), np.int64), np.cumsum(rows, axis=0, dtype=np.int64)])
    pieces = []
    for name, tensor in tensors.items():
        width = tensor.dtype.itemsize * int(np.prod(tensor.shape[1:]))
        ends = before[:, SPLITS.index(name.partition("_")[0])] * width
        pieces.append((tensor.tobytes(), ends.tolist()))
    counts = rows.astype("<i4").tobytes()
    width = rows.shape[1] * 4
    found = [
        _digest(row, counts[at * width : (at + 1) * width], (b[ends[at] : ends[at + 1]] for b, ends in pieces))
        for at in range(len(rows))
    ]
    return np.frombuffer(b"".join(found), np.uint8).reshape(len(rows), DIGEST)


def _row(tensors: Mapping[str, np.ndarray]) -> bytes:
    """What a row is: the tensors' names, types and shapes."""
    return " ".join(f"{name} {tensor.dtype.str} {tensor.shape[1:]}" for name, tensor in tensors.items()).encode()


def _digest(row: bytes, counts: bytes, rows: Iterable[bytes]) -> bytes:
    """Of one client: what a row is, how many of each split as little-endian int32, and their bytes."""
    return hashlib.blake2b(b"".join([row, counts, *rows]), digest_size=DIGEST).digest()
