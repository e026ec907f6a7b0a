"""Cohorts: references to clients' rows on disk, which travel to tasks, and the stacks that are loaded from them."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from itertools import compress
from pathlib import Path
from threading import Lock

import numpy as np

from silos.dataset import SPLITS, Role
from silos.errors import UserError
from silos.io.hashing import file_digest
from silos.io.memory_and_disk import free_bytes
from silos.standardizer import NO_STANDARDIZATION, Standardization, Standardizer
from silos.storage.manifest import COLUMNS, COMMON, MANIFEST, ROLES, ClientEntry, ClientTable, Manifest, read_manifest
from silos.storage.partition_store import open_client, open_common_rows
from silos.storage.shards import VerifiedRows

_HASHED = (MANIFEST, COLUMNS, COMMON)

CACHE_BYTES = min(4 * 1024**3, free_bytes() // 16)  # of stacks that a process caches; processes share a machine


@dataclass(frozen=True)
class Silos:
    """A reference to clients' rows on disk: small, picklable, opened only where it is used.

    `pool` fills in `members`: then `clients` is one name, which owns the rows of all members. `hashes` are the md5s of
    the manifest, of its columns (which hold a digest of each client's rows), and of the common rows. Every process that
    opens these files compares the hashes. `scaling` standardises rows when they are loaded. Queries cost time by the
    number of clients selected, once the process has read the columns.
    """

    folder: str
    version: str
    clients: tuple[str, ...]
    members: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    scaling: Standardization = field(default=NO_STANDARDIZATION, repr=False)

    @classmethod
    def open(cls, folder: Path | str, version: str, hashes: Mapping[str, str] | None = None) -> "Silos":
        """Open all clients of a folder of silos with this data version; hash its files unless `hashes` are given."""
        folder = Path(folder).absolute()
        if hashes is None:
            hashes = {file: file_digest(str(folder / file)) for file in _HASHED if (folder / file).is_file()}
        silos = cls(str(folder), version, (), hashes={file: hashes[file] for file in _HASHED if file in hashes})
        return replace(silos, clients=silos._table.names)

    @property
    def pooled(self) -> bool:
        """Return whether several clients are pooled into one."""
        return bool(self.members)

    @property
    def manifest(self) -> Manifest:
        """Return the folder's manifest, read once a process."""
        return self._loaded[0]

    def check(self, clients: Iterable[str] = (), common: bool = False) -> None:
        """Check on disk, at each call, that the manifest, its columns and these clients' rows match the version.

        `common` includes the common rows.

        Raises:
            UserError: If a file changed, is damaged or is missing.
        """
        indices = [self.index(client) for client in clients]
        if indices:
            self.must_be_here()
        for file in (MANIFEST, COLUMNS):
            _check_hash(self.folder, self.version, file, self.hashes.get(file))
        if common:
            _check_hash(self.folder, self.version, COMMON, self.hashes.get(COMMON), ", with the rows of all clients,")
        mismatch = self._loaded[1].first_mismatch(
            Path(self.folder), self._table_indices if self.pooled and indices else self._table_indices[indices]
        )
        if mismatch is not None:
            entry, error = mismatch
            raise _changed(self.folder, self.version, entry.file, f", with the rows of client {entry.name},", error)

    def rows(self, split: str) -> dict[str, int]:
        """Return the number of rows of each client in a split."""
        return dict(zip(self.clients, self.rows_array(split).tolist(), strict=True))

    def rows_array(self, split: str) -> np.ndarray:
        """Return the row counts in the order of `clients`: (clients,) int64."""
        rows = self._table.rows[self._table_indices, SPLITS.index(split)].astype(np.int64)
        return rows.sum(keepdims=True) if self.pooled else rows

    def index(self, client: str) -> int:
        """Return a client's index in `clients`, and in every array in that order."""
        position = self._positions.get(client)
        if position is None:
            raise UserError(
                f"client {client}: got no such client among those selected of {self.folder}, expected one of them."
            )
        return position

    def __contains__(self, client: object) -> bool:
        return client in self._positions

    def of_role(self, role: Role) -> np.ndarray:
        """Return which of `clients` have this role: (clients,) bool."""
        return self._table.role[self._role_indices] == ROLES.index(role)

    def common(self, split: str) -> int:
        """Return the number of rows of a split that no client owns."""
        return self.manifest.common.get(split, 0)

    def role(self, client: str) -> Role:
        """Return the role: federated, fresh (a trained domain, an untrained client) or unseen (an untrained domain)."""
        return ROLES[self._table.role[self._role_indices[self.index(client)]]]

    def domain(self, client: str) -> str:
        """Return the name of the client's distribution; empty if the partition made no differences."""
        return self._table.domains[self._table.domain[self._role_indices[self.index(client)]]]

    def training_domains(self) -> list[str]:
        """Return the domains of the clients that take part in training, sorted."""
        codes = np.unique(self._table.domain[self._role_indices[self.of_role("federated")]])
        return sorted(self._table.domains[code] for code in codes.tolist())

    def federated(self) -> "Silos":
        """Return the clients that take part in training."""
        chosen = self.of_role("federated")
        return self if chosen.all() else replace(self, clients=tuple(compress(self.clients, chosen.tolist())))

    def entries(self, client: str) -> list[ClientEntry]:
        """Return the manifest's entries of one client: one, or those of all members if pooled."""
        position = self.index(client)
        indices = self._table_indices if self.pooled else self._table_indices[[position]]
        return [self._table[index] for index in indices.tolist()]

    @property
    def partition(self) -> str:
        """Return a hash of the rows of all silos, also of those that are not selected."""
        return hashlib.sha256(json.dumps(sorted(self.hashes.items())).encode()).hexdigest()[:32]

    def select(self, clients: Sequence[str]) -> "Silos":
        """Return these clients only, in this order."""
        if tuple(clients) == self.clients:
            return self
        for name in clients:
            self.index(name)
        return replace(self, clients=tuple(clients))

    def by_place(self) -> dict[str, "Silos"]:
        """Return the clients of each place, in the order of `clients`; a single part, named "", if all rows lie here.

        UserError for a pooled client with members of several places.
        """
        names = list(self.manifest.places)
        if not names:
            return {"": self}
        places = self.manifest.place_of_file[self._table.file[self._table_indices]]
        if self.pooled and len(set(places.tolist())) == 1:
            return {names[int(places[0])]: self}
        if self.pooled:
            raise UserError(
                f"client {self.clients[0][:40]}: got rows of {len(set(places.tolist()))} places, expected those of one. "
                "Rows do not leave their place, so no method that pools them runs. Choose another method."
            )
        parts = {}
        for index in np.unique(places).tolist():
            parts[names[index]] = self.select(list(compress(self.clients, (places == index).tolist())))
        return parts

    @property
    def is_here(self) -> bool:
        """Return whether the clients' rows, and what clients keep, lie on this machine."""
        return self._place_elsewhere() is None

    def must_be_here(self) -> None:
        """Raise UserError if the clients' rows, and what clients keep, lie at places instead of this machine."""
        place = self._place_elsewhere()
        if place is not None:
            raise UserError(
                f"data/{self.manifest.name}: got rows at place {place}, which do not leave it, expected them here. Use "
                "a command that runs over places, with runner.kind places (docs/places.md), or run it at a place."
            )

    def _place_elsewhere(self) -> str | None:
        """Return the first place that has clients' rows, and whose files are not on this machine."""
        folder, places = Path(self.folder), self.manifest.places
        return next(
            (p for p in (self.by_place() if places else ()) if not (folder / places[p].files[0]).exists()), None
        )

    def only_place(self) -> str:
        """Return the place of the clients, "" if all rows lie here; UserError for clients of several places."""
        first, *others = self.by_place()
        if others:
            raise UserError(f"client {self.clients[0]}: got clients of several places, expected those of one.")
        return first

    def pool(self) -> "Silos":
        """Return one client that owns the rows of all, in their order; a single client is returned unchanged."""
        if len(self.clients) == 1:
            return self
        return replace(self, clients=("+".join(self.clients),), members=self.clients)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields alone, without cached lookups."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _loaded(self) -> tuple[Manifest, VerifiedRows]:
        return _load(self.folder, self.version, self.hashes.get(MANIFEST), self.hashes.get(COLUMNS))

    @property
    def _table(self) -> ClientTable:
        return self.manifest.clients

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        if self.clients == self._table.names:
            return self._table.indices
        return {client: index for index, client in enumerate(self.clients)}

    @cached_property
    def _table_indices(self) -> np.ndarray:
        """Return the table indices of the clients that own the rows, of all members if pooled: int64."""
        owners = self.members or self.clients
        if owners == self._table.names:
            return np.arange(len(owners))
        return np.array([self.manifest.index(name) for name in owners], np.int64)

    @property
    def _role_indices(self) -> np.ndarray:
        """Return the table index that gives the role and domain of each of `clients`: (clients,) int64."""
        return self._table_indices[:1] if self.pooled else self._table_indices


@lru_cache(maxsize=16)
def _load(folder: str, version: str, *md5s: str | None) -> tuple[Manifest, VerifiedRows]:
    manifest = read_manifest(Path(folder))
    for file, md5 in zip((MANIFEST, COLUMNS), md5s, strict=True):
        _check_hash(folder, version, file, md5)
    return manifest, VerifiedRows(manifest.clients)


def _check_hash(folder: str, version: str, file: str, md5: str | None, content: str = "") -> None:
    try:
        if file_digest(f"{folder}/{file}") == md5:
            return
    except OSError as error:
        raise _changed(folder, version, file, content, error) from None
    raise _changed(folder, version, file, content)


def _changed(folder: str, version: str, file: str, content: str, error: OSError | None = None) -> UserError:
    path = f"{folder}/{file}"
    fault = f"cannot be read any more ({error.strerror})" if error else f"differs from data version {version}"
    fix = "Start again: the data are then made again"  # a sweep's data, from the cache of partitions
    if Path(folder).parent.name == "data":
        fix = (
            f"Restore that version with `siloflow data use {version[:12]}`; if only this file is damaged, delete "
            "it and run `dvc checkout`"
        )
    elif Path(path).is_symlink():  # a link into DVC's cache, for an earlier version
        fix = (
            f"Delete {Path(path).resolve()} of DVC's cache, and restore it from a remote with `siloflow data use "
            f"{version[:12]}`"
        )
    return UserError(
        f"{path}{content} {fault}: the file was changed while it was in use, or it is damaged. {fix}; --resume "
        "then continues after the last complete round."
    )


@dataclass(frozen=True)
class Stack:
    """Clients computed as one batch of `size`; if there are fewer clients, masked dummies fill the rest."""

    clients: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Cohort:
    """The stacks that one worker handles in one task."""

    silos: Silos
    stacks: tuple[Stack, ...]

    @property
    def clients(self) -> tuple[str, ...]:
        """Return the cohort's clients, in stack order."""
        return tuple(name for stack in self.stacks for name in stack.clients)


def make_stacks(silos: Silos, size: int) -> tuple[Stack, ...]:
    """Cut the clients into stacks of `size`, clients with most training rows first.

    The stacks depend on the data and `size` alone, not on the order of `silos.clients` or the number of workers.
    """
    rows = silos.rows("train")
    order = sorted(rows, key=lambda name: (-rows[name], name))
    return tuple(Stack(tuple(order[start : start + size]), size) for start in range(0, len(order), size))


@dataclass(frozen=True)
class StackRows:
    """The rows of a stack, shared by all that open it: read only.

    x: (size, width, *shape) float32, pixels in [0, 1]; y: (size, width) int64, or float32 if the task is regression;
    both are standardised as `Silos.scaling` says. rows: (size,) int64. The first rows[i] rows of client i are real, and
    the others are zeros. A dummy has 0 rows; width is at least 1.
    """

    x: np.ndarray
    y: np.ndarray
    rows: np.ndarray

    @property
    def nbytes(self) -> int:
        """Return the memory of the rows, in bytes."""
        return self.x.nbytes + self.y.nbytes + self.rows.nbytes


def open_stack(silos: Silos, stack: Stack, split: str, keep: bool = True) -> StackRows:
    """Load a stack's rows of one split, from this process's cache if possible.

    Args:
        silos: The silos.
        stack: The clients.
        split: The split.
        keep: Keep them in the cache, since they are needed again.

    Raises:
        UserError: If a client's rows are not, or no longer, what the data version records.
    """
    key = (silos.folder, silos.version, silos.scaling, silos.members, stack, split)
    return _cached(key, lambda: silos.check(stack.clients), lambda: _load_stack(silos, stack, split), keep)


def open_common(silos: Silos, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Load the common rows of a split, shared by all that open them: x (rows, *shape) float32, y (rows,).

    They are standardised and typed as in a stack.
    """

    def read() -> StackRows:
        x, y = open_common_rows(Path(silos.folder), silos.manifest, split)
        return StackRows(x=_inputs(x, silos.scaling.inputs), y=_targets(y, silos.scaling), rows=np.array([len(y)]))

    key = (silos.folder, silos.version, silos.scaling, split)
    opened = _cached(key, lambda: silos.check(common=bool(silos.common(split))), read)
    return opened.x, opened.y


def forget_stacks() -> None:
    """Free the memory of cached stacks."""
    with _lock:
        _cache.clear()


def _cached(key: tuple, check: Callable[[], None], read: Callable[[], StackRows], keep: bool = True) -> StackRows:
    check()  # cached rows too: a run must not mix cached rows with rows that changed on disk
    with _lock:
        cached = _cache.get(key)
        if cached is not None:
            _cache.move_to_end(key)
            return cached
    rows = read()
    check()  # nothing changed while the rows were read
    if not keep:
        return rows
    with _lock:
        _cache[key] = rows
        total = sum(entry.nbytes for entry in _cache.values())
        while total > CACHE_BYTES:
            total -= _cache.popitem(last=False)[1].nbytes
    return rows


_lock = Lock()
_cache: OrderedDict[tuple, StackRows] = OrderedDict()


def _load_stack(silos: Silos, stack: Stack, split: str) -> StackRows:
    manifest, folder = silos.manifest, Path(silos.folder)
    entries_of = [silos.entries(name) for name in stack.clients]
    counts = [sum(entry.rows[split] for entry in entries) for entries in entries_of]
    rows = np.zeros(stack.size, np.int64)
    rows[: len(counts)] = counts
    width = max(1, int(rows.max(initial=0)))
    x = np.zeros((stack.size, width, *manifest.shape), np.float32)
    y = np.zeros((stack.size, width), manifest.label_type)
    for index, entries in enumerate(entries_of):
        start = 0
        for entry in entries:
            read_x, read_y = open_client(folder, entry, split)
            stop = start + len(read_y)
            x[index, start:stop] = _inputs(read_x, inputs_standardizer(silos, entry))
            y[index, start:stop] = _targets(read_y, silos.scaling)
            start = stop
    return StackRows(x=x, y=y, rows=rows)


def inputs_standardizer(silos: Silos, entry: ClientEntry) -> Standardizer | None:
    """Return the standardizer of a client's inputs, in part by its own training rows if the scaling says so."""
    if not silos.scaling.own_columns:
        return silos.scaling.inputs
    train, _ = open_client(Path(silos.folder), entry, "train")
    return silos.scaling.inputs_of(train)


def _inputs(x: np.ndarray, standardizer: Standardizer | None) -> np.ndarray:
    """Return pixels scaled to [0, 1], or other inputs standardised if there is a standardizer: float32."""
    if x.dtype == np.uint8:
        return np.divide(x, np.float32(255), dtype=np.float32)
    return standardizer.transform(x) if standardizer else x


def _targets(y: np.ndarray, scaling: Standardization) -> np.ndarray:
    return scaling.targets.transform(y) if scaling.targets else y
