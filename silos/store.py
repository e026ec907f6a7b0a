"""The data on disk: data/<name>/ with a manifest and one safetensors file a client, or a shard of many clients."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from silos.data_params import DataParams
from silos.errors import UserError
from silos.machine.files import leftovers
from silos.manifest import COMMON, MANIFEST, WAYS_BACK, ClientEntry, Manifest, read_manifest, to_json
from silos.names import file_names
from silos.rows import SPLITS, ClientRows, Partition, Rows
from silos.schemes.steps import make_clients
from silos.sources.columns import outside
from silos.sources.load import load

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

FILES = 300  # clients up to which each has a file of its own
SHARD = 256  # clients in a file beyond that


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
    entries = [entry for file, clients in _files(made.clients) for entry in _write_clients(new / file, clients)]
    manifest = Manifest(
        name=params.name,
        params=params.recipe(),
        classes=tuple(made.classes),
        shape=made.clients[0].x.shape[1:],
        dtype=str(made.clients[0].x.dtype),
        clients=tuple(entries),
        common=_write_common(new / COMMON, made.common),
        left_out=made.left_out,
        task=made.task,
        features=made.features,
    )
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
    return _open(Path(folder) / entry.file, entry.key, split, entry.rows[split], f"client {entry.name}")


def open_missing(folder: Path, entry: ClientEntry, split: str) -> np.ndarray | None:
    """Which values of those rows are missing and filled in: (rows, features) bool; None where none may be missing."""
    path, whose = Path(folder) / entry.file, f"client {entry.name}"
    name = f"{entry.key}{split}_missing"
    with _reading(path, whose) as file:
        names = file.keys()
        mask = file.get_tensor(name) if name in names else None
    if mask is None:
        return None
    _check_count(path, split, whose, entry.rows[split], mask)
    return mask.astype(bool)


def open_common_rows(folder: Path, manifest: Manifest, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a split that no client owns, as `open_client` gives a client's; none where there are none."""
    if not manifest.common.get(split):
        return np.empty((0, *manifest.shape), manifest.dtype), np.empty(0, manifest.label_type)
    return _open(Path(folder) / COMMON, "", split, manifest.common[split], "all clients")


_read: dict[str, Partition] = {}
"""What was read ahead for the next `write`, by folder and params."""


def _made(params: DataParams, root: Path) -> Partition:
    rows = load(params.source, Path(root), params.seed, params.features)
    return make_clients(rows, params.scheme, params.split, params.seed)


def _key(params: DataParams, root: Path) -> str:
    return f"{Path(root).resolve()} {params.model_dump_json()}"


def _open(path: Path, key: str, split: str, count: int, whose: str) -> tuple[np.ndarray, np.ndarray]:
    with _reading(path, whose) as file:
        x, y = file.get_tensor(f"{key}{split}_x"), file.get_tensor(f"{key}{split}_y")
    _check_count(path, split, whose, count, x, y)
    return x, y


@contextmanager
def _reading(path: Path, whose: str) -> Iterator[Any]:
    """The file, mapped; UserError with whose rows it holds where it is missing or damaged."""
    from safetensors import SafetensorError

    try:
        status = path.stat()
        yield _mapped(str(path), status.st_mtime_ns, status.st_size, status.st_ino)
    except FileNotFoundError:
        raise UserError(f"{path}, the rows of {whose}, is missing; {WAYS_BACK}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}, the rows of {whose}, is damaged ({error}); {WAYS_BACK}") from error


def _check_count(path: Path, split: str, whose: str, count: int, *tensors: np.ndarray) -> None:
    for tensor in tensors:
        if len(tensor) != count:
            said = f"{path} holds {len(tensor)} {split} rows of {whose}, and {MANIFEST} says {count}"
            raise UserError(f"{said}; {WAYS_BACK}")


@lru_cache(maxsize=512)
def _mapped(path: str, *_stamp: int) -> Any:
    """A file mapped into memory, its header read once a process; another stamp is another file."""
    from safetensors import safe_open

    return safe_open(path, framework="numpy")


def _files(clients: Sequence[ClientRows]) -> Iterator[tuple[str, dict[str, ClientRows]]]:
    """Each file with its clients, by the key that comes before the names of their tensors."""
    if len(clients) <= FILES:
        for name, client in zip(file_names([client.name for client in clients], COMMON), clients, strict=True):
            yield name, {"": client}
        return
    digits = len(str(len(clients) - 1))
    for start in range(0, len(clients), SHARD):
        inside = clients[start : start + SHARD]
        keys = {f"{start + at:0{digits}d}/": client for at, client in enumerate(inside)}
        yield f"clients-{start:0{digits}d}.safetensors", keys


def _write_clients(path: Path, clients: dict[str, ClientRows]) -> list[ClientEntry]:
    from safetensors.numpy import save

    tensors, entries = {}, []
    for key, client in clients.items():
        rows = {}
        for split in SPLITS:
            mine = np.flatnonzero(client.split == split)
            tensors[f"{key}{split}_x"] = client.x[mine]
            tensors[f"{key}{split}_y"] = client.y[mine]
            if client.missing is not None:
                tensors[f"{key}{split}_missing"] = client.missing[mine].astype(np.uint8)
            rows[split] = len(mine)
        entries.append(ClientEntry(client.name, client.domain, path.name, rows, key, client.role))
    path.write_bytes(save(tensors))  # safetensors orders by type and name, whatever the order here
    return entries


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
