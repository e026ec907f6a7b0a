"""Which clients are worked on together, and their rows opened side by side."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np

from silos.io.free_memory import free_bytes
from silos.silo_reference import Silos
from silos.standardizer import Standardization
from silos.storage.partition_store import open_client, open_common_rows

__all__ = ["Cohort", "Silos", "Stack", "StackRows", "make_stacks", "open_common", "open_stack"]

CACHE_BYTES = min(4 * 1024**3, free_bytes() // 16)  # what a process keeps of opened stacks; several share a machine


@dataclass(frozen=True)
class Stack:
    """Clients computed as one batch of `size`; where they are fewer, the rest is masked dummies."""

    clients: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Cohort:
    """The stacks that one worker handles in one task."""

    silos: Silos
    stacks: tuple[Stack, ...]

    @property
    def clients(self) -> tuple[str, ...]:
        """The cohort's clients, in stack order."""
        return tuple(name for stack in self.stacks for name in stack.clients)


def make_stacks(silos: Silos, size: int) -> tuple[Stack, ...]:
    """Clients cut into stacks of `size`, those with most training rows first.

    Depends on the data and `size` alone: neither on the order of `silos.clients` nor on the workers.
    """
    rows = silos.rows("train")
    order = sorted(rows, key=lambda name: (-rows[name], name))
    return tuple(Stack(tuple(order[at : at + size]), size) for at in range(0, len(order), size))


@dataclass(frozen=True)
class StackRows:
    """The rows of a stack; shared by all who open it, so: read only.

    x: (size, width, *shape) float32, pixels in [0, 1]; y: (size, width) int64, or float32 where the task is
    regression, both scaled as the silos say; rows: (size,) int64. The first rows[i] of client i are real and the
    others zeros. A dummy has 0 rows; width is at least 1.
    """

    x: np.ndarray
    y: np.ndarray
    rows: np.ndarray

    @property
    def nbytes(self) -> int:
        """The memory that the rows take, in bytes."""
        return self.x.nbytes + self.y.nbytes + self.rows.nbytes


def open_stack(silos: Silos, stack: Stack, split: str) -> StackRows:
    """A stack's rows of one split, from memory where they were opened before in this process.

    UserError where a client's rows are not, or no more, what the version says.
    """
    key = (silos.folder, silos.version, silos.scaling, silos.members, stack, split)
    return _remembered(key, lambda: silos.check(stack.clients), lambda: _read(silos, stack, split))


def open_common(silos: Silos, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a split that no client owns, shared by all who open them: x (rows, *shape) float32, y (rows,).

    Scaled and typed as in a stack.
    """

    def read() -> StackRows:
        x, y = open_common_rows(Path(silos.folder), silos.manifest, split)
        return StackRows(x=_inputs(x, silos.scaling), y=_targets(y, silos.scaling), rows=np.array([len(y)]))

    key = (silos.folder, silos.version, silos.scaling, split)
    opened = _remembered(key, lambda: silos.check(common=bool(silos.common(split))), read)
    return opened.x, opened.y


def forget_stacks() -> None:
    """Frees the memory that opened stacks hold."""
    with _lock:
        _opened.clear()


def _remembered(key: tuple, check: Callable[[], None], read: Callable[[], StackRows]) -> StackRows:
    check()  # also where they are in memory: half a run on these and half on what lies there now would be no run
    with _lock:
        known = _opened.get(key)
        if known is not None:
            _opened.move_to_end(key)
            return known
    rows = read()
    check()  # nothing came between
    with _lock:
        _opened[key] = rows
        held = sum(each.nbytes for each in _opened.values())
        while held > CACHE_BYTES:
            held -= _opened.popitem(last=False)[1].nbytes
    return rows


_lock = Lock()
_opened: OrderedDict[tuple, StackRows] = OrderedDict()


def _read(silos: Silos, stack: Stack, split: str) -> StackRows:
    manifest, folder = silos.manifest, Path(silos.folder)
    owned = [silos.entries(name) for name in stack.clients]
    counts = [sum(entry.rows[split] for entry in entries) for entries in owned]
    rows = np.zeros(stack.size, np.int64)
    rows[: len(counts)] = counts
    width = max(1, int(rows.max(initial=0)))
    x = np.zeros((stack.size, width, *manifest.shape), np.float32)
    y = np.zeros((stack.size, width), manifest.label_type)
    for at, entries in enumerate(owned):
        start = 0
        for entry in entries:
            read_x, read_y = open_client(folder, entry, split)
            stop = start + len(read_y)
            x[at, start:stop] = _inputs(read_x, silos.scaling)
            y[at, start:stop] = _targets(read_y, silos.scaling)
            start = stop
    return StackRows(x=x, y=y, rows=rows)


def _inputs(x: np.ndarray, scaling: Standardization) -> np.ndarray:
    """Pixels in [0, 1], other numbers as they are unless scaled: float32."""
    if x.dtype == np.uint8:
        return np.divide(x, np.float32(255), dtype=np.float32)
    return scaling.inputs.of(x) if scaling.inputs else x


def _targets(y: np.ndarray, scaling: Standardization) -> np.ndarray:
    return scaling.targets.of(y) if scaling.targets else y
