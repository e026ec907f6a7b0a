"""Parse a page of published tables: numbers, their sources, and the settings that repeat each cell.

A cell is a run, or a trial: verdicts judge pairs of clients with a known shift.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, ValidationError, field_validator, model_validator

from flows.core.config.validation_errors import nearest_hint
from flows.core.search_space import Axis, Grid, Point, insert_value
from publications.curves import Curves, Record, Settings, Shared
from publications.synthetic_pairs.evaluate_verdicts import named_types
from publications.synthetic_pairs.families import FAMILIES
from silos import param_limits, strict_yaml
from silos.errors import UserError, shown
from silos.io.atomic_io import is_there
from silos.param_types import Name, Names, checked, plain

PAPERS = Path(__file__).parent / "pages"


def names() -> list[str]:
    """Return the names of the papers with a page, sorted, without reading a page."""
    return sorted(page.stem for page in PAPERS.glob("*.yaml"))


class Trial(Record):
    """A cell that draws pairs of clients from a row of the table's family and judges them.

    Attributes:
        row: The row of the family.
        rows: The rows of both clients; of a random pair the fewest and the most rows of a client.
        pairs: How many pairs are drawn.
        effect: φ of the shift of a random pair.
        epsilon: The privacy of the noise that both clients add to their counts; 0 is no noise.
        clients: More than two are a federation of alike clients, of which all pairs are judged; `pairs` is then the number
            of federations, and `rows` has those of the largest and of the smallest client.
    """

    row: str
    rows: tuple[PositiveInt, PositiveInt]
    pairs: PositiveInt
    effect: NonNegativeFloat = 0.0
    epsilon: NonNegativeFloat = 0.0
    clients: Annotated[int, Field(ge=2)] = 2


class KnownSilos(Record):
    """A cell that diagnoses silos made by its settings.

    Attributes:
        truth: The true types of shift joined by +, or none.
        pairs: Whether pairs of silos `across` domains are judged, or pairs `within` a domain.
    """

    truth: str
    pairs: Literal["across", "within"]

    @field_validator("truth")
    @classmethod
    def _types(cls, truth: str) -> str:
        right = named_types(frozenset(truth.split("+")))
        if truth != right:
            raise ValueError(
                f"{truth!r} is no name of types: it is feature, label, concept, joined by + in this order, or none"
            )
        return truth


class Confusion(Record):
    """Cells of trials that are shown together.

    Attributes:
        cells: The cells.
        published: The published balanced accuracy by judge.
        by: Whether the share of correct verdicts is also shown by kind of pair.
    """

    cells: tuple[str, ...] = Field(min_length=1)
    published: dict[str, float] = Field({})
    by: bool = False


def check_trials(family: str | None, second_look: bool, trials: Mapping[str, Trial | None]) -> None:
    """Check that all cells are trials on rows of the family, or none is and there is no family.

    Args:
        family: The table's family of pairs.
        second_look: Whether pairs get a second look, which is only possible for trials without noise.
        trials: The trial of every cell.

    Raises:
        ValueError: If the cells do not fit the family.
    """
    if second_look and family is None:
        raise ValueError("a second look is at trials, and the table has no family of pairs: drop `second_look`")
    if family is not None and family not in FAMILIES:
        raise ValueError(f"there is no family {family!r} of pairs; there are {', '.join(FAMILIES)}")
    for name, trial in trials.items():
        if family is None and trial is not None:
            raise ValueError(f"the cell {name} is a trial, and the table does not say on which pairs: add `family`")
        if family is None:
            continue
        if trial is None:
            raise ValueError(f"the cell {name} has no trial, and all cells of a family are trials: add `trial`")
        rows = FAMILIES[family].truths
        if trial.row not in rows:
            raise ValueError(f"the cell {name}: {family} has no row {trial.row!r}; there are {', '.join(rows)}")
        if trial.clients > 2 and (rows[trial.row] or not FAMILIES[family].federations):
            raise ValueError(f"the cell {name} has {trial.clients} clients, which rows without a type of clinical have")
        if second_look and trial.epsilon:
            raise ValueError(f"the cell {name} has noise, of which there is no second look: drop `epsilon`")


def check_silos(family: str | None, silos: Mapping[str, KnownSilos | None]) -> None:
    """Raise ValueError if some cells diagnose silos and others do not, or if the table also has a family."""
    there, others = ([name for name, one in silos.items() if bool(one) is wanted] for wanted in (True, False))
    if there and family is not None:
        raise ValueError(f"the cell {there[0]} diagnoses silos, and the table draws pairs: drop `silos`, or `family`")
    if there and others:
        raise ValueError(
            f"the cell {others[0]} has no silos, and {there[0]} has: add `silos`, or give it another table"
        )


Floor = Literal["covariance", "covariance with a constant", "least squares"]
"""The statistic for which a conditional linear model has a least error (publications/noise_floor.py)."""


class Measure(Record):
    """The number of a cell: a metric of the reported round, or the rounds to a target; the headline metric if neither."""

    metric: str | None = None
    rounds_to: float | None = None


class Cell(Record):
    """One number of a table.

    Attributes:
        about: A description, which is printed with the number.
        floor: The least error by theory: a number, or the statistic from which it follows for each draw of synthetic data.
        beside: Published numbers of other metrics.
        shared: The cell of another table whose runs it shows; neither is tuned.
        tune: Values by key of the settings from which the best on the seed of tuning is chosen.
        said: Of a trial, how often each judge gave each verdict in the publication.
        of: Of a trial, the number of published pairs.
        distances: Of a trial, published mean and standard deviation by name of the distance.
    """

    about: str
    published: float | None = None
    floor: Floor | float | None = None
    method: str | None = None
    measure: Measure | None = None
    beside: dict[str, float] = Field({})
    set: Settings = ()
    shared: Shared | None = None
    tune: dict[str, Axis] = Field({})
    trial: Trial | None = None
    silos: KnownSilos | None = None
    said: dict[str, dict[str, int]] = Field({})
    of: PositiveInt | None = None
    distances: dict[str, tuple[float, float | None]] = Field({})


class Pair(Record):
    """Two cells that are compared, on the rows of `classes` if they are named."""

    first: str
    second: str
    classes: Names | None = None


Seed = Annotated[int, Field(ge=0, le=param_limits.SEED)]


class Scale(Record):
    """The size of a table's runs.

    Attributes:
        seeds: The seeds of a cell's numbers.
        tune_seed: The seed on which the best of a grid is chosen; the first of `seeds` if none.
        grid: The values of the grid, for all cells or by cell.
        set: Settings of all cells.
    """

    seeds: tuple[Seed, ...] = Field(min_length=1)
    tune_seed: Seed | None = None
    grid: tuple[Any, ...] | dict[str, tuple[Any, ...]] = ()
    set: Settings = ()

    @field_validator("seeds")
    @classmethod
    def _differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        """Refuse a seed that is named twice, which would count one run as two."""
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is named twice; name each once")
        return seeds

    @model_validator(mode="after")
    def _apart(self) -> "Scale":
        if self.tune_seed in self.seeds:
            raise ValueError(
                f"tune_seed: got {self.tune_seed}, expected none of `seeds`. Drop it for the first of these"
            )
        return self


class Table(Record):
    """A published table.

    Attributes:
        cells: The cells by name; the points of `curves` are cells as well.
        curves: A figure with lines over one axis.
        grid: The setting that is tuned for all cells, with values of the scale; otherwise cells have `tune`.
        choose_on: Whether the best of a grid is chosen by the measure, or on validation rows.
        seeds_are: Whether seeds differ in training, or draw other data.
        paired: Pairs of cells that are compared.
        contests: Groups of cells of which the best is compared with the next.
        by_class: Published accuracy by class and cell.
        also: More metrics of the same runs, with the titles of their columns.
        ensembles: Whether the runs of a cell are also evaluated as one deep ensemble.
        runs_of: Another table whose runs this table shows.
        family: A family of pairs; all cells are trials on its pairs.
        second_look: Whether the pairs of a family get a second look.
        confusions: Groups of cells of trials that are shown together.
    """

    title: str
    source: str
    known_errors: str
    cells: dict[str, Cell] = Field(min_length=1)
    curves: Curves | None = None
    scales: dict[str, Scale] = Field(min_length=1)
    unit: str | None = None
    measure: Measure = Measure()
    base: Settings = ()
    method: str | None = None
    grid: str | None = None
    choose_on: Literal["measure", "validation"] = "measure"
    seeds_are: Literal["training", "data"] = "training"
    paired: tuple[Pair, ...] = ()
    contests: tuple[tuple[str, ...], ...] = ()
    by_class: dict[Name, dict[str, float]] = Field({})
    also: dict[str, str] = Field({})
    ensembles: bool = False
    runs_of: str | None = None
    family: str | None = None
    second_look: bool = False
    confusions: dict[str, Confusion] = Field({})

    @model_validator(mode="before")
    @classmethod
    def _with_points(cls, page: Any) -> Any:
        """Add the points of a figure to the cells, and their contests to the contests."""
        if not isinstance(page, dict) or not page.get("curves"):
            return page
        curves, cells, contests = (
            Curves.model_validate(page["curves"]),
            page.get("cells") or {},
            page.get("contests") or [],
        )
        if isinstance(cells, dict):  # the schema refuses another type
            cells = {**curves.cells(), **cells}
        if isinstance(contests, list):
            contests = [*contests, *curves.contests_of_cells()]
        return {**page, "cells": cells, "contests": contests}

    @model_validator(mode="after")
    def _fits_together(self) -> "Table":
        for name in (*self.cells, *self.scales, *([self.runs_of] if self.runs_of else [])):
            checked(name)
        named = {cell for pair in self.paired for cell in (pair.first, pair.second)}
        named |= {cell for values in self.by_class.values() for cell in values}
        named |= {cell for cells in self.contests for cell in cells}
        named |= {cell for confusion in self.confusions.values() for cell in confusion.cells}
        named |= {cell for s in self.scales.values() if isinstance(s.grid, dict) for cell in s.grid}
        for cell in sorted(named - self.cells.keys()):
            raise ValueError(f"there is no cell {cell!r}; there are {', '.join(self.cells)}")
        for metric in (*self.also, *(self.measure_of(cell).metric or "" for cell in self.cells)):
            if "@" in metric and not re.fullmatch(r".+@([1-9][0-9]*|last|highest|unrest)", metric):
                raise ValueError(f"{metric!r}: after @ stands the number of a round, last, highest or unrest")
        check_trials(self.family, self.second_look, {name: cell.trial for name, cell in self.cells.items()})
        check_silos(self.family, {name: cell.silos for name, cell in self.cells.items()})
        for name, cell_ in self.cells.items():
            if not (cell_.method or self.method or self.judged):
                raise ValueError(f"the cell {name} names no method, nor does the table")
        if any(scale.grid for scale in self.scales.values()) and not self.grid:
            raise ValueError("a scale has a grid, and the table has no setting that its values belong in: add `grid`")
        if self.grid:
            insert_value(self.grid, 0)
        self._tuned_alike()
        if any(pair.classes for pair in self.paired) and self.seeds_are == "data":
            raise ValueError("pairs by class need the same rows in every seed, and here seeds draw other data")
        compared = {cell for pair in self.paired for cell in (pair.first, pair.second)}.union(*self.contests)
        for metric in sorted({self.measure_of(cell).metric or "" for cell in compared}):
            if {"loss", "nll", "ece", "brier", "entropy"} & {*metric.partition("@")[0].split("/")}:
                raise ValueError(
                    f"paired: got a pair of cells with {metric}, expected a metric of which more is better. Drop it"
                )
        if any(self.measure_of(cell).rounds_to is not None for cell in compared):
            raise ValueError("a pair or a contest is a difference of scores, and rounds_to counts rounds. Drop it")
        return self

    def _tuned_alike(self) -> None:
        """Raise ValueError if cells are tuned by different numbers of settings, which would favour the cell tuned most."""
        counts = {name: len(Grid(cell.tune).points()) for name, cell in self.cells.items()}
        odd = next((name for name, count in counts.items() if count != max(counts.values())), None)
        if odd is not None:
            raise ValueError(f"the cell {odd} is tuned by {counts[odd]} settings, and others by {max(counts.values())}")
        if self.grid and max(counts.values()) > 1:
            raise ValueError("cells have a grid in `tune`, and the table has one in `grid`: drop one of them")
        for cell in self.cells.values():
            for key in cell.tune:
                insert_value(key, 0)
        for cell_name in self.cells:
            for scale in self.scales:
                self.grid_of(cell_name, scale)

    @property
    def judged(self) -> bool:
        """Whether the table counts verdicts on known shifts, and trains nothing."""
        return self.family is not None or any(cell.silos for cell in self.cells.values())

    def trial_of(self, cell: str) -> Trial:
        """Return the trial of a cell, in a table with a family."""
        trial = self.cells[cell].trial
        assert trial is not None
        return trial

    def method_of(self, cell: str) -> str:
        """Return the cell's own method, or the table's."""
        return self.cells[cell].method or str(self.method)

    def measure_of(self, cell: str) -> Measure:
        """Return the cell's own measure, or the table's."""
        return self.cells[cell].measure or self.measure

    def published_of(self, cell: str) -> float | None:
        """Return the published number of the cell's measure."""
        page = self.cells[cell]
        return page.beside.get(self.measure_of(cell).metric or "", page.published)

    def seeds_of(self, cell: str, seeds: Sequence[int]) -> list[int]:
        """Select the seeds of a cell's runs."""
        return list(seeds[:1] if self.curves is not None and cell in self.curves.few() else seeds)

    def grid_of(self, cell: str, scale: str) -> Grid | None:
        """Return the grid of a cell at this scale; None if the cell is not tuned."""
        if self.cells[cell].tune:
            return Grid(self.cells[cell].tune)
        grid = self.scales[scale].grid
        values = grid.get(cell, ()) if isinstance(grid, dict) else grid
        return Grid({str(self.grid): Axis.model_validate(list(values))}) if values else None

    def beyond(self, cell: str, scale: str, best: Point) -> list[Point]:
        """Return the points beyond an edge of `tune` at which the best of the first settings is."""
        grid = self.grid_of(cell, scale)
        return grid.beyond(best) if grid and self.cells[cell].tune else []

    def settings(self, cell: str, scale: str, choice: Sequence[str], seed: int) -> list[str]:
        """Return the page's settings of a run; later ones override earlier ones.

        Args:
            cell: The cell.
            scale: The scale.
            choice: The settings of a point of the grid.
            seed: The seed, which draws the data if `seeds_are` is `data`.
        """
        data = [f"data.seed={seed}"] if self.seeds_are == "data" else []
        lines = [*self.base, *self.scales[scale].set, *self.cells[cell].set]
        return [*lines, *choice, *data]


def is_own(paper: str) -> bool:
    """Whether a paper is a file of the user, and not the name of a page."""
    return paper.endswith(".yaml")


def tables(paper: str) -> Mapping[str, Any]:
    """Return the unparsed tables of a paper; UserError if there is no such page."""
    held: Mapping[str, Any] = written(paper)["tables"]
    return held


def written(paper: str) -> Mapping[str, Any]:
    """Return a paper's page before validation; UserError if there is no such page, or it has no tables."""
    page = Path(paper) if is_own(paper) else PAPERS / f"{paper}.yaml"
    if not is_there(page) or not (is_own(paper) or paper in names()):
        others = f"; there are {', '.join(names())}, or name a .yaml file of your own."
        raise UserError(f"there is no paper {shown(repr(paper))}{nearest_hint(paper, names(), others)}")
    try:
        content = _parsed(page.read_bytes())
    except strict_yaml.NotYamlError as error:
        raise UserError(f"{page} is not valid YAML: {error}.") from None
    held = content.get("tables") if isinstance(content, dict) else None
    if not isinstance(held, dict) or not held:
        raise UserError(f"{page} holds no tables; a page has `tables:` and under it a section for each.")
    return dict(content)


@lru_cache(maxsize=8)
def _parsed(content: bytes) -> Any:
    """Parse a page once for all its tables."""
    return strict_yaml.load(content)


def table_of(paper: str, table: str | None, scale: str) -> Table:
    """Return a published table.

    Args:
        paper: A page's name, or a .yaml file of the user.
        table: One of its tables; an error names them if it is None.
        scale: A scale that the table must have.

    Raises:
        UserError: If there is no such table or scale, or the table is invalid.
    """
    there = tables(paper)
    if table is None:
        raise UserError(f"say which table of {paper}: --table takes {', '.join(there)}.")
    if table not in there:
        others = f"; --table takes {', '.join(there)}."
        raise UserError(f"{paper} has no table {shown(repr(table))} here{nearest_hint(table, list(there), others)}")
    plain(table, f"{paper}: the table")  # folders and results have this name
    try:
        page = Table.model_validate(there[table])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UserError(f"{paper}, table {table}: {where}: {first['msg'].removeprefix('Value error, ')}.") from None
    if scale not in page.scales:
        raise UserError(f"table {table} has no scale {scale!r}; there are {', '.join(page.scales)}.")
    return page
