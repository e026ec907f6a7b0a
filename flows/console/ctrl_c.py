"""A ctrl-C that is not lost.

An interrupt that comes while Prefect 3.8 starts a task ends as `ValueError: Task run is not set`, raised while the interrupt
was handled; and one that comes inside a destructor or a callback of somebody's is swallowed there.
"""

import signal
import threading
from types import FrameType

_asked = False


def listen() -> None:
    """From now on an interrupt is remembered; only a main thread hears any."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _hear)


def heed() -> None:
    """Raises an interrupt that was swallowed."""
    if _asked:
        raise KeyboardInterrupt


def _hear(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt


def interruption(error: BaseException | None) -> BaseException | None:
    """What interrupted the work, if that is behind this error: KeyboardInterrupt, a termination signal; else None."""
    while error is not None and isinstance(error, Exception):
        error = error.__cause__ or error.__context__
    return error
