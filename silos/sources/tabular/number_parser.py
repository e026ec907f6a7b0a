"""Parse numbers from text: decimal marks, thousands separators, minus signs, limits of detection."""

from contextlib import suppress
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Decimal = Literal[".", ","]
Censored = Literal["refuse", "limit", "half"]
MARKS: tuple[Decimal, ...] = get_args(Decimal)

_MINUS = "\u2212"
_SPACES = " \u00a0\u2007\u2009\u202f"
_APOSTROPHES = "'\u2019\u02bc"
_INDIAN = r"[1-9]\d?(?:,\d{2})+,\d{3}"
_EITHER = r"^[+-]?[1-9]\d{0,2}[.,]\d{3}$"  # 1.250 may be a fraction or thousands
_LIMIT = r"^(?:[<>]=?|[\x{2264}\x{2265}])\s?"
_BELOW = r"^[<\x{2264}]"

# texts that people read as numbers and this module does not; after NFKC, which normalises full-width digits
_DIGITS = r"(?:\p{Nd}[\p{Nd}.,'\x{2019}\x{2bc}\s\x{66b}\x{66c}]*|\p{Nd}{1,3}(?:_\p{Nd}{3})+(?:[.,]\p{Nd}*)?|\x{221e})"
_MONEY = r"(?:\p{Sc}|usd|eur|gbp|chf|inr|jpy|sek|nok|dkk|pln|czk|huf|kr\.?|zł|kč|fr\.|rs\.?)"
_SIGN = r"[+\p{Pd}\x{2212}]"
_BARE = (
    rf"{_SIGN}?\s?{_MONEY}?\s?{_SIGN}?\s?{_DIGITS}(?:e[+-]?\d+)?\s?[%\x{{2030}}]?\s?{_MONEY}?\s?[\p{{Pd}}\x{{2212}}]?"
)
_HEXADECIMAL = r"[+-]?0x[0-9a-f]+"
_FORTRAN = r"[+-]?(?:\d+\.\d*d[+-]?|\d+d[+-])\d+"  # 1.5d+02
_ISO_DURATION = r"-?p(?:\d+[ymwd])*t(?:\d+(?:\.\d+)?[hms])+"
_DURATION = (
    r"-?(?:\d+\s?d(?:ays?)?,?\s?)?\d+:\d{2}(?::\d{2}(?:\.\d+)?)?|(?:\d+\s?(?:d|days?|h|hrs?|m|min|s|sec|ms)\s?){2,}"
)
_NUMBER_LIKE = rf"^(?:{_BARE}|\(\s?{_BARE}\s?\)|{_HEXADECIMAL}|{_FORTRAN}|{_ISO_DURATION}|{_DURATION})$"
_WITH_UNIT = r"^[+-]?\d[\d.,]*\s?[\p{L}/°]{2,12}$"
_QUANTITIES = 20  # values with one unit; fewer may be categories, such as doses


def _plain(decimal: Decimal) -> str:
    mark = f"[{decimal}]"
    return rf"(?:\d+{mark}?\d*|{mark}\d+)(?:e[+-]?\d+)?|inf(?:inity)?"


def _grouped(decimal: Decimal) -> str:
    marks = [*_SPACES, *_APOSTROPHES, "," if decimal == "." else "[.]"]
    whole = [rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}})+" for mark in marks] + [_INDIAN] * (decimal == ".")
    return rf"(?:{'|'.join(whole)})(?:[{decimal}]\d*)?"


_PLAIN = {mark: f"^[+-]?(?:{_plain(mark)})$" for mark in MARKS}
_ANY = {mark: f"^[+-]?(?:{_plain(mark)}|{_grouped(mark)})$" for mark in MARKS}


class WrittenNumbers:
    """The numbers that distinct texts may stand for.

    A text that may be two numbers is undecided until its decimal mark is known.

    Args:
        texts: (texts,) in lower case, without surrounding spaces.
    """

    def __init__(self, texts: pa.Array):
        self._texts = texts
        self._bodies = pc.replace_substring(texts, _MINUS, "-")
        self.censored = match(texts, _LIMIT)
        self._below = match(texts, _BELOW)
        if self.censored.any():
            self._bodies = pc.replace_substring_regex(self._bodies, _LIMIT, "")
        self._cast: np.ndarray | None = None
        with suppress(pa.ArrowInvalid):
            self._cast = pc.cast(self._bodies, pa.float64()).to_numpy()  # much faster than matching first

    @cached_property
    def undecided(self) -> np.ndarray:
        """Return which texts have one mark, before three digits, as in 1.250 and 12,500: (texts,) bool."""
        return match(self._bodies, _EITHER)

    @cached_property
    def are_numbers(self) -> np.ndarray:
        """Return which texts are a number under at least one decimal mark: (texts,) bool."""
        if self._cast is not None and not np.isnan(self._cast).any():
            return np.ones(len(self._cast), bool)
        return ~(np.isnan(self.read(".")) & np.isnan(self.read(",")))

    @cached_property
    def marks(self) -> frozenset[Decimal]:
        """Return the decimal marks without which some text cannot be read; empty unless all texts are numbers."""
        if not self.are_numbers.all():
            return frozenset()
        if self._cast is not None:
            with_point = mask(pc.match_substring(self._bodies, "."))
            return frozenset({"."} if (with_point & ~self.undecided).any() else ())
        unreadable = {mark: np.isnan(self.read(mark)).any() for mark in MARKS}
        return frozenset(mark for mark, other in zip(MARKS, reversed(MARKS), strict=True) if unreadable[other])

    def read(self, decimal: Decimal) -> np.ndarray:
        """Return the numbers under a decimal mark, limits as their value; NaN if a text is none: (texts,) float64."""
        if decimal == "." and self._cast is not None:
            return self._cast
        bare = pc.replace_substring_regex(
            self._bodies, f"[{_SPACES}{_APOSTROPHES}{',' if decimal == '.' else '.'}]", ""
        )
        bare = bare if decimal == "." else pc.replace_substring(bare, ",", ".")
        return pc.cast(pc.if_else(pa.array(match(self._bodies, _ANY[decimal])), bare, "nan"), pa.float64()).to_numpy()

    def with_limits(self, numbers: np.ndarray, censored: Censored) -> np.ndarray:
        """Return the numbers with limits read as `censored` says; NaN if refused, or for half of a negative limit."""
        if censored == "refuse":
            return np.where(self.censored, np.nan, numbers)
        if censored == "limit":
            return numbers
        return np.where(self._below, np.where(numbers < 0, np.nan, numbers / 2), numbers)

    def plain(self, decimal: Decimal) -> np.ndarray:
        """Return which texts have no thousands separator, limit or Unicode minus sign: (texts,) bool."""
        if decimal == "." and self._cast is not None:
            return ~self.censored & ~mask(pc.match_substring(self._texts, _MINUS))
        return match(self._texts, _PLAIN[decimal])


def look_like_numbers(texts: pa.Array) -> np.ndarray:
    """Return which texts people read as numbers: with currency, percent sign, brackets, other digits: (texts,) bool.

    So are hexadecimal numbers, Fortran's exponents such as 1.5D+02, and durations such as 100:30:00 or 1h 30m. Many
    quantities with one unit, such as 12.5 kg, count too.
    """
    texts = pc.utf8_normalize(texts, "NFKC")
    if len(texts) > _QUANTITIES and match(texts, _WITH_UNIT).all():
        units = pc.replace_substring_regex(texts, r"^[+-]?\d[\d.,]*\s?", "")
        if len(pc.unique(units)) == 1:
            return np.ones(len(texts), bool)
    return match(texts, _NUMBER_LIKE)


def match(texts: pa.Array, pattern: str) -> np.ndarray:
    """Return which texts match a regular expression: (texts,) bool."""
    return mask(pc.match_substring_regex(texts, pattern))


def mask(flags: pa.Array) -> np.ndarray:
    """Convert Arrow's booleans to NumPy: (texts,) bool."""
    return flags.to_numpy(zero_copy_only=False).astype(bool)
