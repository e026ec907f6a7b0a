"""Figures that a text quotes from the records of a table: `{fedavg}` is its mean and spread, `{ours - fedavg}` a difference.

What stands in braces is a cell, or two with " - " between, and after a colon what is asked of it; the end may say how many
decimals, ` .2`, and that it may be missing, `?`. A cell of another table of the paper is named `TABLE/CELL`.

    {fedavg}                      mean ± standard deviation over seeds, or what one seed has
    {fedavg: mean}, {: each}      the mean alone; every seed's number
    {fedavg: published}, {: floor}, {: fresh}, {: unseen}, {: seconds}
    {fedavg: accuracy/own_law}    another metric of the same runs; `mean`, `each` and `published` may stand before it
    {fedavg: class 5}, {: least class}   the share of a class's rows that is right
    {fedavg: ensemble nll}        of its seeds as one deep ensemble
    {ours - fedavg}, {: classes}   the recorded difference, where it is short without its unit; on the rows of some classes
    {none-500: guarded}           of trials: how often this verdict was right; `right guarded`, `guarded says label`
    {fedavg-0, fedavg-15: mean}   the mean of several cells
    {φ = 0.3: guarded}            of trials together: balanced accuracy; `mean guarded`, `alarms guarded`, `ranked first`

Figures that a text quotes of trials: how often verdicts named a shift that is known.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from publications.detection_rates import row_of, together
from publications.published_tables import Pair
from publications.sweep import Sweep, whole
from silos.errors import UserError, shown


class TrialQuotes:
    """Those of one cell, or of cells together under the title of a confusion; all must be recorded."""

    def __init__(self, sweep: Sweep, name: str) -> None:
        page = sweep.page
        self._judges: Mapping[str, Any] | None = row_of(sweep, name)["ours"] if name in page.cells else None
        self._together = together(sweep, page.confusions[name]) if name in page.confusions else {}

    def find(self, what: str, number: Callable[[float], str]) -> str | None:
        """See publications/render/template_values.py; None if there is nothing of the kind."""
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


_QUOTE = re.compile(r"\{([^{}]+)\}")
_ASKED = re.compile(r"(?P<cells>[^:]+?)(?:: (?P<what>.+?))?(?: \.(?P<decimals>\d))?(?P<missing>\?)?")


class MissingError(UserError):
    """A text quotes what is not recorded."""


class Quotes:
    """The figures of one paper's tables at one scale; `short` leaves the zero before the point away."""

    def __init__(self, sweep: Sweep, short: bool = False) -> None:
        self._sweep, self._short = sweep, short
        self._others: dict[str, Quotes] = {}
        self._trials: dict[str, TrialQuotes] = {}

    def fill(self, text: str) -> str:
        """The text with every figure; MissingError for one that is not recorded and that no `?` excuses."""
        filled = _QUOTE.sub(lambda found: self._figure(found[1]), text)
        return filled.replace(" ()", "").removesuffix("()").strip()

    def _figure(self, expression: str) -> str:
        asked = _ASKED.fullmatch(expression)
        if asked is None:
            raise self._missing(f"{{{expression}}} is no figure")
        decimals = None if asked["decimals"] is None else int(asked["decimals"])
        try:
            return self._found(asked["cells"], asked["what"] or "", decimals)
        except MissingError:
            if asked["missing"]:
                return ""
            raise

    def _found(self, cells: str, what: str, decimals: int | None) -> str:
        table, _, own = cells.rpartition("/")
        if table and table != self._sweep.table:
            return self._other(table)._found(own, what, decimals)
        if self._sweep.page.judged:
            return self._of_trials(own, what)
        first, _, second = own.partition(" - ")
        named = [first, second] if second else own.split(", ")
        for cell in named:
            if cell not in self._sweep.page.cells:
                raise UserError(f"{self._where}: there is no cell {shown(repr(cell))}.")
        return self._difference(first, second, what) if second else self._of_cells(named, what, decimals)

    def _other(self, table: str) -> "Quotes":
        if table not in self._others:
            sweep = Sweep(self._sweep.named, table, self._sweep.scale)
            sweep.results = self._sweep.results
            self._others[table] = Quotes(sweep, self._short)
        return self._others[table]

    def _of_cells(self, cells: list[str], what: str, decimals: int | None) -> str:
        """A cell's number as it is asked for; of several cells the mean of theirs."""
        numbers = [self._numbers(cell, what) for cell in cells]
        if what.partition(" ")[0] == "each":
            each = [value for values in numbers for value in values]
            return ", ".join(self._number(value, 0 if value in (0, 1) else decimals) for value in each)
        mean = statistics.fmean(map(statistics.fmean, numbers))
        decimals = _decimals(mean) if decimals is None else decimals
        alone = len(cells) > 1 or len(numbers[0]) == 1 or what.partition(" ")[0] in ("mean", "fresh", "unseen", "class")
        if alone:
            return self._number(mean, decimals)
        spread = statistics.stdev(numbers[0])
        needed = -math.floor(math.log10(spread)) if 0 < spread < 0.5 * 10**-decimals else decimals
        return f"{self._number(mean, decimals)} ± {self._number(spread, needed)}"

    def _numbers(self, cell: str, what: str) -> list[float]:
        """One, or one of each seed that has one."""
        page = self._sweep.page
        kind, _, metric = what.partition(" ")
        found: list[float | None]
        if kind == "seconds":
            found = [statistics.fmean(record["seconds"] for record in self._records(cell))]
        elif kind == "published":
            found = [page.cells[cell].beside.get(metric) if metric else page.published_of(cell)]
        elif kind == "floor":
            found = [*self._sweep.floors(cell)]
        elif kind == "ensemble":
            found = [(self._sweep.ensemble(cell) or {}).get(metric)] if self._records(cell) else []
        elif kind in ("class", "least"):
            found = [*self._of_classes(cell, kind, metric)]
        elif kind in ("mean", "each"):
            found = [*self._values(cell, "", metric)]
        else:
            found = [*self._values(cell, kind if kind in ("fresh", "unseen") else "", what)]
        numbers = [number for number in found if number is not None]
        if not numbers:
            raise self._missing(f"of the cell {cell} there is no {what or 'number'}")
        return numbers

    def _values(self, cell: str, kind: str, metric: str) -> list[float]:
        """Seed by seed, of those that have one."""
        records = self._records(cell)
        if kind in ("fresh", "unseen"):
            metric = f"{kind}/{self._sweep.quantity(cell).headline}"
            return [record[metric] for record in records if record.get(metric) is not None]
        if not metric:
            return self._sweep.values(cell)
        return [also[metric] for record in records if (also := record.get("also", {})).get(metric) is not None]

    def _of_classes(self, cell: str, kind: str, name: str) -> list[float]:
        """The share of a class that is right, or that of the class with the least, seed by seed."""
        by_class = [record.get("by_class", {}) for record in self._records(cell)]
        if kind == "class":
            return [right / rows for of in by_class for right, rows in [of.get(name, (0, 0))] if rows]
        means = [
            statistics.fmean(of[name][0] / of[name][1] for of in by_class)
            for name in (by_class[0] if by_class else {})
            if all(of.get(name, (0, 0))[1] for of in by_class)
        ]
        return [min(means)] if means else []

    def _difference(self, first: str, second: str, what: str) -> str:
        """As `compare` says it; nothing of a cell and itself."""
        if first == second:
            return ""
        for cell in (first, second):
            self._records(cell)
        wanted = (first, second, what == "classes")
        pairs = (pair for group in (self._sweep.page.paired, self._contested) for pair in group)
        found = next((pair for pair in pairs if (pair.first, pair.second, bool(pair.classes)) == wanted), None)
        if found is None:
            raise self._missing(f"the cells {first} and {second} are no pair")
        record = self._recorded(found)
        quantity = self._sweep.quantity(first)
        said = quantity.difference(record["difference"], record["low"], record["high"])
        mean, _, interval = said.partition(", ")
        if self._short:
            return f"{mean.partition(' ')[0]}, {interval}"
        return f"{mean} ({interval})"

    def _recorded(self, pair: Pair) -> Mapping[str, Any]:
        from publications.compare_with_published import difference

        record = difference(self._sweep, pair)
        if record is None:
            raise self._missing(f"{pair.first} - {pair.second} is not recorded")
        return record

    @cached_property
    def _contested(self) -> list[Pair]:
        """The pairs of contests, whose cells must all be recorded."""
        cells = {cell for cells in self._sweep.page.contests for cell in cells}
        return self._sweep.pairs() if cells and all(whole(self._sweep, cell) for cell in cells) else []

    def _records(self, cell: str) -> list[dict[str, Any]]:
        if not whole(self._sweep, cell):
            raise self._missing(f"the cell {cell} is not recorded, or not with all its seeds")
        return self._sweep.records(cell)

    def _of_trials(self, name: str, what: str) -> str:
        """Of a cell of trials, or of several together under a title."""
        page = self._sweep.page
        if name not in page.cells and name not in page.confusions:
            raise UserError(f"{self._where}: there is no cell {shown(repr(name))}, and no title of several.")
        for cell in [name] if name in page.cells else page.confusions[name].cells:
            self._records(cell)
        if name not in self._trials:
            self._trials[name] = TrialQuotes(self._sweep, name)
        found = self._trials[name].find(what, lambda share: self._number(share, 3))
        if found is None:
            raise self._missing(f"of {name!r} nothing is recorded under {what!r}")
        return found

    def _number(self, value: float, decimals: int | None) -> str:
        """Three digits that count, and at least so many decimals; a true minus."""
        text = f"{value:,.{_decimals(value) if decimals is None else decimals}f}".replace("-", "−")
        return re.sub(r"^(−?)0\.", r"\1.", text) if self._short else text

    def _missing(self, what: str) -> MissingError:
        return MissingError(f"{self._where}: {shown(what)}.")

    @property
    def _where(self) -> str:
        return f"{self._sweep.paper}, table {self._sweep.table}, scale {self._sweep.scale}"


def _decimals(value: float) -> int:
    return next((decimals for decimals, limit in ((3, 0.9995), (2, 9.995), (1, 99.95)) if abs(value) < limit), 0)
