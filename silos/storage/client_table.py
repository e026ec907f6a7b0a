"""The clients of a folder as columns: one file for all of them, and an entry created when it is read."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from silos.dataset import SPLITS, ColumnarSequence, Role

ROLES: tuple[Role, ...] = ("federated", "fresh", "unseen")  # the codes of the column `role`
DIGEST = 16  # bytes


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
    return ClientTable((), (), (), *(np.zeros((0, *shape), kind) for kind, shape in _COLUMNS.values()))


def to_bytes(table: ClientTable) -> bytes:
    """Return the file of columns; the manifest stores `domains` and `files`."""
    from safetensors.numpy import save

    names = [name.encode("utf-8", "surrogatepass") for name in table.names]
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    columns = {name: np.ascontiguousarray(getattr(table, name)) for name in _COLUMNS}
    return save(columns | {"name": np.frombuffer(b"".join(names), np.uint8), "name_end": ends})


def from_bytes(content: bytes, clients: int, domains: tuple[str, ...], files: tuple[str, ...]) -> ClientTable:
    """Read what `to_bytes` wrote; ValueError for another number of clients, or invalid columns."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        columns = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    shapes = {name: (kind, (clients, *shape)) for name, (kind, shape) in _COLUMNS.items()}
    shapes |= {"name": (np.uint8, columns["name"].shape), "name_end": (np.int64, (clients,))}
    for name, (kind, shape) in shapes.items():
        if columns[name].dtype != kind or columns[name].shape != shape or len(shape) > 2:
            raise ValueError(f"column {name}: got {columns[name].shape} {columns[name].dtype}, expected {shape}")
    table = ClientTable(
        domains, files, _decode_names(columns["name"], columns["name_end"]), *(columns[name] for name in _COLUMNS)
    )
    for name, limit in (("domain", len(domains)), ("file", len(files)), ("role", len(ROLES))):
        if clients and not (int(columns[name].min()) >= 0 and int(columns[name].max()) < limit):
            raise ValueError(f"column {name}: got a value above the {limit} that exist")
    if (columns["rows"] < 0).any() or (np.diff(columns["file"]) < 0).any():
        raise ValueError("columns rows and file: got a combination that no partition makes")
    if len(table.indices) != clients:
        raise ValueError("clients: got a client twice")
    return table


_COLUMNS: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
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
