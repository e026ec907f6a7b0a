"""Control this process: its interrupts, and how often Python collects reference cycles.

An interrupt that would be lost is remembered, and SIGTERM and SIGHUP end a command as ctrl-C does.

An interrupt while Prefect 3.8 starts a task ends as `ValueError: Task run is not set`, raised during its handling. A
destructor or a library's callback swallows an interrupt.
"""

import gc
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_is_interrupted = False


class Stopped(KeyboardInterrupt):
    """Ends a command on a signal other than SIGINT. `signal` is its number, as in Prefect's TerminationSignal."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def end_with_parent(last: Callable[[], None], code: int = 0) -> None:
    """End this process when its parent has closed its stdin, or is gone, also by kill -9.

    Args:
        last: What is done before; it runs in a thread of its own.
        code: The exit code.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        try:
            last()
        finally:
            os._exit(code)

    threading.Thread(target=wait, daemon=True).start()


def exit_code(stop: BaseException) -> int:
    """Return the exit code that shells use for a command that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + int(getattr(stop, "signal", signal.SIGINT))


def install_handlers() -> None:
    """Remember interrupts from now on. Only a main thread receives signals; elsewhere this does nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _interrupt)


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if an earlier one was swallowed."""
    if _is_interrupted:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _is_interrupted
    _is_interrupted = True
    raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)


def interruption(error: BaseException | None) -> BaseException | None:
    """Return the KeyboardInterrupt or the termination signal that caused this error, or None.

    SystemExit is none: a plugin's `sys.exit()` is an error of the plugin.
    """
    while error is not None and isinstance(error, Exception | SystemExit):
        error = error.__cause__ or error.__context__
    return error


_DEFAULT_GC_THRESHOLD = gc.get_threshold()
_DURING_IMPORTS = 100_000  # new objects


def pause_gc() -> None:
    """Collect seldom until `resume_gc` is called: during imports, Python would scan all objects over and over."""
    gc.set_threshold(_DURING_IMPORTS)


def resume_gc() -> None:
    """Collect as usual again, without the objects that exist now: imported modules stay for good."""
    gc.freeze()
    gc.set_threshold(*_DEFAULT_GC_THRESHOLD)
