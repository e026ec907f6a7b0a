"""What a process holds, and what it can let go."""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from functools import cache

import psutil

_modules = 0
_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_KEPT, _LARGEST, _OLDER = 2**28, 2**26, 2**25  # bytes; older versions take no more than the last: mallopt(3)
_PAUSE, _GROWTH = 0.5, 2**25  # seconds, and bytes, between two looks
_looked = (-_PAUSE, 0)


@cache
def hold_on() -> None:
    """Lets this process keep up to 256 MiB that it freed, in pieces of up to 64 MiB (older: 32), for its next tensors.

    Else glibc gives a step's activations back to the system, which hands them out again page by page and zeroed. Where there
    is another allocator, nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        hold(mallopt)


def hold(mallopt: Callable[[int, int], int]) -> None:
    """Sets both, or neither: one alone ends glibc's own rule, by which pieces that are freed are kept later."""
    if mallopt(_MAP, _LARGEST) or mallopt(_MAP, _OLDER):
        mallopt(_TRIM, _KEPT)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


def tidy() -> None:
    """Frees what Prefect leaves in reference cycles: the arguments and the answer of every task that was submitted.

    What imports made stays for good and is set aside, so that looking through the rest costs little. Between short rounds
    nobody looks before the process has grown, or half a second has passed.
    """
    global _modules, _looked
    if len(sys.modules) == _modules:
        when, held = _looked
        if time.monotonic() - when < _PAUSE and resident() - held < _GROWTH:
            return
    gc.collect()
    if len(sys.modules) != _modules:
        gc.freeze()
        _modules = len(sys.modules)
    _looked = time.monotonic(), resident()
