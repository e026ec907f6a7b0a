"""The screen of a terminal: one bar over all rounds on stderr, or a line a run where stderr is not a terminal."""

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from flows.console.printing.literal_text import PlainColumn, PlainConsole
from flows.console.screen import Screen


class Terminal(Screen):
    """See flows.console.screen.Screen."""

    def __init__(self, console: PlainConsole) -> None:
        self._console = console
        columns = (
            PlainColumn(console, "{task.description:<26}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            PlainColumn(console, "rounds  {task.fields[news]:<14}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None, news="", visible=False)
        self._runs, self._ended, self._rounds = 1, 0, 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def plan(self, runs: int) -> None:
        """This many runs are to come."""
        self._runs = runs

    def begin(self, run: str, done: int, rounds: int) -> None:
        """A run starts, or goes on after `done` of its rounds."""
        if done:
            self.say(f"{run} goes on after round {done}")
        self._rounds = rounds
        name = f"{self._count()}{run}"
        self._bar.reset(self._task, total=rounds, completed=done, description=name, news="", visible=True)

    def round(self, number: int, score: str | None) -> None:
        """A round is done."""
        self._bar.update(self._task, completed=number)
        if number == self._rounds:
            self._bar.update(self._task, news="writing down")  # for a few seconds nothing moves
        elif score is not None:
            self._bar.update(self._task, news=score)

    def end(self, run: str, score: str | None, seconds: float) -> None:
        """A run is done."""
        self.say(f"{self._count()}{run:<20} {score or 'no test rows':<14}  {seconds:5.1f} s")
        self._ended += 1

    def fail(self, run: str, reason: str) -> None:
        """A run ended with an error; others go on."""
        self.say(f"{self._count()}{run:<20} failed: {reason}")
        self._ended += 1

    def say(self, line: str) -> None:
        """Something that a person should know."""
        self._console.print(line, soft_wrap=True)

    def _count(self) -> str:
        """Which run of how many this is, where there are several."""
        return f"{self._ended + 1:>3} of {self._runs}  " if self._runs > 1 else ""
