"""The manifest of a folder of silos: what it holds, and with the file of columns beside it who its clients are."""

import json
from collections.abc import KeysView, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from silos.errors import UserError
from silos.schema import Feature, Schema, Task, is_table, unnamed
from silos.storage.client_table import ClientEntry, ClientTable, from_bytes

FORMAT = 2
MANIFEST = "manifest.json"
COLUMNS = "manifest.safetensors"
COMMON = "common.safetensors"
WAYS_BACK = "`siloflow partition` rebuilds it, `dvc checkout` brings the recorded one back."
_COMPARED = 10_000  # names that one is compared with, for what was meant: seconds


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
    clients: ClientTable
    common: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    task: Task = "classification"
    features: tuple[Feature, ...] = ()

    def client(self, name: str) -> ClientEntry:
        """The entry of one client."""
        return self.clients[self.place(name)]

    def place(self, name: str) -> int:
        """A client's place in `clients`; UserError where there is none of this name."""
        place = self.clients.places.get(name)
        if place is None:
            names = self.clients.names
            near = get_close_matches(name, names, 1) if len(names) <= _COMPARED else []
            hint = f"did you mean {near[0]}? It has" if near else "it has"
            raise UserError(f"there is no client {name} in data/{self.name}; {hint} {_some(names)}.")
        return place

    @property
    def names(self) -> KeysView[str]:
        """Of all clients, in the order of listing."""
        return self.clients.places.keys()

    @property
    def label_type(self) -> type[np.generic]:
        """The type of y: int64 codes, or float32 targets."""
        return np.int64 if self.task == "classification" else np.float32


def read_manifest(folder: Path, earlier: str = "") -> Manifest:
    """The manifest of a folder of silos; a UserError where it or its columns are missing, damaged or of another format.

    `earlier` names the version that the folder is a copy of, where it is not data/: nothing makes that one anew.
    """
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
        if earlier:
            raise UserError(
                f"{earlier} has format {number!r} and this siloflow reads format {FORMAT}; name a version of that format, "
                "or use the siloflow that made this one."
            )
        raise UserError(
            f"{path} has format {number!r} and this siloflow reads format {FORMAT}; `siloflow partition` "
            "makes the data anew."
        )
    try:
        clients = _clients(path.with_name(COLUMNS), held)
        return Manifest(
            name=held["name"],
            params=held["params"],
            classes=tuple(held["classes"]),
            shape=tuple(held["shape"]),
            dtype=held["dtype"],
            clients=clients,
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
        "clients": len(manifest.clients),
        "domains": manifest.clients.domains,
        "files": manifest.clients.files,
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


def _clients(path: Path, held: dict[str, Any]) -> ClientTable:
    """The columns that lie beside a manifest; UserError where they are not what it describes."""
    domains, files = (tuple(map(str, held[name])) for name in ("domains", "files"))
    for file in files:
        if "/" in file or "\\" in file:
            raise ValueError(f"file name {file!r}")
    try:
        return from_bytes(path.read_bytes(), int(held["clients"]), domains, files)
    except FileNotFoundError:
        raise UserError(f"{path}, the list of clients, is missing; {WAYS_BACK}") from None
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}, the list of clients, is damaged ({error}); {WAYS_BACK}") from error


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def schema_of(manifest: Manifest) -> Schema:
    """The schema of a folder of silos, also of one that was made before features had names."""
    features = manifest.features
    if not features and is_table(manifest.shape, manifest.dtype):
        features = unnamed(manifest.shape[0])
    return Schema(features, manifest.classes, manifest.task, manifest.shape, manifest.dtype)
