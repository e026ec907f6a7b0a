"""The progress of a command on stderr: one bar over all rounds of all runs on a terminal, lines elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress

from flows.console.progress import ProgressSink
from flows.console.safe_text import PlainColumn, PlainConsole, short_duration, shortened

_NARROW = 60  # columns of a terminal, below which only the bar, its numbers and the time left stay
_LEAST_BAR, _LEAST_NAME, _MOST_NAME = 4, 6, 26  # columns
_SILENT = 60.0  # seconds after which one who reads a file or a pipe is told how far it is


class Terminal(ProgressSink):
    """See flows.console.progress.ProgressSink. `clock`: seconds."""

    def __init__(self, console: PlainConsole, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        columns = (
            PlainColumn(console, "{task.description}"),
            BarColumn(bar_width=None),
            PlainColumn(console, "{task.fields[count]}"),
            PlainColumn(console, "{task.fields[left]}"),
            PlainColumn(console, "{task.fields[news]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None, count="", left="", news="", visible=False)
        self._runs, self._planned, self._ended = 1, 0, 0
        self._counted: set[str] = set()  # names of runs that ended; one may fail after that, if Prefect is away
        self._before, self._skipped, self._made = 0, 0, 0  # rounds: of finished runs, not made here, made here
        self._number, self._rounds = 0, 0  # of the present run
        self._run, self._news = "starting", ""
        self._began: float | None = None  # the first run here
        self._worked = 0.0  # seconds from then to the last round
        self._spoke = clock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def plan(self, runs: int, rounds: int, done: int = 0, done_rounds: int = 0) -> None:
        """This many runs, of so many rounds in all at most, of which these were done before; again when more is known."""
        if not self._planned:
            self._ended, self._before = done, done_rounds
        self._runs, self._planned = runs, rounds

    def begin(self, run: str, done: int, rounds: int) -> None:
        """A run starts, or goes on after `done` of its rounds."""
        if done:
            self.say(f"{run} goes on after round {done}")
        self._planned = self._planned or rounds
        self._began = self._clock() if self._began is None else self._began
        self._number, self._rounds = done, rounds
        self._skipped += done
        self._run = run
        self._show("")

    def round(self, number: int, score: str | None) -> None:
        """A round is done."""
        self._made += number - self._number
        self._number = number
        self._worked = self._clock() - (self._began or 0.0)
        if number == self._rounds:
            self._show("writing down")  # for a few seconds nothing moves
        else:
            self._show(score)
        if self._bar.disable and self._clock() - self._spoke > _SILENT:
            self.say(f"{self._run}: round {number} of {self._rounds}{self._of_all()}")

    def end(self, run: str, score: str | None, seconds: float) -> None:
        """A run is done; what it spared of its rounds will not come."""
        self._over(run, f"{score or 'no test rows':<14}  {seconds:5.1f} s")

    def fail(self, run: str, reason: str) -> None:
        """A run ended with an error; others go on."""
        self._over(run, f"failed: {reason}")

    def say(self, line: str) -> None:
        """Something that a person should know."""
        self._spoke = self._clock()
        self._console.print(line, soft_wrap=True)

    @property
    def begun(self) -> bool:
        """Whether a run has started, or gone on, here."""
        return self._began is not None

    @property
    def done(self) -> int:
        """Rounds that are behind us, of all runs."""
        return self._before + self._skipped + self._made

    @property
    def seconds_left(self) -> float | None:
        """For the rounds that are left, at the pace of those that were made here; None before there is one."""
        return self._worked / self._made * max(self._planned - self.done, 0) if self._made else None

    def _over(self, run: str, how: str) -> None:
        """Count a run once, even if it is reported twice."""
        again = run in self._counted
        self._ended += not again
        self._counted.add(run)
        self.say(f"{self._count()}{run:<20} {how}")
        if again:
            return
        spared = self._rounds - self._number if self._rounds else self._planned // self._runs  # it did not even begin
        self._skipped += spared
        self._number = self._rounds = 0
        self._show()

    def _show(self, news: str | None = None) -> None:
        """The bar as things are now; without news with the last."""
        wide = self._console.width >= _NARROW
        self._news = self._news if news is None else news
        count = f"{self.done}/{self._planned}" + (" rounds" if wide else "")
        left, shown = self._left(), self._news if wide else ""
        room = self._console.width - (len(count) + len(left) + len(shown) + 3) - (_LEAST_BAR + 1)
        name = shortened(self._console.render_str(self._run).plain, min(max(room, _LEAST_NAME), _MOST_NAME))
        self._bar.update(
            self._task,
            total=self._planned,
            completed=self.done,
            description=name,
            visible=True,
            count=count,
            left=left,
            news=shown,
        )

    def _left(self) -> str:
        seconds = self.seconds_left
        return "" if seconds is None else f"{short_duration(seconds)} left"

    def _of_all(self) -> str:
        """For a line of its own: all rounds of all runs, and how long the others take."""
        of_all = f"; {self.done} of all {self._planned}" if self._runs > 1 else ""
        return of_all + (f"; {self._left()}" if self._left() else "")

    def _count(self) -> str:
        """Which run of how many this is, where there are several."""
        return f"{self._ended:>3} of {self._runs}  " if self._runs > 1 else ""


_SAID = "starting ..."


class StartSpinner:
    """Says it once, and takes it back before anything else is said; where stderr is no terminal it says nothing."""

    def __init__(self, console: PlainConsole) -> None:
        self._console, self._there = console, False

    def say(self) -> None:
        """It stands there, without a line's end."""
        if self._console.is_terminal:
            self._console.file.write(_SAID)
            self._console.file.flush()
            self._there = True

    def over(self) -> None:
        """It is gone."""
        if self._there:
            self._console.file.write(f"\r{' ' * len(_SAID)}\r")
            self._console.file.flush()
            self._there = False
