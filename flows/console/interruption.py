"""A ctrl-C that is not lost, and SIGTERM and SIGHUP, which end a command in the same way.

An interrupt that comes while Prefect 3.8 starts a task ends as `ValueError: Task run is not set`, raised while the interrupt
was handled; and one that comes inside a destructor or a callback of somebody's is swallowed there.
"""

import signal
import threading
from types import FrameType

_asked = False


class Stopped(KeyboardInterrupt):
    """Ends a command on a signal other than ctrl-C's. `signal`: its number, as Prefect's TerminationSignal has it."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def exit_code(stop: BaseException) -> int:
    """Return the exit code that shells use for a command that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + int(getattr(stop, "signal", signal.SIGINT))


def install_handlers() -> None:
    """From now on an interrupt is remembered; only a main thread hears any."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _hear)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _hear)


def raise_if_interrupted() -> None:
    """Raises an interrupt that was swallowed."""
    if _asked:
        raise KeyboardInterrupt


def _hear(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)


def interruption(error: BaseException | None) -> BaseException | None:
    """What interrupted the work, if that is behind this error: KeyboardInterrupt, a termination signal; else None."""
    while error is not None and isinstance(error, Exception):
        error = error.__cause__ or error.__context__
    return error
