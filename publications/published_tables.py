"""A page of published tables, parsed once: numbers, where they are from, and the params that repeat each cell.

What a page says of cells that are no runs but trials: pairs of clients whose shift is known are drawn, and judged.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, ValidationError, field_validator, model_validator

from flows.config.validation_errors import nearest_hint
from flows.experiment.comparison.search_space import Axis, Grid, Point, placed
from publications.curves import Curves, Record, Settings
from publications.synthetic_pairs.evaluate_verdicts import named_types
from publications.synthetic_pairs.families import FAMILIES
from silos import param_types, strict_yaml
from silos.errors import UserError, shown
from silos.io.atomic_io import is_there
from silos.param_types import Name, Names, checked, plain

PAPERS = Path(__file__).parent / "pages"


def names() -> list[str]:
    """Return the names of the papers that there are tables of, sorted, without reading one."""
    return sorted(page.stem for page in PAPERS.glob("*.yaml"))


class Trial(Record):
    """What a cell does that is no run: so many pairs of clients are drawn, of a row of the table's family, and judged.

    rows: of both clients, or of a random pair the fewest and the most of either; effect: φ of what shifts, of a random pair;
    epsilon: of the noise that both add to their counts, for differential privacy; 0 is none.
    """

    row: str
    rows: tuple[PositiveInt, PositiveInt]
    pairs: PositiveInt
    effect: NonNegativeFloat = 0.0
    epsilon: NonNegativeFloat = 0.0


class KnownSilos(Record):
    """What a cell does that diagnoses silos of its settings' making: which pairs it looks at, and how these truly differ.

    across: pairs of silos of different domains; within: of the same one. truth: types joined by +, or none.
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
    """Cells of trials that are shown together; `published` is the balanced accuracy by judge.

    With `by` it is also shown of which kinds of pairs verdicts are right.
    """

    cells: tuple[str, ...] = Field(min_length=1)
    published: dict[str, float] = Field({})
    by: bool = False


def check_trials(family: str | None, second_look: bool, trials: Mapping[str, Trial | None]) -> None:
    """ValueError unless all cells are trials on rows that the family has, or none is and there is no family.

    A second look is only at trials, and at none with noise.
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
        if second_look and trial.epsilon:
            raise ValueError(f"the cell {name} has noise, of which there is no second look: drop `epsilon`")


def check_silos(family: str | None, silos: Mapping[str, KnownSilos | None]) -> None:
    """ValueError unless all cells diagnose silos, and no family of pairs is drawn from, or none does."""
    there, others = ([name for name, one in silos.items() if bool(one) is wanted] for wanted in (True, False))
    if there and family is not None:
        raise ValueError(f"the cell {there[0]} diagnoses silos, and the table draws pairs: drop `silos`, or `family`")
    if there and others:
        raise ValueError(
            f"the cell {others[0]} has no silos, and {there[0]} has: add `silos`, or give it another table"
        )


Floor = Literal["covariance", "covariance with a constant", "least squares"]
"""The statistic of which a conditional linear model has a least error (models/statistics/spectrum.py)."""


class Measure(Record):
    """What a cell's number is: a metric of the reported round, or the rounds until a target; the headline if neither."""

    metric: str | None = None
    rounds_to: float | None = None


class Cell(Record):
    """One number of a table; `about` is printed with it.

    `floor` is what theory says that it cannot pass, a number or how that follows from each draw of synthetic data; `beside`
    is published of other metrics. Of a trial it is published in `said` how often each judge said what, of so many pairs
    `of`; and in `distances` mean and standard deviation, by name.
    `tune` are settings of which the best on the first seed is taken: key to values.
    """

    about: str
    published: float | None = None
    floor: Floor | float | None = None
    method: str | None = None
    measure: Measure | None = None
    beside: dict[str, float] = Field({})
    set: Settings = ()
    tune: dict[str, Axis] = Field({})
    trial: Trial | None = None
    silos: KnownSilos | None = None
    said: dict[str, dict[str, int]] = Field({})
    of: PositiveInt | None = None
    distances: dict[str, tuple[float, float | None]] = Field({})


class Pair(Record):
    """Two cells whose difference is a sentence; on the rows of these classes alone, if they are named."""

    first: str
    second: str
    classes: Names | None = None


class Scale(Record):
    """How large it is run: seeds, settings, and the values of the grid that are tried (for all cells, or by cell)."""

    seeds: tuple[Annotated[int, Field(ge=0, le=param_types.SEED)], ...] = Field(min_length=1)
    grid: tuple[Any, ...] | dict[str, tuple[Any, ...]] = ()
    set: Settings = ()

    @field_validator("seeds")
    @classmethod
    def _differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        """A seed that is there twice would count one run as two."""
        if len(set(seeds)) < len(seeds):
            raise ValueError("a seed is named twice; name each once")
        return seeds


class Table(Record):
    """A published table.

    `choose_on` says where the best of a grid is looked for on the first seed: the measure itself, or validation rows. The
    grid is one setting for all cells, with values of the scale; or each cell has what it is tuned by, equally many settings.
    `seeds_are: data` draws other data with each seed. Of every contest the best cell is paired with the next. A table
    with `runs_of` shows other sides of that table's runs; `also` names more metrics of the same runs, with the titles of
    their columns. `ensembles` shows what the runs of a cell say together, as one deep ensemble. The points of `curves` are
    cells, too, and drawn as a figure. The cells of a table with a `family` are trials on its pairs, of which with
    `second_look` it is also said what a second look finds; or all cells diagnose `silos`. Those of each of `confusions` are
    also shown together.
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
        """The points of a figure among the cells, and their contests among the contests."""
        if not isinstance(page, dict) or not page.get("curves"):
            return page
        curves, cells, contests = (
            Curves.model_validate(page["curves"]),
            page.get("cells") or {},
            page.get("contests") or [],
        )
        if isinstance(cells, dict):  # what is of another type is refused as what it is
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
            placed(self.grid, 0)
        self._tuned_alike()
        if any(pair.classes for pair in self.paired) and self.seeds_are == "data":
            raise ValueError("pairs by class need the same rows in every seed, and here seeds draw other data")
        compared = {cell for pair in self.paired for cell in (pair.first, pair.second)}.union(*self.contests)
        for metric in sorted({self.measure_of(cell).metric or "" for cell in compared}):
            if metric.rpartition("/")[2] in ("nll", "ece", "brier", "entropy"):
                raise ValueError(f"a pair is told as points, of which more is better, and of {metric} less is: drop it")
        if self.seeds_are == "data" and any(self.measure_of(cell).rounds_to is not None for cell in compared):
            raise ValueError("where seeds draw the data a pair is a difference of scores, and rounds_to counts rounds")
        return self

    def _tuned_alike(self) -> None:
        """ValueError where cells that are compared have other numbers of settings: that would rank what was tuned most."""
        counts = {name: len(Grid(cell.tune).points()) for name, cell in self.cells.items()}
        odd = next((name for name, count in counts.items() if count != max(counts.values())), None)
        if odd is not None:
            raise ValueError(f"the cell {odd} is tuned by {counts[odd]} settings, and others by {max(counts.values())}")
        if self.grid and max(counts.values()) > 1:
            raise ValueError("cells have a grid in `tune`, and the table has one in `grid`: drop one of them")
        for cell in self.cells.values():
            for key in cell.tune:
                placed(key, 0)
        for cell_name in self.cells:
            for scale in self.scales:
                self.grid_of(cell_name, scale)

    @property
    def judged(self) -> bool:
        """Whether verdicts on a shift that is known are counted, and nothing is trained."""
        return self.family is not None or any(cell.silos for cell in self.cells.values())

    def trial_of(self, cell: str) -> Trial:
        """Of a table with a family."""
        trial = self.cells[cell].trial
        assert trial is not None
        return trial

    def method_of(self, cell: str) -> str:
        """The cell's own method, or the table's."""
        return self.cells[cell].method or str(self.method)

    def measure_of(self, cell: str) -> Measure:
        """The cell's own measure, or the table's."""
        return self.cells[cell].measure or self.measure

    def published_of(self, cell: str) -> float | None:
        """What is published of the cell's measure."""
        page = self.cells[cell]
        return page.beside.get(self.measure_of(cell).metric or "", page.published)

    def seeds_of(self, cell: str, seeds: Sequence[int]) -> list[int]:
        """Those of these seeds that the cell is run with."""
        return list(seeds[:1] if self.curves is not None and cell in self.curves.few() else seeds)

    def grid_of(self, cell: str, scale: str) -> Grid | None:
        """What a cell is chosen from at this scale; None where nothing is chosen."""
        if self.cells[cell].tune:
            return Grid(self.cells[cell].tune)
        grid = self.scales[scale].grid
        values = grid.get(cell, ()) if isinstance(grid, dict) else grid
        return Grid({str(self.grid): Axis.model_validate(list(values))}) if values else None

    def beyond(self, cell: str, scale: str, best: Point) -> list[Point]:
        """What is tried once more where the best of the first settings stands at an edge of what a cell is tuned by."""
        grid = self.grid_of(cell, scale)
        return grid.beyond(best) if grid and self.cells[cell].tune else []

    def settings(self, cell: str, scale: str, choice: Sequence[str], seed: int) -> list[str]:
        """All that the page says of a run, the later lines over the earlier."""
        data = [f"data.seed={seed}"] if self.seeds_are == "data" else []
        lines = [*self.base, *self.scales[scale].set, *self.cells[cell].set]
        return [*lines, *choice, *data]


def is_own(paper: str) -> bool:
    """Whether a paper is named by a file of the user's own, not by a page's name."""
    return paper.endswith(".yaml")


def tables(paper: str) -> Mapping[str, Any]:
    """The tables of a paper as they are written; UserError if there is no such page."""
    held: Mapping[str, Any] = written(paper)["tables"]
    return held


def written(paper: str) -> Mapping[str, Any]:
    """A paper's page as it is written, with its tables; UserError if there is no such page."""
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
    """Once for all tables of a page."""
    return strict_yaml.load(content)


def table_of(paper: str, table: str | None, scale: str) -> Table:
    """The published table; UserError naming those that there are, or what is wrong with it."""
    there = tables(paper)
    if table is None:
        raise UserError(f"say which table of {paper}: --table takes {', '.join(there)}.")
    if table not in there:
        others = f"; --table takes {', '.join(there)}."
        raise UserError(f"{paper} has no table {shown(repr(table))} here{nearest_hint(table, list(there), others)}")
    plain(table, f"{paper}: the table")  # folders and results are called after it
    try:
        page = Table.model_validate(there[table])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UserError(f"{paper}, table {table}: {where}: {first['msg'].removeprefix('Value error, ')}.") from None
    if scale not in page.scales:
        raise UserError(f"table {table} has no scale {scale!r}; there are {', '.join(page.scales)}.")
    return page
