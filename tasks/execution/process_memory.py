"""Set how this process keeps and frees memory: thresholds of malloc, and garbage collection between tasks."""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from functools import cache

import psutil

_frozen_modules = 0
_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_TRIM_BYTES, _MAP_BYTES, _OLD_MAP_BYTES = 2**28, 2**26, 2**25  # older versions accept at most the last: mallopt(3)
_PAUSE, _GROWTH = 0.5, 2**25  # seconds, and bytes, between two collections
_last_collection = (-_PAUSE, 0)


@cache
def tune_malloc() -> None:
    """Let this process keep up to 256 MiB of freed memory, in pieces of up to 64 MiB (older glibc: 32), for later tensors.

    Otherwise glibc returns a step's activations to the system, which hands them out again page by page and zeroed. Does
    nothing with another allocator.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        set_malloc_thresholds(mallopt)


def set_malloc_thresholds(mallopt: Callable[[int, int], int]) -> None:
    """Set both thresholds or neither: one alone ends glibc's dynamic rule, which keeps freed pieces later."""
    if mallopt(_MAP, _MAP_BYTES) or mallopt(_MAP, _OLD_MAP_BYTES):
        mallopt(_TRIM, _TRIM_BYTES)


def resident_bytes() -> int:
    """Return the bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


def collect_garbage() -> None:
    """Free what Prefect leaves in reference cycles: the arguments and the result of every submitted task.

    Objects made by imports are frozen, so that a collection costs little. Between short rounds, nothing is collected
    until the process has grown, or half a second has passed.
    """
    global _frozen_modules, _last_collection
    if len(sys.modules) == _frozen_modules:
        time_then, bytes_then = _last_collection
        if time.monotonic() - time_then < _PAUSE and resident_bytes() - bytes_then < _GROWTH:
            return
    gc.collect()
    if len(sys.modules) != _frozen_modules:
        gc.freeze()
        _frozen_modules = len(sys.modules)
    _last_collection = time.monotonic(), resident_bytes()
