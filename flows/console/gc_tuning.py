"""Tune Python's collector of reference cycles during imports, which it would scan over and over."""

import gc

_DEFAULT = gc.get_threshold()
_DURING_IMPORTS = 100_000  # new objects


def pause_gc() -> None:
    """Collect seldom until `resume_gc` is called."""
    gc.set_threshold(_DURING_IMPORTS)


def resume_gc() -> None:
    """Collect as usual again, without the objects that exist now: imported modules stay for good."""
    gc.freeze()
    gc.set_threshold(*_DEFAULT)
