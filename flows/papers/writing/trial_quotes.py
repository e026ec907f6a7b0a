"""Figures that a text quotes of trials: how often verdicts named a shift that is known."""

from collections.abc import Callable, Mapping
from typing import Any

from flows.papers.sweep import Sweep
from flows.papers.truth_table import row_of, together


class TrialQuotes:
    """Those of one cell, or of cells together under the title of a confusion; all must be recorded."""

    def __init__(self, sweep: Sweep, name: str) -> None:
        page = sweep.page
        self._judges: Mapping[str, Any] | None = row_of(sweep, name)["ours"] if name in page.cells else None
        self._together = together(sweep, page.confusions[name]) if name in page.confusions else {}

    def find(self, what: str, number: Callable[[float], str]) -> str | None:
        """See flows/papers/writing/quotes.py; None if there is nothing of the kind."""
        return self._of_several(what, number) if self._judges is None else self._of_cell(self._judges, what)

    def _of_cell(self, judges: Mapping[str, Any], what: str) -> str | None:
        judge, says, types = what.removeprefix("right ").partition(" says ")
        if judge not in judges:
            return None
        ours = judges[judge]
        if says:
            return str(ours["said"].get(types, 0))
        return f"{ours['right']} of {ours['of']}" if what == judge else str(ours["right"])

    def _of_several(self, what: str, number: Callable[[float], str]) -> str | None:
        kind, _, judge = what.partition(" ")
        if kind in ("alarms", "ranked"):
            counted = self._together["false_alarms" if kind == "alarms" else "ranked"].get(judge)
            return f"{counted['right']} of {counted['of']}" if counted else None
        share = self._together["balanced_accuracy"].get(judge if kind == "mean" else what)
        if share is None:
            return None
        mean, low, high = (number(share[side]) for side in ("share", "low", "high"))
        return mean if kind == "mean" else f"{mean}, {low} to {high}"
