"""Describe silos that shifted or were not checked, for `watch` and `history`, without importing SciPy or torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from silos.dataset import some

NAMED = 5
"""The silos that a sentence names."""


def shift_text(shifted: Sequence[Mapping[str, Any]]) -> str:
    """Return the silos with their kinds of shift, as in `north (feature: critical)`, and whether it is in new rows."""
    return some([f"{silo['client']} ({_kinds(silo)})" for silo in shifted], NAMED)


def _kinds(silo: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{kind}: {grade or 'no grade'}" for kind, grade in silo["kinds"].items())
    number = silo.get("new_rows")  # decisions of earlier versions have none
    return kinds if number is None else f"{kinds}, in {number:,} new row{'' if number == 1 else 's'}"


def unchecked_text(unchecked: Mapping[str, str]) -> str:
    """Return the end of a sentence that names silos that were not checked, or only in part; empty if all were."""
    return f"; not checked, or only in part: {some([*unchecked], NAMED)}" if unchecked else ""
