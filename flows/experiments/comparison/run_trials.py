"""Runs the trials of a comparison: single runs, the settings that methods are tuned with, and ensembles of seeds.

Further partitions are drawn under further data seeds, as a published comparison needs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from flows.core.console import progress
from flows.core.console.safe_text import duration
from flows.core.search_space import Grid, as_yaml
from flows.experiments.comparison.trial_processes import Outcome, Trial, TrialProcesses
from flows.experiments.comparison.tuner import Score, TunerResult, grid_of, tune_method, validation_score
from flows.methods.base import Method, find_method, start_method
from flows.methods.client_sampler import validation_rows
from flows.methods.method_settings import method_of
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.project.project import Project
from flows.project.project_workers import project_workers
from flows.training.evaluation import Scorer
from flows.training.fit_standardizer import scaling_of
from flows.training.privacy_budget import check_budgets
from flows.training.run_records.run_folder import RunFolder, run_name
from flows.training.training_setup import training_setup
from models.client_model import Model
from silos.data_params import Column, DataParams, assignment_at
from silos.errors import UserError
from silos.privacy.owner_file import policy_file, policy_of_run
from silos.sources.source_params import OwnSource, Synthetic
from silos.sources.source_registry import load_source
from tasks.evaluate import ensemble_check
from tasks.execution.prefect_runner import PrefectRunner
from tasks.execution.task_runner import Runner
from tasks.tracking.checkpoint import load_state
from tasks.tracking.result_types.comparison_result import PairedDifference
from tasks.tracking.result_types.run_result import RunResult

PUBLISHED = 5
"""The seeds, and the partitions where they can be drawn, of a comparison that names a winner under --publish."""


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison: every method with every seed, on the rows of one data version and of more partitions."""

    methods: list[str]
    seeds: list[int]
    reference: str
    tune: int
    data_version: str
    partitions: int = 1


def say_plan(project: Project, experiment: str, runs: Sequence[str]) -> None:
    """Show the number of runs and of finished ones on the screen; each run may take all rounds of params.yaml."""
    rounds = project.params.training.rounds
    done = len(runs) - len(unfinished(project, experiment, runs))
    progress.current().plan(len(runs), len(runs) * rounds, done, done * rounds)


def unfinished(project: Project, experiment: str, runs: Sequence[str]) -> list[str]:
    """Return the runs that must still be run or logged to MLflow; a resumed comparison has others already."""
    results = {run: RunFolder(project.store.runs / experiment / run).finished() for run in runs}
    return [run for run, result in results.items() if result is None or result["mlflow_run_id"] is None]


def trial_name(index: int) -> str:
    """Return the prefix that distinguishes the run of a setting from others of its method."""
    return f"setting{index}"


def partition_name(index: int) -> str:
    """Return the prefix that distinguishes the runs on another partition; empty for the first, which is in data/."""
    return f"partition{index}" if index else ""


def check_tuning(project: Project, methods: list[str], setup: TrainingSetup) -> None:
    """Raise a UserError if params tune methods that cannot be tuned, or not with all of their `tuned` options."""
    if not project.params.comparison.tune:
        return
    if not any(validation_rows(project.scored.federated()).values()):
        subset = "the clients that are scored (evaluation.clients)"
        raise UserError(
            "comparison.tune: got no validation rows in "
            f"{'the data' if project.scored is project.silos else subset}, expected some, since settings are "
            "scored on them. Set data.split.validation, for example to 0.15, and run `siloflow partition`."
        )
    for method in methods:
        _grid(project, method)
        tuned_by = find_method(method, project.params.registered).tuned
        for point in product(*(axis.values for axis in tuned_by.values())):
            _check_options(project, method, dict(zip(tuned_by, point, strict=True)), setup)


def first_setting(project: Project, method: str) -> list[str]:
    """Return the setting that a method is tried with first."""
    grid = _grid(project, method)
    return grid.settings(grid.points()[0])


def tuned_methods(
    project: Project, processes: TrialProcesses, plan: Plan
) -> tuple[dict[str, TunerResult], dict[str, Outcome]]:
    """Return every method's best settings on the first seed, and the result, or error, of its run with them.

    The screen shows the number of runs, and an estimate of the time once each method has run once.
    """
    settings, seeds, methods = plan.tune, plan.seeds, plan.methods
    grids = {method: _grid(project, method) for method in methods}
    tried = {method: len(grid.points()) for method, grid in grids.items()}
    runs = planned_runs(plan, tried)
    say_plan(project, processes.experiment, runs)
    up_to = "up to " * any(count < settings for count in tried.values())
    progress.say(
        f"tuning tries {up_to}{settings} settings for each of {len(methods)} methods on seed {seeds[0]} (and 2 more "
        f"beyond each edge at which the best is), then trains the best on the other seeds"
        f"{' and partitions' * (plan.partitions > 1)}: {len(runs)} runs or a few more"
    )

    outcomes: dict[tuple[str, int], Outcome] = {}

    def run_settings(trials: Sequence[tuple[str, int, list[str]]]) -> None:
        names = {trial_name(index): index for _, index, _ in trials}
        waiting = [
            Trial(project.with_overrides(lines), method, seeds[0], trial_name(index))
            for method, index, lines in trials
            if (method, index) not in outcomes
        ]
        outcomes.update({(f.trial.method, names[f.trial.cell]): f.ended for f in processes.run(waiting)})

    def scores(method: str, first: int, settings: Sequence[list[str]]) -> list[Score | None]:
        run_settings([(method, first + at, lines) for at, lines in enumerate(settings)])
        of_method = [outcomes[method, first + at] for at in range(len(settings))]
        return [None if isinstance(o, str) else validation_score(o["metrics"], project.quantity) for o in of_method]

    known = [(m, at, grid.settings(point)) for m, grid in grids.items() for at, point in enumerate(grid.points())]
    run_settings([setting for setting in known if setting[1] == 0])
    remaining = len(unfinished(project, processes.experiment, runs))  # once each method has run once
    if remaining:
        ended = [outcome for method in methods if not isinstance(outcome := outcomes[method, 0], str)]
        per_round = math.fsum(result["seconds"]["per_round"] for result in ended) / max(len(ended), 1)
        seconds = processes.seconds_for(remaining, _seconds_of_run(ended), per_round)
        progress.say(f"about {duration(seconds)} for the other {remaining} runs")
    run_settings(known)

    def beyond(method: str, count: int) -> None:
        runs.extend(run_name(method, seeds[0], trial_name(tried[method] + index)) for index in range(count))
        say_plan(project, processes.experiment, runs)

    chosen = {m: tune_method(m, grid, partial(scores, m), partial(beyond, m)) for m, grid in grids.items()}
    return chosen, {method: outcomes[method, best.at] for method, best in chosen.items()}


def planned_runs(plan: Plan, tried: Mapping[str, int] | None = None) -> list[str]:
    """Return the names of all runs that are known before any has run; `tried` counts the settings of a tuned method."""
    first, *others = plan.seeds
    drawn = [(seed, partition_name(index)) for index in range(1, plan.partitions) for seed in plan.seeds]
    later = [*((seed, "") for seed in others), *drawn]
    names = []
    for method in plan.methods:
        tuning = [(first, trial_name(index)) for index in range(tried[method])] if tried else [(first, "")]
        names += [run_name(method, *trial) for trial in (*tuning, *later)]
    return names


def check_comparison_budgets(project: Project, experiment: str, plan: Plan) -> None:
    """Say what the runs will cost the privacy budgets of silos; RefusalError, before any is trained, if that is too much.

    Methods with the same queries are counted once. Tuning may try more settings than are counted.
    """
    if project.params.training.privacy.epsilon is None:
        return
    tried = {method: len(_grid(project, method).points()) for method in plan.methods} if plan.tune else None
    paying = dict[str, str]()
    for method in plan.methods:
        pays_as = find_method(method, project.params.registered).pays_as
        if pays_as is not None:
            paying.setdefault(method if plan.tune else pays_as or method, method)
    only = replace(plan, methods=[*paying.values()])
    answers = 0
    for run in unfinished(project, experiment, planned_runs(only, tried)):
        checkpoint = load_state(RunFolder(project.store.runs / experiment / run).checkpoint)
        answers += project.params.training.rounds - (checkpoint.round if checkpoint else 0)
    with project_workers(project) as workers:
        runner, setup = PrefectRunner(workers, waits=True), training_setup(project, plan.seeds[0])
        folder = project.store.runs / experiment
        if cost := check_budgets(project, setup, runner, project.ledgers, answers, folder):
            progress.say(f"training.privacy: {cost}")


def _seconds_of_run(results: Sequence[RunResult | str]) -> float:
    """Return the mean seconds of a run; time around the rounds is the fastest run's, since the first run warms up."""
    finished = [(result["seconds"], result["rounds"]) for result in results if not isinstance(result, str)]
    rounds = [seconds["per_round"] * count for seconds, count in finished]
    overheads = [seconds["total"] - of_rounds for (seconds, _), of_rounds in zip(finished, rounds, strict=True)]
    return math.fsum(rounds) / max(len(rounds), 1) + min(overheads, default=0.0)


def _grid(project: Project, method_name: str) -> Grid:
    params = project.params
    method = find_method(method_name, project.params.registered)
    rate, options = params.training.optimiser.learning_rate, params.method.get(method_name, {})
    return grid_of(method_name, method, rate, params.comparison.tune, options)


def _check_options(project: Project, method: str, options: Mapping[str, object], setup: TrainingSetup) -> None:
    """Raise a UserError with the options if the method cannot be run with them."""
    params = project.params
    section = {**params.method, method: {**params.method.get(method, {}), **options}}
    try:
        start_method(method_of(params.model_copy(update={"method": section}), method), setup)
    except UserError as error:
        listed = ", ".join(f"{key} {as_yaml(value)}" for key, value in options.items())
        raise UserError(f"comparison.tune: {method} cannot run with {listed}, which tuning tries: {error}") from None


def ensemble(
    method: Method, members: Sequence[tuple[Project, int, RunFolder]], called: str = ""
) -> dict[str, float] | None:
    """Return means over the federated clients of what `ensemble_check` reports of their test rows.

    None for a regression, for fewer than two members, if a run's files are missing, or if no client has test rows.

    Args:
        method: The method of all members.
        members: Project, seed and folder of each run.
        called: The prefix of the names of its task runs.
    """
    project = members[0][0]
    if len(members) < 2 or project.quantity.task != "classification":
        return None
    with project_workers(project) as workers:
        return _score_ensemble(method, members, PrefectRunner(workers, called, waits=True))


def _score_ensemble(
    method: Method, members: Sequence[tuple[Project, int, RunFolder]], runner: Runner
) -> dict[str, float] | None:
    pairs = [_model(method, runner, *member) for member in members]
    models = [(pair[0], pair[1].private) for pair in pairs if pair is not None]
    if len(models) < len(pairs):
        return None
    scorer, round = _opened(method, runner, *members[0])
    silos, training = scorer.scored.federated(), round.setup.training
    messages = round.map_clients(ensemble_check, models[0][0], silos=silos, training=training, members=models)
    by_name: dict[str, list[float]] = {}
    for message in messages:
        for name, values in message.numbers.items():
            by_name.setdefault(name, []).extend(v for v in values.tolist() if math.isfinite(v))
    return {name: math.fsum(values) / len(values) for name, values in by_name.items() if values} or None


def _model(
    method: Method, runner: Runner, project: Project, seed: int, folder: RunFolder
) -> tuple[Model, RoundContext] | None:
    """Return the model of a finished run's clients, and a round context to run tasks in; None if files are missing."""
    result = folder.finished()
    if result is None:
        return None
    is_best = project.params.evaluation.report == "best"
    loaded = folder.load_best(result["rounds"], project.quantity) if is_best else None
    loaded = loaded or load_state(folder.checkpoint)  # without a best round the last one is reported
    if loaded is None or loaded.round != result["reported_round"]:
        return None
    scorer, round = _opened(method, runner, project, seed, folder, result["reported_round"])
    return scorer.model(loaded.state, round), round


def _opened(
    method: Method, runner: Runner, project: Project, seed: int, folder: RunFolder, number: int = 0
) -> tuple[Scorer, RoundContext]:
    """Return the scorer of a finished run, and a round context to run its tasks in."""
    scaling = scaling_of(project.params, folder)
    setup = training_setup(project, seed, scaling)
    round = RoundContext(number, setup, setup.silos.clients, (), runner, project.store.private(folder.path))
    return Scorer.of(project, method, scaling), round


def can_draw(data: DataParams) -> bool:
    """Return whether another data seed makes other silos of the same source."""
    if isinstance(data.source, Synthetic | OwnSource):
        return True
    return not isinstance(data.scheme[assignment_at(data.scheme)], Column)


def check_partitions(project: Project) -> None:
    """Raise a UserError if params ask for several partitions of natural silos, or silos may not report in each of them."""
    partitions, data = project.params.comparison.partitions, project.params.data
    if partitions > 1 and not can_draw(data):
        raise UserError(
            f"comparison.partitions: got {partitions}, expected 1, since a column of the source names the silos of "
            f"data/{data.name}, and no seed draws others. To compare for other silos like these, set comparison.over to "
            "silos."
        )
    scaled = next((key for key in ("inputs", "targets") if getattr(project.params.model, key) == "standardise"), None)
    if partitions > 1 and scaled:
        folder = Path(project.ledgers.folder)
        if not all(policy_of_run(folder, silo).other_silos for silo in project.silos.clients):
            raise UserError(
                f"comparison.partitions: got {partitions} with model.{scaled}: standardise, expected 1, since each "
                "partition would report mean and scale of the same rows in other silos. "
                f"Set model.{scaled} to none (clients.align scales each silo by its own rows), or let the owner set "
                f"other_silos: true in {policy_file(folder)}."
            )


def draw_partitions(project: Project, count: int) -> list[Project]:
    """Return the project, and one for each further data seed; every partition is made once, in the cache of partitions.

    Raises:
        UserError: If a partition cannot be made, or equals the one before it.
    """
    projects = [project]
    for index in range(1, count):
        seed = project.params.data.seed + index
        progress.say(f"partition {index + 1} of {count}: data seed {seed}")
        drawn = project.derive([*project.overrides, f"data.seed={seed}"], derived=True)
        before, rows = (one.silos.manifest.clients for one in (projects[-1], drawn))
        if before.names == rows.names and before.digest.tobytes() == rows.digest.tobytes():
            raise UserError(
                f"comparison.partitions: got the same silos with data seeds {seed - 1} and {seed}, expected different ones. "
                "Set comparison.partitions to 1, or use a scheme that draws silos at random."
            )
        projects.append(drawn)
    return projects


def shared_test_rows(project: Project) -> float:
    """Return the share of a partition's test rows that another partition tests on too.

    It is 1 if the source marks its test rows, and 0 if the data seed draws the source itself. Otherwise it is the share
    of the source's rows that are tested.
    """
    data, silos = project.params.data, project.silos
    if isinstance(data.source, Synthetic):
        return 0.0
    rows = load_source(data.source, project.root, data.seed, data.features)
    if rows.split is not None and (rows.split == "test").any():
        return 1.0
    tested = silos.common("test") or int(silos.rows_array("test").sum())
    return min(tested / len(rows.y), 1.0)


def missing_for_publication(project: Project, plan: Plan, paired: Sequence[PairedDifference]) -> list[str]:
    """Return what a comparison under --publish lacks, as `5 seeds (got 3)`; empty without --publish."""
    if not project.params.comparison.publish:
        return []
    seeds = min((len(pair["seeds"]) for pair in paired), default=len(plan.seeds))
    lacking = [f"{PUBLISHED} seeds (got {seeds})"] if seeds < PUBLISHED else []
    if can_draw(project.params.data) and plan.partitions < PUBLISHED:
        lacking.append(f"{PUBLISHED} partitions (got {plan.partitions})")
    return lacking if plan.tune else [*lacking, "--tune"]
