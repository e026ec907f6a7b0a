"""The flow `reproduce`: a published table beside ours, cell by cell, in docs/results/<paper>.json.

Every finished run is written there at once, so an interrupted sweep goes on where it stopped and a reader sees what was run.
"""

import platform
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from flows.console import screen
from flows.experiment.flow_parameters import admitted, outside
from flows.experiment.paired_runs import counted, kept
from flows.experiment.project import Project, thrown_away
from flows.experiment.run_folder import RunFolder, run_name
from flows.experiment.seed_ensemble import ensemble
from flows.papers.cells import Runs, paired_draws, paired_rows
from flows.papers.published_tables import is_own, table_of
from flows.papers.results_file import Results
from flows.run import probe, run, workers_of
from models.assessment.quantities import QUANTITIES, Quantity, lower_is_better
from silos.errors import UserError
from tasks.recording.figures import draw_curves
from tasks.recording.json_files import write_json
from tasks.recording.track import connect, own_store
from tasks.running.runner import PrefectRunner

PROBE_ROUNDS = 3
MOST_CURVES = 8  # more in one figure cannot be told apart


@flow(name="reproduce", task_runner=ThreadPoolTaskRunner(), validate_parameters=False)  # type: ignore[arg-type]
def reproduce(
    paper: str,
    table: str,
    scale: str = "cpu",
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    estimate: bool = False,
) -> dict[str, Any]:
    """Published beside ours for every cell of a table; with `estimate` only how long that would take."""
    overrides = admitted(overrides or [])
    if outside() and is_own(paper):
        raise UserError(f"{paper} is a file, and a flow run's parameters name none; name a page of flows/papers.")
    sweep = _Sweep(paper, table, scale, seeds, overrides)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), workers_of(Project.open(overrides)):
        return sweep.estimate() if estimate else sweep.run()


def without_places(overrides: list[str]) -> list[str]:
    """Overrides as the results keep them: they are committed, and where something lies on one machine is nobody's matter.

    A value that holds an absolute path or an address becomes its hash, so that two of them stay two.
    """
    kept = []
    for override in overrides:
        key, _, value = override.partition("=")
        place = re.search(r"""(^|[\s,:=\[{"'])(/|~)""", value)
        kept.append(f"{key}=(a place: {sha256(value.encode()).hexdigest()[:6]})" if place else override)
    return kept


class _Sweep:
    """One table at one scale: cells, each with a grid on the first seed and then every seed."""

    def __init__(self, paper: str, table: str, scale: str, seeds: list[int] | None, overrides: list[str]) -> None:
        self.page = table_of(paper, table, scale)
        self.paper, self.table, self.scale = Path(paper).stem, table, scale
        self.seeds = seeds or list(self.page.scales[scale].seeds)
        self.overrides = overrides
        self.root = Path().resolve()
        self.file = self.root / "docs" / "results" / f"{self.paper}.json"
        self.results = Results(self.file, self.root / "runs" / f"{self.paper}.results.lock")
        # runs of other settings are other runs: each set of overrides has a folder of its own
        own = f"-{sha256(repr(overrides).encode()).hexdigest()[:6]}" if overrides else ""
        self.owner = self.page.runs_of or table
        self.experiment = f"reproduce-{self.paper}-{self.owner}-{scale}{own}"

    def run(self) -> dict[str, Any]:
        """Every cell that is not in the results yet; then the table, the sentences and the figures."""
        page = self.page
        path = self.root / "runs" / self.experiment / "experiment.json"
        about = f"{page.title}. {page.source}."
        write_json(path, {"kind": "reproduce", "name": self.experiment, "about": about})
        screen.current().plan(sum(map(self._count, page.cells)))
        for cell in page.cells:
            choice = self._choose(cell)
            for seed in self.seeds:
                self._one(cell, seed, choice)
        rows = [self._row(cell) for cell in page.cells]
        return {
            "paper": self.paper,
            "table": self.table,
            "title": page.title,
            "source": page.source,
            "unit": page.unit or " or ".join(dict.fromkeys(row["quantity"] for row in rows)),
            "known_errors": page.known_errors,
            "seeds_are": page.seeds_are,
            "scale": self.scale,
            "rows": rows,
            "by_class": {name: self._of_class(name) for name in page.by_class},
            "also": {title: self._also(name) for name, title in page.also.items()},
            "ensembles": {cell: self._ensemble(cell) for cell in page.cells} if page.ensembles else {},
            "paired": self._sentences(rows),
            "results": str(self.file.relative_to(self.root)),
            "figures": list(self._draw()),
            "experiment": self.experiment,
        }

    def estimate(self) -> dict[str, Any]:
        """Seconds of the whole table from a few rounds of each cell and the published count of rounds; it leaves nothing."""
        with thrown_away(self.root / "cache" / "estimate") as scratch:
            connect(own_store(scratch))  # making its tables is no cost of the first cell
            seconds = {cell: self._seconds(cell, scratch) for cell in self.page.cells}
        return {"paper": self.paper, "table": self.table, "scale": self.scale, "seconds": seconds}

    def _seconds(self, cell: str, scratch: Path) -> float:
        """Of a cell's runs."""
        choice, about = self.page.choices(cell, self.scale)[0], self.page.cells[cell]
        counts = self.page.measure_of(cell).rounds_to is not None
        rounds = about.published if counts and about.published else self._rounds(cell)
        probed = min(PROBE_ROUNDS, self._rounds(cell))
        settings = [
            *self._overrides(cell, choice, self.seeds[0]),
            f"training.rounds={probed}",
            "evaluation.stop_at=null",
        ]
        project = replace(Project.open(settings, self.root, derived=True), scratch=scratch)
        start = time.perf_counter()
        found = probe(project, self.page.method_of(cell), self.seeds[0])
        fixed = time.perf_counter() - start - found["seconds"]["per_round"] * probed
        return self._count(cell) * (fixed + rounds * found["seconds"]["per_round"])

    def _count(self, cell: str) -> int:
        """Runs of a cell."""
        return len(self.page.choices(cell, self.scale)) - 1 + len(self.seeds)

    def _choose(self, cell: str) -> str | None:
        """The best of the grid on the first seed; None where there is no grid."""
        choices = self.page.choices(cell, self.scale)
        if len(choices) == 1:
            return choices[0]
        on_validation = self.page.choose_on == "validation"
        key = "validation" if on_validation else "value"
        found = [(self._one(cell, self.seeds[0], choice)[key], choice) for choice in choices]
        scored = [(value, choice) for value, choice in found if value is not None]
        if not scored:
            return choices[0]
        measure = self.page.measure_of(cell)
        metric = self._quantity(cell).headline if on_validation or measure.metric is None else measure.metric
        counts = measure.rounds_to is not None and not on_validation
        better = min if counts or lower_is_better(metric) else max
        return better(scored, key=lambda pair: pair[0])[1]

    def _one(self, cell: str, seed: int, choice: str | None) -> dict[str, Any]:
        """A run's record, from the results if it is there, else run and written down."""
        place = (self.owner, self.scale, cell)
        asked = {"seed": seed, "choice": choice, "set": without_places(self.overrides)}
        known = self.results.find(place, asked)
        if known is not None:
            return known
        found = self._run(cell, seed, choice)
        found["metrics"] |= self._at_rounds(cell, found)
        metrics, quantity = found["metrics"], QUANTITIES[found["task"]]
        others = [f"{role}/{quantity.headline}" for role in ("fresh", "unseen")]
        record = {
            **asked,
            "value": self._measured(cell, found),
            quantity.name: metrics[quantity.headline],
            **{name: metrics[name] for name in others if name in metrics},
            "validation": metrics.get(f"validation/{quantity.headline}"),
            "method": found["method"],
            "rounds": found["rounds"],
            "steps": found["steps"],
            "parameters": found["parameters"],
            "bytes": found["bytes"],
            "seconds": round(found["seconds"]["total"], 1),
            "seconds_per_round": round(found["seconds"]["per_round"], 4),
            "data_version": found["data_version"],
            "weights_sha256": found["weights_sha256"],
            "command": f"siloflow reproduce {self.paper} --table {self.table} --scale {self.scale}",
            "versions": {name: installed(name) for name in ("torch", "numpy")} | {"python": platform.python_version()},
        }
        if self.page.also:
            record["also"] = {name: round(v, 6) for name, v in metrics.items() if isinstance(v, int | float)}
        if self.page.by_class:
            record["by_class"] = self._by_class(cell, seed, choice)
        self.results.keep(place, asked, record)
        return record

    def _run(self, cell: str, seed: int, choice: str | None) -> dict[str, Any]:
        path = self.root / "runs" / self.experiment / "experiment.json"
        if not path.is_file():
            write_json(path, {"kind": "run", "name": self.experiment})
        return run(
            self.page.method_of(cell),
            seed,
            self._overrides(cell, choice, seed),
            resume=True,
            experiment=self.experiment,
            cell=self._place(cell, choice),
            derived=True,
        )

    def _place(self, cell: str, choice: str | None) -> str:
        """The cell's name in a run's folder, with the number of the choice on the grid."""
        return cell if choice is None else f"{cell}-{self.page.choices(cell, self.scale).index(choice)}"

    def _overrides(self, cell: str, choice: str | None, seed: int) -> list[str]:
        return self.page.settings(cell, self.scale, choice, seed) + self.overrides

    def _project(self, cell: str, choice: str | None, seed: int) -> Project:
        return Project.open(self._overrides(cell, choice, seed), self.root, derived=True)

    def _rounds(self, cell: str) -> int:
        return self._project(cell, None, self.seeds[0]).params.training.rounds

    def _quantity(self, cell: str) -> Quantity:
        return self._project(cell, None, self.seeds[0]).quantity

    def _runs(self, cell: str) -> Runs:
        """A cell's runs at its best choice, seed by seed."""
        choice, method = self._choose(cell), self.page.method_of(cell)
        place = self._place(cell, choice)
        folders = [self.root / "runs" / self.experiment / run_name(method, seed, place) for seed in self.seeds]
        projects = [self._project(cell, choice, seed) for seed in self.seeds]
        return Runs(cell, projects, folders, [self._one(cell, seed, choice) for seed in self.seeds])

    def _measured(self, cell: str, found: dict[str, Any]) -> float | None:
        """The cell's number: rounds to the target, or a metric; None if the target or the metric's round was not reached."""
        measure = self.page.measure_of(cell)
        if measure.rounds_to is not None:
            return found["rounds"] if found["ended_by"] == "evaluation.stop_at" else None
        name, metrics = measure.metric or QUANTITIES[found["task"]].headline, found["metrics"]
        value: float | None = metrics.get(name) if "@" in name else metrics[name]
        return value

    def _at_rounds(self, cell: str, found: dict[str, Any]) -> dict[str, float]:
        """What the page asks for as `metric@round`, of those rounds that the run scored."""
        asked = {*self.page.also, self.page.measure_of(cell).metric or ""}
        journal, there = RunFolder(self.root / found["folder"]).journal, {}
        for metric, _, number in (name.partition("@") for name in sorted(asked) if "@" in name):
            record = journal.read(int(number)) if int(number) <= found["rounds"] else {"metrics": {}}
            if metric in record["metrics"]:
                there[f"{metric}@{number}"] = record["metrics"][metric]
        return there

    def _row(self, cell: str) -> dict[str, Any]:
        """Published beside ours; `missed` counts the seeds that did not reach the target."""
        about, choice, quantity = self.page.cells[cell], self._choose(cell), self._quantity(cell)
        records = [self._one(cell, seed, choice) for seed in self.seeds]
        values = [v for r in records if (v := r["value"]) is not None]
        others = {}
        for role in ("fresh", "unseen"):
            there = [v for r in records if (v := r.get(f"{role}/{quantity.headline}")) is not None]
            others[role] = statistics.fmean(there) if there else None
        return {
            "cell": cell,
            "words": about.words,
            "method": self.page.method_of(cell),
            "quantity": quantity.name,
            "published": about.published,
            "floor": about.floor,
            "ours": statistics.fmean(values) if values else None,
            "sd": statistics.stdev(values) if len(values) > 1 else None,
            **others,
            "values": values,
            "missed": len(records) - len(values),
            "seeds": self.seeds,
            "choice": choice,
            "seconds": statistics.fmean(r["seconds"] for r in records),
        }

    def _by_class(self, cell: str, seed: int, choice: str | None) -> dict[str, list[int]]:
        """class to [right, rows] over all clients."""
        project = self._project(cell, choice, seed)
        folder = (
            self.root / "runs" / self.experiment / run_name(self.page.method_of(cell), seed, self._place(cell, choice))
        )
        with workers_of(project) as workers:
            return counted(PrefectRunner(workers), project.silos.federated(), kept(project, folder))

    def _of_class(self, name: str) -> dict[str, dict[str, float | None]]:
        """cell to published and ours: the share of the class's rows that are right, mean over seeds."""
        found = {}
        for cell in self.page.cells:
            choice = self._choose(cell)
            counts = [self._one(cell, seed, choice)["by_class"].get(name, [0, 0]) for seed in self.seeds]
            shares = [right / rows for right, rows in counts if rows]
            ours = statistics.fmean(shares) if shares else None
            found[cell] = {"published": self.page.by_class[name].get(cell), "ours": ours}
        return found

    def _also(self, name: str) -> dict[str, dict[str, float | None]]:
        """cell to published and ours of another metric: mean and standard deviation over seeds."""
        found = {}
        for cell, about in self.page.cells.items():
            choice = self._choose(cell)
            there = [v for seed in self.seeds if (v := self._one(cell, seed, choice)["also"].get(name)) is not None]
            ours = statistics.fmean(there) if there else None
            sd = statistics.stdev(there) if len(there) > 1 else None
            found[cell] = {"published": about.beside.get(name), "ours": ours, "sd": sd}
        return found

    def _ensemble(self, cell: str) -> dict[str, float] | None:
        """A cell's runs as one, from the results where the runs are not on this machine; None if it is not there either."""
        runs = self._runs(cell)
        page = runs.projects[0].params.page(self.page.method_of(cell), self.root)
        members = [(p, s, RunFolder(f)) for p, s, f in zip(runs.projects, self.seeds, runs.folders, strict=True)]
        asked = {"cell": cell, "seeds": self.seeds, "set": without_places(self.overrides)}
        found = ensemble(page, members)
        numbers = None if found is None else {"numbers": {name: round(value, 6) for name, value in found.items()}}
        line = self.results.latest((self.owner, "ensembles", self.scale), asked, numbers)
        return found or (line and dict(line["numbers"]))

    def _sentences(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The pairs that the page names, and of every contest the best cell against the next."""
        asked: list[tuple[str, str, tuple[str, ...] | None]] = [
            (p.first, p.second, p.classes) for p in self.page.paired
        ]
        ours = {row["cell"]: row["ours"] for row in rows}
        for cells in self.page.contests:
            finished = [cell for cell in cells if ours[cell] is not None]
            falling = not lower_is_better(self._quantity(cells[0]).headline)
            first, *others = sorted(finished, key=lambda cell: ours[cell], reverse=falling)
            asked += [(first, other, None) for other in others[:1]]
        return [found for pair in asked if (found := self._sentence(*pair)) is not None]

    def _sentence(self, first: str, second: str, classes: tuple[str, ...] | None) -> dict[str, Any] | None:
        """The paired difference, from the results where the runs are not on this machine; None if it is not there either."""
        sides = self._runs(first), self._runs(second)
        if self.page.seeds_are == "data":
            return paired_draws(*sides)
        names = {"first": first, "second": second, "classes": list(classes) if classes else None}
        asked = {**names, "seeds": self.seeds, "set": without_places(self.overrides)}
        return self.results.latest((self.owner, "paired", self.scale), asked, paired_rows(*sides, classes))

    def _draw(self) -> Iterator[str]:
        """The learning curves of the cells of one quantity in one figure: of few enough, and of runs on this machine."""
        target, title = self.page.measure.rounds_to, self.page.title
        by_quantity: dict[Quantity, list[str]] = {}
        for cell in self.page.cells:
            by_quantity.setdefault(self._quantity(cell), []).append(cell)
        for quantity, cells in by_quantity.items():
            if len(cells) > MOST_CURVES:
                continue
            curves = {cell: found for cell in cells if (found := self._runs(cell).curves())}
            if curves:
                name = "curves" if len(by_quantity) == 1 else f"curves-{quantity.name}"
                figure = self.root / "runs" / self.experiment / f"{name}.png"
                draw_curves(figure, curves, target, title, quantity)
                yield str(figure.relative_to(self.root))
