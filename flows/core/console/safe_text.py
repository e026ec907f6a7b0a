"""Write text to a terminal: names never act as markup or control sequences, and long names are shortened in the middle."""

import re
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tasks.tracking.metric_names import legible

_UNFOLDED = 28  # characters of a name
_WORDS = re.compile(r"(\s*)((?:`[^`]*`|\S)+)")  # a command in backticks, and what adjoins it, is one word


class PlainConsole(Console):
    r"""A console of rich that prints names of the user's data as they are.

    rich alone reads `[b]`, `:heart:` and escape sequences in a name, and fails on characters that the stream cannot encode.
    Style comes from Text objects and tables only. A new line within a text is shown as `\n`; print two lines separately.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    @property
    def encoding(self) -> str:
        """The encoding of the stream. rich knows it only for a file that was passed to the constructor."""
        return getattr(self.file, "encoding", None) or "utf-8"

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text to show. rich calls this for every string: a line, a cell, a title."""
        return super().render_str(legible(text, self._can_encode), **options)

    def print(self, *objects: object, **options: Any) -> None:
        """Print as rich does, but never break a line within a command in backticks, which is to be copied."""
        text = legible(objects[0], self._can_encode) if len(objects) == 1 and isinstance(objects[0], str) else ""
        if options or "`" not in text or cell_len(text) <= self.width:
            super().print(*objects, **options)
            return
        for line in _broken_around_commands(text, self.width):
            super().print(line, soft_wrap="`" in line)

    def print_labelled(self, label: str, text: str, indent: int) -> None:
        """Print a label and, from the column `indent` on, a text; a command in backticks is on one line, as in `print`."""
        lines = _broken_around_commands(legible(text, self._can_encode), self.width - indent)
        for start, line in zip((label, *[""] * len(lines)), lines, strict=False):
            super().print(f"{start:<{indent}}{line.strip()}", soft_wrap="`" in line)

    def table(self, *titles: str) -> Table:
        """Return an empty table with these columns: fill it with `add_row(*cells)` and print it.

        It has no lines, so that a pipe gets plain columns.
        """
        table = _NamesFirst(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for i, title in enumerate(titles):
            table.add_column(title, overflow="fold", no_wrap=i == 0)
        return table

    def _can_encode(self, character: str) -> bool:
        try:
            character.encode(self.encoding)
        except UnicodeEncodeError:
            return False
        return True


def _broken_around_commands(text: str, width: int) -> list[str]:
    """Return the lines of a text with its indentation; a command longer than the width gets its own line."""
    lines, line = list[str](), ""
    indent = text[: len(text) - len(text.lstrip())]
    for space, word in _WORDS.findall(text):
        if line.strip() and cell_len(line + space + word) > width:
            lines.append(line)
            line, space = "", indent
        line += space + word
    return [*lines, line]


class _NamesFirst(Table):
    """Folds the first column, which has names, once a name is long; rich would fold the numbers to its right."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """See rich."""
        if len(str(cells[0])) > _UNFOLDED:
            self.columns[0].no_wrap = False
        super().add_row(*cells, **options)


def say(line: str) -> None:
    """Print a line on stdout without wrapping."""
    PlainConsole().print(line, soft_wrap=True)


def shortened(name: str, room: int) -> str:
    """Return at most `room` characters: `selective_a…-seed12`. rich would drop the end, which tells runs apart."""
    if len(name) <= room:
        return name
    end = max(room // 2 - 1, 0)
    return f"{name[: max(room - end - 1, 0)]}…{name[len(name) - end :]}"


def duration(seconds: float) -> str:
    """Return seconds up to two minutes, then minutes, in words."""
    if round(seconds) == 1:
        return "1 second"
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def short_duration(seconds: float) -> str:
    """Return the duration for a progress bar: `45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`. rich has 0:00:45 only."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
