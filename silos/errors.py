"""The errors that are printed without a traceback, and how messages quote a value."""

from typing import Any


class UserError(Exception):
    """A user's mistake: the message says what is wrong, where (file, key, client), and how to fix it."""

    raised_in = ""
    """The file of the line that raised it inside a task: tracebacks do not cross process borders."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class DivergedError(UserError):
    """Training diverged to values that are not finite; other runs of a comparison go on."""


class MethodError(UserError):
    """A method does not fit a setting, or a user's own code failed; other runs of a comparison go on."""


class RefusalError(UserError):
    """A client refuses to report: the message names the client, the reason and a way out."""


def shown(value: Any, most: int = 80) -> str:
    """Quote a value in a message, without the middle of long ones; text is quoted as written."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 4 :]}"
