"""Plan a published table as a sweep of runs: its cells, which runs are recorded, and which are missing.

Nothing is run or written here. Prefect is not imported, and torch only if a project is opened.
"""

import json
import math
import statistics
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.core.search_space import Grid, Point
from flows.init_project import create_project
from models.metrics.client_metrics import lower_is_better
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from models.privacy_accounting import epsilon, rho
from publications.code_version import code_hash, modules_of_run, modules_of_verdicts
from publications.noise_floor import covariance_floor, least_squares_floor
from publications.published_tables import Measure, Pair, Table, is_own, table_of
from publications.results_file import RECORDS, Results, without_places
from silos import strict_yaml
from silos.data_params import DataParams
from silos.errors import UserError
from silos.sources.source_params import Synthetic
from silos.sources.synthetic import coefficients

if TYPE_CHECKING:
    from flows.project.project import Project
    from flows.training.run_records.run_folder import RunFolder


def floor_of(data: DataParams, statistic: str) -> float:
    """Return the least error that a conditional linear model can have on one draw of the synthetic data.

    Raises:
        UserError: If the data are not synthetic with the task `linear`.
    """
    source = data.source
    if not isinstance(source, Synthetic) or source.task != "linear":
        raise UserError(f"a floor of {statistic} is of synthetic data with the task linear, and the cell has others.")
    if statistic == "least squares":
        return least_squares_floor(source.features, source.rows, source.noise)
    thetas = coefficients(source, data.seed)
    return covariance_floor(thetas, source.rows, source.noise, constant=statistic == "covariance with a constant")


_LOSS = "validation_loss"
_FREE = {
    "advise",
    "callbacks",
    "comparison",
    "diagnose",
    "engine",
    "figures",
    "retention",
    "runner",
    "tracking",
    "watch",
}
"""Sections of params.yaml that change no number of a run."""


def _with_whole_numbers(value: Any) -> Any:
    """Return plain data with 2 instead of 2.0: equal settings may be written in both ways."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Sweep:
    """One table at one scale: each cell has a grid on one seed, and then every seed at the best choice.

    docs/results/<paper>.json is parsed once, and again after each write. The settings of siloflow's own pages override the
    params.yaml that siloflow comes with, and not that of the project.

    Args:
        paper: A page's name, or a .yaml file of the user.
        table: One of the page's tables.
        scale: One of the table's scales.
        seeds: The seeds; those of the scale if none is given.
        overrides: `section.key=value`, over the page's settings.
        project: The project that the command has opened; those of the runs derive from it.

    Raises:
        UserError: If there is no such table, or its settings contradict each other.
    """

    def __init__(
        self,
        paper: str,
        table: str,
        scale: str,
        seeds: Sequence[int] | None = None,
        overrides: Sequence[str] = (),
        project: "Project | None" = None,
    ) -> None:
        self.page = table_of(paper, table, scale)
        self.named, self.paper, self.table, self.scale = paper, Path(paper).stem, table, scale
        size = self.page.scales[scale]
        self.seeds = seeds or list(size.seeds)
        self.tune_seed = self.seeds[0] if size.tune_seed is None else size.tune_seed
        self.overrides, self._project = list(overrides), project
        if self.page.family and overrides:
            raise UserError(f"{paper}, table {table} draws pairs of clients, which no setting changes; drop `--set`.")
        self.root = Path().resolve()
        results = self.root / "docs" / "results" / f"{self.paper}.json"
        shipped = None if is_own(paper) else RECORDS / results.name
        self.results = Results(results, self.root / "runs" / f"{self.paper}.results.lock", shipped)
        # runs with other settings are other runs: each set of overrides has its own folder
        self._suffix = f"-{sha256(repr(self.overrides).encode()).hexdigest()[:6]}" if overrides else ""
        self.owner = self.page.runs_of or table
        self._check_owner(paper)
        self._check_shared(paper)
        self.experiment = self._experiment(self.owner)

    def _check_owner(self, paper: str) -> None:
        """Raise UserError if a table that shows another table's runs has other settings than that table."""
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

    def _check_shared(self, paper: str) -> None:
        """Raise UserError if a cell that shows another cell's runs has other settings than that cell."""
        for cell, page_cell in self.page.cells.items():
            if page_cell.shared is None:
                continue
            table, name = self.home(cell)
            owner = table_of(paper, table, self.scale)
            where = f"{paper}, table {self.table}: {cell}"
            if name not in owner.cells:
                raise UserError(f"{where}: shared: got {name}, expected a cell of table {table}. Correct the name.")
            if self._settings_in(self.page, cell) != self._settings_in(owner, name):
                raise UserError(
                    f"{where}: shared: got other settings than those of {name} in table {table}, expected the same. Correct "
                    "`set` or `method`, or drop shared."
                )

    def _settings_in(self, page: Table, cell: str) -> tuple[str, Grid | None, dict[str, Any]]:
        """Return a cell's method, its grid, and its settings as parsed values by key."""
        lines = (line.partition("=") for line in page.settings(cell, self.scale, (), 0))
        parsed = {key: strict_yaml.load(value.encode()) for key, _, value in lines}
        return page.method_of(cell), page.grid_of(cell, self.scale), parsed

    def home(self, cell: str) -> tuple[str, str]:
        """Return table and name of the cell whose runs a cell shows: its own, unless it shares another's."""
        shared = self.page.cells[cell].shared
        return (self.owner, cell) if shared is None else (shared.table, shared.cell)

    def place_of_runs(self, cell: str) -> tuple[str, str, str]:
        """Return where the records of a cell's runs are kept."""
        table, name = self.home(cell)
        return table, self.scale, name

    def experiment_of(self, cell: str) -> str:
        """Return the folder in runs/ of a cell's runs."""
        return self._experiment(self.home(cell)[0])

    def _experiment(self, table: str) -> str:
        return f"reproduce-{self.paper}-{table}-{self.scale}{self._suffix}"

    @property
    def finished(self) -> bool:
        """Whether all that the table prints is recorded, or cannot be computed on this machine."""
        whole = all(self.record(cell, *one) for cell in self.page.cells for one in self.tries(cell))
        whole = whole and all(self.record(cell, *one) for cell in self.page.cells for one in self.wanted(cell))
        return whole and not any(map(self.could_pair, self.pairs())) and not any(map(self.could_join, self.page.cells))

    def tries(self, cell: str) -> list[tuple[int, str | None]]:
        """Return seed and choice of the runs from which a cell's choice is made; of an untuned cell the first seed's run.

        They are the grid. Once the grid is recorded, points beyond its edge follow if the best point is at the edge.
        """
        choices = list(self._settings_of(cell))
        seed = self.tune_seed if len(choices) > 1 else self.seeds[0]
        return [(seed, choice) for choice in choices]

    def wanted(self, cell: str) -> list[tuple[int, str | None]]:
        """Return seed and choice of the runs that give a cell's numbers; the tries must be recorded."""
        choice = self.choice(cell)
        return [(seed, choice) for seed in self.seeds_of(cell)]

    def seeds_of(self, cell: str) -> list[int]:
        """Return the seeds of a cell's runs."""
        return self.page.seeds_of(cell, self.seeds)

    def choice(self, cell: str) -> str | None:
        """Return the best of the tries; None if there is no grid."""
        choices = list(self._settings_of(cell))
        return choices[0] if len(choices) == 1 else self._best(cell, choices)

    def at_edge(self, cell: str) -> list[str]:
        """Return the settings whose chosen value is at the edge of the values tried."""
        grid = self.page.grid_of(cell, self.scale)
        if grid is None:
            return []
        points = self._points(cell, grid)
        return grid.at_edge(points[list(self._settings_of(cell)).index(self.choice(cell))], points)

    def record(self, cell: str, seed: int, choice: str | None) -> dict[str, Any] | None:
        """Return the record of a run; None if it is missing."""
        return self.results.find(self.place_of_runs(cell), self.key(seed, choice))

    def check_settings(self) -> None:
        """Raise UserError if a recorded run is of other settings or of another measure; older records name neither."""
        for cell in self.page.cells:
            now = self.stated(cell)
            for record in self.all_records(cell):
                what = next((name for name in now if record.get(name, now[name]) != now[name]), None)
                if what is not None:
                    table, name = self.home(cell)
                    page = "page or params.yaml" if is_own(self.named) else "page"
                    raise UserError(
                        f"{self.named}, table {table}: {name} is recorded with other {what} than the {page} has now, "
                        f"expected the same. Restore the earlier {what}, or rename the cell: then it is run as a new one, "
                        "and the record stays."
                    )

    def stated(self, cell: str) -> dict[str, str]:
        """Return what a new record states of the page, by which an edited page is noticed: settings and measure."""
        if self.page.judged:
            return {}
        measure = self.recorded_measure(cell)
        name = measure.metric or self.quantity(cell).headline
        if measure.rounds_to is not None:
            name = f"rounds to {measure.rounds_to:g}"
        return {"settings": self._settings_hashes[cell], "measure": name}

    def recorded_measure(self, cell: str) -> Measure:
        """Return the measure of a cell's records: that of the table that they belong to."""
        table, name = self.home(cell)
        page = self.page if table == self.table else table_of(self.named, table, self.scale)
        return page.measure_of(name)

    @cached_property
    def _settings_hashes(self) -> dict[str, str]:
        """Return by cell the hash of method and settings, and of params.yaml if the page is a user's; seeds are no part."""
        hashes = {}
        for cell in self.page.cells:
            method, _, settings = self._settings_in(self.page, cell)
            params: dict[str, Any] = {}
            if is_own(self.named):
                params = self._projects[cell].params.model_dump(mode="json", exclude=_FREE, exclude_defaults=True)
                params["method"] = params.get("method", {}).get(method)  # those of other methods change nothing
                if self.page.seeds_are == "data":
                    params["data"].pop("seed", None)
            settings = {key: value for key, value in settings.items() if key.partition(".")[0] not in _FREE}
            content = json.dumps(_with_whole_numbers([method, settings, params]), sort_keys=True, default=str)
            hashes[cell] = sha256(content.encode()).hexdigest()[:12]
        return hashes

    def recorded(self, cell: str, seed: int, choice: str | None) -> dict[str, Any]:
        """Return the record of a run that must be recorded."""
        record = self.record(cell, seed, choice)
        assert record is not None
        return record

    def records(self, cell: str) -> list[dict[str, Any]]:
        """Return the records of a cell's runs, one a seed."""
        return [self.recorded(cell, *one) for one in self.wanted(cell)]

    def key(self, seed: int, choice: str | None) -> dict[str, Any]:
        """Return the items by which a run's record is found."""
        return {"seed": seed, "choice": choice, "set": without_places(self.overrides)}

    def values(self, cell: str) -> list[float]:
        """Return the cell's number for each seed that has one."""
        return [value for value in self.of_seeds(cell) if value is not None]

    def of_seeds(self, cell: str) -> list[float | None]:
        """Return the cell's number for every seed; None for a seed without one."""
        return [self._value(cell, record) for record in self.records(cell)]

    def pairs(self) -> list[Pair]:
        """Return the pairs that the page names, and of every contest the best cell with the next.

        Raises:
            UserError: If the cells of a pair have different data.
        """
        pairs = list(self.page.paired)
        for cells in self.page.contests:
            ours = {cell: statistics.fmean(values) for cell in cells if (values := self.values(cell))}
            ranked = sorted(ours, key=lambda cell: ours[cell], reverse=not self.falls(cells[0]))
            pairs += [Pair(first=first, second=second) for first, second in pairwise(ranked[:2])]
        for pair in pairs:
            self._same_data(pair)
        return pairs

    def falls(self, cell: str) -> bool:
        """Return whether less of a cell's measure is better."""
        measure = self.page.measure_of(cell)
        return measure.rounds_to is not None or lower_is_better(measure.metric or self.quantity(cell).headline)

    def difference(self, pair: Pair) -> dict[str, Any] | None:
        """Return the record of a pair; None if it is missing."""
        return self.results.find(*self.place_of_pair(pair))

    def place_of_pair(self, pair: Pair) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return where a pair's record is kept, and the items by which it is found."""
        homes = [self.home(cell) for cell in (pair.first, pair.second)]
        table = homes[0][0] if homes[0][0] == homes[1][0] else self.owner
        first, second = (
            name if table == home else cell for (home, name), cell in zip(homes, (pair.first, pair.second), strict=True)
        )
        names = {"first": first, "second": second, "classes": list(pair.classes) if pair.classes else None}
        return (table, "paired", self.scale), {**names, **self._together(pair.first)}

    def from_records(self, pair: Pair) -> bool:
        """Whether a pair's difference follows from the records: seeds draw the data, or the measure is no mean over rows."""
        metric = self.page.measure_of(pair.first).metric
        return self.page.seeds_are == "data" or metric not in (None, self.quantity(pair.first).headline)

    def could_pair(self, pair: Pair) -> bool:
        """Whether a difference is missing that can be computed from runs on this machine."""
        missing = not self.from_records(pair) and self.difference(pair) is None
        return missing and self.here(pair.first) and self.here(pair.second)

    def ensemble(self, cell: str) -> dict[str, float] | None:
        """Return the metrics of a cell's runs as one deep ensemble; None if they are not recorded."""
        line = self.results.find(*self.place_of_ensemble(cell))
        return dict(line["numbers"]) if line else None

    def place_of_ensemble(self, cell: str) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return where a cell's ensemble is kept, and the items by which it is found."""
        return (self.owner, "ensembles", self.scale), {"cell": cell, **self._together(cell)}

    def could_join(self, cell: str) -> bool:
        """Whether an ensemble is missing that can be computed from runs on this machine."""
        wanted = self.page.ensembles and len(self.seeds_of(cell)) > 1 and self.quantity(cell).task == "classification"
        return wanted and self.ensemble(cell) is None and self.here(cell)

    def here(self, cell: str) -> bool:
        """Whether all of a cell's runs are on this machine."""
        return all(folder.outcomes.is_file() for folder in self.folders(cell))

    def folders(self, cell: str) -> "list[RunFolder]":
        """Return the folders of a cell's runs, one a seed; they may be on another machine."""
        return [self.folder(cell, *one) for one in self.wanted(cell)]

    def folder(self, cell: str, seed: int, choice: str | None) -> "RunFolder":
        """Return the folder of a run."""
        from flows.training.run_records.run_folder import RunFolder, run_name

        name = run_name(self.page.method_of(cell), seed, self.place(cell, choice))
        return RunFolder(self.root / "runs" / self.experiment_of(cell) / name)

    def place(self, cell: str, choice: str | None) -> str:
        """Return the cell's name in a run's folder, with the number of the choice on the grid."""
        name = self.home(cell)[1]
        return name if choice is None else f"{name}-{list(self._settings_of(cell)).index(choice)}"

    def settings(self, cell: str, seed: int, choice: str | None) -> list[str]:
        """Return the settings of a run, over params.yaml."""
        settings = self._page_settings(cell, seed, choice)
        return settings if is_own(self.named) else create_project.experiment_overrides() + settings

    def project(self, cell: str, seed: int, choice: str | None) -> "Project":
        """Open the project of a run."""
        return self.opened.derive(self.settings(cell, seed, choice), derived=True)

    @property
    def opened(self) -> "Project":
        """Return the project that the command has opened; it is opened here if there is no command."""
        if self._project is None:
            from flows.project.project import Project  # a table of records needs no torch

            self._project = Project.open(root=self.root)
        return self._project

    def modules(self, cell: str) -> tuple[str, ...]:
        """Return the modules whose code can change a cell's numbers."""
        if self.page.judged:
            return modules_of_verdicts(self._projects[cell].params if self.page.cells[cell].silos else None)
        return modules_of_run(self.page.method_of(cell), self._projects[cell].params)

    def stale(self, cell: str) -> list[dict[str, Any]]:
        """Return the recorded runs of a cell whose code differs from today's; those that do not name theirs are left out."""
        named = [record for record in self.all_records(cell) if "code" in record]
        return [record for record in named if record["code"] != code_hash(self.modules(cell))]

    def all_records(self, cell: str) -> list[dict[str, Any]]:
        """Return the records of all of a cell's runs that are recorded."""
        return [self.recorded(cell, *one) for one in self.recorded_runs(cell)]

    def recorded_runs(self, cell: str) -> list[tuple[int, str | None]]:
        """Return seed and choice of all of a cell's runs that are recorded."""
        tries = self.tries(cell)
        chosen = len(tries) == 1 or all(self.record(cell, *one) for one in tries)  # the other seeds wait for the choice
        ran = dict.fromkeys([*tries, *(self.wanted(cell) if chosen else ())])
        return [one for one in ran if self.record(cell, *one) is not None]

    def quantity(self, cell: str) -> TaskMetrics:
        """Return the task metrics of a cell from its records, or from its settings if there are no records yet."""
        record = self.results.find(self.place_of_runs(cell), {"set": without_places(self.overrides)}) or {}
        recorded = [quantity for quantity in TASK_METRICS.values() if quantity.name in record]
        return recorded[0] if recorded else self._projects[cell].quantity

    def floors(self, cell: str) -> list[float]:
        """Return the least error by theory: one number, or one a seed if seeds draw the data."""
        floor = self.page.cells[cell].floor
        if floor is None or isinstance(floor, float):
            return [] if floor is None else [floor]
        choice = self.choice(cell)
        projects = [self._without_machine(self._page_settings(cell, seed, choice)) for seed in self.seeds_of(cell)]
        floors = [floor_of(project.params.data, floor) for project in projects]
        return floors if len({*floors}) > 1 else floors[:1]

    def with_tuning(self, cell: str) -> float | None:
        """Return the epsilon of a cell's grid, since its runs read training rows, too; None without training.privacy.

        The chosen run is one of the grid. Other seeds measure the spread, and a user would not run them.
        """
        privacy = self._projects[cell].params.training.privacy
        if privacy.epsilon is None:
            return None
        return epsilon(len(self.tries(cell)) * rho(privacy.epsilon, privacy.delta), privacy.delta)

    def rounds(self, cell: str) -> int:
        """Return the greatest number of rounds of a run."""
        return self._projects[cell].params.training.rounds

    def steps(self, cell: str) -> int:
        """Return the steps of a run on the progress bar: its rounds, or 1 for a trial."""
        return 1 if self.page.judged else self.rounds(cell)

    def count(self, cell: str) -> int:
        """Count the runs of a cell that are known to be needed so far."""
        tries, seeds = self.tries(cell), self.seeds_of(cell)
        return len(tries) + len(seeds) - (tries[0][0] in seeds)

    @cached_property
    def _projects(self) -> "dict[str, Project]":
        """Return by cell a project with the settings that its runs have in common."""
        settings = {cell: self.page.settings(cell, self.scale, (), self.seeds[0]) for cell in self.page.cells}
        return {cell: self._without_machine(lines + self.overrides) for cell, lines in settings.items()}

    def _without_machine(self, settings: Sequence[str]) -> "Project":
        """Make a project from the page's settings; siloflow's own pages need no params.yaml in this folder."""
        from flows.core.config.load_config import load_params
        from flows.project.project import Project

        return Project(
            self.root,
            load_params(self.root if is_own(self.named) else create_project.TEMPLATES, settings),
            derived=True,
        )

    def _page_settings(self, cell: str, seed: int, choice: str | None) -> list[str]:
        """Return the page's settings, and the overrides after them."""
        return self.page.settings(cell, self.scale, self._settings_of(cell)[choice], seed) + self.overrides

    def _settings_of(self, cell: str) -> dict[str | None, list[str]]:
        """Return the settings by choice, in the order of the tries."""
        grid = self.page.grid_of(cell, self.scale)
        if grid is None:
            return {None: []}
        settings = map(grid.settings, self._points(cell, grid))
        return {"; ".join(lines): lines for lines in settings}

    def _points(self, cell: str, grid: Grid) -> list[Point]:
        """Return the points of the grid and, once they are recorded, those beyond the edges at which the best point is."""
        points = grid.points()
        choices: list[str | None] = ["; ".join(grid.settings(point)) for point in points]
        if not all(self.record(cell, self.tune_seed, choice) for choice in choices):
            return points
        return points + self.page.beyond(cell, self.scale, points[choices.index(self._best(cell, choices))])

    def _best(self, cell: str, choices: Sequence[str | None]) -> str | None:
        """Return the best of the recorded runs of the grid, by the measure or on validation rows.

        If none has a score, the first is chosen. Of equal runs the one with the least validation loss is chosen, as in
        `compare --tune`; if a record lacks that loss, the first, so that older choices stay.
        """
        on_validation = self.page.choose_on == "validation"
        key = "validation" if on_validation else "value"
        results = [(self.recorded(cell, self.tune_seed, choice), choice) for choice in choices]
        scored = [(record, choice) for record, choice in results if record[key] is not None]
        if not scored:
            return choices[0]
        falls = lower_is_better(self.quantity(cell).headline) if on_validation else self.falls(cell)
        better = min if falls else max
        best = better(record[key] for record, _ in scored)
        equal = [(record, choice) for record, choice in scored if record[key] == best]
        if not all(_LOSS in record for record, _ in equal):
            return equal[0][1]
        return min(equal, key=lambda pair: math.inf if pair[0][_LOSS] is None else pair[0][_LOSS])[1]

    def _value(self, cell: str, record: dict[str, Any]) -> float | None:
        """Return the number that this table measures of a run, which may be another table's; None if it is not recorded."""
        measure, quantity = self.page.measure_of(cell), self.quantity(cell)
        value: float | None = record["value"]
        others = self.page.runs_of is not None or self.page.cells[cell].shared is not None
        if others and measure.rounds_to is None:
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
    """Count the recorded runs of a cell."""
    return len(sweep.all_records(cell))
