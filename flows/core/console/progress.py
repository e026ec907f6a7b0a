"""Report progress of flows to the user: flows report events, and the current sink decides what is shown."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property


class ProgressSink:
    """Receives the progress of flows. This base class shows nothing: for scheduled runs, and flows called from Python."""

    def plan(self, runs: int, rounds: int, done: int = 0, done_rounds: int = 0) -> None:
        """Set the number of runs and of their rounds. May be called again once more is known.

        Args:
            runs: All runs of the command.
            rounds: All rounds of these runs, at most.
            done: Runs that an earlier command has finished.
            done_rounds: Rounds of these finished runs.
        """

    def restart(self) -> None:
        """Forget all runs and rounds: another stage of the command has its own."""

    def begin(self, run: str, done: int, rounds: int, unit: str = "round") -> None:
        """Start a run, or resume it after `done` of its rounds; `unit` is what they are called."""

    def round(self, run: str, number: int, score: str | None) -> None:
        """End a round of a run; several runs may take turns.

        Args:
            run: Its name.
            number: The round, from 1.
            score: Text such as `accuracy 0.912`, or None if the round was not evaluated.
        """

    def end(self, run: str, score: str | None, seconds: float) -> None:
        """End a run; the score is None without test rows."""

    def fail(self, run: str, reason: str) -> None:
        """End a run that failed; other runs continue."""

    def say(self, line: str) -> None:
        """Show a line to the user."""

    def say_once(self, line: str) -> None:
        """Show a line unless this sink has shown it before."""
        if line not in self._lines:
            self._lines.add(line)
            self.say(line)

    @cached_property
    def _lines(self) -> set[str]:
        return set()


_current = ProgressSink()


def current() -> ProgressSink:
    """Return the sink of this process."""
    return _current


def say(line: str) -> None:
    """Print a line on the sink that is in use then."""
    _current.say(line)


def use(sink: ProgressSink) -> None:
    """Report progress to this sink from now on."""
    global _current
    _current = sink


@contextmanager
def saying_if_long(line: str, seconds: float = 4.0) -> Iterator[None]:
    """Show the line if the work inside takes longer, and again at every doubling of that time."""
    ended = threading.Event()

    def watch() -> None:
        wait, passed = seconds, seconds
        while not ended.wait(wait):
            current().say(f"{line} ({passed:.0f} s so far)")
            wait, passed = passed, 2 * passed

    watcher = threading.Thread(target=watch, name="saying_if_long", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
