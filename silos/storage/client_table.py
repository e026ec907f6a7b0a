"""Who the clients of a folder are, as columns: one file for all of them, and an entry made where it is asked for."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from silos.dataset import SPLITS, InColumns, Role

ROLES: tuple[Role, ...] = ("federated", "fresh", "unseen")  # the codes of the column `role`
DIGEST = 16  # bytes


@dataclass(frozen=True)
class ClientEntry:
    """What is known of one client; `rows` counts its rows by split.

    They begin at row `start` of the `held` rows of that split in its file, and `digest` is of all of them. `role` is
    federated, fresh (a known law, never trained on) or unseen (a law that nobody trained on).
    """

    name: str
    domain: str
    file: str
    rows: dict[str, int]
    role: Role
    start: dict[str, int]
    held: dict[str, int]
    digest: bytes


@dataclass(frozen=True, eq=False)
class ClientTable(InColumns[ClientEntry]):
    """All clients, in the order of listing; those of one file stand together.

    domain, file: (clients,) int32, places in `domains` and `files`; role: (clients,) uint8, places in ROLES; rows:
    (clients, 3) int32, a column a split; digest: (clients, 16) uint8.
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
    def places(self) -> dict[str, int]:
        """Of each name its place in the table."""
        return dict(zip(self.names, range(len(self)), strict=True))

    @cached_property
    def first(self) -> np.ndarray:
        """The place of each file's first client, and the number of clients: (files + 1,) int64."""
        return np.searchsorted(self.file, np.arange(len(self.files) + 1))

    @cached_property
    def _before(self) -> np.ndarray:
        """The rows of all clients before each, and of all, by split: (clients + 1, 3) int64."""
        return np.concatenate([np.zeros((1, len(SPLITS)), np.int64), np.cumsum(self.rows, axis=0, dtype=np.int64)])

    def __len__(self) -> int:
        return len(self.names)

    def one(self, at: int) -> ClientEntry:
        """See InColumns."""
        file = int(self.file[at])
        first, end = self._before[self.first[file]], self._before[self.first[file + 1]]
        return ClientEntry(
            name=self.names[at],
            domain=self.domains[self.domain[at]],
            file=self.files[file],
            rows=_by_split(self.rows[at]),
            role=ROLES[self.role[at]],
            start=_by_split(self._before[at] - first),
            held=_by_split(end - first),
            digest=self.digest[at].tobytes(),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientTable):
            return NotImplemented
        return all(np.array_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    __hash__ = None  # type: ignore[assignment]


def empty_table() -> ClientTable:
    """Of no clients."""
    return ClientTable((), (), (), *(np.zeros((0, *shape), kind) for kind, shape in _COLUMNS.values()))


def to_bytes(table: ClientTable) -> bytes:
    """The file of columns; `domains` and `files` are the manifest's to keep."""
    from safetensors.numpy import save

    names = [name.encode("utf-8", "surrogatepass") for name in table.names]
    ends = np.cumsum([len(name) for name in names], dtype=np.int64)
    columns = {name: np.ascontiguousarray(getattr(table, name)) for name in _COLUMNS}
    return save(columns | {"name": np.frombuffer(b"".join(names), np.uint8), "name_end": ends})


def from_bytes(content: bytes, clients: int, domains: tuple[str, ...], files: tuple[str, ...]) -> ClientTable:
    """What `to_bytes` wrote; ValueError where it is not of so many clients, or says what cannot be."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        held = load(content)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    shapes = {name: (kind, (clients, *shape)) for name, (kind, shape) in _COLUMNS.items()}
    shapes |= {"name": (np.uint8, held["name"].shape), "name_end": (np.int64, (clients,))}
    for name, (kind, shape) in shapes.items():
        if held[name].dtype != kind or held[name].shape != shape or len(shape) > 2:
            raise ValueError(f"the column {name} is {held[name].shape} {held[name].dtype}, and not {shape}")
    table = ClientTable(domains, files, _names(held["name"], held["name_end"]), *(held[name] for name in _COLUMNS))
    for name, most in (("domain", len(domains)), ("file", len(files)), ("role", len(ROLES))):
        if clients and not (int(held[name].min()) >= 0 and int(held[name].max()) < most):
            raise ValueError(f"the column {name} goes beyond the {most} that there are")
    if (held["rows"] < 0).any() or (np.diff(held["file"]) < 0).any():
        raise ValueError("the columns rows and file are none that a partition makes")
    if len(table.places) != clients:
        raise ValueError("a client is there twice")
    return table


_COLUMNS: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "domain": (np.int32, ()),
    "role": (np.uint8, ()),
    "file": (np.int32, ()),
    "rows": (np.int32, (len(SPLITS),)),
    "digest": (np.uint8, (DIGEST,)),
}
"""The type of each column, and what it has of each client; in the order of the table's fields."""


def _names(content: np.ndarray, ends: np.ndarray) -> tuple[str, ...]:
    if (np.diff(ends, prepend=0) < 0).any() or (int(ends[-1]) if len(ends) else 0) != len(content):
        raise ValueError("the columns name and name_end do not fit each other")
    text, cuts = content.tobytes(), ends.tolist()
    return tuple(
        text[start:end].decode("utf-8", "surrogatepass") for start, end in zip([0, *cuts][:-1], cuts, strict=True)
    )


def _by_split(counts: np.ndarray) -> dict[str, int]:
    return dict(zip(SPLITS, counts.tolist(), strict=True))
