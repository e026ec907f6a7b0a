"""What flows from a source through a scheme to the store: rows, then clients that own them."""

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, overload

import numpy as np

from silos.errors import UserError
from silos.partitioners.data_rng import data_stream
from silos.schema import Feature, Task

SPLITS = ("train", "validation", "test")
_SPLIT_NAMES = np.array(SPLITS)
ATTEMPTS = 100  # draws of a law with a condition before giving up on it

Role = Literal["federated", "fresh", "unseen"]


@dataclass(frozen=True)
class Rows:
    """Rows of a source, all of equal length n.

    x: (n, *shape) uint8 (0 to 255) or float32; y: (n,) int64, codes into `classes`, or float32 targets where
    the task is regression; client, domain: (n,) str; split: (n,) str, one of "train", "validation", "test".
    missing: (n, features) bool, of a table in which values may be missing; `features` is what is known of its columns.
    `notes` are sentences for a person about what was read, and not stored.
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

    def take(self, chosen: np.ndarray) -> "Rows":
        """The rows of these numbers, or where this mask is true."""
        names = ("client", "domain", "split", "missing")
        columns = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(self, x=self.x[chosen], y=self.y[chosen], **{name: c[chosen] for name, c in columns.items()})

    def parts(self) -> list[np.ndarray]:
        """The row numbers of each split that has rows, those to train on first; all rows where there are none."""
        if self.split is None:
            return [np.arange(len(self.y))]
        parts = [np.flatnonzero(self.split == name) for name in SPLITS]
        return parts[:1] + [part for part in parts[1:] if len(part)]


@dataclass(frozen=True)
class ClientRows:
    """The rows of one client, in the order of the source.

    x: (rows, *shape) uint8 or float32; y: (rows,) int64 or float32; split: (rows,) str where it is known; missing:
    (rows, features) bool where values may be missing. `domain` names the client's law and is "" where there is nothing
    to name.
    """

    name: str
    domain: str
    x: np.ndarray
    y: np.ndarray
    split: np.ndarray | None = None
    role: Role = "federated"
    missing: np.ndarray | None = None

    def take(self, chosen: np.ndarray) -> "ClientRows":
        """The client with the rows of these numbers only, or where this mask is true."""
        columns = {name: getattr(self, name) for name in ("split", "missing") if getattr(self, name) is not None}
        return replace(self, x=self.x[chosen], y=self.y[chosen], **{name: c[chosen] for name, c in columns.items()})


Record = TypeVar("Record")


class InColumns(Sequence[Record]):
    """Records that are kept as columns; one is made where it is asked for."""

    @abstractmethod
    def one(self, at: int) -> Record:
        """The record of this place, from 0."""

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...

    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        places = range(len(self))[at]
        return self.one(places) if isinstance(places, int) else [self.one(each) for each in places]

    def __iter__(self) -> Iterator[Record]:
        return map(self.one, range(len(self)))


@dataclass(frozen=True)
class Clients(InColumns[ClientRows]):
    """Clients as columns: their rows one after another, in the order of `names`; one is made where it is asked for.

    ends: (clients,) int64, where each client's rows end; x, y, missing: (n, ...) as of `ClientRows`; split: (n,) uint8,
    places in SPLITS, None where it is not known yet.
    """

    names: list[str]
    domains: list[str]
    roles: list[Role]
    ends: np.ndarray
    x: np.ndarray
    y: np.ndarray
    split: np.ndarray | None = None
    missing: np.ndarray | None = None

    @classmethod
    def of(cls, clients: Iterable[ClientRows]) -> "Clients":
        """These clients, one at least; each has a split, or none has, and so with missing values."""
        them = list(clients)
        splits = [split_codes(client.split) for client in them if client.split is not None]
        missing = [client.missing for client in them if client.missing is not None]
        return cls(
            names=[client.name for client in them],
            domains=[client.domain for client in them],
            roles=[client.role for client in them],
            ends=np.cumsum([len(client.y) for client in them]),
            x=np.concatenate([client.x for client in them]),
            y=np.concatenate([client.y for client in them]),
            split=np.concatenate(splits) if splits else None,
            missing=np.concatenate(missing) if missing else None,
        )

    @property
    def sizes(self) -> np.ndarray:
        """The rows of each client: (clients,) int64."""
        return np.diff(self.ends, prepend=0)

    @property
    def owner(self) -> np.ndarray:
        """Whose each row is: (n,) int64, places in `names`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __len__(self) -> int:
        return len(self.names)

    def one(self, at: int) -> ClientRows:
        """See InColumns."""
        mine = slice(int(self.ends[at - 1]) if at else 0, int(self.ends[at]))
        return ClientRows(
            name=self.names[at],
            domain=self.domains[at],
            x=self.x[mine],
            y=self.y[mine],
            split=None if self.split is None else _SPLIT_NAMES[self.split[mine]],
            role=self.roles[at],
            missing=None if self.missing is None else self.missing[mine],
        )


@dataclass(frozen=True)
class Partition:
    """The clients that a scheme made, and the rows that none of them owns.

    `common` rows have a split, "validation" or "test"; `left_out` counts rows that a step of the scheme dropped; `notes`
    are sentences for a person, and not stored.
    """

    clients: Clients
    classes: list[str]
    common: Rows | None = None
    left_out: int = 0
    task: Task = "classification"
    notes: tuple[str, ...] = ()
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True)
class At:
    """Where in params.yaml a step stands: what errors call it, its random streams."""

    seed: int
    index: int
    kind: str
    names: tuple[str, ...] = ()

    def within(self, name: str) -> "At":
        """The same step in one domain, with streams of its own."""
        return replace(self, names=(*self.names, name))

    def stream(self, *names: str | int) -> np.random.RandomState:
        """The step's random stream of this name."""
        return data_stream(self.seed, "scheme", self.index, self.kind, *self.names, *names)

    @property
    def title(self) -> str:
        """What a person calls the step."""
        place = "".join(f", in the domain {name!r}" for name in self.names)
        return f"data.scheme[{self.index}] (`{self.kind}`{place})"

    def error(self, said: str) -> UserError:
        """A user's mistake in this step."""
        return UserError(f"params.yaml: {self.title} {said}")


def natural(name: str) -> tuple[list[str | int], str]:
    """A sort key by which c2 comes before c10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name


def numbered(index: int, count: int) -> str:
    """The name of a client that has none of its own: c00 ... c99, or as many digits as `count` clients need."""
    return f"c{index:0{max(2, len(str(count - 1)))}d}"


def blocks(clients: int, parts: int) -> list[int]:
    """The block of each client when they are cut into contiguous blocks whose sizes differ by one at most."""
    return [position * parts // clients for position in range(clients)]


def in_blocks(clients: Clients, parts: int, what: str, within: str | None, at: At) -> Iterable[tuple[ClientRows, int]]:
    """Each client with its block, counted over all clients or, `within` a domain, over those of its domain."""
    groups: dict[str, list[int]] = {}
    for position, domain in enumerate(clients.domains):
        groups.setdefault(domain if within else "", []).append(position)
    numbers = [0] * len(clients)
    for domain, members in groups.items():
        if len(members) < parts:
            inside = f" of the domain {domain!r}" if within else ""
            raise at.error(f"has {parts} {what} for {len(members)} clients{inside}; give at most one a client.")
        for position, block in zip(members, blocks(len(members), parts), strict=True):
            numbers[position] = block
    return zip(clients, numbers, strict=True)


def quantized_codes(values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The different values of a column (n,) in natural order, and of each row the place of its value there: (n,) int64.

    A client's rows stand together as a rule, so runs are sorted and not rows.
    """
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))[: len(values)]
    found, codes = np.unique(values[first], return_inverse=True)
    names = sorted(found.tolist(), key=natural)
    places = {name: place for place, name in enumerate(names)}
    order = np.array([places[name] for name in found.tolist()], np.int64)
    return names, np.repeat(order[codes], np.diff(first, append=len(values)))


def split_codes(split: np.ndarray) -> np.ndarray:
    """Of each row the place of its split in SPLITS: (n,) uint8."""
    codes = np.zeros(len(split), np.uint8)
    for code, name in enumerate(SPLITS[1:], start=1):
        codes[split == name] = code
    return codes


def labelled(domain: str, label: str) -> str:
    """A domain's name with the name of one more thing that its clients share."""
    return f"{domain}-{label}" if domain else label


def class_codes(names: tuple[str, ...], classes: list[str], at: At) -> list[int]:
    """The codes of the classes that a step names."""
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise at.error(
            f"names the class {unknown[0]!r}, and there is no such class; there are {some(classes)}."
            if classes
            else f"names the class {unknown[0]!r}, and the source has numbers for targets; choose another source."
        )
    return [classes.index(name) for name in names]


def some(names: list[str], shown: int = 12) -> str:
    """The first names of a list, as text."""
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
