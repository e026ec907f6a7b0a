"""The runs of a method with several seeds as one deep ensemble: how unsure they are together, and how rightly."""

import math
from collections.abc import Sequence

from flows.experiment.evaluation import scored_model
from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder
from flows.experiment.standardization.fit_standardizer import scaled_as
from flows.methods.base import Method
from flows.methods.context import RoundContext
from models.client_model import Model
from silos.client_store import ClientStore
from tasks.evaluation.evaluate import ensemble_check
from tasks.execution.task_runner import PrefectRunner, Runner
from tasks.tracking.checkpoint import load_state


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
