"""Computes the fingerprint that a run is resumed by, and checks the names that users give to sets of runs."""

from flows.methods.base import Method
from flows.methods.method_settings import method_of
from flows.methods.round_context import TrainingSetup
from flows.project.project import Project
from flows.project.run_sets import NOT_OF_RUN, UNNAMED
from flows.training.run_records.run_folder import RunFolder, run_name
from flows.training.training_setup import training_setup
from models.training.engine_and_stack_size import even_stack_size
from silos.errors import UserError
from silos.param_types import plain
from tasks.tracking.result_types.run_files import Fingerprint


def fingerprint_of(project: Project, setup: TrainingSetup, method: Method, method_name: str) -> Fingerprint:
    """Return the fingerprint as plain JSON.

    A key of params.yaml is part of it if it can change the weights, or a metric in the journal. Other keys may change
    when a run is resumed: where tasks run, what is tracked, which figures are drawn, which callbacks and plugin files
    are named. A plugin's registration is part of it where it is used, by name and options, for example as `model.kind`.
    So is the engine's form, since each form rounds differently.
    """
    params = project.params.model_dump(mode="json", exclude={*NOT_OF_RUN, "method", "engine"})
    if not setup.aggregation.is_robust:  # the default is what earlier versions did
        del params["aggregation"]
    if setup.training.privacy is None:
        del params["training"]["privacy"]
    del params["clients"]["least"]  # who was there is in the journal
    if project.params.clients.align.kind == "none":
        del params["clients"]["align"]
    start_hashes = {single.network.starts_from for single in setup.network.single_networks} - {""}
    if start_hashes:
        params["model"]["pretrained"] = f"sha256:{start_hashes.pop()}"  # independent of the file's path
    stack = even_stack_size(len(setup.silos.clients), setup.stack)
    engine = {"kind": setup.training.engine, "stack": stack, "device": setup.device}
    return {
        "method": method_name,
        "seed": setup.seed,
        "data_version": project.silos.version,
        "params": {**params, "method": method.model_dump(mode="json"), "engine": engine},
    }


def check_resume(project: Project, method: str, seed: int, experiment: str | None, cell: str = "") -> None:
    """Raise a UserError if the run to resume was started with another fingerprint."""
    if experiment is not None:
        folder = RunFolder(project.store.runs / experiment / run_name(method, seed, cell))
        fingerprint = fingerprint_of(project, training_setup(project, seed), method_of(project.params, method), method)
        folder.check(fingerprint, project.data.same_rows)


_RESERVED = {
    "artifacts",
    "hashes.json",
    "locks",
    "look",
    "mlflow-ui.log",
    "mlflow.db",
    "mlflow.json",
    "open",
    "registry",
    "services",
}


def unused_name(project: Project, name: str) -> str:
    """Return the name of a new set of runs: a folder in runs/, and a run in MLflow.

    Raises:
        UserError: If the name is not plain, is reserved, or is in use.
    """
    plain(name, "--name")
    if name in _RESERVED or UNNAMED.fullmatch(name):
        raise UserError(f"--name: got {name}, a name that siloflow generates, expected another. Choose one.")
    if (project.store.runs / name).exists():
        raise UserError(
            f"--name: got {name}, which exists in runs/, expected a new name. Add --resume to "
            "continue it, or choose another."
        )
    return name
