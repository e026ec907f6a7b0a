"""The flow `run`: one method, one seed, one data version."""

import time
from typing import Any

from flows.config.method_settings import method_of
from flows.config.override_policy import open_project
from flows.experiment.callbacks.callback import own_callbacks
from flows.experiment.project import Project, new_experiment, newest_experiment
from flows.experiment.run.run_context import open_run
from flows.experiment.run.run_folder import RunFolder, run_name
from flows.experiment.run_identity import fingerprint_of
from flows.experiment.trainer import Trainer, default_callbacks
from flows.flow_decorator import MethodName, Overrides, Seed, Text, project_flow
from flows.methods.base import Method
from silos.io.locks import exclusive_lock
from silos.param_types import plain
from tasks.execution.task_runner import PrefectRunner


@project_flow(run_name="run {method}-seed{seed}")
def run(
    method: MethodName,
    seed: Seed = 0,
    overrides: Overrides = (),
    resume: bool = False,
    experiment: Text = "",
    cell: str = "",
    derived: bool = False,
) -> dict[str, Any]:
    """One run of a method; answers with its result as plain JSON.

    Args:
        method: The method that trains.
        seed: Of training; the partition has its own in params.yaml.
        overrides: Values over those of params.yaml, each as section.key=value, for example training.rounds=20.
        resume: Go on after the last whole round of the newest such run.
        experiment: The folder in runs/ that the run is put into; a new one if none is named.
        cell: What the name of the run begins with, where that folder has several runs of the method with the seed.
        derived: Take the partition that params describe from the cache of partitions, instead of data/.
    """
    project = open_project(overrides, derived)
    page = method_of(project.params, method)
    name = run_name(method, seed, cell)
    if experiment:
        plain(experiment, "the experiment")
    with project.working(name):
        if not experiment and resume:
            experiment = newest_experiment(project, "run", inside=name)
        if not experiment:
            about = {"methods": [method], "seeds": [seed], "data_version": project.silos.version}
            experiment = new_experiment(project, "run", about)
        return _within(project, page, method, seed, RunFolder(project.runs / experiment / name), resume)


def probe(project: Project, method: str, seed: int) -> dict[str, Any]:
    """A run inside another flow, of a project that keeps in a scratch folder what it leaves."""
    folder = RunFolder(project.runs / new_experiment(project, "run", {}) / run_name(method, seed))
    return _within(project, method_of(project.params, method), method, seed, folder, resume=False)


def _within(
    project: Project, method: Method, method_name: str, seed: int, folder: RunFolder, resume: bool
) -> dict[str, Any]:
    """Play the run in its folder; the result on disk is returned if it is complete and delivered."""
    lock = project.working(f"{folder.path.parent.name}/{folder.name}")
    with lock, exclusive_lock(folder.path), project.workers() as workers:
        began, setup = time.perf_counter(), project.training_setup(seed)
        fingerprint, noted = fingerprint_of(project, setup, method, method_name), {"plugins": project.params.plugins}
        identity = folder.identify(fingerprint, resume, project.same_rows, noted)
        done = folder.finished()
        if done is not None and done["mlflow_run_id"] is not None:
            return done
        run = open_run(project, method, method_name, setup, identity, folder, PrefectRunner(workers), began)
        return Trainer(run, default_callbacks(project.params.evaluation, own_callbacks(project.params.callbacks))).fit()
