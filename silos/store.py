"""The data on disk: data/<name>/ with a manifest and one safetensors file a client."""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from silos.errors import UserError
from silos.params import DataParams
from silos.schemes import ClientRows, assign
from silos.sources import SPLITS, load
from silos.splits import split_rows

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class ClientEntry:
    """What the manifest says of one client; `rows` counts its rows per split."""

    name: str
    domain: str
    file: str
    rows: dict[str, int]


@dataclass(frozen=True)
class Manifest:
    """What a folder of silos holds: a row is `shape` of `dtype` (uint8 or float32), labelled by `classes`."""

    name: str
    params: dict[str, Any]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    clients: tuple[ClientEntry, ...]

    def client(self, name: str) -> ClientEntry:
        """The entry of one client."""
        if name not in self._by_name:
            raise UserError(f"there is no client {name} in data/{self.name}; it has {_some(list(self._by_name))}.")
        return self._by_name[name]

    def rows(self, split: str) -> dict[str, int]:
        """The number of rows of each client in a split ("train", "validation" or "test")."""
        return {entry.name: entry.rows[split] for entry in self.clients}

    @cached_property
    def _by_name(self) -> dict[str, ClientEntry]:
        return {entry.name: entry for entry in self.clients}


def write(folder: Path, params: DataParams, root: Path) -> Manifest:
    """Builds the silos of `params` in `folder`, the same bytes on any machine, and puts them there at once.

    `root` is the folder of params.yaml. A process killed here leaves the old folder or the new one; what else
    it leaves is cleaned by the next call.
    """
    folder = Path(folder).absolute()
    new, old = _leftovers(folder)
    rows = load(params.source, Path(root))
    clients = assign(rows, params.scheme, params.seed)
    new.mkdir(parents=True)
    entries = [
        _write_client(new / file, client, params)
        for client, file in zip(clients, _file_names([client.name for client in clients]), strict=True)
    ]
    manifest = Manifest(
        name=params.name,
        params=params.model_dump(mode="json"),
        classes=tuple(rows.classes),
        shape=rows.x.shape[1:],
        dtype=str(rows.x.dtype),
        clients=tuple(entries),
    )
    (new / MANIFEST).write_bytes(_to_json(manifest))
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of silos; a UserError where it is missing, damaged or of another format."""
    path = Path(folder) / MANIFEST
    try:
        held = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"there is no data in {folder} (no {MANIFEST}); `siloflow partition` makes it, `dvc pull` "
            "fetches it where it is recorded."
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); {_WAYS_BACK}") from error
    found = held.get("format") if isinstance(held, dict) else None
    if found != FORMAT:
        raise UserError(
            f"{path} has format {found!r} and this siloflow reads format {FORMAT}; `siloflow partition` "
            "makes the data anew."
        )
    try:
        return Manifest(
            name=held["name"],
            params=held["params"],
            classes=tuple(held["classes"]),
            shape=tuple(held["shape"]),
            dtype=held["dtype"],
            clients=tuple(_entry(entry) for entry in held["clients"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error!r}); {_WAYS_BACK}") from error


def open_client(folder: Path, entry: ClientEntry, split: str) -> tuple[np.ndarray, np.ndarray]:
    """One client's rows of one split, read by memory map: x (rows, *shape) as stored, y (rows,) int64."""
    from safetensors import SafetensorError, safe_open

    path = Path(folder) / entry.file
    try:
        with safe_open(path, framework="numpy") as file:
            x, y = file.get_tensor(f"{split}_x"), file.get_tensor(f"{split}_y")
    except FileNotFoundError:
        raise UserError(f"{path}, the rows of client {entry.name}, is missing; {_WAYS_BACK}") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}, the rows of client {entry.name}, is damaged ({error}); {_WAYS_BACK}") from error
    if not len(x) == len(y) == entry.rows[split]:
        raise UserError(
            f"{path} holds {len(x)} {split} rows of client {entry.name}, and {MANIFEST} says "
            f"{entry.rows[split]}; {_WAYS_BACK}"
        )
    return x, y


_WAYS_BACK = "`siloflow partition` rebuilds it, `dvc checkout` brings the recorded one back."


def _leftovers(folder: Path) -> tuple[Path, Path]:
    """The two names used while writing, after undoing what a killed process left under them."""
    # beside data/, not in it: a leftover there would change the data's version
    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    home = parent.resolve().parent
    if home.stat().st_dev != parent.stat().st_dev:
        home = parent  # data/ is a mount of its own, and no rename leaves it
    new, old = (home / f".{parent.name}-{folder.name}.{end}" for end in ("new", "old"))
    if old.exists() and not folder.exists():
        old.rename(folder)
    for left in (new, old):
        if left.exists():
            shutil.rmtree(left)
    return new, old


def _write_client(path: Path, client: ClientRows, params: DataParams) -> ClientEntry:
    from safetensors.numpy import save

    parts = split_rows(client, params.split, params.seed)
    tensors = {}
    for split in SPLITS:
        tensors[f"{split}_x"] = np.ascontiguousarray(client.x[parts[split]])
        tensors[f"{split}_y"] = np.ascontiguousarray(client.y[parts[split]], dtype=np.int64)
    path.write_bytes(save(tensors))  # safetensors orders by type and name, whatever the order here
    rows = {split: len(parts[split]) for split in SPLITS}
    return ClientEntry(name=client.name, domain=client.domain, file=path.name, rows=rows)


def _file_names(clients: Sequence[str]) -> list[str]:
    """A safe file name for each client: its own if that is safe, else a readable form with a short hash."""
    # some file systems hold A and a for one name
    folded = Counter(name.casefold() for name in clients)
    return [f"{_slug(name, alone=folded[name.casefold()] == 1)}.safetensors" for name in clients]


def _slug(name: str, alone: bool) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".")[:80]
    if slug == name and alone:
        return slug
    return f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _to_json(manifest: Manifest) -> bytes:
    held = {
        "format": FORMAT,
        "name": manifest.name,
        "params": manifest.params,
        "classes": manifest.classes,
        "shape": manifest.shape,
        "dtype": manifest.dtype,
        "clients": [
            {"name": entry.name, "domain": entry.domain, "file": entry.file, "rows": entry.rows}
            for entry in manifest.clients
        ],
    }
    return (json.dumps(held, sort_keys=True, indent=1) + "\n").encode()


def _entry(held: dict[str, Any]) -> ClientEntry:
    rows = {split: int(held["rows"][split]) for split in SPLITS}
    if Path(held["file"]).name != held["file"]:
        raise ValueError(f"file name {held['file']!r}")
    return ClientEntry(name=held["name"], domain=held["domain"], file=held["file"], rows=rows)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
