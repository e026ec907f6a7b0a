"""A published table as a sweep of runs: which cells there are, what of them is recorded, and what is missing.

Nothing is run and nothing is written here, and no Prefect is needed; nor is torch, where only records are asked for.

The least error that a conditional linear model can have on one draw of the synthetic data.

How much of a table is recorded.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.experiment.comparison.search_space import Grid, Point
from flows.scaffold import create_project
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics, lower_is_better
from models.statistics.spectrum import covariance_floor, least_squares_floor
from publications.published_tables import Pair, is_own, table_of
from publications.results_file import RECORDS, Results, without_places
from silos.data_params import DataParams
from silos.errors import UserError
from silos.sources.source_params import Synthetic
from silos.sources.synthetic import coefficients

if TYPE_CHECKING:
    from flows.experiment.project import Project
    from flows.experiment.run.run_folder import RunFolder


def floor_of(data: DataParams, statistic: str) -> float:
    """Given clients' cov(x, y), with a constant or not, or their own least squares; UserError for other data."""
    source = data.source
    if not isinstance(source, Synthetic) or source.task != "linear":
        raise UserError(f"a floor of {statistic} is of synthetic data with the task linear, and the cell has others.")
    if statistic == "least squares":
        return least_squares_floor(source.features, source.rows, source.noise)
    thetas = coefficients(source, data.seed)
    return covariance_floor(thetas, source.rows, source.noise, constant=statistic == "covariance with a constant")


_LOSS = "validation_loss"


class Sweep:
    """One table at one scale: cells, each with a grid on the first seed and then every seed at its best choice.

    docs/results/<paper>.json is parsed once, and again only when something is written there. A page of siloflow's own says
    what is other than in the params.yaml that siloflow comes with, whatever this project's says of its own data.
    """

    def __init__(
        self, paper: str, table: str, scale: str, seeds: Sequence[int] | None = None, overrides: Sequence[str] = ()
    ) -> None:
        self.page = table_of(paper, table, scale)
        self.named, self.paper, self.table, self.scale = paper, Path(paper).stem, table, scale
        self.seeds = seeds or list(self.page.scales[scale].seeds)
        self.overrides = list(overrides)
        if self.page.family and overrides:
            raise UserError(f"{paper}, table {table} draws pairs of clients, which no setting changes; drop --set.")
        self.root = Path().resolve()
        results = self.root / "docs" / "results" / f"{self.paper}.json"
        shipped = None if is_own(paper) else RECORDS / results.name
        self.results = Results(results, self.root / "runs" / f"{self.paper}.results.lock", shipped)
        # runs of other settings are other runs: each set of overrides has a folder of its own
        suffix = f"-{sha256(repr(self.overrides).encode()).hexdigest()[:6]}" if overrides else ""
        self.owner = self.page.runs_of or table
        self._as_its_owner(paper)
        self.experiment = f"reproduce-{self.paper}-{self.owner}-{scale}{suffix}"

    def _as_its_owner(self, paper: str) -> None:
        """UserError where a table of another's runs has other settings: its records would be of neither."""
        if self.page.runs_of is None:
            return
        owner = table_of(paper, self.page.runs_of, self.scale)
        for cell in self.page.cells:
            if cell not in owner.cells:
                raise UserError(
                    f"{paper}, table {self.table}: {cell} is no cell of table {self.owner}, whose runs it shows."
                )
            ours, theirs = (
                (page.method_of(cell), page.settings(cell, self.scale, (), 0), page.grid_of(cell, self.scale))
                for page in (self.page, owner)
            )
            if ours != theirs:
                raise UserError(
                    f"{paper}, table {self.table}: {cell} has other settings than in table {self.owner}, whose runs it "
                    "shows; give it the same `set`, `method` and `tune`, or drop runs_of."
                )

    @property
    def finished(self) -> bool:
        """Whether all that the table prints is recorded, or cannot be had on this machine."""
        whole = all(self.record(cell, *one) for cell in self.page.cells for one in self.tries(cell))
        whole = whole and all(self.record(cell, *one) for cell in self.page.cells for one in self.wanted(cell))
        return whole and not any(map(self.could_pair, self.pairs())) and not any(map(self.could_join, self.page.cells))

    def tries(self, cell: str) -> list[tuple[int, str | None]]:
        """Seed and choice of the runs that a cell's choice is made from, on the first seed.

        They are the grid; and once that is recorded, where its best stands at an edge, what lies beyond.
        """
        return [(self.seeds[0], choice) for choice in self._settings_of(cell)]

    def wanted(self, cell: str) -> list[tuple[int, str | None]]:
        """Seed and choice of the runs that a cell's numbers are of; the tries must be recorded."""
        choice = self.choice(cell)
        return [(seed, choice) for seed in self.seeds_of(cell)]

    def seeds_of(self, cell: str) -> list[int]:
        """Those that the cell is run with."""
        return self.page.seeds_of(cell, self.seeds)

    def choice(self, cell: str) -> str | None:
        """The best of the tries; None where there is no grid."""
        choices = list(self._settings_of(cell))
        return choices[0] if len(choices) == 1 else self._best(cell, choices)

    def at_edge(self, cell: str) -> list[str]:
        """The settings that the cell's choice stands at the edge of what was tried of."""
        grid = self.page.grid_of(cell, self.scale)
        if grid is None:
            return []
        points = self._points(cell, grid)
        return grid.at_edge(points[list(self._settings_of(cell)).index(self.choice(cell))], points)

    def record(self, cell: str, seed: int, choice: str | None) -> dict[str, Any] | None:
        """What is recorded of a run; None if it is missing."""
        return self.results.find((self.owner, self.scale, cell), self.asked(seed, choice))

    def recorded(self, cell: str, seed: int, choice: str | None) -> dict[str, Any]:
        """The same of a run that must be there."""
        record = self.record(cell, seed, choice)
        assert record is not None
        return record

    def records(self, cell: str) -> list[dict[str, Any]]:
        """What is recorded of a cell's runs, seed by seed."""
        return [self.recorded(cell, *one) for one in self.wanted(cell)]

    def asked(self, seed: int, choice: str | None) -> dict[str, Any]:
        """What a run's record is found by."""
        return {"seed": seed, "choice": choice, "set": without_places(self.overrides)}

    def values(self, cell: str) -> list[float]:
        """The cell's number, of each seed that has one."""
        return [value for value in self.of_seeds(cell) if value is not None]

    def of_seeds(self, cell: str) -> list[float | None]:
        """The cell's number seed by seed, None where there is none."""
        return [self._value(cell, record) for record in self.records(cell)]

    def pairs(self) -> list[Pair]:
        """Those that the page names, and of every contest the best cell with the next; UserError for two on other data."""
        pairs = list(self.page.paired)
        for cells in self.page.contests:
            ours = {cell: statistics.fmean(values) for cell in cells if (values := self.values(cell))}
            falling = not lower_is_better(self.quantity(cells[0]).headline)
            ranked = sorted(ours, key=lambda cell: ours[cell], reverse=falling)
            pairs += [Pair(first=first, second=second) for first, second in pairwise(ranked[:2])]
        for pair in pairs:
            self._same_data(pair)
        return pairs

    def difference(self, pair: Pair) -> dict[str, Any] | None:
        """What is recorded of a pair."""
        return self.results.find(*self.place_of_pair(pair))

    def place_of_pair(self, pair: Pair) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Where a pair's difference is kept, and what it is found by."""
        names = {"first": pair.first, "second": pair.second, "classes": list(pair.classes) if pair.classes else None}
        return (self.owner, "paired", self.scale), {**names, **self._together(pair.first)}

    def from_records(self, pair: Pair) -> bool:
        """Whether the records tell a pair's difference: over draws of the data, and of what is no mean over rows."""
        metric = self.page.measure_of(pair.first).metric
        return self.page.seeds_are == "data" or metric not in (None, self.quantity(pair.first).headline)

    def could_pair(self, pair: Pair) -> bool:
        """Whether a difference is missing that the runs on this machine would tell."""
        missing = not self.from_records(pair) and self.difference(pair) is None
        return missing and self.here(pair.first) and self.here(pair.second)

    def ensemble(self, cell: str) -> dict[str, float] | None:
        """What is recorded of a cell's runs as one."""
        line = self.results.find(*self.place_of_ensemble(cell))
        return dict(line["numbers"]) if line else None

    def place_of_ensemble(self, cell: str) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Where a cell's ensemble is kept, and what it is found by."""
        return (self.owner, "ensembles", self.scale), {"cell": cell, **self._together(cell)}

    def could_join(self, cell: str) -> bool:
        """Whether an ensemble is missing that the runs on this machine would make."""
        asked = self.page.ensembles and len(self.seeds_of(cell)) > 1 and self.quantity(cell).outcome == "correct"
        return asked and self.ensemble(cell) is None and self.here(cell)

    def here(self, cell: str) -> bool:
        """Whether all of a cell's runs are on this machine."""
        return all(folder.outcomes.is_file() for folder in self.folders(cell))

    def folders(self, cell: str) -> "list[RunFolder]":
        """Those of a cell's runs, seed by seed; they may be on another machine."""
        return [self.folder(cell, *one) for one in self.wanted(cell)]

    def folder(self, cell: str, seed: int, choice: str | None) -> "RunFolder":
        """A run's."""
        from flows.experiment.run.run_folder import RunFolder, run_name

        name = run_name(self.page.method_of(cell), seed, self.place(cell, choice))
        return RunFolder(self.root / "runs" / self.experiment / name)

    def place(self, cell: str, choice: str | None) -> str:
        """The cell's name in a run's folder, with the number of the choice on the grid."""
        return cell if choice is None else f"{cell}-{list(self._settings_of(cell)).index(choice)}"

    def settings(self, cell: str, seed: int, choice: str | None) -> list[str]:
        """A run's, over params.yaml."""
        said = self._said(cell, seed, choice)
        return said if is_own(self.named) else create_project.experiment_overrides() + said

    def project(self, cell: str, seed: int, choice: str | None) -> "Project":
        """A run's."""
        from flows.experiment.project import Project

        return Project.open_shared(self.settings(cell, seed, choice), self.root, derived=True)

    def quantity(self, cell: str) -> TaskMetrics:
        """What a cell is judged by, as its records say; where there are none yet, as its settings do."""
        record = self.results.find((self.owner, self.scale, cell), {"set": without_places(self.overrides)}) or {}
        recorded = [quantity for quantity in TASK_METRICS.values() if quantity.name in record]
        return recorded[0] if recorded else self._projects[cell].quantity

    def floors(self, cell: str) -> list[float]:
        """What theory says that the cell's number cannot pass, of each seed whose data have one of their own."""
        floor = self.page.cells[cell].floor
        if floor is None or isinstance(floor, float):
            return [] if floor is None else [floor]
        choice = self.choice(cell)
        projects = [self._without_machine(self._said(cell, seed, choice)) for seed in self.seeds_of(cell)]
        floors = [floor_of(project.params.data, floor) for project in projects]
        return floors if len({*floors}) > 1 else floors[:1]

    def rounds(self, cell: str) -> int:
        """Of a run, at most."""
        return self._projects[cell].params.training.rounds

    def steps(self, cell: str) -> int:
        """What the bar counts of a run of a cell: its rounds; of a trial, itself."""
        return 1 if self.page.judged else self.rounds(cell)

    def count(self, cell: str) -> int:
        """Runs of a cell, as far as it is known yet."""
        return len(self._settings_of(cell)) - 1 + len(self.seeds_of(cell))

    @cached_property
    def _projects(self) -> "dict[str, Project]":
        """cell to what its runs have in common."""
        settings = {cell: self.page.settings(cell, self.scale, (), self.seeds[0]) for cell in self.page.cells}
        return {cell: self._without_machine(lines + self.overrides) for cell, lines in settings.items()}

    def _without_machine(self, said: Sequence[str]) -> "Project":
        """What page and overrides say of data and training, which needs no params.yaml here if the page is siloflow's."""
        from flows.config.load_config import load_params
        from flows.experiment.project import Project

        return Project(
            self.root, load_params(self.root if is_own(self.named) else create_project.TEMPLATES, said), derived=True
        )

    def _said(self, cell: str, seed: int, choice: str | None) -> list[str]:
        """By the page, and by overrides after it."""
        return self.page.settings(cell, self.scale, self._settings_of(cell)[choice], seed) + self.overrides

    def _settings_of(self, cell: str) -> dict[str | None, list[str]]:
        """Choice, as records and folders call it, to its settings, in the order that they are tried in."""
        grid = self.page.grid_of(cell, self.scale)
        if grid is None:
            return {None: []}
        settings = map(grid.settings, self._points(cell, grid))
        return {"; ".join(lines): lines for lines in settings}

    def _points(self, cell: str, grid: Grid) -> list[Point]:
        """Of the grid, and, once all of that is recorded, those beyond the edges that its best stands at."""
        points = grid.points()
        choices: list[str | None] = ["; ".join(grid.settings(point)) for point in points]
        if not all(self.record(cell, self.seeds[0], choice) for choice in choices):
            return points
        return points + self.page.beyond(cell, self.scale, points[choices.index(self._best(cell, choices))])

    def _best(self, cell: str, choices: Sequence[str | None]) -> str | None:
        """Of the first seed's recorded runs the best, by the measure or on validation rows; the first if none is scored.

        Of several that are equal, it is the one of the least loss on validation rows, as `compare --tune` has it; the first
        where some were recorded without that loss, so that what they chose stays chosen.
        """
        measure, on_validation = self.page.measure_of(cell), self.page.choose_on == "validation"
        key = "validation" if on_validation else "value"
        results = [(self.recorded(cell, self.seeds[0], choice), choice) for choice in choices]
        scored = [(record, choice) for record, choice in results if record[key] is not None]
        if not scored:
            return choices[0]
        metric = self.quantity(cell).headline if on_validation or measure.metric is None else measure.metric
        counts = measure.rounds_to is not None and not on_validation
        better = min if counts or lower_is_better(metric) else max
        best = better(record[key] for record, _ in scored)
        equal = [(record, choice) for record, choice in scored if record[key] == best]
        if not all(_LOSS in record for record, _ in equal):
            return equal[0][1]
        return min(equal, key=lambda pair: math.inf if pair[0][_LOSS] is None else pair[0][_LOSS])[1]

    def _value(self, cell: str, record: dict[str, Any]) -> float | None:
        """What this table measures of a run, which may be another table's; None if that was not kept."""
        measure, quantity = self.page.measure_of(cell), self.quantity(cell)
        value: float | None = record["value"]
        if self.page.runs_of is not None and measure.rounds_to is None:
            there = {**record.get("also", {}), quantity.headline: record[quantity.name]}
            value = there.get(measure.metric or quantity.headline)
        return value

    def _together(self, cell: str) -> dict[str, Any]:
        return {"seeds": self.seeds_of(cell), "set": without_places(self.overrides)}

    def _same_data(self, pair: Pair) -> None:
        versions = [[record["data_version"] for record in self.records(cell)] for cell in (pair.first, pair.second)]
        if versions[0] != versions[1]:
            raise UserError(
                f"the cells {pair.first} and {pair.second} have other data, and only runs on the same rows can be paired; "
                "drop the pair, or give both the same data settings."
            )


def whole(sweep: Sweep, cell: str) -> bool:
    """Whether all of a cell's runs are recorded."""
    return runs(sweep, cell) == sweep.count(cell)


def runs(sweep: Sweep, cell: str) -> int:
    """So many of a cell's runs are recorded."""
    tries = sweep.tries(cell)
    recorded = {one for one in tries if sweep.record(cell, *one)}
    if len(recorded) < len(tries) > 1:  # the other seeds have the choice that is yet to be made
        return len(recorded)
    return len(recorded | {one for one in sweep.wanted(cell) if sweep.record(cell, *one)})
