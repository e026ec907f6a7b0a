"""Describe silos that shifted or were not checked, for `watch` and `history`, without importing SciPy or torch."""

from collections.abc import Mapping, Sequence

from silos.errors import some
from tasks.tracking.result_types.registry_records import ShiftedSilo

NAMED = 5
"""The silos that a sentence names."""


def shift_text(shifted: Sequence[ShiftedSilo]) -> str:
    """Return the silos with what differs in words, as in `north: age is higher by 12 (1.1 standard deviations)`."""
    return some([f"{silo['client']}: {_words(silo)}" for silo in shifted], NAMED, "; ")


def _words(silo: ShiftedSilo) -> str:
    return str(silo.get("words") or ", ".join(silo["kinds"]))  # decisions of earlier versions have no words


def no_shift_text(grade: str, weaker: Sequence[ShiftedSilo], unchecked: Mapping[str, str]) -> str:
    """Return a sentence: no silo shifted as much as `watch.grade`, and which shifted less."""
    least = f" by at least watch.grade={grade}" if weaker else ""
    smaller = f", only less: {shift_text(weaker)}" if weaker else ""
    return f"no silo{' that could be checked' if unchecked else ''} shifted{least}{smaller}"


def unchecked_text(unchecked: Mapping[str, str]) -> str:
    """Return the end of a sentence that names silos that were not checked, or only in part; empty if all were."""
    return f"; not checked, or only in part: {some([*unchecked], NAMED)}" if unchecked else ""
