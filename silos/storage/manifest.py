"""The manifest of a folder of silos: its contents and, with the file of columns, its clients."""

import json
from collections.abc import KeysView
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from silos.dataset import some
from silos.errors import UserError
from silos.schema import Feature, Schema, Task, default_features, is_table
from silos.storage.client_table import ClientEntry, ClientTable, from_bytes

FORMAT = 2
MANIFEST = "manifest.json"
COLUMNS = "manifest.safetensors"
COMMON = "common.safetensors"
WAYS_BACK = "Run `siloflow partition` to rebuild it, or `dvc checkout` to restore the recorded version."
_COMPARED = 10_000  # names up to which similar ones are suggested: more would take seconds


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder of silos: a row has `shape` and `dtype` (uint8 or float32), with labels in `classes`.

    `common` counts the rows that no client owns, by split; `left_out` counts the rows that the scheme dropped.
    Regression has no classes. `features` describes a table's columns; see `schema_of`.
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
        """Return the entry of one client."""
        return self.clients[self.index(name)]

    def index(self, name: str) -> int:
        """Return a client's index in `clients`; UserError if no client has this name."""
        position = self.clients.indices.get(name)
        if position is None:
            names = self.clients.names
            near = get_close_matches(name, names, 1) if len(names) <= _COMPARED else []
            hint = f"Did you mean {near[0]}? The clients are" if near else "The clients are"
            raise UserError(f"client: got {name}, expected a client of data/{self.name}. {hint} {some(names, 5)}.")
        return position

    @property
    def names(self) -> KeysView[str]:
        """Return the names of all clients, in the order of listing."""
        return self.clients.indices.keys()

    @property
    def label_type(self) -> type[np.generic]:
        """Return the type of y: int64 codes, or float32 targets."""
        return np.int64 if self.task == "classification" else np.float32


def read_manifest(folder: Path, earlier: str = "") -> Manifest:
    """Read the manifest of a folder of silos.

    Args:
        folder: data/<name>, or a copy of an earlier version.
        earlier: The name of that version if the folder is a copy, which no command rebuilds.

    Raises:
        UserError: If the manifest or its columns are missing, damaged or of another format.
    """
    path = Path(folder) / MANIFEST
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{folder}: got no data (no {MANIFEST}), expected a partition. Run `siloflow partition` to make it, "
            "or `dvc pull` to fetch it if it is recorded."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}). {WAYS_BACK}") from error
    stated = content.get("format") if isinstance(content, dict) else None
    if stated != FORMAT:
        if earlier:
            raise UserError(
                f"{earlier}: got format {stated!r}, expected format {FORMAT}. Choose a version of that format, or "
                "use the siloflow that made this one."
            )
        raise UserError(
            f"{path}: got format {stated!r}, expected format {FORMAT}. Run `siloflow partition` to make the data again."
        )
    try:
        clients = _read_columns(path.with_name(COLUMNS), content)
        return Manifest(
            name=content["name"],
            params=content["params"],
            classes=tuple(content["classes"]),
            shape=tuple(content["shape"]),
            dtype=content["dtype"],
            clients=clients,
            common={split: int(rows) for split, rows in content.get("common", {}).items()},
            left_out=int(content.get("left_out", 0)),
            task=content.get("task", "classification"),
            features=tuple(Feature.model_validate(feature) for feature in content.get("features", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}). {WAYS_BACK}") from error


def to_json(manifest: Manifest) -> bytes:
    """Return the manifest's bytes; defaults are left out, so that new keys do not change older versions."""
    content = {
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
        content["common"] = manifest.common
    if manifest.left_out:
        content["left_out"] = manifest.left_out
    if manifest.task != "classification":
        content["task"] = manifest.task
    if manifest.features:
        content["features"] = [feature.written() for feature in manifest.features]
    return (json.dumps(content, sort_keys=True, indent=1) + "\n").encode()


def _read_columns(path: Path, content: dict[str, Any]) -> ClientTable:
    """Read the columns of a manifest; UserError if they do not match it."""
    domains, files = (tuple(map(str, content[name])) for name in ("domains", "files"))
    for file in files:
        if "/" in file or "\\" in file:
            raise ValueError(f"file name {file!r}")
    try:
        return from_bytes(path.read_bytes(), int(content["clients"]), domains, files)
    except FileNotFoundError:
        raise UserError(f"{path}, the list of clients, is missing. {WAYS_BACK}") from None
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}, the list of clients, is damaged ({error}). {WAYS_BACK}") from error


def schema_of(manifest: Manifest) -> Schema:
    """Return the schema of a folder of silos, also of one made before features had names."""
    features = manifest.features
    if not features and is_table(manifest.shape, manifest.dtype):
        features = default_features(manifest.shape[0])
    return Schema(features, manifest.classes, manifest.task, manifest.shape, manifest.dtype)
