"""What a process holds, and what it can let go."""

import gc
import sys

import psutil

_modules = 0


def resident() -> int:
    """Bytes of this process in memory."""
    return int(psutil.Process().memory_info().rss)


def tidy() -> None:
    """Frees what Prefect leaves in reference cycles: the arguments and the answer of every task that was submitted.

    What imports made stays for good and is set aside, so that looking through the rest costs next to nothing.
    """
    global _modules
    gc.collect()
    if len(sys.modules) != _modules:
        gc.freeze()
        _modules = len(sys.modules)
