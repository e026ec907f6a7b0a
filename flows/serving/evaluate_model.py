"""Scores the champion, or the model of a run, on the test rows that are in data/ now, client by client."""

from typing import Any

from flows.experiment.evaluation import other_metrics
from flows.experiment.project import Project
from flows.experiment.run.load_finished_run import check_same_data, find_run, score_on_present_rows
from flows.experiment.run.round_record import metrics_of
from flows.registry.model_finder import ModelFinder
from models.metrics.client_metrics import metric_record
from silos.errors import UserError
from tasks.tracking.mlflow_logging.registry import CHAMPION
from tasks.tracking.result_tables import by_client

_TEST = "test/"


def evaluate_model(project: Project, model: str) -> dict[str, Any]:
    """Return a model's test metrics on the present data version, and those of each client, as plain JSON.

    They are computed as at the end of a run, from the run's folder, so private weights stay with their clients.

    Args:
        project: The project.
        model: `champion`, or the run's folder or name.

    Raises:
        UserError: If there is no such model, or if it cannot be scored on the present rows.
    """
    version = None
    if model == CHAMPION:
        version = ModelFinder(project).champion()
        model = version.tags.get("run") or ""
        if not model:
            raise UserError(
                f"champion: got version {version.number} without the tag `run`, expected one that siloflow registered. Name "
                "a run."
            )
    with project.working("evaluate"):
        folder = find_run(project, model).path
        run, scores = score_on_present_rows(project, folder, final=True)
        quantity, silos = run.project.quantity, run.project.scored
        others = other_metrics(quantity)
        table = by_client(scores, quantity.with_metrics((), others))
        return {
            "run": str(folder.relative_to(project.root)),
            "version": version and version.number,
            "method": run.method,
            "seed": run.seed,
            "round": run.round,
            "data_version": project.silos.version,
            "trained_on": check_same_data(project, folder)["data_version"],
            **metric_record(quantity),
            "metrics": metrics_of(table, silos, quantity, others),
            "clients": [
                {
                    "client": client,
                    "role": silos.role(client),
                    **{name.removeprefix(_TEST): value for name, value in table[client].items()},
                }
                for client in silos.clients
                if client in table
            ],
        }
