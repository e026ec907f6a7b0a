"""Scores the model of a finished run on the test rows that are in data/ now."""

from pathlib import Path
from typing import Any

from flows.config.method_settings import method_of
from flows.experiment.evaluation import score_model, select_scored_clients
from flows.experiment.project import Project, is_of_other_partition
from flows.experiment.run.load_finished_run import FinishedRun, finished_run
from flows.methods.context import RoundContext
from models.server_state import ClientStateRefs
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner
from tasks.messages.score_messages import Scores
from tasks.tracking.json_io import RESTORE_ADVICE, read_json


def check_same_data(project: Project, folder: Path) -> dict[str, Any]:
    """Return a run's saved fingerprint; UserError if it was trained on other data than those that params.yaml names."""
    saved: dict[str, Any] | None = read_json(folder / "run.json", RESTORE_ADVICE, ("params", "data_version"))
    if saved is None:
        raise UserError(f"{folder} is missing. Restore it from a copy.")
    name, now = saved["params"]["data"]["name"], project.params.data.name
    if name != now:
        raise UserError(f"{folder.name} was trained on {name}, and data.name is {now}. Name a run on {now}.")
    return saved


def score_on_present_rows(project: Project, folder: Path, final: bool = False) -> tuple[FinishedRun, list[Scores]]:
    """Return a run, and what its clients report of its model on their present test rows.

    Args:
        project: The project.
        folder: The run's folder.
        final: Compute all metrics of the task, as at the end of a run.

    Raises:
        UserError: If the run is not finished, if its training rows may be test rows now, or if its models are private
            and were trained on other rows.
    """
    saved = check_same_data(project, folder)
    if is_of_other_partition(project, folder, saved["data_version"]):
        raise UserError(
            f"{folder.name}: got a run on another partition, expected one on data/, since its training rows may be test "
            "rows of data/. Name another run."
        )
    is_same = project.same_rows(saved["data_version"], project.silos.version)
    run = finished_run(project, str(folder.relative_to(project.root)), on_present_data=not is_same)
    if not is_same and isinstance(run.model.personal, ClientStateRefs):
        raise UserError(
            f"{folder.name} has a model for each client, which was trained on other rows. Run `siloflow data use "
            f"{saved['data_version'][:10]}` to restore these."
        )
    setup = run.project.training_setup(run.seed)
    round = RoundContext(run.round, setup, setup.silos.clients, (), PlainRunner(), run.private)
    model = select_scored_clients(run.project, method_of(run.project.params, run.method), run.model)
    return run, score_model(run.project, model, round, keep_outcomes=not final, final=final, splits=("test",))
