"""The manifest of a folder of silos: who its clients are and where their rows lie."""

import json
from collections.abc import KeysView, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from silos.errors import UserError
from silos.rows import SPLITS, Role, Task
from silos.schema import Feature

FORMAT = 1
MANIFEST = "manifest.json"
COMMON = "common.safetensors"
WAYS_BACK = "`siloflow partition` rebuilds it, `dvc checkout` brings the recorded one back."


@dataclass(frozen=True)
class ClientEntry:
    """What the manifest says of one client; `rows` counts its rows per split.

    `key` comes before the names of its tensors where a file holds several clients, and `role` is federated,
    fresh (a known law, never trained on) or unseen (a law that nobody trained on).
    """

    name: str
    domain: str
    file: str
    rows: dict[str, int]
    key: str = ""
    role: Role = "federated"


@dataclass(frozen=True)
class Manifest:
    """What a folder of silos holds: a row is `shape` of `dtype` (uint8 or float32), labelled by `classes`.

    `common` counts the rows that no client owns, by split, and `left_out` those that the scheme dropped. Where
    the task is regression there are no classes. `features` is what is known of a table's columns; see `schema_of`.
    """

    name: str
    params: dict[str, Any]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    clients: tuple[ClientEntry, ...]
    common: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    task: Task = "classification"
    features: tuple[Feature, ...] = ()

    def client(self, name: str) -> ClientEntry:
        """The entry of one client."""
        if name not in self._by_name:
            near = get_close_matches(name, self._by_name, 1)
            hint = f"did you mean {near[0]}? It has" if near else "it has"
            raise UserError(f"there is no client {name} in data/{self.name}; {hint} {_some(list(self._by_name))}.")
        return self._by_name[name]

    def rows(self, split: str) -> dict[str, int]:
        """The number of rows of each client in a split ("train", "validation" or "test")."""
        return {entry.name: entry.rows[split] for entry in self.clients}

    @property
    def names(self) -> KeysView[str]:
        """Of all clients, in the order of listing."""
        return self._by_name.keys()

    @property
    def label_type(self) -> type[np.generic]:
        """The type of y: int64 codes, or float32 targets."""
        return np.int64 if self.task == "classification" else np.float32

    @cached_property
    def _by_name(self) -> dict[str, ClientEntry]:
        return {entry.name: entry for entry in self.clients}


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
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}); {WAYS_BACK}") from error
    number = held.get("format") if isinstance(held, dict) else None
    if number != FORMAT:
        raise UserError(
            f"{path} has format {number!r} and this siloflow reads format {FORMAT}; `siloflow partition` "
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
            common={split: int(rows) for split, rows in held.get("common", {}).items()},
            left_out=int(held.get("left_out", 0)),
            task=held.get("task", "classification"),
            features=tuple(Feature.model_validate(feature) for feature in held.get("features", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}); {WAYS_BACK}") from error


def to_json(manifest: Manifest) -> bytes:
    """The manifest's bytes; what has its default is not written, so that versions outlive new keys."""
    held = {
        "format": FORMAT,
        "name": manifest.name,
        "params": manifest.params,
        "classes": manifest.classes,
        "shape": manifest.shape,
        "dtype": manifest.dtype,
        "clients": [_entry_json(entry) for entry in manifest.clients],
    }
    if manifest.common:
        held["common"] = manifest.common
    if manifest.left_out:
        held["left_out"] = manifest.left_out
    if manifest.task != "classification":
        held["task"] = manifest.task
    if manifest.features:
        held["features"] = [feature.written() for feature in manifest.features]
    return (json.dumps(held, sort_keys=True, indent=1) + "\n").encode()


def _entry_json(entry: ClientEntry) -> dict[str, Any]:
    held: dict[str, Any] = {"name": entry.name, "domain": entry.domain, "file": entry.file, "rows": entry.rows}
    if entry.key:
        held["key"] = entry.key
    if entry.role != "federated":
        held["role"] = entry.role
    return held


def _entry(held: dict[str, Any]) -> ClientEntry:
    rows = {split: int(held["rows"][split]) for split in SPLITS}
    file = held["file"]
    if "/" in file or "\\" in file:
        raise ValueError(f"file name {file!r}")
    return ClientEntry(
        name=held["name"],
        domain=held["domain"],
        file=file,
        rows=rows,
        key=held.get("key", ""),
        role=held.get("role", "federated"),
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
