"""Python's collector of cycles: while modules are imported, it would look through them over and over, which takes time."""

import gc

_USUAL = gc.get_threshold()
_IMPORTS = 100_000  # new objects


def pause_gc() -> None:
    """Until `work`, it looks seldom."""
    gc.set_threshold(_IMPORTS)


def resume_gc() -> None:
    """As usual again, but what was imported stays for good and is set aside."""
    gc.freeze()
    gc.set_threshold(*_USUAL)
