"""The data on disk: data/<name>/ with a manifest, its columns, and safetensors files of one or many clients."""

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from silos.data_params import DataParams
from silos.dataset import Clients, Partition, Rows
from silos.io.atomic_io import leftovers
from silos.param_types import file_names
from silos.partitioners.run_scheme import make_clients
from silos.privacy.secret import cell_secret
from silos.sources.source_params import AtPlaces
from silos.sources.source_registry import load_source, range_notes
from silos.storage.manifest import (
    COLUMNS,
    COMMON,
    MANIFEST,
    ROLES,
    ClientEntry,
    ClientTable,
    Manifest,
    to_bytes,
    to_json,
)
from silos.storage.shards import check_count, read_tensor, reading, write_shard

Made = TypeVar("Made")

FILES = 128  # clients up to which each has its own file
SHARD = 1024  # clients in a file if there are more


def read(params: DataParams, root: Path) -> None:
    """Read the source and make its clients for the next `write`; UserError if either fails. Rows at places are not read."""
    _read_ahead.clear()
    if not isinstance(params.source, AtPlaces):
        _read_ahead[_key(params, root)] = _make_partition(params, root)


def write(folder: Path, params: DataParams, root: Path, say: Callable[[str], None] | None = None) -> Manifest:
    """Build the silos of `params` in `folder`, and replace the folder at once.

    The bytes are the same on any machine, but for the keyed hashes of cells that data of one's own have: they depend on a
    secret under private/. So the hash of a version confirms no guess of a row.

    If the process is killed, the old folder or the new one remains; the next call cleans up the rest.

    Args:
        folder: data/<name>.
        params: The data section of params.yaml.
        root: The folder of params.yaml.
        say: Called with each note about the partition.
    """
    partition = _read_ahead.pop(_key(params, root), None) or _make_partition(params, root)
    manifest = replace_folder(folder, lambda new: write_partition(new, params, partition))
    if say:
        for note in (*partition.notes, *range_notes(partition)):
            say(note)
    return manifest


def replace_folder(folder: Path, write_new: Callable[[Path], Made]) -> Made:
    """Let a function write a new folder, and put it where `folder` is, which a kill at any moment leaves whole."""
    folder = Path(folder).absolute()
    new, old = leftovers(folder)
    made = write_new(new)
    # after a kill between the two renames no folder is there; the next `leftovers` moves the old one back
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return made


def write_partition(new: Path, params: DataParams, partition: Partition) -> Manifest:
    """Write clients that a scheme made of these params to a new folder."""
    new.mkdir(parents=True)
    clients = partition.clients
    manifest = Manifest(
        name=params.name,
        params=params.recipe(),
        classes=tuple(partition.classes),
        shape=clients.x.shape[1:],
        dtype=str(clients.x.dtype),
        clients=_write_clients(new, clients),
        common=_write_common(new / COMMON, partition.common),
        left_out=partition.left_out,
        task=partition.task,
        features=partition.features,
        raw=partition.raw,
    )
    (new / COLUMNS).write_bytes(to_bytes(manifest.clients))
    (new / MANIFEST).write_bytes(to_json(manifest))
    return manifest


def open_client(folder: Path, entry: ClientEntry, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read one client's rows of one split: x (rows, *shape) as stored, y (rows,) int64 or float32."""
    path = folder / entry.file
    with reading(path, f"client {entry.name}") as file:
        return read_tensor(path, file, entry, split, "x"), read_tensor(path, file, entry, split, "y")


def open_missing(folder: Path, entry: ClientEntry, split: str) -> np.ndarray | None:
    """Return which values are missing and filled in: (rows, features) bool; None if none may be missing."""
    path = folder / entry.file
    with reading(path, f"client {entry.name}") as file:
        names = file.keys()
        return read_tensor(path, file, entry, split, "missing").astype(bool) if f"{split}_missing" in names else None


def open_units(folder: Path, entries: Iterable[ClientEntry], split: str) -> np.ndarray | None:
    """Return the units of rows of one split, (rows,) uint64, one entry's after another's; None without units.

    They are private: no message holds them.
    """
    return _open_optional(folder, entries, split, "unit")


def open_cells(folder: Path, entries: Iterable[ClientEntry], split: str) -> np.ndarray | None:
    """Return the keyed hashes of the cells that rows of one split were made from: (rows, columns) uint32; None without."""
    return _open_optional(folder, entries, split, "cells")


def _open_optional(folder: Path, entries: Iterable[ClientEntry], split: str, kind: str) -> np.ndarray | None:
    """Return a tensor that files may lack, one entry's rows after another's; None if none has it."""
    parts = []
    for entry in entries:
        path = Path(folder) / entry.file
        with reading(path, f"client {entry.name}") as file:
            if f"{split}_{kind}" in file.keys():  # noqa: SIM118
                parts.append(read_tensor(path, file, entry, split, kind))
    return np.concatenate(parts) if parts else None


def open_common_units(folder: Path, manifest: Manifest, split: str) -> np.ndarray | None:
    """Return the units of the common rows of a split as `open_units` does; None without units or such rows."""
    if not manifest.common.get(split):
        return None
    path = Path(folder) / COMMON
    with reading(path, "all clients") as file:
        return file.get_tensor(f"{split}_unit") if f"{split}_unit" in file.keys() else None  # noqa: SIM118


def open_common_rows(folder: Path, manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the common rows of a split as `open_client` does; empty arrays if there are none."""
    if not manifest.common.get(split):
        return np.empty((0, *manifest.shape), manifest.dtype), np.empty(0, manifest.label_type)
    path = Path(folder) / COMMON
    with reading(path, "all clients") as file:
        x, y = file.get_tensor(f"{split}_x"), file.get_tensor(f"{split}_y")
    check_count(path, split, "all clients", manifest.common[split], x, y)
    return x, y


_read_ahead: dict[str, Partition] = {}
"""Partitions that `read` made for the next `write`, by folder and params."""


def _make_partition(params: DataParams, root: Path) -> Partition:
    rows = load_source(params.source, Path(root), params.seed, params.features)
    if rows.cells is not None:
        rows = replace(
            rows, cells=replace(rows.cells, hashes=cell_secret(Path(root) / "private").cell_hashes(rows.cells.hashes))
        )
    return make_clients(rows, params.scheme, params.split, params.seed)


def _key(params: DataParams, root: Path) -> str:
    return f"{Path(root).resolve()} {params.model_dump_json()}"


def _write_clients(folder: Path, clients: Clients) -> ClientTable:
    """Write the clients' rows, and return their table."""
    count = len(clients)
    if count <= FILES:
        files, size = file_names(clients.names, (COMMON, COLUMNS)), 1
    else:
        digits, size = len(str(count - 1)), SHARD
        files = [f"clients-{first:0{digits}d}.safetensors" for first in range(0, count, size)]
    columns = [
        write_shard(folder / file, clients, first, min(first + size, count))
        for file, first in zip(files, range(0, count, size), strict=True)
    ]
    rows, digests = (np.concatenate(column) for column in zip(*columns, strict=True))
    domains = {domain: code for code, domain in enumerate(dict.fromkeys(clients.domains))}
    return ClientTable(
        domains=tuple(domains),
        files=tuple(files),
        names=tuple(clients.names),
        domain=np.array([domains[domain] for domain in clients.domains], np.int32),
        role=np.array([ROLES.index(role) for role in clients.roles], np.uint8),
        file=np.arange(count, dtype=np.int32) // size,
        rows=rows,
        digest=digests,
    )


def _write_common(path: Path, common: Rows | None) -> dict[str, int]:
    from safetensors.numpy import save

    if common is None:
        return {}
    tensors, rows = {}, {}
    for split in ("test", "validation"):
        indices = np.flatnonzero(common.split == split)
        if len(indices):
            tensors[f"{split}_x"], tensors[f"{split}_y"] = common.x[indices], common.y[indices]
            if common.unit is not None:
                tensors[f"{split}_unit"] = common.unit[indices]
            rows[split] = len(indices)
    path.write_bytes(save(tensors))
    return rows
