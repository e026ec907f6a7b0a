"""The data on disk: data/<name>/ with a manifest, its columns, and one safetensors file a client, or a shard of many."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from silos.data_params import DataParams
from silos.dataset import Clients, Partition, Rows
from silos.io.atomic_io import leftovers
from silos.param_types import file_names
from silos.partitioners.pipeline import make_clients
from silos.sources.source_registry import load_source, outside
from silos.storage.client_table import ROLES, ClientEntry, ClientTable, to_bytes
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, Manifest, read_manifest, to_json
from silos.storage.shards import check_count, part, reading, write_shard

__all__ = [
    "MANIFEST",
    "ClientEntry",
    "Manifest",
    "open_client",
    "open_common_rows",
    "open_missing",
    "read_manifest",
    "write",
]

FILES = 128  # clients up to which each has a file of its own
SHARD = 1024  # clients in a file beyond that


def read(params: DataParams, root: Path) -> None:
    """Reads the source and makes clients of it for the next `write`; UserError for what is wrong with either."""
    _read.clear()
    _read[_key(params, root)] = _made(params, root)


def write(folder: Path, params: DataParams, root: Path, say: Callable[[str], None] | None = None) -> Manifest:
    """Builds the silos of `params` in `folder`, the same bytes on any machine, and puts them there at once.

    `root` is the folder of params.yaml; `say` hears what a person should know of the partition. A process killed here leaves
    the old folder or the new one; what else it leaves is cleaned by the next call.
    """
    folder = Path(folder).absolute()
    new, old = leftovers(folder)
    made = _read.pop(_key(params, root), None) or _made(params, root)
    new.mkdir(parents=True)
    clients = made.clients
    manifest = Manifest(
        name=params.name,
        params=params.recipe(),
        classes=tuple(made.classes),
        shape=clients.x.shape[1:],
        dtype=str(clients.x.dtype),
        clients=_write_clients(new, clients),
        common=_write_common(new / COMMON, made.common),
        left_out=made.left_out,
        task=made.task,
        features=made.features,
    )
    (new / COLUMNS).write_bytes(to_bytes(manifest.clients))
    (new / MANIFEST).write_bytes(to_json(manifest))
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    if say:
        for note in (*made.notes, *outside(made)):
            say(note)
    return manifest


def open_client(folder: Path, entry: ClientEntry, split: str) -> tuple[np.ndarray, np.ndarray]:
    """One client's rows of one split, read by memory map: x (rows, *shape) as stored, y (rows,) int64 or float32."""
    path = folder / entry.file
    with reading(path, f"client {entry.name}") as file:
        return part(path, file, entry, split, "x"), part(path, file, entry, split, "y")


def open_missing(folder: Path, entry: ClientEntry, split: str) -> np.ndarray | None:
    """Which values of those rows are missing and filled in: (rows, features) bool; None where none may be missing."""
    path = folder / entry.file
    with reading(path, f"client {entry.name}") as file:
        names = file.keys()
        return part(path, file, entry, split, "missing").astype(bool) if f"{split}_missing" in names else None


def open_common_rows(folder: Path, manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a split that no client owns, as `open_client` gives a client's; none where there are none."""
    if not manifest.common.get(split):
        return np.empty((0, *manifest.shape), manifest.dtype), np.empty(0, manifest.label_type)
    path = Path(folder) / COMMON
    with reading(path, "all clients") as file:
        x, y = file.get_tensor(f"{split}_x"), file.get_tensor(f"{split}_y")
    check_count(path, split, "all clients", manifest.common[split], x, y)
    return x, y


_read: dict[str, Partition] = {}
"""What was read ahead for the next `write`, by folder and params."""


def _made(params: DataParams, root: Path) -> Partition:
    rows = load_source(params.source, Path(root), params.seed, params.features)
    return make_clients(rows, params.scheme, params.split, params.seed)


def _key(params: DataParams, root: Path) -> str:
    return f"{Path(root).resolve()} {params.model_dump_json()}"


def _write_clients(folder: Path, clients: Clients) -> ClientTable:
    """The clients' rows in files, and the table that says where."""
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
        mine = np.flatnonzero(common.split == split)
        if len(mine):
            tensors[f"{split}_x"], tensors[f"{split}_y"] = common.x[mine], common.y[mine]
            rows[split] = len(mine)
    path.write_bytes(save(tensors))
    return rows
