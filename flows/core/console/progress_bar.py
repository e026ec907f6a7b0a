"""Show the progress of a command on stderr: one bar over all rounds of all runs on a terminal, lines elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from flows.core.console.progress import ProgressSink
from flows.core.console.safe_text import PlainConsole, short_duration, shortened

_NARROW = 60  # columns of a terminal; below, only the bar, the count and the time left are shown
_MIN_BAR, _MIN_NAME, _MAX_NAME = 4, 6, 26  # columns
_SILENT = 60.0  # seconds without a line, after which a file or a pipe gets one


class _PlainColumn(ProgressColumn):
    """Shows text of the task as PlainConsole does. rich's TextColumn takes it as markup."""

    def __init__(self, console: PlainConsole, form: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._console, self._form = console, form

    def render(self, task: Task) -> Text:
        """See rich."""
        return self._console.render_str(self._form.format(task=task))


class Terminal(ProgressSink):
    """Draws a bar of rich.progress, and prints a line for each run that ends.

    The time left is not rich's: rounds that an earlier command has made count as done, but not for the pace.

    Args:
        console: Of stderr.
        clock: Returns seconds.
    """

    def __init__(self, console: PlainConsole, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        columns = (
            _PlainColumn(console, "{task.description}"),
            BarColumn(bar_width=None),
            _PlainColumn(console, "{task.fields[count]}"),
            _PlainColumn(console, "{task.fields[left]}"),
            _PlainColumn(console, "{task.fields[news]}"),
        )
        self._bar = Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None, count="", left="", news="", visible=False)
        self._last_line = clock()
        self.restart()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def restart(self) -> None:
        """See ProgressSink."""
        self._runs, self._planned, self._ended = 1, 0, 0
        self._counted: set[str] = set()  # names of runs that ended; such a run may also fail, if Prefect is away
        self._before, self._skipped, self._made = 0, 0, 0  # rounds: of finished runs, not made here, made here
        self._unit = "round"
        self._running: dict[str, tuple[int, int]] = {}  # the last round, and all rounds, of each run that has not ended
        self._run, self._news = "starting", ""  # the run with the last news
        self._run_start: float | None = None  # of the first run of this stage
        self._worked = 0.0  # seconds from then to the last round

    def plan(self, runs: int, rounds: int, done: int = 0, done_rounds: int = 0) -> None:
        """See ProgressSink."""
        if not self._planned:
            self._ended, self._before = done, done_rounds
        self._runs, self._planned = runs, rounds

    def begin(self, run: str, done: int, rounds: int, unit: str = "round") -> None:
        """See ProgressSink."""
        self._unit = unit
        if done:
            self.say(f"{run} continues after {unit} {done}")
        self._planned = self._planned or rounds
        self._run_start = self._clock() if self._run_start is None else self._run_start
        before, _ = self._running.get(run, (0, 0))  # if it goes on in another process
        self._running[run] = (done, rounds)
        self._skipped += done - before
        self._run = run
        self._update_bar("")

    def round(self, run: str, number: int, score: str | None) -> None:
        """See ProgressSink; prints a line if stderr is no terminal and no line was printed for a minute."""
        before, rounds = self._running.get(run, (0, 0))
        self._made += number - before
        self._running[run] = (number, rounds)
        self._worked, self._run = self._clock() - (self._run_start or 0.0), run
        if number == rounds:
            self._update_bar("saving")  # which takes seconds
        else:
            self._update_bar(score)
        if self._bar.disable and self._clock() - self._last_line > _SILENT:
            self.say(f"{run}: {self._unit} {number} of {rounds}{self._of_all()}")

    def end(self, run: str, score: str | None, seconds: float) -> None:
        """See ProgressSink; the rounds that the run has spared count as done."""
        self._close_run(run, f"{score or 'no test rows':<14}  {seconds:5.1f} s")

    def fail(self, run: str, reason: str) -> None:
        """See ProgressSink."""
        self._close_run(run, f"failed: {reason}")

    def say(self, line: str) -> None:
        """See ProgressSink."""
        self._last_line = self._clock()
        self._console.print(line, soft_wrap=True)

    @property
    def has_started_run(self) -> bool:
        """Whether this command has started or resumed a run."""
        return self._run_start is not None

    @property
    def done(self) -> int:
        """The number of rounds done, of all runs."""
        return self._before + self._skipped + self._made

    @property
    def seconds_left(self) -> float | None:
        """The time for the remaining rounds at the pace of this command; None before its first round."""
        return self._worked / self._made * max(self._planned - self.done, 0) if self._made else None

    def _close_run(self, run: str, outcome: str) -> None:
        """Count a run once, even if it is reported twice."""
        is_known = run in self._counted
        self._ended += not is_known
        self._counted.add(run)
        self.say(f"{self._count()}{run:<20} {outcome}")
        if is_known:
            return
        number, rounds = self._running.pop(run, (0, 0))
        self._skipped += rounds - number if rounds else self._planned // self._runs  # it failed before it started
        self._update_bar()

    def _update_bar(self, news: str | None = None) -> None:
        """Update the bar, with the last news if there is none."""
        wide = self._console.width >= _NARROW
        self._news = self._news if news is None else news
        count = f"{self.done}/{self._planned}" + (f" {self._unit}s" if wide else "")
        left, shown = self._left(), self._news if wide else ""
        room = self._console.width - (len(count) + len(left) + len(shown) + 3) - (_MIN_BAR + 1)
        name = shortened(self._console.render_str(self._run).plain, min(max(room, _MIN_NAME), _MAX_NAME))
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
        """Return the rounds done of all runs and the time left, for a line of text."""
        of_all = f"; {self.done} of all {self._planned}" if self._runs > 1 else ""
        return of_all + (f"; {self._left()}" if self._left() else "")

    def _count(self) -> str:
        """Return the number of this run of all runs; nothing if there is one."""
        return f"{self._ended:>3} of {self._runs}  " if self._runs > 1 else ""
