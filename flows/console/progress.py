"""What a person sees while flows run; flows say what happened, the screen decides what is shown."""

from functools import cached_property


class ProgressSink:
    """Told by flows how far they are; this one shows nothing: scheduled runs, and flows called from Python."""

    def plan(self, runs: int, rounds: int, done: int = 0, done_rounds: int = 0) -> None:
        """This many runs, of so many rounds in all at most, of which these were done before; again when more is known."""

    def begin(self, run: str, done: int, rounds: int) -> None:
        """A run starts, or goes on after `done` of its rounds."""

    def round(self, number: int, score: str | None) -> None:
        """A round is done; `accuracy 0.912` if it was scored."""

    def end(self, run: str, score: str | None, seconds: float) -> None:
        """A run is done; without test rows there is no score."""

    def fail(self, run: str, reason: str) -> None:
        """A run ended with an error; others go on."""

    def say(self, line: str) -> None:
        """Something that a person should know."""

    def say_once(self, line: str) -> None:
        """The same, however often it is said while this screen is in use."""
        if line not in self._said:
            self._said.add(line)
            self.say(line)

    @cached_property
    def _said(self) -> set[str]:
        return set()


_current = ProgressSink()


def current() -> ProgressSink:
    """The screen of this process."""
    return _current


def use(screen: ProgressSink) -> None:
    """From now on flows tell this screen."""
    global _current
    _current = screen
