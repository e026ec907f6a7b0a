"""Rows, clients with their rows, the partition that `data.scheme` makes of them, and the random streams of its draws."""

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, overload

import numpy as np

from silos.errors import UserError, some
from silos.raw_cells import RawCells, RawColumns
from silos.schema import Feature, Task

SPLITS = ("train", "validation", "test")
_SPLIT_NAMES = np.array(SPLITS)
ATTEMPTS = 100  # draws that must meet a condition, before a step gives up

Role = Literal["federated", "fresh", "unseen"]


@dataclass(frozen=True)
class Rows:
    """Rows of a source; all arrays have the same length n.

    x: (n, *shape) uint8 (0 to 255) or float32; y: (n,) int64, codes into `classes`, or float32 targets if the task is
    regression; client, domain: (n,) str; split: (n,) str, one of "train", "validation", "test". missing: (n, features)
    bool, for a table in which values may be missing; `features` describes its columns. unit: (n,) uint64, the hash of
    the unit of each row (`hash_units`). cells: what the rows were read from, of data of one's own. `notes` are sentences
    for the user about what was read; they are not stored.
    """

    x: np.ndarray
    y: np.ndarray
    classes: list[str]
    client: np.ndarray | None = None
    domain: np.ndarray | None = None
    split: np.ndarray | None = None
    task: Task = "classification"
    missing: np.ndarray | None = None
    features: tuple[Feature, ...] = ()
    notes: tuple[str, ...] = ()
    unit: np.ndarray | None = None
    cells: RawCells | None = None

    def take(self, rows: np.ndarray) -> "Rows":
        """Return the rows at these indices, or where this mask is true."""
        names = ("client", "domain", "split", "missing", "unit")
        columns = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        cells = None if self.cells is None else self.cells.take(rows)
        return replace(self, x=self.x[rows], y=self.y[rows], cells=cells, **{n: c[rows] for n, c in columns.items()})

    def split_indices(self) -> list[np.ndarray]:
        """Return the row indices of each split that has rows, training rows first; all rows if there are no splits."""
        if self.split is None:
            return [np.arange(len(self.y))]
        indices = [np.flatnonzero(self.split == name) for name in SPLITS]
        return indices[:1] + [part for part in indices[1:] if len(part)]


@dataclass(frozen=True)
class ClientRows:
    """The rows of one client, in the order of the source.

    x: (rows, *shape) uint8 or float32; y: (rows,) int64 or float32; split: (rows,) str, None before the split is known;
    missing: (rows, features) bool if values may be missing; unit: (rows,) uint64 if the source has units; cells: (rows,
    columns) uint32, the hashes of `RawCells` if the source has them. `domain` names the client's distribution, and is ""
    if it has no name.
    """

    name: str
    domain: str
    x: np.ndarray
    y: np.ndarray
    split: np.ndarray | None = None
    role: Role = "federated"
    missing: np.ndarray | None = None
    unit: np.ndarray | None = None
    cells: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> "ClientRows":
        """Return the client with the rows at these indices only, or where this mask is true."""
        names = ("split", "missing", "unit", "cells")
        columns = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(self, x=self.x[rows], y=self.y[rows], **{name: c[rows] for name, c in columns.items()})


Record = TypeVar("Record")


class ColumnarSequence(Sequence[Record]):
    """A sequence of records that are stored as columns; a record is created when it is read."""

    @abstractmethod
    def record(self, index: int) -> Record:
        """Return the record at this index, from 0."""

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        indices = range(len(self))[index]
        return self.record(indices) if isinstance(indices, int) else [self.record(each) for each in indices]

    def __iter__(self) -> Iterator[Record]:
        return map(self.record, range(len(self)))


@dataclass(frozen=True)
class Clients(ColumnarSequence[ClientRows]):
    """Clients as columns: their rows one after another, in the order of `names`.

    ends: (clients,) int64, where each client's rows end; x, y, missing, unit, cells: (n, ...) as in `ClientRows`; split:
    (n,) uint8, indices into SPLITS, None before the split is known.
    """

    names: list[str]
    domains: list[str]
    roles: list[Role]
    ends: np.ndarray
    x: np.ndarray
    y: np.ndarray
    split: np.ndarray | None = None
    missing: np.ndarray | None = None
    unit: np.ndarray | None = None
    cells: np.ndarray | None = None

    @classmethod
    def concatenate(cls, clients: Iterable[ClientRows]) -> "Clients":
        """Concatenate one or more clients; either all or none have a split, and likewise missing values and units."""
        listed = list(clients)
        splits = [split_codes(client.split) for client in listed if client.split is not None]
        missing = [client.missing for client in listed if client.missing is not None]
        units = [client.unit for client in listed if client.unit is not None]
        cells = [client.cells for client in listed if client.cells is not None]
        return cls(
            names=[client.name for client in listed],
            domains=[client.domain for client in listed],
            roles=[client.role for client in listed],
            ends=np.cumsum([len(client.y) for client in listed]),
            x=np.concatenate([client.x for client in listed]),
            y=np.concatenate([client.y for client in listed]),
            split=np.concatenate(splits) if splits else None,
            missing=np.concatenate(missing) if missing else None,
            unit=np.concatenate(units) if units else None,
            cells=np.concatenate(cells) if cells else None,
        )

    @property
    def sizes(self) -> np.ndarray:
        """Return the number of rows of each client: (clients,) int64."""
        return np.diff(self.ends, prepend=0)

    @property
    def owner(self) -> np.ndarray:
        """Return the owner of each row: (n,) int64, indices into `names`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def span(self, first: int, end: int) -> slice:
        """Return the rows of the clients from `first` to before `end`."""
        return slice(int(self.ends[first - 1]) if first else 0, int(self.ends[end - 1]))

    def __len__(self) -> int:
        return len(self.names)

    def record(self, index: int) -> ClientRows:
        """See ColumnarSequence."""
        span = self.span(index, index + 1)
        return ClientRows(
            name=self.names[index],
            domain=self.domains[index],
            x=self.x[span],
            y=self.y[span],
            split=None if self.split is None else _SPLIT_NAMES[self.split[span]],
            role=self.roles[index],
            missing=None if self.missing is None else self.missing[span],
            unit=None if self.unit is None else self.unit[span],
            cells=None if self.cells is None else self.cells[span],
        )


@dataclass(frozen=True)
class Partition:
    """The clients that a scheme made, and the common rows, which no client owns.

    `common` rows have the split "validation" or "test". `left_out` counts the rows that a step of the scheme dropped.
    `notes` are sentences for the user; they are not stored. `raw` describes the clients' cells.
    """

    clients: Clients
    classes: list[str]
    common: Rows | None = None
    left_out: int = 0
    task: Task = "classification"
    notes: tuple[str, ...] = ()
    features: tuple[Feature, ...] = ()
    raw: RawColumns | None = None


@dataclass(frozen=True)
class At:
    """The position of a step in params.yaml, which gives its name in errors and its random streams."""

    seed: int
    index: int
    kind: str
    names: tuple[str, ...] = ()

    def within(self, name: str) -> "At":
        """Return the context of the same step in one domain, with random streams of its own."""
        return replace(self, names=(*self.names, name))

    def stream(self, *names: str | int) -> np.random.RandomState:
        """Return the step's random stream of this name."""
        return data_stream(self.seed, "scheme", self.index, self.kind, *self.names, *names)

    @property
    def title(self) -> str:
        """Return the step's name for messages."""
        domain = "".join(f", in the domain {name!r}" for name in self.names)
        return f"data.scheme[{self.index}] (`{self.kind}`{domain})"

    def error(self, message: str) -> UserError:
        """Return the UserError for a mistake in this step."""
        return UserError(f"params.yaml: {self.title}: {message}")


def natural_sort_key(name: str) -> tuple[list[str | int], str]:
    """Return a sort key by which c2 comes before c10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name


def default_client_name(index: int, count: int) -> str:
    """Return the default name of a client: c00 ... c99, or as many digits as `count` clients need."""
    return f"c{index:0{max(2, len(str(count - 1)))}d}"


def contiguous_blocks(clients: int, parts: int) -> list[int]:
    """Return the block of each client; blocks are contiguous, and their sizes differ by at most one."""
    return [index * parts // clients for index in range(clients)]


def pair_with_blocks(
    clients: Clients, parts: int, what: str, within: str | None, at: At
) -> Iterable[tuple[ClientRows, int]]:
    """Pair each client with its block; blocks are contiguous, and their sizes differ by at most one.

    Args:
        clients: The clients.
        parts: The number of blocks.
        what: Names the parts in the error.
        within: If given, blocks are counted over the clients of each domain, else over all clients.
        at: The step, for its error.

    Raises:
        UserError: If there are fewer clients than parts.
    """
    groups: dict[str, list[int]] = {}
    for index, domain in enumerate(clients.domains):
        groups.setdefault(domain if within else "", []).append(index)
    block_of = [0] * len(clients)
    for domain, members in groups.items():
        if len(members) < parts:
            domain_text = f" of the domain {domain!r}" if within else ""
            raise at.error(
                f"got {parts} {what} for {len(members)} clients{domain_text}, expected at most one a "
                f"client. Lower the number of {what}, or make more clients."
            )
        for index, block in zip(members, contiguous_blocks(len(members), parts), strict=True):
            block_of[index] = block
    return zip(clients, block_of, strict=True)


def distinct_values(values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the distinct values of a column (n,) in natural order, and the index of each row's value: (n,) int64.

    Rows of one client usually stand together, so runs are sorted instead of rows.
    """
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))[: len(values)]
    distinct, codes = np.unique(values[first], return_inverse=True)
    names = sorted(distinct.tolist(), key=natural_sort_key)
    indices = {name: index for index, name in enumerate(names)}
    order = np.array([indices[name] for name in distinct.tolist()], np.int64)
    return names, np.repeat(order[codes], np.diff(first, append=len(values)))


def split_codes(split: np.ndarray) -> np.ndarray:
    """Return the index in SPLITS of each row's split: (n,) uint8."""
    codes = np.zeros(len(split), np.uint8)
    for code, name in enumerate(SPLITS[1:], start=1):
        codes[split == name] = code
    return codes


def extend_domain(domain: str, label: str) -> str:
    """Append a label to a domain's name."""
    return f"{domain}-{label}" if domain else label


def class_codes(names: tuple[str, ...], classes: list[str], at: At) -> list[int]:
    """Return the codes of the classes that a step names.

    Args:
        names: The classes, by name.
        classes: The classes of the source, whose order gives the codes.
        at: The step, for its error.

    Raises:
        UserError: If the source has no such class.
    """
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise at.error(
            f"got the class {unknown[0]!r}, expected one of {some(classes)}. Correct the name."
            if classes
            else f"got the class {unknown[0]!r}, expected no class, since the source has numeric targets. Drop "
            "the class, or choose another source."
        )
    return [classes.index(name) for name in names]


def data_stream(seed: int, *names: str | int) -> np.random.RandomState:
    """Return the random stream of (seed, names), the same on any machine and with any version of NumPy.

    RandomState is used instead of Generator: NumPy promises that its draws never change (NEP 19), and the data version
    depends on them.
    """
    return np.random.RandomState(_seed_of_stream(seed, names))


class DataStreams:
    """The same streams from one generator, one after another: ten times as fast for one stream a client."""

    def __init__(self) -> None:
        self._generator = np.random.RandomState(0)

    def begin(self, seed: int, *names: str | int) -> np.random.RandomState:
        """Return `data_stream(seed, *names)`, valid until the next call."""
        self._generator.seed(_seed_of_stream(seed, names))
        return self._generator


def _seed_of_stream(seed: int, names: tuple[str | int, ...]) -> np.ndarray:
    text = json.dumps([str(part) for part in (seed, *names)])  # unlike a join, JSON differs for any two lists
    return np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype="<u4").astype(np.uint32)
