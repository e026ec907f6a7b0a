"""Files of clients' rows, and their digests; a file holds one client, or a shard of many, one after another."""

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
from silos.io.atomic_io import file_stamp
from silos.storage.manifest import DIGEST, MANIFEST, WAYS_BACK, ClientEntry, ClientTable

_TENSORS = ("x", "y", "missing", "unit", "cells")


def write_shard(path: Path, clients: Clients, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Write the rows of the clients from `first` to `end`; return the columns `rows` and `digest` of the table.

    A split's rows of one client are consecutive, in the order of the source: {split}_x, {split}_y, {split}_missing
    (rows, features) of 0 and 1 if values may be missing, {split}_unit (rows,) uint64 if the source has units, and
    {split}_cells (rows, columns) uint32 of data of one's own.
    """
    from safetensors.numpy import save

    assert clients.split is not None
    span = clients.span(first, end)
    split, owner = clients.split[span], np.repeat(np.arange(end - first), clients.sizes[first:end])
    rows = np.zeros((end - first, len(SPLITS)), np.int32)
    tensors = {}
    for code, name in enumerate(SPLITS):
        indices = np.flatnonzero(split == code)
        rows[:, code] = np.bincount(owner[indices], minlength=end - first)
        tensors[f"{name}_x"] = clients.x[span][indices]
        tensors[f"{name}_y"] = clients.y[span][indices]
        if clients.missing is not None:
            tensors[f"{name}_missing"] = clients.missing[span][indices].astype(np.uint8)
        if clients.unit is not None:
            tensors[f"{name}_unit"] = clients.unit[span][indices]
        if clients.cells is not None:
            tensors[f"{name}_cells"] = clients.cells[span][indices]
    path.write_bytes(save(tensors))  # safetensors orders tensors by type and name
    return rows, _digests(tensors, rows)


def read_tensor(path: Path, file: Any, entry: ClientEntry, split: str, kind: str) -> np.ndarray:
    """Read one client's x, y, missing mask, units or cells of one split, from the file that `reading` opened."""
    tensor = file.get_slice(f"{split}_{kind}")
    start, count, expected = entry.start[split], entry.rows[split], entry.file_rows[split]
    rows = tensor.get_shape()[0]
    if rows != expected:
        owner = f"client {entry.name}" + ("" if count == expected else " and others")
        raise UserError(f"{path}: {_count_fault(rows, split, owner, expected)}")
    if count == expected:
        return file.get_tensor(f"{split}_{kind}")
    start = start if count else 0  # safetensors refuses a slice that begins at the end
    return tensor[start : start + count]


class VerifiedRows:
    """Remembers which clients' rows this process has verified, while their files stay unchanged."""

    def __init__(self, table: ClientTable) -> None:
        self._table = table
        self._verified: dict[int, tuple[tuple[int, ...], np.ndarray]] = {}

    def first_mismatch(self, folder: Path, indices: np.ndarray) -> tuple[ClientEntry, OSError | None] | None:
        """Return a client at these indices whose rows do not match or cannot be read; None if all match."""
        indices = np.unique(indices)
        files = self._table.file[indices]
        for in_file in np.split(indices, np.flatnonzero(np.diff(files)) + 1) if len(indices) else ():
            mismatch = self._first_mismatch_in_file(folder, int(self._table.file[in_file[0]]), in_file)
            if mismatch is not None:
                return mismatch
        return None

    def _first_mismatch_in_file(
        self, folder: Path, file: int, indices: np.ndarray
    ) -> tuple[ClientEntry, OSError | None] | None:
        path, first_in_file = folder / self._table.files[file], self._table.first_in_file
        try:
            stamp = file_stamp(path)
        except OSError as error:
            return self._table[int(indices[0])], error
        verified = self._verified.get(file)
        if verified is None or verified[0] != stamp:
            verified = self._verified[file] = (stamp, np.zeros(first_in_file[file + 1] - first_in_file[file], bool))
        for index in indices[~verified[1][indices - first_in_file[file]]].tolist():
            entry = self._table[index]
            try:
                if client_digest(path, entry) != entry.digest:
                    return entry, None
            except UserError:  # the file cannot be opened
                return entry, None
            verified[1][index - first_in_file[file]] = True
        return None


def client_digest(path: Path, entry: ClientEntry) -> bytes:
    """Return the digest of a client's rows in its file; UserError if that is missing or damaged."""
    with reading(path, f"client {entry.name}") as file:
        kinds = [kind for kind in _TENSORS if f"train_{kind}" in file.keys()]  # noqa: SIM118
        tensors = {f"{s}_{kind}": read_tensor(path, file, entry, s, kind) for s in SPLITS for kind in kinds}
    return _digest(
        _row_description(tensors),
        struct.pack("<3i", *entry.rows.values()),
        (tensor.tobytes() for tensor in tensors.values()),
    )


def check_count(path: Path, split: str, owner: str, count: int, *tensors: np.ndarray) -> None:
    """Raise UserError if a tensor has another number of rows than the manifest says."""
    for tensor in tensors:
        if len(tensor) != count:
            raise UserError(f"{path}: {_count_fault(len(tensor), split, owner, count)}")


@contextmanager
def reading(path: Path, owner: str) -> Iterator[Any]:
    """Open the file, memory-mapped; UserError, with the owner of its rows, if it is missing or damaged."""
    from safetensors import SafetensorError

    try:
        yield _mapped(str(path), *file_stamp(path))
    except FileNotFoundError:
        raise UserError(f"{path}, the rows of {owner}, is missing. {WAYS_BACK}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}, the rows of {owner}, is damaged ({error}). {WAYS_BACK}") from error


@lru_cache(maxsize=1024)
def _mapped(path: str, *_stamp: int) -> Any:
    """Map a file into memory and read its header once a process; another stamp is another file."""
    from safetensors import safe_open

    return safe_open(path, framework="numpy")


def _count_fault(rows: int, split: str, owner: str, count: int) -> str:
    return f"got {rows} {split} rows of {owner}, expected {count} as in {MANIFEST}. {WAYS_BACK}"


def _digests(tensors: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """Compute the digest of each client whose rows are consecutive in these tensors: (clients, 16) uint8.

    A digest covers the description of a row, the counts by split, and the rows' bytes, in the order of the tensors.
    rows: (clients, 3) int32; tensors: by name.
    """
    description = _row_description(tensors)
    before = np.concatenate([np.zeros((1, len(SPLITS)), np.int64), np.cumsum(rows, axis=0, dtype=np.int64)])
    contents = []
    for name, tensor in tensors.items():
        width = tensor.dtype.itemsize * int(np.prod(tensor.shape[1:]))
        ends = before[:, SPLITS.index(name.partition("_")[0])] * width
        contents.append((tensor.tobytes(), ends.tolist()))
    counts = rows.astype("<i4").tobytes()
    width = rows.shape[1] * 4
    digests = [
        _digest(
            description,
            counts[client * width : (client + 1) * width],
            (content[ends[client] : ends[client + 1]] for content, ends in contents),
        )
        for client in range(len(rows))
    ]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(rows), DIGEST)


def _row_description(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Describe a row: the tensors' names, types and shapes."""
    return " ".join(f"{name} {tensor.dtype.str} {tensor.shape[1:]}" for name, tensor in tensors.items()).encode()


def _digest(description: bytes, counts: bytes, rows: Iterable[bytes]) -> bytes:
    """Hash one client: the description of a row, the counts by split as little-endian int32, and the rows' bytes."""
    return hashlib.blake2b(b"".join([description, counts, *rows]), digest_size=DIGEST).digest()
