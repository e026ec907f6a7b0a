"""The errors that are printed without a traceback, and how messages quote values, list names and count things."""

from collections.abc import Sequence
from difflib import get_close_matches
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


class ClientsAwayError(UserError):
    """Clients of a place cannot be reached now; they may be later.

    Attributes:
        place: The place.
        seconds: How long it did not answer.
        answers: What other places answered to the same step.
    """

    def __init__(self, place: str, seconds: float):
        super().__init__(place, seconds)
        self.place, self.seconds = place, seconds
        self.answers: list[Any] = []

    def __str__(self) -> str:
        return (
            f"place {self.place}: got no answer in {self.seconds:.0f} seconds, expected one. Start it, or wait longer."
        )


class RefusalError(UserError):
    """A client refuses to report: the message names the client, the reason and a way out."""


def shown(value: object, most: int = 80) -> str:
    """Quote a value in a message, without the middle of long ones; text is quoted as written."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 4 :]}"


def some(names: Sequence[str], limit: int = 12, separator: str = ", ") -> str:
    """Join the first `limit` names, and say how many more there are; one that is left is named."""
    if len(names) <= limit + 1:
        return separator.join(names)
    return f"{separator.join(names[:limit])} and {len(names) - limit:,} more"


def counted(count: int, noun: str, nouns: str = "") -> str:
    """Return the count with the noun, in the plural unless the count is 1; `nouns` is a plural that takes more than an s."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


_COMPARED = 10_000  # names up to which similar ones are suggested: more would take seconds


def near_names(name: str, names: Sequence[str]) -> list[str]:
    """Return up to three names that are spelled like this one, the nearest first; none of many thousand names."""
    by_folded = {each.casefold(): each for each in names} if len(names) <= _COMPARED else {}
    folded = name.casefold()
    near = [folded] if folded in by_folded else get_close_matches(folded, [*by_folded], 3)
    return [by_folded[each] for each in near]
