"""The runs of a comparison: one of them, whatever comes of it, and those that methods are tuned with.

What is to come of a set of runs: how many rounds, and which of them an earlier command made.

The runs of a method with several seeds as one deep ensemble: how unsure they are together, and how rightly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.config.method_settings import method_of
from flows.console import progress
from flows.console.interruption import interruption
from flows.console.safe_text import duration
from flows.experiment.comparison.search_space import Grid, as_yaml
from flows.experiment.comparison.tuner import Score, TunerResult, grid_of, tuned, validation_score
from flows.experiment.evaluation import scored_model
from flows.experiment.fit_standardizer import scaled_as
from flows.experiment.plugin_loader import MethodError
from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder, run_name
from flows.methods.base import Method, find_method, start_method
from flows.methods.context import RoundContext, TrainingSetup
from flows.methods.samplers.client_sampler import validation_rows
from flows.run import run
from models.client_model import Model
from silos.client_store import ClientStore
from silos.errors import DivergedError, UserError
from tasks.evaluate import ensemble_check
from tasks.execution.task_runner import PrefectRunner, Runner
from tasks.tracking.checkpoint import load_state
from tasks.tracking.json_io import unwritable


@dataclass(frozen=True)
class Plan:
    """What a comparison runs: every method with every seed, on the rows of one data version."""

    methods: list[str]
    seeds: list[int]
    reference: str
    tune: int
    data_version: str


def say_plan(project: Project, experiment: str, runs: Sequence[str]) -> None:
    """Tells the screen of all runs, by the names of their folders; each may take all rounds of params.yaml."""
    rounds = project.params.training.rounds
    done = len(runs) - len(unfinished(project, experiment, runs))
    progress.current().plan(len(runs), len(runs) * rounds, done, done * rounds)


def unfinished(project: Project, experiment: str, runs: Sequence[str]) -> list[str]:
    """Return the runs that are still to be made, or to be delivered to MLflow; a resumed comparison has others already."""
    results = {run: RunFolder(project.runs / experiment / run).finished() for run in runs}
    return [run for run, result in results.items() if result is None or result["mlflow_run_id"] is None]


def run_trial(project: Project, method: str, seed: int, experiment: str, cell: str = "") -> dict[str, Any] | str:
    """A run's result, or the reason why there is none; what would end other runs the same way is raised.

    Prefect's page shows the overrides of the project as the run's; the run has the project itself.
    """
    try:
        # the outer flow's heartbeat tells that the process lives; joining one for each run would cost a second each
        with project.shared(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            return run(method, seed, project.overrides, resume=True, experiment=experiment, cell=cell)
    except Exception as error:
        if unwritable(error) or (isinstance(error, UserError) and not isinstance(error, MethodError | DivergedError)):
            raise
        stop = interruption(error)
        if stop is not None:
            raise stop from None
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        progress.current().fail(run_name(method, seed, cell), reason)
        return reason


def trial_name(at: int) -> str:
    """What tells the run of a setting from the others of its method."""
    return f"setting{at}"


def check_tuning(project: Project, methods: list[str], setup: TrainingSetup) -> None:
    """UserError if params ask for tuned methods and these cannot be, or not with all that their pages name."""
    if not project.params.comparison.tune:
        return
    if not any(validation_rows(project.scored.federated()).values()):
        some = "the clients that are scored (evaluation.clients)"
        raise UserError(
            f"settings are chosen on validation rows, and {'the data' if project.scored is project.silos else some} have "
            "none; set data.split.validation, for example to 0.15, and run `siloflow partition`."
        )
    for method in methods:
        _grid(project, method)
        tuned_by = find_method(method, project.plugins).tuned
        for point in product(*(axis.values for axis in tuned_by.values())):
            _check_options(project, method, dict(zip(tuned_by, point, strict=True)), setup)


def first_setting(project: Project, method: str) -> list[str]:
    """What a method is tried with first."""
    grid = _grid(project, method)
    return grid.settings(grid.points()[0])


def tuned_methods(
    project: Project, name: str, wanted: Plan
) -> tuple[dict[str, TunerResult], dict[str, dict[str, Any] | str]]:
    """Every method's best settings on the first seed, and what came of its run with them.

    What is to come is said, and how long it takes once each has run once.
    """
    settings, seeds, methods = wanted.tune, wanted.seeds, wanted.methods
    grids = {method: _grid(project, method) for method in methods}
    runs = _runs(wanted)
    say_plan(project, name, runs)
    progress.current().say(
        f"{settings} settings for each of {len(methods)} methods on seed {seeds[0]} (and 2 beyond every edge at which the "
        f"best stands), then the best on the other seeds: {len(runs)} runs or some more"
    )

    @cache
    def result(method: str, at: int, lines: tuple[str, ...]) -> dict[str, Any] | str:
        return run_trial(project.with_overrides(lines), method, seeds[0], name, trial_name(at))

    def score(method: str, at: int, lines: tuple[str, ...]) -> Score | None:
        found = result(method, at, lines)
        return None if isinstance(found, str) else validation_score(found, project.quantity)

    first = [result(method, 0, tuple(grid.settings(grid.points()[0]))) for method, grid in grids.items()]
    left = len(unfinished(project, name, runs))  # once each method has run once
    if left:
        progress.current().say(f"about {duration(left * _seconds_of_run(first))} for the other {left}")

    def beyond(method: str, more: int) -> None:
        runs.extend(run_name(method, seeds[0], trial_name(settings + at)) for at in range(more))
        say_plan(project, name, runs)

    chosen = {m: tuned(m, grid, partial(score, m), partial(beyond, m)) for m, grid in grids.items()}
    return chosen, {method: result(method, best.at, tuple(best.settings)) for method, best in chosen.items()}


def _runs(wanted: Plan) -> list[str]:
    """The names of all that are known before anything has run."""
    first, *others = wanted.seeds
    return [
        run_name(method, *one)
        for method in wanted.methods
        for one in [*((first, trial_name(at)) for at in range(wanted.tune)), *((seed, "") for seed in others)]
    ]


def _seconds_of_run(results: Sequence[dict[str, Any] | str]) -> float:
    """Mean over these; what is around the rounds is that of the fastest, since the first also warms up."""
    done = [(one["seconds"], one["rounds"]) for one in results if not isinstance(one, str)]
    rounds = [seconds["per_round"] * count for seconds, count in done]
    around = [seconds["total"] - of_rounds for (seconds, _), of_rounds in zip(done, rounds, strict=True)]
    return math.fsum(rounds) / max(len(rounds), 1) + min(around, default=0.0)


def _grid(project: Project, method_name: str) -> Grid:
    params = project.params
    method = find_method(method_name, project.plugins)
    rate, options = params.training.optimiser.learning_rate, params.method.get(method_name, {})
    return grid_of(method_name, method, rate, params.comparison.tune, options)


def _check_options(project: Project, method: str, options: dict[str, Any], setup: TrainingSetup) -> None:
    """UserError naming what the method is tuned by, if it cannot be run with it."""
    params = project.params
    section = {**params.method, method: {**params.method.get(method, {}), **options}}
    try:
        start_method(method_of(params.model_copy(update={"method": section}), method), setup)
    except UserError as error:
        said = ", ".join(f"{key} {as_yaml(value)}" for key, value in options.items())
        raise UserError(f"{method} is tuned by {said}, with which it cannot be run: {error}") from None


def ensemble(
    method: Method, members: Sequence[tuple[Project, int, RunFolder]], called: str = ""
) -> dict[str, float] | None:
    """Means over the federated clients of what ensemble_check says of their test rows; page: the method of all members.

    `called`: what the names of its task runs begin with.

    None of a regression, of fewer than two members, where a run's files are not here, and where no client has test rows.
    """
    project = members[0][0]
    if len(members) < 2 or project.quantity.outcome != "correct":
        return None
    with project.workers() as workers:
        return _together(method, members, PrefectRunner(workers, called))


def _together(
    method: Method, members: Sequence[tuple[Project, int, RunFolder]], runner: Runner
) -> dict[str, float] | None:
    pairs = [_model(method, runner, *member) for member in members]
    if None in pairs:
        return None
    models = [(model, round.private) for model, round in pairs if model is not None]  # type: ignore[misc]
    project, seed, folder = members[0]
    project = scaled_as(project, folder)
    round = _round(project, seed, folder, runner)
    silos = project.scored.federated()
    messages = round.map_clients(
        ensemble_check, models[0][0], silos=silos, training=round.setup.training, members=models
    )
    by_name: dict[str, list[float]] = {}
    for message in messages:
        for name, values in message.numbers.items():
            by_name.setdefault(name, []).extend(v for v in values.tolist() if math.isfinite(v))
    return {name: math.fsum(values) / len(values) for name, values in by_name.items() if values} or None


def _model(
    method: Method, runner: Runner, project: Project, seed: int, folder: RunFolder
) -> tuple[Model, RoundContext] | None:
    """What a finished run's clients would use, and a round in which they can be asked."""
    result = folder.finished()
    if result is None:
        return None
    best = project.params.evaluation.report == "best"
    loaded = folder.load_best(result["rounds"], project.quantity) if best else None
    loaded = loaded or load_state(folder.checkpoint)  # nobody could tell the best round, which the run has said
    if loaded is None or loaded.round != result["reported_round"]:
        return None
    project = scaled_as(project, folder)
    round = _round(project, seed, folder, runner, result["reported_round"])
    return scored_model(method, project.silos, loaded[0], round), round


def _round(project: Project, seed: int, folder: RunFolder, runner: Runner, number: int = 0) -> RoundContext:
    setup = project.training_setup(seed)
    private: ClientStore = project.private(folder.path)
    return RoundContext(number, setup, setup.silos.clients, (), runner, private, project.device)
