"""The screen of a terminal: one bar over all rounds on stderr, or a line a run where stderr is not a terminal."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Terminal:
    """See flows.screen.Screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("rounds  {task.fields[accuracy]}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None, accuracy="", visible=False)
        self._runs, self._ended = 1, 0

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
        self._bar.reset(self._task, total=rounds, completed=done, description=run, accuracy="", visible=True)

    def round(self, number: int, accuracy: float | None) -> None:
        """A round is done."""
        self._bar.update(self._task, completed=number)
        if accuracy is not None:
            self._bar.update(self._task, accuracy=f"accuracy {accuracy:.3f}")

    def end(self, run: str, accuracy: float | None, seconds: float) -> None:
        """A run is done."""
        self._ended += 1
        score = "failed" if accuracy is None else f"accuracy {accuracy:.3f}"
        self.say(f"{self._ended:>3} of {self._runs}  {run:<20} {score}  {seconds:5.1f} s")

    def say(self, words: str) -> None:
        """Something that a person should know."""
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)
