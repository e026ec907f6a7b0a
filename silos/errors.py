"""What the screen shows without a traceback, and how a sentence quotes a value."""

from typing import Any


class UserError(Exception):
    """A user's mistake: the message says what was wrong, where (file, key, client), and the way out."""

    raised_in = ""
    """The file of the line that raised it inside a step: the traceback does not travel between processes."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows of it: IPython asks."""
        return [f"{type(self).__name__}: {self}"]


class DivergedError(UserError):
    """Training left the numbers, of which a step needs finite ones: other runs may not."""


class RefusalError(UserError):
    """What a client answers where it may not tell: the message names the client, the reason and the way out."""


def shown(value: Any, most: int = 80) -> str:
    """A value as a sentence quotes it, without the middle of one that would fill the screen; text as it is written."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 4 :]}"
