"""What decides a run's numbers: a run goes on, and two runs are one, only where it is the same."""

from typing import Any

from flows.config.method_settings import method_of
from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder, run_name
from flows.methods.base import Method
from flows.methods.context import TrainingSetup
from models.training.engine_selection import even_stack_size


def fingerprint_of(project: Project, setup: TrainingSetup, method: Method, method_name: str) -> dict[str, Any]:
    """Plain JSON. Where a run is computed is not in it, but the engine's form is, which rounds in its own way."""
    elsewhere = {"runner", "tracking", "comparison", "diagnose", "method", "engine"}
    params = project.params.model_dump(mode="json", exclude=elsewhere)
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
    """UserError if `resume` would have to go on with other settings than the run was started with."""
    if experiment is not None:
        folder = RunFolder(project.runs / experiment / run_name(method, seed, cell))
        asked = fingerprint_of(
            project, project.training_setup(seed), method_of(project.params, method, project.root), method
        )
        folder.check(asked, project.same_rows)
