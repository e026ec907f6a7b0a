"""Cohorts: which clients are computed together, and their rows loaded as stacks."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from silos.io.free_memory import free_bytes
from silos.silo_reference import Silos
from silos.standardizer import Standardization, Standardizer
from silos.storage.client_table import ClientEntry
from silos.storage.partition_store import open_client, open_common_rows

__all__ = ["Cohort", "Silos", "Stack", "StackRows", "inputs_standardizer", "make_stacks", "open_common", "open_stack"]

CACHE_BYTES = min(4 * 1024**3, free_bytes() // 16)  # of stacks that a process caches; processes share a machine


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


def open_stack(silos: Silos, stack: Stack, split: str) -> StackRows:
    """Load a stack's rows of one split, from this process's cache if possible.

    Raises:
        UserError: If a client's rows are not, or no longer, what the data version records.
    """
    key = (silos.folder, silos.version, silos.scaling, silos.members, stack, split)
    return _cached(key, lambda: silos.check(stack.clients), lambda: _load_stack(silos, stack, split))


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


def _cached(key: tuple, check: Callable[[], None], read: Callable[[], StackRows]) -> StackRows:
    check()  # cached rows too: a run must not mix cached rows with rows that changed on disk
    with _lock:
        cached = _cache.get(key)
        if cached is not None:
            _cache.move_to_end(key)
            return cached
    rows = read()
    check()  # nothing changed while the rows were read
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
