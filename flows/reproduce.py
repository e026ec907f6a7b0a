"""The flow `reproduce`: a published table beside ours, cell by cell, in docs/results/<paper>.json.

Every finished run is written there at once, so an interrupted sweep goes on where it stopped and a reader sees what was run.
"""

import platform
import re
import statistics
import time
from hashlib import sha256
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import yaml
from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from flows import screen
from flows.folder import RunFolder, run_name
from flows.project import Project
from flows.run import run, workers_of
from models.quantities import Quantity, lower_is_better
from silos.errors import UserError
from tasks.files import read_json, write_json
from tasks.report import draw_curves

PAPERS = Path(__file__).parent / "papers"
PROBE_ROUNDS = 3


def names() -> list[str]:
    """The papers that there are tables of."""
    return sorted(page.stem for page in PAPERS.glob("*.yaml"))


def table_of(paper: str, table: str | None, scale: str) -> dict[str, Any]:
    """The published table; UserError naming those that there are."""
    page = Path(paper) if paper.endswith(".yaml") else PAPERS / f"{paper}.yaml"
    if not page.is_file():
        raise UserError(
            f"there is no paper {paper!r}; there are {', '.join(names())}, or name a .yaml file of your own."
        )
    tables = yaml.safe_load(page.read_text(encoding="utf-8"))["tables"]
    if table not in tables:
        raise UserError(f"{paper} has no table {table!r} here; --table takes {', '.join(tables)}.")
    found: dict[str, Any] = tables[table]
    if scale not in found["scales"]:
        raise UserError(f"table {table} has no scale {scale!r}; there are {', '.join(found['scales'])}.")
    return found


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
    sweep = _Sweep(paper, table, scale, seeds, overrides or [])
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), workers_of(Project.open(overrides or [])):
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
        self.settings = self.page["scales"][scale]
        self.seeds = seeds or self.settings["seeds"]
        self.overrides = overrides
        self.root = Path().resolve()
        self.file = self.root / "docs" / "results" / f"{self.paper}.json"
        # runs of other settings are other runs: each set of overrides has a folder of its own
        own = f"-{sha256(repr(overrides).encode()).hexdigest()[:6]}" if overrides else ""
        self.experiment = f"reproduce-{self.paper}-{table}-{scale}{own}"

    def run(self) -> dict[str, Any]:
        """Every cell that is not in the results yet; then the table and the figure."""
        path = self.root / "runs" / self.experiment / "experiment.json"
        about = f"{self.page['title']}. {self.page['source']}."
        write_json(path, {"kind": "reproduce", "name": self.experiment, "about": about})
        screen.current().plan(sum(len(self._choices(c)) - 1 + len(self.seeds) for c in self.page["cells"]))
        for cell in self.page["cells"]:
            choice = self._choose(cell)
            for seed in self.seeds:
                self._one(cell, seed, choice)
        rows = self._rows()
        figure = self.root / "runs" / self.experiment / "curves.png"
        target, title = self.page["measure"].get("rounds_to"), self.page["title"]
        draw_curves(figure, self._curves(), target, title, self._quantity())
        return {
            "paper": self.paper,
            "table": self.table,
            "title": self.page["title"],
            "source": self.page["source"],
            "unit": self.page["unit"],
            "known_errors": self.page["known_errors"],
            "scale": self.scale,
            "rows": rows,
            "results": str(self.file.relative_to(self.root)),
            "figure": str(figure.relative_to(self.root)),
            "experiment": self.experiment,
        }

    def estimate(self) -> dict[str, Any]:
        """Seconds of the whole table from a few rounds of each cell and the published count of rounds."""
        seconds = {}
        for cell, about in self.page["cells"].items():
            choice = self._choices(cell)[0]
            probe = [f"training.rounds={PROBE_ROUNDS}", "evaluation.stop_at=null"]
            start = time.perf_counter()
            found = self._run(cell, self.seeds[0], choice, probe, f"estimate-{int(time.time())}")
            fixed = time.perf_counter() - start - found["seconds"]["per_round"] * PROBE_ROUNDS
            rounds = about["published"] if "rounds_to" in self.page["measure"] else self._rounds(cell)
            runs = len(self._choices(cell)) - 1 + len(self.seeds)
            seconds[cell] = runs * (fixed + rounds * found["seconds"]["per_round"])
        return {"paper": self.paper, "table": self.table, "scale": self.scale, "seconds": seconds}

    def _choose(self, cell: str) -> str | None:
        """The best of the grid on the first seed; None where there is no grid."""
        choices = self._choices(cell)
        if len(choices) == 1:
            return choices[0]
        found = [(self._one(cell, self.seeds[0], choice)["value"], choice) for choice in choices]
        scored = [(value, choice) for value, choice in found if value is not None]
        if not scored:
            return choices[0]
        measure = self.page["measure"]
        better = min if "rounds_to" in measure or lower_is_better(measure["metric"]) else max
        return better(scored, key=lambda pair: pair[0])[1]

    def _choices(self, cell: str) -> list[str | None]:
        values = self.settings.get("grid", {}).get(cell, [])
        return [self.page["grid"].format(value) for value in values] or [None]

    def _one(self, cell: str, seed: int, choice: str | None) -> dict[str, Any]:
        """A run's record, from the results if it is there, else run and written down."""
        results = read_json(self.file) or {}
        records = results.setdefault(self.table, {}).setdefault(self.scale, {}).setdefault(cell, [])
        asked = {"seed": seed, "choice": choice, "set": without_places(self.overrides)}
        for record in records:
            if {key: record[key] for key in asked} == asked:
                return dict(record)
        found = self._run(cell, seed, choice, [], self.experiment)
        quantity = self._quantity()
        record = {
            **asked,
            "value": self._measured(found),
            quantity.name: found["metrics"][quantity.headline],
            "rounds": found["rounds"],
            "seconds": round(found["seconds"]["total"], 1),
            "data_version": found["data_version"],
            "weights_sha256": found["weights_sha256"],
            "command": f"siloflow reproduce {self.paper} --table {self.table} --scale {self.scale}",
            "versions": {name: installed(name) for name in ("torch", "numpy")} | {"python": platform.python_version()},
        }
        records.append(record)
        write_json(self.file, results)
        return record

    def _run(self, cell: str, seed: int, choice: str | None, more: list[str], experiment: str) -> dict[str, Any]:
        path = self.root / "runs" / experiment / "experiment.json"
        if not path.is_file():
            write_json(path, {"kind": "run", "name": experiment})
        overrides = self._overrides(cell, choice) + more
        return run(
            self.page["method"],
            seed,
            overrides,
            resume=True,
            experiment=experiment,
            cell=self._place(cell, choice),
            derived=True,
        )

    def _place(self, cell: str, choice: str | None) -> str:
        """The cell's name in a run's folder, with the number of the choice on the grid."""
        return cell if choice is None else f"{cell}-{self._choices(cell).index(choice)}"

    def _overrides(self, cell: str, choice: str | None) -> list[str]:
        own = [*self.page["base"], *self.settings.get("set", []), *self.page["cells"][cell]["set"]]
        return own + ([choice] if choice else []) + self.overrides

    def _rounds(self, cell: str) -> int:
        return Project.open(self._overrides(cell, None)).params.training.rounds

    def _quantity(self) -> Quantity:
        return Project.open(self._overrides(next(iter(self.page["cells"])), None)).quantity

    def _measured(self, found: dict[str, Any]) -> float | None:
        """The cell's number: rounds to the target (None if it was not reached), or a metric."""
        measure = self.page["measure"]
        if "rounds_to" in measure:
            return found["rounds"] if found["ended_by"] == "evaluation.stop_at" else None
        value: float | None = found["metrics"][measure["metric"]]
        return value

    def _rows(self) -> list[dict[str, Any]]:
        """Published beside ours; `missed` counts the seeds that did not reach the target."""
        rows = []
        for cell, about in self.page["cells"].items():
            choice = self._choose(cell)
            records = [self._one(cell, seed, choice) for seed in self.seeds]
            values = [v for r in records if (v := r["value"]) is not None]
            rows.append(
                {
                    "cell": cell,
                    "words": about["words"],
                    "published": about["published"],
                    "ours": statistics.fmean(values) if values else None,
                    "sd": statistics.stdev(values) if len(values) > 1 else None,
                    "values": values,
                    "missed": len(records) - len(values),
                    "seeds": self.seeds,
                    "choice": choice,
                    "seconds": statistics.fmean(r["seconds"] for r in records),
                }
            )
        return rows

    def _curves(self) -> dict[str, list[list[tuple[int, float]]]]:
        """Cell to one curve a seed, of the runs whose folders are on this machine."""
        curves: dict[str, list[list[tuple[int, float]]]] = {}
        headline = self._quantity().headline
        for cell in self.page["cells"]:
            choice = self._choose(cell)
            for seed in self.seeds:
                name = run_name(self.page["method"], seed, self._place(cell, choice))
                folder = RunFolder(self.root / "runs" / self.experiment / name)
                result = read_json(folder.result)
                if result is not None:
                    found = [(r["round"], r["metrics"].get(headline)) for r in folder.journal.all(result["rounds"])]
                    curves.setdefault(cell, []).append([(n, a) for n, a in found if a is not None])
        return curves
