"""The manifest of a folder of silos: its contents and its clients, which are columns in one file, read entry by entry."""

import json
from collections.abc import KeysView
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from silos.dataset import SPLITS, ColumnarSequence, Role
from silos.errors import UserError, near_names, some
from silos.raw_cells import RawColumns
from silos.schema import Feature, Schema, Task, default_features, is_table
from silos.sources.source_params import PUBLIC_KINDS

ROLES: tuple[Role, ...] = ("federated", "fresh", "unseen")  # the codes of the column `role`
DIGEST = 16  # bytes

FORMAT = 2
MANIFEST = "manifest.json"
COLUMNS = "manifest.safetensors"
COMMON = "common.safetensors"
WAYS_BACK = "Run `siloflow partition` to rebuild it, or `dvc checkout` to restore the recorded version."


@dataclass(frozen=True)
class ClientEntry:
    """The entry of one client; `rows` counts its rows by split.

    In its file, the client's rows of a split begin at row `start` of `file_rows` rows; `digest` covers all its rows.
    `role` is federated, fresh (a trained domain, but an untrained client) or unseen (an untrained domain).
    """

    name: str
    domain: str
    file: str
    rows: dict[str, int]
    role: Role
    start: dict[str, int]
    file_rows: dict[str, int]
    digest: bytes


@dataclass(frozen=True, eq=False)
class ClientTable(ColumnarSequence[ClientEntry]):
    """All clients, in the order of listing; the clients of one file are consecutive.

    domain, file: (clients,) int32, indices into `domains` and `files`; role: (clients,) uint8, indices into ROLES;
    rows: (clients, 3) int32, one column for each split; digest: (clients, 16) uint8.
    """

    domains: tuple[str, ...]
    files: tuple[str, ...]
    names: tuple[str, ...]
    domain: np.ndarray
    role: np.ndarray
    file: np.ndarray
    rows: np.ndarray
    digest: np.ndarray

    @cached_property
    def indices(self) -> dict[str, int]:
        """Return the index of each name."""
        return dict(zip(self.names, range(len(self)), strict=True))

    @cached_property
    def first_in_file(self) -> np.ndarray:
        """Return the index of each file's first client, and the number of clients: (files + 1,) int64."""
        return np.searchsorted(self.file, np.arange(len(self.files) + 1))

    @cached_property
    def _before(self) -> np.ndarray:
        """Return the rows before each client, and of all clients, by split: (clients + 1, 3) int64."""
        return np.concatenate([np.zeros((1, len(SPLITS)), np.int64), np.cumsum(self.rows, axis=0, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.names)

    def record(self, index: int) -> ClientEntry:
        """See ColumnarSequence."""
        file = int(self.file[index])
        start, end = self._before[self.first_in_file[file]], self._before[self.first_in_file[file + 1]]
        return ClientEntry(
            name=self.names[index],
            domain=self.domains[self.domain[index]],
            file=self.files[file],
            rows=_by_split(self.rows[index]),
            role=ROLES[self.role[index]],
            start=_by_split(self._before[index] - start),
            file_rows=_by_split(end - start),
            digest=self.digest[index].tobytes(),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientTable):
            return NotImplemented
        return all(np.array_equal(getattr(self, column.name), getattr(other, column.name)) for column in fields(self))

    __hash__ = None  # type: ignore[assignment]


def empty_table() -> ClientTable:
    """Return a table of no clients."""
    return ClientTable((), (), (), *(np.zeros((0, *shape), kind) for kind, shape in _TYPES.values()))


def to_bytes(table: ClientTable) -> bytes:
    """Return the file of columns; the manifest stores `domains` and `files`."""
    from safetensors.numpy import save

    names = [name.encode("utf-8", "surrogatepass") for name in table.names]
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    columns = {name: np.ascontiguousarray(getattr(table, name)) for name in _TYPES}
    return save(columns | {"name": np.frombuffer(b"".join(names), np.uint8), "name_end": ends})


def from_bytes(content: bytes, clients: int, domains: tuple[str, ...], files: tuple[str, ...]) -> ClientTable:
    """Read what `to_bytes` wrote; ValueError for another number of clients, or invalid columns."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        columns = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    shapes = {name: (kind, (clients, *shape)) for name, (kind, shape) in _TYPES.items()}
    shapes |= {"name": (np.uint8, columns["name"].shape), "name_end": (np.int64, (clients,))}
    for name, (kind, shape) in shapes.items():
        if columns[name].dtype != kind or columns[name].shape != shape or len(shape) > 2:
            raise ValueError(f"column {name}: got {columns[name].shape} {columns[name].dtype}, expected {shape}")
    table = ClientTable(
        domains, files, _decode_names(columns["name"], columns["name_end"]), *(columns[name] for name in _TYPES)
    )
    for name, limit in (("domain", len(domains)), ("file", len(files)), ("role", len(ROLES))):
        if clients and not (int(columns[name].min()) >= 0 and int(columns[name].max()) < limit):
            raise ValueError(f"column {name}: got a value above the {limit} that exist")
    if (columns["rows"] < 0).any() or (np.diff(columns["file"]) < 0).any():
        raise ValueError("columns rows and file: got a combination that no partition makes")
    if len(table.indices) != clients:
        raise ValueError("clients: got a client twice")
    return table


_TYPES: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "domain": (np.int32, ()),
    "role": (np.uint8, ()),
    "file": (np.int32, ()),
    "rows": (np.int32, (len(SPLITS),)),
    "digest": (np.uint8, (DIGEST,)),
}
"""The type and the shape for each client of every column, in the order of the table's fields."""


def _decode_names(content: np.ndarray, ends: np.ndarray) -> tuple[str, ...]:
    if (np.diff(ends, prepend=0) < 0).any() or (int(ends[-1]) if len(ends) else 0) != len(content):
        raise ValueError("columns name and name_end: got different lengths")
    text, cuts = content.tobytes(), ends.tolist()
    return tuple(
        text[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *cuts][:-1], cuts, strict=True)
    )


def _by_split(counts: np.ndarray) -> dict[str, int]:
    return dict(zip(SPLITS, counts.tolist(), strict=True))


@dataclass(frozen=True)
class Part:
    """What lies at one place: the digest of its own manifest and columns, and its files."""

    digest: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The contents of a folder of silos: a row has `shape` and `dtype` (uint8 or float32), with labels in `classes`.

    `common` counts the rows that no client owns, by split; `left_out` counts the rows that the scheme dropped.
    Regression has no classes. `features` describes a table's columns; see `schema_of`. `raw` describes the stored cells.
    `places` says what lies at each place, by its name; it is empty if all rows lie here.
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
    raw: RawColumns | None = None
    places: dict[str, Part] = field(default_factory=dict)

    def client(self, name: str) -> ClientEntry:
        """Return the entry of one client."""
        return self.clients[self.index(name)]

    def index(self, name: str) -> int:
        """Return a client's index in `clients`; UserError if no client has this name."""
        position = self.clients.indices.get(name)
        if position is None:
            names = self.clients.names
            near = near_names(name, names)
            hint = f"Did you mean {near[0]}? The clients are" if near else "The clients are"
            raise UserError(f"client: got {name}, expected a client of data/{self.name}. {hint} {some(names, 5)}.")
        return position

    @property
    def is_public(self) -> bool:
        """Return whether the rows are of a built-in public or simulated source, and of no owner."""
        return self.params.get("source", {}).get("kind") in PUBLIC_KINDS

    @cached_property
    def place_of_file(self) -> np.ndarray:
        """Return the index in `places` of each file of the table, 0 without places: (files,) int64."""
        places = {file: index for index, part in enumerate(self.places.values()) for file in part.files}
        return np.array([places.get(file, 0) for file in self.clients.files], np.int64)

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
        # after the format: the columns of another format could not be read, and would look damaged
        clients = _read_columns(path.with_name(COLUMNS), content)
        return Manifest(
            name=content["name"],
            params=content["params"],
            classes=tuple(content["classes"]),
            shape=tuple(content["shape"]),
            dtype=content["dtype"],
            clients=clients,
            # `to_json` leaves out what equals its default
            common={split: int(rows) for split, rows in content.get("common", {}).items()},
            left_out=int(content.get("left_out", 0)),
            task=content.get("task", "classification"),
            features=tuple(Feature.model_validate(feature) for feature in content.get("features", ())),
            raw=_raw_columns(content["raw"]) if "raw" in content else None,
            places={place: _part(part) for place, part in sorted(content.get("places", {}).items())},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}). {WAYS_BACK}") from error


def _part(content: dict[str, Any]) -> Part:
    return Part(str(content["digest"]), tuple(map(str, content["files"])))


def _raw_columns(content: dict[str, Any]) -> RawColumns:
    return RawColumns(tuple(content["names"]), tuple(map(int, content["of_feature"])), int(content["label"]))


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
    if manifest.raw:
        content["raw"] = asdict(manifest.raw)
    if manifest.places:
        content["places"] = {place: asdict(part) for place, part in manifest.places.items()}
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
