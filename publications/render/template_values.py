"""Fill Jinja2 templates with figures from the records of published tables.

A template calls the public methods of `Figures` for one table of a paper:

    {{ figure('fedavg') }}                     mean ± standard deviation over seeds, or the number of the only seed
    {{ mean('fedavg', 'accuracy/own_law') }}   the mean alone, here of another metric of the same runs
    {{ mean('fedavg-*') }}                     the mean of several cells
    {{ each('fedavg', decimals=2) }}           the number of every seed
    {{ difference('ours', 'fedavg') }}         the recorded difference of two cells
    {{ floor('fedavg') | default }}            nothing if the figure is missing
    {{ with_tuning('each-4') }}                epsilon of the runs that chose the cell's settings
    {{ table('2-har').figure('fedavg') }}      a figure of another table of the paper

A figure that is not recorded is undefined, and printing it is an error.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, Undefined
from jinja2.exceptions import FilterArgumentError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from publications.clinical_rates import rates_by_size
from publications.compare_with_published import difference as difference_of
from publications.compare_with_published import over_draws
from publications.detection_rates import row_of, together
from publications.published_tables import Pair
from publications.sweep import Sweep, whole
from silos.errors import UserError, shown

_Arguments = ParamSpec("_Arguments")
_NUMBER = re.compile(r"−?[\d,]*\.?\d+")
_COLUMN_END = re.compile(r"(?<!\\)\|")


class _MissingError(Exception):
    """A figure is not recorded."""


def _undefined_if_missing(
    find: Callable[Concatenate["Figures", _Arguments], str],
) -> Callable[Concatenate["Figures", _Arguments], "str | Undefined"]:
    """Return an undefined value if a figure is not recorded."""

    @wraps(find)
    def found(figures: "Figures", *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> "str | Undefined":
        try:
            return find(figures, *args, **kwargs)
        except _MissingError as error:
            return StrictUndefined(f"{figures.where}: {error}")

    return found


class Figures:
    """Finds the figures of one table at one scale, as text; UserError for a cell that the table does not have.

    Args:
        sweep: The table, the scale and the records.
        short: Whether to omit the zero before the decimal point, and the unit of a difference.
        stale: Collects the cells that were read, by table, and have records of other code; other tables share it.
    """

    def __init__(self, sweep: Sweep, short: bool = False, stale: set[tuple[str, str]] | None = None) -> None:
        self._sweep, self._short = sweep, short
        self._stale: set[tuple[str, str]] = set() if stale is None else stale
        self._confusions: dict[str, dict[str, Any]] = {}
        self._found: dict[str, tuple[list[dict[str, Any]], bool]] = {}
        self._tables: dict[str, Figures] = {}

    @property
    def where(self) -> str:
        """Name the table and its scale."""
        return f"{self._sweep.paper}, table {self._sweep.table}, scale {self._sweep.scale}"

    def functions(self) -> dict[str, Any]:
        """Return the public methods by name, as names of a template."""
        return {
            name: getattr(self, name)
            for name in vars(Figures)
            if name[0] != "_" and name not in ("where", "take_stale")
        }

    def take_stale(self) -> set[tuple[str, str]]:
        """Return table and name of the cells read since the last call that have records of other code."""
        found = {*self._stale}
        self._stale.clear()
        return found

    def table(self, name: str) -> "Figures":
        """Return the figures of another table of the paper."""
        if name not in self._tables:
            sweep = Sweep(self._sweep.named, name, self._sweep.scale)
            sweep.results = self._sweep.results
            self._tables[name] = Figures(sweep, self._short, self._stale)
        return self._tables[name]

    @_undefined_if_missing
    def figure(self, cell: str, metric: str = "", decimals: int | None = None) -> str:
        """Return mean ± standard deviation over seeds of the cell's number, or of another metric."""
        return self._with_spread(self._values(cell, metric), decimals)

    @_undefined_if_missing
    def mean(self, cells: str, metric: str = "", decimals: int | None = None) -> str:
        """Return the mean over seeds, and over cells if `cells` is a pattern such as `fedavg-*`."""
        names = [name for name in self._sweep.page.cells if fnmatchcase(name, cells)] or [cells]
        return self._number(statistics.fmean(statistics.fmean(self._values(name, metric)) for name in names), decimals)

    @_undefined_if_missing
    def each(self, cell: str, metric: str = "", decimals: int | None = None) -> str:
        """Return the number of every seed."""
        values = self._values(cell, metric)
        return ", ".join(self._number(value, 0 if value in (0, 1) else decimals) for value in values)

    @_undefined_if_missing
    def published(self, cell: str, metric: str = "", decimals: int | None = None) -> str:
        """Return the published number."""
        page_cell = self._page_cell(cell)
        number = page_cell.beside.get(metric) if metric else self._sweep.page.published_of(cell)
        if number is None:
            raise _MissingError(f"of the cell {cell} there is no published {metric or 'number'}")
        return self._number(number, decimals)

    @_undefined_if_missing
    def floor(self, cell: str) -> str:
        """Return the least error that the data allow."""
        self._page_cell(cell)
        return self._with_spread(_any(self._sweep.floors(cell), cell, "floor"))

    @_undefined_if_missing
    def fresh(self, cell: str) -> str:
        """Return the mean of the headline metric on fresh clients."""
        return self._of_role(cell, "fresh")

    @_undefined_if_missing
    def unseen(self, cell: str) -> str:
        """Return the mean of the headline metric on unseen clients."""
        return self._of_role(cell, "unseen")

    @_undefined_if_missing
    def seconds(self, cell: str, decimals: int | None = None) -> str:
        """Return the mean seconds of a run."""
        return self._number(statistics.fmean(record["seconds"] for record in self._records(cell)), decimals)

    @_undefined_if_missing
    def with_tuning(self, cell: str) -> str:
        """Return the epsilon of all runs that chose the cell's settings together."""
        self._page_cell(cell)
        total = self._sweep.with_tuning(cell)
        if total is None:
            raise _MissingError(f"the cell {cell} has no training.privacy")
        return self._number(total)

    @_undefined_if_missing
    def ensemble(self, cell: str, metric: str) -> str:
        """Return a metric of the cell's runs as one deep ensemble."""
        self._records(cell)
        value = (self._sweep.ensemble(cell) or {}).get(metric)
        if value is None:
            raise _MissingError(f"of the cell {cell} there is no ensemble {metric}")
        return self._number(value)

    @_undefined_if_missing
    def class_accuracy(self, cell: str, name: str, decimals: int | None = None) -> str:
        """Return the mean share of a class's rows that is classified correctly."""
        counts = [record.get("by_class", {}).get(name, (0, 0)) for record in self._records(cell)]
        shares = [right / rows for right, rows in counts if rows]
        return self._number(statistics.fmean(_any(shares, cell, f"class {name}")), decimals)

    @_undefined_if_missing
    def least_class_accuracy(self, cell: str, decimals: int | None = None) -> str:
        """Return the mean accuracy over seeds of the class with the least mean."""
        by_class = [record.get("by_class", {}) for record in self._records(cell)]
        means = [
            statistics.fmean(counts[name][0] / counts[name][1] for counts in by_class)
            for name in by_class[0]
            if all(counts.get(name, (0, 0))[1] for counts in by_class)
        ]
        return self._number(min(_any(means, cell, "class")), decimals)

    @_undefined_if_missing
    def difference(self, first: str, second: str, classes: bool = False) -> str:
        """Return the recorded difference of two cells with its interval; nothing for a cell and itself.

        Args:
            first: A cell of the table.
            second: The cell that is subtracted.
            classes: Whether the difference is on the rows of the classes that the page names.
        """
        if first == second:
            return ""
        for cell in (first, second):
            self._records(cell)
        pairs = [*self._sweep.page.paired, *self._contested]
        wanted = (first, second, classes)
        pair = next((pair for pair in pairs if (pair.first, pair.second, bool(pair.classes)) == wanted), None)
        if pair is None:
            raise _MissingError(f"the cells {first} and {second} are no pair")
        return self._difference(first, second, difference_of(self._sweep, pair))

    @_undefined_if_missing
    def change(self, cell: str, table: str) -> str:
        """Return the cell's number less the number of the same cell in another table, over draws of the data."""
        other = self.table(table)
        if "training" in (self._sweep.page.seeds_are, other._sweep.page.seeds_are):
            raise UserError(f"{self.where}: change() needs seeds that draw the data, here and in table {table}.")
        for figures in (self, other):
            figures._records(cell)
        return self._difference(cell, cell, over_draws(self._sweep, cell, cell, other._sweep))

    @_undefined_if_missing
    def best(self) -> str:
        """Return the name of the cell with the best mean."""
        means = {cell: statistics.fmean(self._values(cell, "")) for cell in self._sweep.page.cells}
        return (min if self._sweep.falls(next(iter(means))) else max)(means, key=lambda cell: means[cell])

    @_undefined_if_missing
    def above(self, second: str) -> str:
        """Return the cells whose paired interval less this cell is above 0, by difference, the largest first; or `none`."""
        found = {}
        for pair in (pair for pair in self._sweep.page.paired if pair.second == second and not pair.classes):
            for cell in (pair.first, second):
                self._records(cell)
            record = difference_of(self._sweep, pair)
            if record is None:
                raise _MissingError(f"{pair.first} - {second} is not recorded, and does not follow from two seeds")
            if record["low"] > 0:
                found[pair.first] = record["difference"]
        return ", ".join(sorted(found, key=lambda cell: -found[cell])) or "none"

    @_undefined_if_missing
    def spread(self, cell: str, decimals: int | None = None) -> str:
        """Return the standard deviation of the cell's number over seeds."""
        return self._number(statistics.stdev(self._values(cell, "")), decimals)

    @_undefined_if_missing
    def right(self, cell: str, judge: str) -> str:
        """Return how many of a cell's pairs a judge names correctly, `113 of 135`."""
        counts = self._trials(cell, judge)
        return f"{counts['right']} of {counts['of']}"

    @_undefined_if_missing
    def count(self, cell: str, judge: str, verdict: str | None = None) -> str:
        """Return how often a judge gives a verdict on a cell's pairs; if none is named, the correct one."""
        counts = self._trials(cell, judge)
        return str(counts["right"] if verdict is None else counts["said"].get(verdict, 0))

    @_undefined_if_missing
    def balanced_accuracy(self, title: str, judge: str, interval: bool = True) -> str:
        """Return a judge's balanced accuracy over the cells of a confusion, with its 95 % interval."""
        share = self._of_confusion(title, "balanced_accuracy", judge)
        mean, low, high = (self._number(share[side], 3) for side in ("share", "low", "high"))
        return f"{mean}, {low} to {high}" if interval else mean

    @_undefined_if_missing
    def false_alarms(self, title: str, judge: str) -> str:
        """Return how many pairs without a shift a judge gives one, `3 of 240`."""
        counts = self._of_confusion(title, "false_alarms", judge)
        return f"{counts['right']} of {counts['of']}"

    @_undefined_if_missing
    def rate(self, rows: int, name: str, judge: str = "guarded") -> str:
        """Return how many pairs of hospitals of a size a rate counts, such as `confidently_wrong`: `4 of 320`."""
        for cell in self._sweep.page.cells:
            self._records(cell)
        (of_size,) = [each for each in rates_by_size(self._sweep) if each["rows"] == rows]
        counts = of_size[name] if name in of_size else of_size["judges"][judge][name]
        return f"{counts['right']} of {counts['of']}"

    @_undefined_if_missing
    def ranked(self, title: str, which: str) -> str:
        """Return in how many pairs `all` shifted features, or one of them (`first`), rank before the others."""
        counts = self._of_confusion(title, "ranked", which)
        return f"{counts['right']} of {counts['of']}"

    def _page_cell(self, cell: str) -> Any:
        if cell not in self._sweep.page.cells:
            raise UserError(f"{self.where}: there is no cell {shown(repr(cell))}.")
        return self._sweep.page.cells[cell]

    def _records(self, cell: str) -> list[dict[str, Any]]:
        self._page_cell(cell)
        if cell not in self._found:
            if not whole(self._sweep, cell):
                raise _MissingError(f"the cell {cell} is not recorded, or not with all its seeds")
            self._found[cell] = self._sweep.records(cell), bool(self._sweep.stale(cell))
        records, is_stale = self._found[cell]
        if is_stale:
            self._stale.add((self._sweep.table, cell))
        return records

    def _values(self, cell: str, metric: str) -> list[float]:
        """Return the number of every seed that has one."""
        records = self._records(cell)
        if not metric:
            return _any(self._sweep.values(cell), cell, "number")
        found = [record.get("also", {}).get(metric) for record in records]
        return _any([value for value in found if value is not None], cell, metric)

    def _of_role(self, cell: str, role: str) -> str:
        records, metric = self._records(cell), f"{role}/{self._sweep.quantity(cell).headline}"
        values = [record[metric] for record in records if record.get(metric) is not None]
        return self._number(statistics.fmean(_any(values, cell, role)))

    @cached_property
    def _contested(self) -> list[Pair]:
        """Return the pairs of contests, whose cells must all be recorded."""
        cells = {cell for cells in self._sweep.page.contests for cell in cells}
        return self._sweep.pairs() if cells and all(whole(self._sweep, cell) for cell in cells) else []

    def _trials(self, cell: str, judge: str) -> Mapping[str, Any]:
        self._records(cell)
        judges: Mapping[str, Any] = row_of(self._sweep, cell)["ours"]
        if judge not in judges:
            raise _MissingError(f"of the cell {cell} nothing is recorded of the judge {judge!r}")
        return dict(judges[judge])

    def _of_confusion(self, title: str, what: str, judge: str) -> Mapping[str, Any]:
        confusions = self._sweep.page.confusions
        if title not in confusions:
            raise UserError(f"{self.where}: there is no confusion {shown(repr(title))}.")
        if title not in self._confusions:
            for cell in confusions[title].cells:
                self._records(cell)
            self._confusions[title] = together(self._sweep, confusions[title])
        if judge not in self._confusions[title][what]:
            raise _MissingError(f"of the confusion {title!r} nothing is recorded under {judge!r}")
        return dict(self._confusions[title][what][judge])

    def _difference(self, first: str, second: str, record: Mapping[str, Any] | None) -> str:
        if record is None:
            raise _MissingError(f"{first} - {second} is not recorded, and does not follow from two seeds")
        text = self._sweep.quantity(first).difference(record["difference"], record["low"], record["high"])
        points, _, interval = text.partition(", ")
        return f"{points.partition(' ')[0]}, {interval}" if self._short else f"{points} ({interval})"

    def _with_spread(self, values: Sequence[float], decimals: int | None = None) -> str:
        mean = statistics.fmean(values)
        if len(values) == 1:
            return self._number(mean, decimals)
        decimals = _decimals(mean) if decimals is None else decimals
        spread = statistics.stdev(values)
        needed = -math.floor(math.log10(spread)) if 0 < spread < 0.5 * 10**-decimals else decimals
        return f"{self._number(mean, decimals)} ± {self._number(spread, needed)}"

    def _number(self, value: float, decimals: int | None = None) -> str:
        text = str(number(float(value), decimals))
        return re.sub(r"^(−?)0\.", r"\1.", text) if self._short else text


def number(value: Any, decimals: int | None = None) -> Any:
    """Format a number: an integer in full, else three significant digits; a true minus."""
    if isinstance(value, Undefined):
        return value
    if not isinstance(value, int | float):
        raise FilterArgumentError(f"number: got {value!r}, expected a number. Use map('number') for a list")
    if decimals is None:
        decimals = 0 if isinstance(value, int) else _decimals(value)
    return f"{value:,.{decimals}f}".replace("-", "−")


def bracketed(value: Any) -> Any:
    """Put a space and brackets around a value; an undefined value stays undefined."""
    return value if isinstance(value, Undefined) else f" ({value})"


def bold(table: str, highest: Sequence[str] = (), lowest: Sequence[str] = ()) -> str:
    """Make the best number of some columns of a Markdown table bold.

    Args:
        table: The lines of the table, the first of which has the headings.
        highest: Headings of columns whose highest number is the best.
        lowest: Headings of columns whose lowest number is the best.

    Returns:
        The table; several numbers of a column are bold if they are equal.

    Raises:
        FilterArgumentError: If the table has no such heading.
    """
    lines = [line.strip() for line in table.splitlines() if line.strip()]
    rows = [[cell.strip() for cell in _COLUMN_END.split(line)[1:-1]] for line in lines]
    for heading in (*highest, *lowest):
        if heading not in rows[0]:
            raise FilterArgumentError(f"bold: got {heading!r}, expected one of the headings {', '.join(rows[0])}")
    for column, heading in enumerate(rows[0]):
        if heading not in (*highest, *lowest):
            continue
        found = {at: match[0] for at, row in enumerate(rows[2:], 2) if (match := _NUMBER.search(row[column]))}
        numbers = {at: float(text.replace("−", "-").replace(",", "")) for at, text in found.items()}
        best = (max if heading in highest else min)(numbers.values())
        for at in (at for at, value in numbers.items() if value == best):
            rows[at][column] = f"**{rows[at][column]}**"
    return "\n".join([*lines[:2], *(f"| {' | '.join(row)} |" for row in rows[2:])])


def render(template: str, **names: Any) -> str:
    """Fill a template with these names; UserError if it is no template, or a figure is missing."""
    try:
        return _ENVIRONMENT.from_string(template).render(**names)
    except TemplateError as error:
        line = f"line {error.lineno} of the template: " if isinstance(error, TemplateSyntaxError) else ""
        raise UserError(f"{line}{str(error.message).rstrip('.')}.") from None


def _any(values: list[float], cell: str, what: str) -> list[float]:
    """Return the values, of which there must be one."""
    if not values:
        raise _MissingError(f"of the cell {cell} there is no {what}")
    return values


def _decimals(value: float) -> int:
    return next((decimals for decimals, limit in ((3, 0.9995), (2, 9.995), (1, 99.95)) if abs(value) < limit), 0)


# a user's own page of a paper is data: its templates must not reach the rest of the program
_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_ENVIRONMENT.filters |= {"number": number, "bracketed": bracketed, "bold": bold}
