"""Text for a terminal: no name is read as markup or as a control sequence, long names are shortened in the middle."""

from typing import Any

from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.table import Column, Table
from rich.text import Text

from tasks.tracking.metric_names import legible


class PlainConsole(Console):
    """Shows each line and each cell as it is written; style comes from Text objects and tables, never from what is written.

    A new line within a text is shown, not made: what takes two lines is printed twice.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    @property
    def encoding(self) -> str:
        """Of the stream that is written to; rich knows only that of a file that it was given."""
        return getattr(self.file, "encoding", None) or "utf-8"

    def render_str(self, text: str, **options: Any) -> Text:
        """What rich calls for every string, in a line, a cell or a heading."""
        return super().render_str(legible(text, self._can_show), **options)

    def _can_show(self, character: str) -> bool:
        try:
            character.encode(self.encoding)
        except UnicodeEncodeError:
            return False
        return True


class PlainColumn(ProgressColumn):
    """A part of the progress bar with text of the task's, as plain as the rest."""

    def __init__(self, console: PlainConsole, form: str) -> None:
        super().__init__(Column(no_wrap=True))
        self._console, self._form = console, form

    def render(self, task: Task) -> Text:
        """See rich."""
        return self._console.render_str(self._form.format(task=task))


def say(line: str) -> None:
    """A line on stdout."""
    PlainConsole().print(line, soft_wrap=True)


class TextTable(Table):
    """Without lines. The first column, of names, is folded where a name is long: else numbers would be folded for it."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """See rich."""
        if len(str(cells[0])) > _WHOLE:
            self.columns[0].no_wrap = False
        super().add_row(*cells, **options)


_WHOLE = 28  # letters of a name


def text_table(*columns: str) -> Table:
    """An empty one with these headings."""
    table = TextTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=i == 0)
    return table


def shortened(name: str, room: int) -> str:
    """At most so many letters: `selective_a…-seed12`."""
    if len(name) <= room:
        return name
    end = max(room // 2 - 1, 0)
    return f"{name[: max(room - end - 1, 0)]}…{name[len(name) - end :]}"


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes."""
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def short_duration(seconds: float) -> str:
    """The same in a bar: `45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
