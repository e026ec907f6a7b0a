"""Defines the flow `advise`: diagnose, race methods on validation rows, prove the winner on fresh seeds, and advise."""

import hashlib
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import WithJsonSchema

from flows.compare import conclude, run_all
from flows.core.console import progress
from flows.core.console.safe_text import duration
from flows.diagnose import run_diagnosis
from flows.experiments.advice.advice_text import Cost, decide, described, race_line
from flows.experiments.advice.candidates import (
    POOLED,
    SHARED,
    candidates,
    features_to_align,
    in_order,
    load_evidence,
    predicted_gains,
    situation_of,
)
from flows.experiments.advice.exclude_silos import can_leave, leave_setting, losing_silos
from flows.experiments.advice.proof import (
    SEEDS,
    Proof,
    check_minutes,
    measure,
    plan_proof,
    race_seconds,
)
from flows.experiments.advice.race import Candidate, Leg, Pace, Race, TrainAll, Trained, run_race, rungs_of
from flows.experiments.comparison.client_gains import ALONE
from flows.experiments.comparison.comparison_text import not_complete
from flows.experiments.comparison.run_trials import Plan, trial_name
from flows.experiments.comparison.trial_processes import Trial, TrialProcesses
from flows.experiments.comparison.tuner import validation_score
from flows.methods.client_sampler import validation_rows
from flows.orchestration.flow_decorator import IncompleteError, MethodNames, Text, from_overrides, project_flow
from flows.project.project import Project
from flows.project.run_sets import begun_before, experiment, new_experiment, newest_experiment
from flows.project.training_setup import check_metric
from flows.results.reports.comparison_report import newest_diagnosis
from flows.results.reports.diagnosis_report import save_report
from flows.results.run_history.list_runs import find_runs
from flows.run import run_trial
from flows.training.fingerprint import unused_name
from flows.training.paired_runs import compare_pairs, outcomes_of_run
from flows.training.run_folder import RunFolder, run_name
from models.metrics.client_metrics import metric_record
from models.metrics.paired_difference import Difference
from models.metrics.task_metrics import TaskMetrics
from silos.errors import UserError, some
from silos.io.locks import exclusive_lock
from tasks.evaluate import OUTCOMES
from tasks.execution.task_runner import PlainRunner, PrefectRunner, Runner
from tasks.paired_outcomes import Outcomes
from tasks.tracking import prefect_artifacts
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.advice_result import Advice, AdviceDiagnosis, RaceRecord
from tasks.tracking.result_types.comparison_result import FailedRun
from tasks.tracking.result_types.run_files import ExperimentRecord, ValidationRecord
from tasks.tracking.result_types.run_result import RunResult

RACE = "race.json"
ADVICE = "advice.json"
PROOF = "proof.json"
_SHORTEST = 11  # runs of the shortest advice
_TIMED = 3  # rounds that say whether the minutes can suffice, before silos are diagnosed
_RUN = "race"  # as the screen shows it
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
    with project.working("advise"):
        check_advisable(project)
        retried = begun_before(project, "advise")
        resume, name = (resume, name) if retried is None else (True, retried)
        folder = folder_name(project, minutes or project.params.advise.minutes, methods, resume, name or "")
        with project.working(folder), exclusive_lock(project.store.runs / folder):
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
    with project.workers() as workers, TrialProcesses(project, name, run_trial) as processes:
        # before the diagnosis, so that minutes that cannot suffice are refused after a few rounds
        if not (folder / RACE).is_file():
            _time_rounds(project, processes, seed, budget)
        diagnosis = _diagnosis(project, PrefectRunner(workers))
        race = _race(project, processes, seed, began, budget, methods, diagnosis.align, diagnosis.gains)
        ranking = race.ranking()
        if not ranking:
            raise UserError(
                f"advise: got no method with a finite score ({_failures(race)}), expected at least one. Lower "
                "training.optimiser.learning_rate, and start again."
            )
        choice = ranking[0]
        chosen = {m: race.best_of(m) for m in (SHARED, ALONE, choice.method, POOLED)}
        proved = {m: c for m, c in chosen.items() if c is not None}
        # chosen on validation rows, as the winner is: only the proof reads test rows
        losers = _losers(project, name, proved, seed)
        proof_began = time.perf_counter()
        costs = [race.legs[candidate.name].seconds for candidate in proved.values()]
        # before the plan, since the number of runs at once decides how many seeds fit into the time that is left
        processes.start_for(SEEDS.start * len(costs), statistics.fmean(costs), race.pace.round if race.pace else 0.0)
        left = race.left(budget)
        methods, seeds, excludes = plan_proof(folder / PROOF, race, proved, seed, left, bool(losers), processes.at_once)
        settings = {m: proved[m].settings for m in methods}
        plan = Plan(methods, seeds, SHARED if SHARED in methods else choice.method, 0, project.silos.version)
        projects = {m: project.with_overrides(lines) for m, lines in settings.items()}
        progress.current().restart()
        progress.current().say(f"proof on {len(seeds)} fresh seeds and test rows: {', '.join(methods)}")
        if excludes:
            lose = "loses" if len(losers) == 1 else "lose"
            progress.current().say(
                f"{SHARED} is also trained without {some(losers, 3)}, which {lose} by it on validation rows"
            )
        failed: list[FailedRun] = []
        apart = _trials_without(projects[SHARED], losers, seeds) if excludes else []
        results, outcomes_apart = run_all(processes, plan, projects, {}, 0, failed, apart)
    without = [outcome for outcome in outcomes_apart if not isinstance(outcome, str)]
    is_measured = bool(apart) and len(without) == len(apart)
    comparison = conclude(project, name, plan, [(projects, results)], failed, [], flow_run, raced=True)
    # only seeds that every method finished, since differences are paired by seed
    whole = [s for s in seeds if all((m, s) in results for m in methods)]
    outcomes = {m: [outcomes_of_run(project, project.root / results[m, s]["folder"]) for s in whole] for m in methods}
    comparable = without if is_measured and whole == seeds else []
    smaller = [outcomes_of_run(project, project.root / result["folder"]) for result in comparable]
    proof = measure(project, choice.method, outcomes, losers, smaller) if whole else Proof({})
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
            {method: _cost(projects[method], [results[method, s] for s in whole]) for method in methods if whole},
        ),
        "comparison": comparison,
    }
    if losers and not is_measured:
        why = "since a run of it failed" if excludes else "for lack of time; start again with more --minutes"
        are, them = ("is", "it") if len(losers) == 1 else ("are", "them")
        advice["lines"].append(
            f"{some(losers, 3)} {are} worse off with FedAvg than alone, by validation rows; whether FedAvg without {them} "
            f"is better was not measured {why}."
        )
    keep_advice(folder, advice)
    prefect_artifacts.show_markdown("advice", "\n\n".join(described(advice)))
    for line in described(advice):
        prefect_artifacts.log_artifact(line)
    return advice


def keep_advice(folder: Path, advice: Advice) -> None:
    """Write the advice, which --resume then returns; IncompleteError if a run of its proof failed: it is proved again."""
    if advice["comparison"]["failed"]:
        raise IncompleteError(f"the proof of {folder.name} is {not_complete(advice['comparison'])}", dict(advice))
    write_json(folder / ADVICE, advice)


def _cost(project: Project, runs: Sequence[RunResult]) -> Cost:
    """Return what a run of a method costs, from the results of its runs, one a seed."""
    silos = len(project.silos.federated().clients)
    stores = [project.store.private(project.root / run["folder"]) for run in runs]
    return Cost(
        statistics.fmean(run["bytes"]["up"] for run in runs) / silos,
        statistics.fmean(run["bytes"]["down"] for run in runs) / silos,
        statistics.fmean(run["seconds"]["total"] for run in runs),
        any(section != OUTCOMES for store in stores for section in store.sections()),
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
        progress.current().say("diagnoses the silos, since there is no diagnosis of these data yet")
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


def _race(
    project: Project,
    processes: TrialProcesses,
    seed: int,
    began: float,
    budget: float,
    methods: Sequence[str],
    align: Sequence[str],
    gains: Mapping[str, float],
) -> Race:
    """Race the candidates, or continue the race that was stopped.

    `began` is when the command began, and `budget` its seconds. `gains` orders the candidates, and `align` is features.
    """
    name, quantity, sink = processes.experiment, project.quantity, progress.current()
    file = project.store.runs / name / RACE
    saved = read_json(file)
    if saved is not None:
        race = Race.from_json(saved)
        race.forget(lambda candidate: _run_folder(project, name, candidate, seed).path.is_dir())
    else:
        ordered = in_order(candidates(project, seed, methods, align), gains, (SHARED, ALONE))
        race = Race(rungs_of(project.params.training.rounds), ordered, before=time.perf_counter() - began)
    race.minutes = budget / 60
    silos = project.scored.federated()

    def train_all(waiting: Iterator[Candidate], rounds: int) -> Iterator[Trained]:
        """Train candidates up to a round, several at once if the budget is worth their start."""
        training: dict[tuple[str, str], Candidate] = {}

        def trials() -> Iterator[Trial]:
            for candidate in waiting:
                cell = trial_name(candidate.index)
                training[candidate.method, cell] = candidate
                yield Trial(project.with_overrides(candidate.settings), candidate.method, seed, cell, rounds)

        last = time.perf_counter()
        with _quiet():
            for trial, outcome, seconds in processes.run(trials()):
                candidate, now = training[trial.method, trial.cell], time.perf_counter()
                if isinstance(outcome, str):
                    leg = Leg(rounds, None, seconds, outcome)
                else:
                    folder, known = _run_folder(project, name, candidate, seed), race.legs.get(candidate.name)
                    leg = _leg(folder, rounds, seconds, known, quantity)
                # the clock since the last end: legs that train at once share its seconds, and are not counted twice
                yield Trained(candidate, leg, now - last)
                last = now

    def compare(first: Candidate, second: Candidate, level: float) -> Difference | None:
        own, others = ([_outcomes(project, name, c, seed)] for c in (first, second))
        return compare_pairs(PlainRunner(), silos, own, others, quantity, split="validation", level=level)

    shown = [race.rung]
    legs, count, seconds, before = 0, 0, 0.0, 0.0

    def save(race: Race) -> None:
        nonlocal legs
        write_json(file, race.as_json())
        legs += 1
        pace = max(race.seconds - before, 1e-9) / legs
        sink.plan(1, legs + min(count - legs, math.ceil(max(seconds - race.seconds, 0.0) / pace)))
        ranking = race.ranking()
        leader = f"{ranking[0].method} leads" if ranking else None
        sink.round(_RUN, legs, leader)
        if race.rung > shown[0]:
            shown[0] = race.rung
            sink.say(race_line(race, quantity))

    if race.rung < len(race.rungs):
        _plan_race(project, processes, seed, race, train_all, budget)
        time_of = partial(race_seconds, budget=budget - race.before, at_once=processes.at_once)
        seconds = time_of(race)
        before = race.seconds
        # about a third of the candidates remain at each rung; `save` corrects this estimate by the pace
        count = len(race.alive) + math.ceil(len(race.alive) / 3) + math.ceil(len(race.alive) / 9) + len(race.rungs)
        sink.plan(1, count)
        sink.begin(_RUN, 0, count, "step")
        sink.say(
            f"{len(race.alive)} settings of {len({c.method for c in race.alive})} methods race for up to "
            f"{duration(seconds)} on validation rows of seed {seed}"
        )
        run_race(race, time_of, (SHARED, ALONE, POOLED), train_all, compare, quantity.gain, save, processes.at_once)
    return race


def _leg(folder: RunFolder, rounds: int, seconds: float, known: Leg | None, quantity: TaskMetrics) -> Leg:
    """Return the leg after a known one; its seconds include rounds that were trained before a stop."""
    record: ValidationRecord = read_json(folder.validation)
    since = known.rounds if known else 0
    trained = sum(each["seconds"]["round"] for each in folder.rounds(record["round"]) if each["round"] > since)
    return Leg(rounds, validation_score(record["metrics"], quantity), max(seconds, trained))


def _losers(project: Project, name: str, proved: Mapping[str, Candidate], seed: int) -> list[str]:
    """Return the silos that validation rows of the race show to lose by FedAvg.

    Empty if FedAvg or training alone has no run, or if the silos cannot leave, as one that joins later.
    """
    if not {SHARED, ALONE} <= {*proved}:
        return []
    shared, alone = (_outcomes(project, name, proved[m], seed) for m in (SHARED, ALONE))
    losers = losing_silos(project, shared, alone)
    return losers if losers and can_leave(project, losers, seed) else []


def _trials_without(project: Project, silos: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
    """Return the runs of FedAvg without some silos, one a seed."""
    smaller = project.with_overrides([leave_setting(project.params.clients.leave, silos)])
    return [Trial(smaller, SHARED, seed, _WITHOUT) for seed in seeds]


def _plan_race(
    project: Project, processes: TrialProcesses, seed: int, race: Race, train: TrainAll, budget: float
) -> None:
    """Find the race's pace, and start processes if several runs can train at once.

    The first candidate trains to the first rung, if it has not, since its time says how long a run takes.

    Raises:
        UserError: If the budget does not suffice for the shortest advice. A resumed race has been checked before.
    """
    left, is_known = budget - race.before, race.pace is not None
    pace = race.pace or _measure_pace(project, processes, seed, race, train)
    if pace is None:
        return
    processes.start_for(len(race.alive), left / max(len(race.alive), 1), pace.round)
    if not is_known:
        first = next(candidate for candidate in race.alive if candidate.name in race.legs)
        check_minutes(budget, race.before, race.legs[first.name], pace, first.method, processes.at_once)
    race.pace = pace


def _time_rounds(project: Project, processes: TrialProcesses, seed: int, budget: float) -> None:
    """Train FedAvg for a few rounds of the race, in which it starts first.

    Raises:
        UserError: If these show that the budget cannot suffice.
    """
    first = candidates(project, seed, [SHARED])[0]
    last = project.params.training.rounds
    rounds = min(_TIMED, rungs_of(last)[0])
    progress.current().say(f"times {rounds} round{'' if rounds == 1 else 's'} of {SHARED}")
    with _quiet():
        trial = Trial(project.with_overrides(first.settings), first.method, seed, trial_name(first.index), rounds)
        (finished,) = processes.run([trial])
    if isinstance(finished.outcome, str):  # the race says why
        return
    leg = Leg(rounds, None, finished.seconds)
    pace = _pace(_run_folder(project, processes.experiment, first, seed), leg, last)
    processes.start_for(_SHORTEST, pace.run, pace.round)
    check_minutes(budget, 0.0, leg, pace, first.method, processes.at_once)


def _pace(folder: RunFolder, leg: Leg, last: int) -> Pace:
    """Estimate what a run to the last round takes, from the leg that has been trained."""
    a_round = statistics.median(record["seconds"]["round"] for record in folder.rounds(leg.rounds))
    return Pace(leg.seconds + a_round * (last - leg.rounds), a_round)


def _measure_pace(project: Project, processes: TrialProcesses, seed: int, race: Race, train: TrainAll) -> Pace | None:
    """Train the first candidate that can train to the first rung, and return what a run takes; None if none can."""
    processes.start_asked(len(race.alive))
    for candidate in [*race.alive]:
        if candidate.name not in race.legs:
            for trained in train(iter([candidate]), race.rungs[0]):
                race.add(trained)
            write_json(project.store.runs / processes.experiment / RACE, race.as_json())
        leg = race.legs[candidate.name]
        if leg.score is not None:
            return _pace(_run_folder(project, processes.experiment, candidate, seed), leg, race.rungs[-1])
    return None


def _run_folder(project: Project, name: str, candidate: Candidate, seed: int) -> RunFolder:
    return RunFolder(project.store.runs / name / run_name(candidate.method, seed, trial_name(candidate.index)))


def _outcomes(project: Project, name: str, candidate: Candidate, seed: int) -> Outcomes:
    """Return where the clients of a candidate's run store the outcomes of their validation rows."""
    folder = _run_folder(project, name, candidate, seed)
    return project.store.private(folder.path), read_json(folder.validation)["outcomes"]


def _failures(race: Race) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in list(race.dropped.items())[:3])


@contextmanager
def _quiet() -> Iterator[None]:
    """Show nothing of the run inside, except lines that are shown once."""
    outer = progress.current()
    progress.use(_OnlyNotes(outer))
    try:
        yield
    finally:
        progress.use(outer)


class _OnlyNotes(progress.ProgressSink):
    def __init__(self, outer: progress.ProgressSink) -> None:
        self._outer = outer

    def say_once(self, line: str) -> None:
        self._outer.say_once(line)
