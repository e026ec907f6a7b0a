"""A name that a person gives to a set of runs: its folder in runs/, and its experiment in MLflow."""

from flows.experiment.project import UNNAMED, Project
from silos.errors import UserError
from silos.safe_names import plain
from tasks.tracking.address_masking import masked

_OURS = {
    "Default",
    "artifacts",
    "diagnoses",
    "hashes.json",
    "locks",
    "look",
    "mlflow-ui.log",
    "mlflow.db",
    "single-runs",
}


def unused_name(project: Project, name: str) -> str:
    """The name; UserError if it is no plain one, or another's, here or in an MLflow that answers."""
    plain(name, "--name")
    if name in _OURS or UNNAMED.fullmatch(name):
        raise UserError(f"--name {name} is a name that siloflow gives itself; choose another.")
    if (project.runs / name).exists():
        raise UserError(f"runs/{name} is there already; --resume goes on with it, or choose another --name.")
    from tasks.tracking.mlflow_logging.connection import experiment_id  # here, since it takes seconds

    if experiment_id(project.tracking, name):
        raise UserError(
            f"MLflow at {masked(project.tracking)} has an experiment {name} already, perhaps a deleted one; "
            "choose another --name."
        )
    return name
