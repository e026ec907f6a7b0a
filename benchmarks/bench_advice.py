"""Measure what `siloflow advise` chooses: the evidence matrix, and the regret of strategies on 24 federations.

Regret is how far a choice is behind the best method in hindsight, in points: hundredths of accuracy, or of mean squared
error over the variance of the targets. Every number is a mean over clients, on test rows of seeds that no choice saw.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.advice import federations
from benchmarks.advice.federations import Federation
from benchmarks.advice.run_table import ByClient, RunTable, paired
from benchmarks.advice.strategies import RACE_SEED, REPORT_SEEDS, Contest, hindsight, replay, strategies
from benchmarks.run_benchmark import command, scratch
from flows.diagnose import run_diagnosis
from flows.experiments.advice.apply_advice import with_overrides
from flows.experiments.advice.candidates import (
    EVIDENCE,
    POOLED,
    SHARED,
    Evidence,
    Situation,
    candidates,
    features_to_align,
    in_order,
    predicted_gains,
    situation_of,
)
from flows.experiments.advice.race import Candidate, Race
from flows.experiments.comparison.client_gains import ALONE
from flows.init_project.create_project import template_text
from flows.project.project import Project
from models.diagnosis.guarded_tests import TYPES
from models.metrics.paired_difference import difference_over_draws, holm_intervals
from models.metrics.task_metrics import TaskMetrics
from silos.io.atomic_io import write_bytes
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.json_io import read_json, write_json, write_records
from tasks.tracking.result_types.diagnosis_result import GroupDifferences

METHODS = (
    *(SHARED, ALONE, "cfl", "conditional", "ditto", "feddyn", "fedopt"),
    *("fedper", "fedprox", "finetune", "flux", "ifca", "scaffold", POOLED),
)
"""The methods that race in the study; the others take five to twenty times as long for a round."""
MINUTES = (1, 2, 5, 15)
"""The budgets of `siloflow advise`, and of a race without a diagnosis."""
REFERENCE = "advise, 5 minutes"
"""The strategy to which the others are compared."""
LEG_SECONDS = 0.4
"""What a leg of a live race takes besides training: 0.42 seconds of the processor for three rounds, of which 0.08 train."""
SEEDS = (*REPORT_SEEDS, 12)  # of the matrix
_SETTINGS = (
    "data.name=study",
    "data.split={validation: 0.2, test: 0.3, test_rows: own, validation_rows: own}",
    "model={kind: mlp, hidden: [64], inputs: standardise}",
    "training.rounds=20",
    "training.epochs=2",
    "training.batch=16",
    "training.optimiser={kind: sgd, learning_rate: 0.3}",
    "evaluation.passes=0",
)


LIVE, LIVE_MINUTES = ("wines", "moons-turned", "people-few"), 5
"""The federations on which `siloflow advise` runs itself, to compare its race with the replay."""


class _Diagnosed(GroupDifferences):
    align: list[str]
    """Features that `clients.align` may standardise."""
    sentences: list[str]


class AdviceStudy:
    """The study in a project's folder, in cache/advice: rows, runs, diagnoses and results.

    Args:
        root: The project.
        say: Reports progress.
    """

    def __init__(self, root: Path, say: Callable[[str], None]) -> None:
        self._downloads, self._cache, self._say = root / "downloads", root / "cache" / "advice", say
        self._file = self._cache / "results.json"
        self._cache.mkdir(parents=True, exist_ok=True)
        write_bytes(self._cache / "params.yaml", template_text().encode())

    def fill(self) -> dict[str, Any]:
        """Measure the cells that are not recorded, and replay the strategies, since cells order the race; return all."""
        cells, contests = federations.matrix(), federations.study()
        for number, cell in enumerate(cells, 1):
            if cell.name not in self.results().get("matrix", {}):
                self._say(f"matrix, {number} of {len(cells)}: {cell.name}, {cell.about}")
                self._keep("matrix", cell.name, self._cell(cell))
        for number, federation in enumerate(contests, 1):
            self._say(f"study, {number} of {len(contests)}: {federation.name}, {federation.about}")
            self._keep("study", federation.name, self._contest(federation))
        return self.results()

    def results(self) -> dict[str, Any]:
        """Return the results by part and name."""
        return read_json(self._file) or {}

    def _keep(self, part: str, name: str, result: dict[str, Any]) -> None:
        known = self.results()
        write_records(self._file, {**known, part: {**known.get(part, {}), name: [result]}})

    def open(self, federation: Federation) -> Project:
        """Open the project of a federation; the first call writes its rows."""
        return Project.open(self.settings(federation), self._cache, derived=True)

    def settings(self, federation: Federation) -> list[str]:
        """Return the settings of a federation's project, each as section.key=value; the first call writes its rows."""
        file = self._cache / "rows" / f"{federation.name}.npz"
        if not file.is_file():
            rows = federation.rows(self._downloads)
            file.parent.mkdir(exist_ok=True)
            arrays = {name: values for name, values in rows._asdict().items() if values is not None}
            with file.open("wb") as opened:
                np.savez(opened, **arrays)
        with np.load(file) as stored:
            unit = ", unit: unit" if "unit" in stored.files else ""
        kind = "regression" if federation.regression else "classification"
        source = f"data.source={{kind: npz, path: rows/{file.name}, task: {kind}{unit}}}"
        fresh = f", {{kind: fresh, per_domain: {federation.fresh}}}" if federation.fresh else ""
        settings = [*_SETTINGS, source, f"data.scheme=[{{kind: column, column: client}}{fresh}]"]
        if federation.regression:
            settings += ["model.targets=standardise", "training.objective={kind: squared_error}"]
        return settings

    def _diagnosed(self, federation: Federation, project: Project) -> _Diagnosed:
        """Return what advice needs of a diagnosis; the first call diagnoses and stores it."""
        file = self._cache / "diagnoses" / f"{federation.name}.json"
        stored: _Diagnosed | None = read_json(file)
        if stored is None:
            report = run_diagnosis(project, PlainRunner())[1]
            stored = {
                "between": report["between"],
                "align": features_to_align(report),
                "sentences": report["sentences"][:3],
            }
            file.parent.mkdir(exist_ok=True)
            write_json(file, stored)
        return stored

    def _cell(self, federation: Federation) -> dict[str, Any]:
        """Measure each method's difference to FedAvg on test rows, with its best setting after a third of the rounds."""
        project = self.open(federation)
        with project.data.working("study"):
            table = RunTable(project, self._cache / "runs" / federation.name)
            report, quantity, last = self._diagnosed(federation, project), project.quantity, table.rungs[-1]
            chosen: dict[str, Candidate] = {}
            for method in METHODS:
                tried = [c for c in _candidates(project) if c.method == method]
                legs = [table.run(c, RACE_SEED, table.rungs[-2]).leg(table.rungs[-2]) for c in tried]
                scored = [(leg.score, c) for leg, c in zip(legs, tried, strict=True) if leg.score is not None]
                if scored:
                    chosen[method] = max(scored, key=lambda pair: pair[0].rank)[1]
            runs = {m: [table.run(c, seed, last) for seed in SEEDS] for m, c in chosen.items()}
            tests = {
                m: [run.test for run in of_seeds] for m, of_seeds in runs.items() if all(run.test for run in of_seeds)
            }
            methods = {}
            fresh = {m: [run.fresh for run in runs[m]] for m in tests if all(run.fresh for run in runs[m])}
            for method, of_seeds in tests.items():
                later = {"fresh": _gain(fresh[method], fresh[SHARED], quantity)} if method in fresh else {}
                methods[method] = {
                    "value": _rounded(fmean(_mean(test) for test in of_seeds)),
                    "gain": _gain(of_seeds, tests[SHARED], quantity),
                    **later,
                    "seconds": round(fmean(run.rungs[-1].seconds for run in runs[method]), 2),
                    "bytes": round(fmean(run.bytes for run in runs[method])),
                    "settings": list(chosen[method].settings),
                }
            rows = list(project.silos.federated().rows("train").values())
            situation = [_rounded(number) for number in situation_of(report, rows)]
            return {"situation": situation, "sentences": report["sentences"], "methods": methods}

    def _evidence(self) -> list[Evidence]:
        """Return the recorded cells of the matrix."""
        return [
            Evidence(
                name,
                Situation(*cell["situation"]),
                {m: of_method["gain"][0] for m, of_method in cell["methods"].items()},
            )
            for name, [cell] in self.results().get("matrix", {}).items()
        ]

    def contest(self, federation: Federation, project: Project) -> Contest:
        """Return a federation as strategies see it."""
        report = self._diagnosed(federation, project)
        rows = list(project.silos.federated().rows("train").values())
        gains, _ = predicted_gains(self._evidence(), situation_of(report, rows))
        plain, aligned = _candidates(project), _candidates(project, report["align"])
        types = [name for name in TYPES if any(record["types"][name] for record in report["between"])]
        table = RunTable(project, self._cache / "runs" / federation.name)
        return Contest(table, plain, in_order(aligned, gains, (SHARED, ALONE)), types, LEG_SECONDS)

    def _contest(self, federation: Federation) -> dict[str, Any]:
        """Replay every strategy on a federation."""
        project = self.open(federation)
        with project.data.working("study"):
            contest = self.contest(federation, project)
            found = {}
            for name, strategy in strategies(MINUTES).items():
                choices = [choice for choice in strategy(contest) if choice is not None]
                every = [contest.value(choice.candidate) for choice in choices]
                values = [value for value in every if math.isfinite(value)]  # a choice that diverged has none
                found[name] = {
                    "value": _rounded(fmean(values)) if values else None,
                    "seconds": round(fmean(choice.seconds for choice in choices), 1) if choices else None,
                    "choices": [f"{c.method} {' '.join(c.settings)}" for c, _ in choices][:1],
                }
            values_of = {method: _rounded(value) for method, value in hindsight(contest).items()}
            return {"types": list(contest.types), "strategies": found, "methods": values_of}

    def live(self, federation: Federation) -> dict[str, Any]:
        """Run `siloflow advise` on a federation, and replay it with as many seconds as its first legs took.

        A live leg takes longer on a busy machine: `slower` is by how much. The replay has the minutes over this number.
        """
        with scratch() as folder:
            params = with_overrides(template_text(), self.settings(federation))
            write_bytes(folder / "params.yaml", params.encode())
            (folder / "rows").mkdir()
            shutil.copy(self._cache / "rows" / f"{federation.name}.npz", folder / "rows")
            methods = [method for method in METHODS if method not in (SHARED, ALONE, POOLED)]
            command(folder, "partition", "--json")
            advice, _ = command(folder, "advise", *methods, "--minutes", str(LIVE_MINUTES), "--json")
        race, project = Race.from_json(advice["race"]), self.open(federation)
        with project.data.working("study"):
            contest = self.contest(federation, project)
            first = [c for c in contest.preferred if c.name in race.legs and race.legs[c.name].rounds == race.rungs[0]]
            legs = [contest.table.run(c, RACE_SEED, race.rungs[0]).leg(race.rungs[0]) for c in first]
            slower = sum(race.legs[c.name].seconds for c in first) / sum(leg.seconds + LEG_SECONDS for leg in legs)
            replayed = replay(contest, LIVE_MINUTES * 60 / slower, contest.preferred)
        choice = replayed.choice
        both = [name for name in race.legs if name in replayed.race.legs]
        same = [name for name in both if _end(race, name) == _end(replayed.race, name)]
        ranking = replayed.race.ranking()
        return {
            "seconds": round(advice["seconds"], 1),
            "slower": round(slower, 2),
            "winner": advice["choice"],
            "replayed_winner": ranking[0].method if ranking else None,
            "advised": [advice["advised"], *advice["settings"]],
            "replayed": [choice.candidate.method, *choice.candidate.settings] if choice else None,
            "started": len(race.legs),
            "replayed_started": len(replayed.race.legs),
            "both": len(both),
            "same_end": len(same),
        }


def _end(race: Race, name: str) -> tuple[int, bool]:
    """Return the round after which a setting was dropped, or the last, and whether it was behind."""
    return race.legs[name].rounds, race.dropped.get(name) == "behind"


def live_races(root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Compare live races with their replays on the LIVE federations, by name."""
    races = AdviceStudy(root, say)
    found = {}
    for federation in federations.study():
        if federation.name in LIVE:
            say(f"live race of {LIVE_MINUTES} minutes: {federation.name}, {federation.about}")
            found[federation.name] = races.live(federation)
    return {"minutes": LIVE_MINUTES, "races": found}


def study(root: Path, say: Callable[[str], None], record: bool = False) -> dict[str, Any]:
    """Measure what the study lacks in a project's folder, and return its summary.

    Args:
        root: The project.
        say: Reports progress.
        record: Write all results to docs/results/advice.json, and the matrix to the evidence that siloflow comes with.
    """
    results = AdviceStudy(root, say).fill()
    if record:
        write_records(root / "docs" / "results" / "advice.json", results)
        evidence = {name: [_as_evidence(cell)] for name, [cell] in results["matrix"].items()}
        write_records(root / EVIDENCE.relative_to(Path(__file__).parents[1]), evidence)
    return summary(results)


def _as_evidence(cell: Mapping[str, Any]) -> dict[str, Any]:
    gains = {
        method: round(of_method["gain"][0], 2) for method, of_method in cell["methods"].items() if method != POOLED
    }
    return {"situation": cell["situation"], "gains": gains}


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the regret of each strategy in points: mean, interval over federations, median, worst, least; how many <= 1.

    `behind` is how far a strategy is behind REFERENCE, with its interval corrected for their number (Holm). Federations on
    which its choice diverged are left out, and counted.
    """
    measured = [of for [of] in results.get("study", {}).values()]
    best = [max(value for value in of["methods"].values() if value is not None) for of in measured]
    lines, regrets = {}, dict[str, list[float]]()
    for name in measured[0]["strategies"] if measured else ():
        values = [of["strategies"][name]["value"] for of in measured]
        pairs = zip(best, values, strict=True)
        regrets[name] = [math.nan if value is None else 100 * (most - value) for most, value in pairs]
    others = [name for name in regrets if name != REFERENCE]
    plain = []
    for name in others:
        lags = [own - ours for own, ours in zip(regrets[name], regrets[REFERENCE], strict=True)]
        plain.append(difference_over_draws([lag for lag in lags if math.isfinite(lag)], bound=math.inf))
    behind = dict(zip(others, holm_intervals(plain), strict=True))
    for name, every in regrets.items():
        points = [point for point in every if math.isfinite(point)]
        lag = behind.get(name)
        mean = difference_over_draws(points, bound=math.inf)
        lines[name] = {
            "regret": [round(bound, 4) for bound in (mean.mean, mean.low, mean.high)],
            "median": round(median(points), 1),
            "worst": round(max(points), 1),
            "least": round(min(points), 1),
            "within_a_point": sum(point <= 1 for point in points),
            "diverged": len(every) - len(points),
            "behind": [round(bound, 4) for bound in (lag.mean, lag.low, lag.high)] if lag else [0.0, 0.0, 0.0],
            "seconds": round(fmean(of["strategies"][name]["seconds"] for of in measured), 1),
        }
    return {"federations": len(measured), "strategies": lines}


def _candidates(project: Project, align: Sequence[str] = ()) -> list[Candidate]:
    return [c for c in candidates(project, RACE_SEED, (), align) if c.method in METHODS]


def _gain(first: Sequence[ByClient], second: Sequence[ByClient], quantity: TaskMetrics) -> list[float]:
    """Return how far the first is before the second, in points, with its interval."""
    found = paired(first, second, quantity, 0.95)
    return [_rounded(100 * bound) for bound in (found.mean, found.low, found.high)]


def _mean(test: Mapping[str, np.ndarray]) -> float:
    """Return the mean over clients of the mean over rows."""
    return float(np.mean([rows.mean() for rows in test.values()]))


def _rounded(value: float) -> float:
    return round(float(value), 5)
