"""The fingerprint of a run: a run is resumed only with the fingerprint that it was started with.

A name that a person gives to a set of runs: its folder in runs/, and its experiment in MLflow.
"""

from typing import Any

from flows.config.method_settings import method_of
from flows.experiment.project import UNNAMED, Project
from flows.experiment.run.run_folder import RunFolder, run_name
from flows.methods.base import Method
from flows.methods.context import TrainingSetup
from models.training.execution_plan import even_stack_size
from silos.errors import UserError
from silos.param_types import plain
from tasks.tracking.error_messages import mask_passwords


def fingerprint_of(project: Project, setup: TrainingSetup, method: Method, method_name: str) -> dict[str, Any]:
    """Return the fingerprint as plain JSON.

    The rule: a key of params.yaml is in the fingerprint if it can change the weights, or a metric in the journal. All else
    is left out, so that it may change when a run is resumed: where tasks run, what is tracked, which figures are drawn,
    which callbacks and plugin files are named. What a plugin registers is in it where it is used, by its name and options,
    for example as `model.kind`. The engine's form is in it, since each form rounds in its own way.
    """
    no_numbers = {"runner", "tracking", "comparison", "diagnose", "plugins", "figures", "callbacks", "method", "engine"}
    params = project.params.model_dump(mode="json", exclude=no_numbers)
    begins = {one.network.starts_from for one in setup.network.single_networks} - {""}
    if begins:
        params["model"]["pretrained"] = f"sha256:{begins.pop()}"  # wherever the file lies
    stack = even_stack_size(len(setup.silos.clients), setup.stack)
    engine = {"kind": setup.training.engine, "stack": stack, "device": project.device}
    return {
        "method": method_name,
        "seed": setup.seed,
        "data_version": project.silos.version,
        "params": {**params, "method": method.model_dump(mode="json"), "engine": engine},
    }


def check_resume(project: Project, method: str, seed: int, experiment: str | None, cell: str = "") -> None:
    """Raise a UserError if the run to resume was started with another fingerprint."""
    if experiment is not None:
        folder = RunFolder(project.runs / experiment / run_name(method, seed, cell))
        asked = fingerprint_of(project, project.training_setup(seed), method_of(project.params, method), method)
        folder.check(asked, project.same_rows)


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
            f"MLflow at {mask_passwords(project.tracking)} has an experiment {name} already, perhaps a deleted one; "
            "choose another --name."
        )
    return name
