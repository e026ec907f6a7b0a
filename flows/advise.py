"""Defines the flow `advise`: diagnose, race methods on validation rows, prove the winner on fresh seeds, and advise."""

import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import WithJsonSchema

from flows.compare import Results, conclude, run_all
from flows.core.console import progress
from flows.diagnose import run_diagnosis
from flows.experiments.advice.advice_text import described
from flows.experiments.advice.candidates import (
    POOLED,
    SHARED,
    candidates,
    features_to_align,
    load_evidence,
    predicted_gains,
    situation_of,
)
from flows.experiments.advice.decide_advice import decide
from flows.experiments.advice.exclude_silos import can_leave, leave_setting, losing_silos
from flows.experiments.advice.proof import (
    SEEDS,
    Cost,
    Proof,
    measure,
    plan_proof,
)
from flows.experiments.advice.race import Candidate, Race
from flows.experiments.advice.race_trials import RACE, RaceTrials
from flows.experiments.comparison.client_gains import ALONE
from flows.experiments.comparison.comparison_text import not_complete
from flows.experiments.comparison.run_trials import Plan
from flows.experiments.comparison.trial_processes import Trial, TrialProcesses
from flows.methods.client_sampler import validation_rows
from flows.orchestration.flow_decorator import IncompleteError, MethodNames, Text, from_overrides, project_flow
from flows.project.project import Project
from flows.project.project_workers import project_workers
from flows.project.run_sets import begun_before, experiment, new_experiment, newest_experiment
from flows.results.reports.comparison_report import newest_diagnosis
from flows.results.reports.diagnosis_report import save_report
from flows.results.run_history.list_runs import find_runs
from flows.run import run_trial
from flows.training.paired_runs import outcomes_of_run
from flows.training.run_records.fingerprint import unused_name
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import check_metric
from models.metrics.client_metrics import metric_record
from silos.errors import UserError, some
from silos.io.locks import exclusive_lock
from tasks.evaluate import OUTCOMES
from tasks.execution.prefect_runner import PrefectRunner
from tasks.execution.task_runner import Runner
from tasks.tracking import prefect_artifacts
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.advice_result import Advice, AdviceDiagnosis, RaceRecord
from tasks.tracking.result_types.comparison_result import FailedRun
from tasks.tracking.result_types.run_files import ExperimentRecord
from tasks.tracking.result_types.run_result import RunResult

ADVICE = "advice.json"
PROOF = "proof.json"
_WITHOUT = "without"  # starts the names of FedAvg's runs without the silos that lose
_OVER_ROWS = ("comparison.over=rows", "comparison.publish=false")

Minutes = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]


@project_flow(run_name="advise")
def advise(
    minutes: Minutes = 0.0,
    methods: MethodNames = (),
    project: Project = from_overrides(),
    resume: bool = False,
    name: Text = "",
) -> Advice:
    """Race methods and settings on the silos, prove the winner on fresh seeds, and return the advice as plain JSON.

    Args:
        minutes: The time to take; if 0, that of params.yaml, or that which the resumed race had last.
        methods: The methods that race; all that can run on the data if none is chosen.
        overrides: Values that replace those of params.yaml, each as section.key=value, for example training.rounds=20.
        resume: Continue the named race, or the newest one.
        name: The name of a new race, in runs/ and in MLflow; with resume, of the race to continue.
    """
    compared = project.params.comparison
    if compared.over != "rows" or compared.publish:  # these are about what `siloflow compare` says
        project = project.with_overrides(_OVER_ROWS)
    with project.data.working("advise"):
        check_advisable(project)
        retried = begun_before(project, "advise")
        resume, name = (resume, name) if retried is None else (True, retried)
        folder = folder_name(project, minutes or project.params.advise.minutes, methods, resume, name or "")
        with project.data.working(folder), exclusive_lock(project.store.runs / folder):
            begun = experiment(project, folder)
            last: RaceRecord | ExperimentRecord = read_json(project.store.runs / folder / RACE) or begun
            return _advise(project, folder, 60 * (minutes or last["minutes"]), methods or begun["methods"])


def check_advisable(project: Project) -> None:
    """Raise a UserError if no method can be chosen on these data, or if test rows would take part in the choice."""
    if project.params.evaluation.stop_at is not None:
        raise UserError(
            f"evaluation.stop_at: got {project.params.evaluation.stop_at:g}, expected null, since test rows would end the "
            "runs that race, and advice is proved on test rows. Set it to null: `--set evaluation.stop_at=null`."
        )
    if project.params.training.privacy.epsilon is not None:
        raise UserError(
            f"training.privacy.epsilon: got {project.params.training.privacy.epsilon:g}, expected null for advice, since "
            "each run of its race would spend the silos' budgets. Use `siloflow compare`, which says the cost first."
        )
    federated = project.scored.federated()
    if len(federated.clients) < 2:
        raise UserError(
            f"data: got {len(federated.clients)} client that is scored, expected at least 2 to choose a method for. "
            "Train it alone with `siloflow run local_only`, or change data.scheme."
        )
    for split, key in (("validation", "validation"), ("test", "test")):
        rows = validation_rows(federated) if split == "validation" else federated.rows(split)
        if not any(rows.values()) and not federated.common(split):
            raise UserError(
                f"data.split.{key}: got no {split} rows, expected some, since advice is "
                f"{'chosen' if split == 'validation' else 'proved'} on them. Set it, for example to 0.15, and run "
                "`siloflow partition`."
            )
    check_metric(project.params, project.quantity, project.scored, selects=True)


def folder_name(project: Project, minutes: float, methods: Sequence[str] | None, resume: bool, name: str) -> str:
    """Return the folder in runs/ of a new race, or of the one to continue."""
    if resume:
        found = newest_experiment(project, "advise") if not name else find_runs(project.store.runs, name, "advise").name
        if found is not None:
            info = experiment(project, found)
            if not project.data.same_rows(info["data_version"], project.silos.version):
                then = info["data_version"][:10]
                raise UserError(
                    f"--resume: got data version {project.silos.version[:10]}, expected {then} as at the start of {found}. "
                    f"Restore it with `siloflow data use {then}`, or start again without --resume."
                )
            if info["settings"] != _settings_digest(project):
                raise UserError(
                    f"--resume: got other settings than those of {found}, expected the same, since scores would not be "
                    "comparable. Restore params.yaml and `--set`, or start again without --resume."
                )
            if methods and list(methods) != info["methods"]:
                started = ", ".join(info["methods"]) or "all"
                raise UserError(
                    f"--resume: got the methods {', '.join(methods)}, expected {started} as at the start of {found}. "
                    "Name none, or start again without --resume."
                )
            return found
    seeds = project.params.comparison.seeds[:1]
    candidates(project, seeds[0], methods or ())  # an invalid method leaves no folder, which --resume would continue
    about = {"methods": list(methods or ()), "seeds": seeds, "data_version": project.silos.version, "minutes": minutes}
    about["settings"] = _settings_digest(project)
    return new_experiment(project, "advise", about, unused_name(project, name) if name else None)


def _settings_digest(project: Project) -> str:
    """Return a hash of the params that decide what trains and how it is scored."""
    free = {"advise", "callbacks", "comparison", "diagnose", "figures", "retention", "runner", "tracking", "watch"}
    content = f"{project.params.comparison.seeds[0]} {project.params.model_dump_json(exclude=free)}"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _advise(project: Project, name: str, budget: float, methods: Sequence[str]) -> Advice:
    folder = project.store.runs / name
    finished: Advice | None = read_json(folder / ADVICE)
    if finished is not None:
        return finished
    flow_run = prefect_artifacts.name_flow_run(f"advise on {project.params.data.name}, {name}")
    began = time.perf_counter()
    seed = project.params.comparison.seeds[0]
    with project_workers(project) as workers, TrialProcesses(project, name, run_trial) as processes:
        trials = RaceTrials(project, processes, seed, budget)
        # before the diagnosis, so that minutes that cannot suffice are refused after a few rounds
        if not (folder / RACE).is_file():
            trials.time_rounds()
        diagnosis = _diagnosis(project, PrefectRunner(workers))
        race = trials.race(began, methods, diagnosis.align, diagnosis.gains)
        choice = _winner(race)
        chosen = {m: race.best_of(m) for m in (SHARED, ALONE, choice.method, POOLED)}
        best = {m: c for m, c in chosen.items() if c is not None}
        # chosen on validation rows, as the winner is: only the proof reads test rows
        losers = _losers(trials, best)
        proof_began = time.perf_counter()
        runs = _run_proof(trials, race, choice.method, best, losers)
    plan = runs.plan
    comparison = conclude(project, name, plan, [(runs.projects, runs.results)], runs.failed, [], flow_run, raced=True)
    of_method, proof = _measure_proof(project, choice.method, runs, losers)
    settings = {m: best[m].settings for m in plan.methods}
    advice: Advice = {
        "experiment": name,
        "data_version": project.silos.version,
        **metric_record(project.quantity),
        "minutes": budget / 60,
        "seconds": race.before + race.seconds + time.perf_counter() - proof_began,
        "diagnosis": diagnosis.about,
        "race": race.as_json(),
        "race_seed": seed,
        "proved": [{"method": m, "settings": list(lines)} for m, lines in settings.items()],
        **decide(
            project.quantity,
            choice.method,
            settings,
            proof,
            comparison,
            project.params.clients.leave,
            {method: _cost(runs.projects[method], of_method[method]) for method in plan.methods if of_method[method]},
        ),
        "comparison": comparison,
    }
    if losers and not runs.is_measured:
        advice["lines"].append(_not_measured(losers, is_tried=bool(runs.apart)))
    keep_advice(folder, advice)
    prefect_artifacts.show_markdown("advice", "\n\n".join(described(advice)))
    for line in described(advice):
        prefect_artifacts.log_artifact(line)
    return advice


def _winner(race: Race) -> Candidate:
    """Return the best candidate; UserError if none has a finite score."""
    ranking = race.ranking()
    if not ranking:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(race.dropped.items())[:3])
        raise UserError(
            f"advise: got no method with a finite score ({reasons}), expected at least one. Lower "
            "training.optimiser.learning_rate, and start again."
        )
    return ranking[0]


class _ProofRuns(NamedTuple):
    """The runs of a proof: by method and seed, and those of FedAvg without the silos that lose by it (`apart`)."""

    plan: Plan
    projects: dict[str, Project]
    results: Results
    failed: list[FailedRun]
    apart: Sequence[Trial]
    without: Sequence[RunResult]

    @property
    def is_measured(self) -> bool:
        """Whether all runs without silos were planned, and did not fail."""
        return bool(self.apart) and len(self.without) == len(self.apart)


def _run_proof(
    trials: RaceTrials, race: Race, winner: str, best: Mapping[str, Candidate], losers: Sequence[str]
) -> _ProofRuns:
    """Train the best candidates of some methods on as many fresh seeds as the time that is left allows.

    Args:
        trials: Those of the race.
        race: The race, which says how long a run takes.
        winner: The method that won it.
        best: The best candidate of each method that may be proved.
        losers: The silos without which FedAvg is also trained, if there is time.
    """
    project, processes = trials.project, trials.processes
    costs = [race.legs[candidate.name].seconds for candidate in best.values()]
    # before the plan, since the number of runs at once decides how many seeds fit into the time that is left
    processes.start_for(SEEDS.start * len(costs), statistics.fmean(costs), race.pace.round if race.pace else 0.0)
    file, left = project.store.runs / processes.experiment / PROOF, race.left(trials.budget)
    methods, seeds, excludes = plan_proof(file, race, best, trials.seed, left, bool(losers), processes.at_once)
    plan = Plan(methods, seeds, SHARED if SHARED in methods else winner, 0, project.silos.version)
    projects = {m: project.with_overrides(best[m].settings) for m in methods}
    progress.current().restart()
    progress.say(f"proof on {len(seeds)} fresh seeds and test rows: {', '.join(methods)}")
    if excludes:
        lose = "loses" if len(losers) == 1 else "lose"
        progress.say(f"{SHARED} is also trained without {some(losers, 3)}, which {lose} by it on validation rows")
    failed: list[FailedRun] = []
    apart = _trials_without(projects[SHARED], losers, seeds) if excludes else []
    results, outcomes_apart = run_all(processes, plan, projects, {}, 0, failed, apart)
    without = [outcome for outcome in outcomes_apart if not isinstance(outcome, str)]
    return _ProofRuns(plan, projects, results, failed, apart, without)


def _measure_proof(
    project: Project, choice: str, runs: _ProofRuns, losers: Sequence[str]
) -> tuple[dict[str, list[RunResult]], Proof]:
    """Return the results of each method on the seeds that all finished, and what they prove."""
    plan, results = runs.plan, runs.results
    # only seeds that every method finished, since differences are paired by seed
    whole = [s for s in plan.seeds if all((m, s) in results for m in plan.methods)]
    of_method = {m: [results[m, s] for s in whole] for m in plan.methods}
    outcomes = {m: [outcomes_of_run(project, project.root / r["folder"]) for r in of_method[m]] for m in plan.methods}
    comparable = runs.without if runs.is_measured and whole == plan.seeds else []
    smaller = [outcomes_of_run(project, project.root / result["folder"]) for result in comparable]
    return of_method, measure(project, choice, outcomes, losers, smaller) if whole else Proof({})


def _not_measured(losers: Sequence[str], is_tried: bool) -> str:
    """Say that FedAvg without these silos was not measured, and why."""
    why = "since a run of it failed" if is_tried else "for lack of time; start again with more --minutes"
    are, them = ("is", "it") if len(losers) == 1 else ("are", "them")
    return (
        f"{some(losers, 3)} {are} worse off with FedAvg than alone, by validation rows; whether FedAvg without {them} "
        f"is better was not measured {why}."
    )


def keep_advice(folder: Path, advice: Advice) -> None:
    """Write the advice, which --resume then returns; IncompleteError if a run of its proof failed: it is proved again."""
    if advice["comparison"]["failed"]:
        raise IncompleteError(f"the proof of {folder.name} is {not_complete(advice['comparison'])}", dict(advice))
    write_json(folder / ADVICE, advice)


def _cost(project: Project, runs: Sequence[RunResult]) -> Cost:
    """Return what a run of a method costs, from the results of its runs, one a seed."""
    silos = len(project.silos.federated().clients)
    folders = [project.root / run["folder"] for run in runs]
    here = {section for folder in folders for section in project.store.private(folder).sections()}
    elsewhere = {section for folder in folders for section in RunFolder(folder).private_sections()}  # at places
    return Cost(
        statistics.fmean(run["bytes"]["up"] for run in runs) / silos,
        statistics.fmean(run["bytes"]["down"] for run in runs) / silos,
        statistics.fmean(run["seconds"]["total"] for run in runs),
        bool({*here, *elsewhere} - {OUTCOMES}),
    )


class _Diagnosis(NamedTuple):
    """What advice takes from a diagnosis: the record of it, features to align, and each method's predicted gain."""

    about: AdviceDiagnosis
    align: Sequence[str] = ()
    gains: Mapping[str, float] = MappingProxyType({})


def _diagnosis(project: Project, runner: Runner) -> _Diagnosis:
    """Return what advice needs of the newest diagnosis of these data; diagnose if there is none.

    If the silos refuse, the only sentence is the reason, and nothing is predicted.
    """
    newest = newest_diagnosis(project, project.silos.version)
    if newest is not None:
        report = newest[1]
    else:
        progress.say("diagnoses the silos, since there is no diagnosis of these data yet")
        try:
            report = save_report(project, *run_diagnosis(project, runner))
        except UserError as error:
            refused = f"How the silos differ is not known: {error}"
            return _Diagnosis({"folder": None, "sentences": [refused], "nearest": None})
    rows = list(project.scored.federated().rows("train").values())
    gains, nearest = predicted_gains(load_evidence(), situation_of(report, rows))
    about: AdviceDiagnosis = {
        "folder": report["folder"],
        "sentences": report["sentences"][:3],
        "nearest": nearest,
    }
    return _Diagnosis(about, features_to_align(report), gains)


def _losers(trials: RaceTrials, best: Mapping[str, Candidate]) -> list[str]:
    """Return the silos that validation rows of the race show to lose by FedAvg.

    Empty if FedAvg or training alone has no run, or if the silos cannot leave, as one that joins later.
    """
    if not {SHARED, ALONE} <= {*best}:
        return []
    losers = losing_silos(trials.project, trials.outcomes(best[SHARED]), trials.outcomes(best[ALONE]))
    return losers if losers and can_leave(trials.project, losers, trials.seed) else []


def _trials_without(project: Project, silos: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
    """Return the runs of FedAvg without some silos, one a seed."""
    smaller = project.with_overrides([leave_setting(project.params.clients.leave, silos)])
    return [Trial(smaller, SHARED, seed, _WITHOUT) for seed in seeds]
