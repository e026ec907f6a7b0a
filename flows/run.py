"""Defines the flow `run`: one method, one seed, one data version."""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.core.console import progress
from flows.core.console.process_control import interruption
from flows.methods.base import Method
from flows.methods.method_settings import method_of
from flows.orchestration.flow_decorator import MethodName, Seed, Text, from_overrides, project_flow
from flows.project.project import Project
from flows.project.project_workers import project_workers
from flows.project.run_sets import begun_before, new_experiment, newest_experiment
from flows.training.callbacks.callback import user_callbacks
from flows.training.privacy_budget import check_budgets
from flows.training.run_context import open_run
from flows.training.run_records.fingerprint import fingerprint_of
from flows.training.run_records.run_folder import RunFolder, run_name
from flows.training.trainer import Trainer, default_callbacks
from flows.training.training_setup import training_setup
from silos.errors import DivergedError, MethodError, UserError
from silos.io.locks import exclusive_lock
from silos.param_types import plain
from tasks.execution.prefect_failure import api_answers, is_prefect_failure
from tasks.execution.prefect_runner import PrefectRunner
from tasks.tracking.json_io import unwritable
from tasks.tracking.result_types.run_files import Noted
from tasks.tracking.result_types.run_result import RunResult


@project_flow(run_name="run {method}-seed{seed}")
def run(
    method: MethodName,
    seed: Seed = 0,
    project: Project = from_overrides(),
    resume: bool = False,
    experiment: Text = "",
    cell: str = "",
    derived: bool = False,
    until: int = 0,
) -> RunResult | None:
    """Run a method once; return the result as plain JSON, None after a pause.

    Args:
        method: The method that trains.
        seed: The seed of training; the partition has its own in params.yaml.
        overrides: Values that replace those of params.yaml, each as section.key=value, for example training.rounds=20.
        resume: Continue the newest unfinished such run after its last complete round, or return the newest one.
        experiment: The folder in runs/ that the run is put into; a new one if none is named.
        cell: A prefix of the run's name, if that folder has several runs of the method with the seed.
        derived: Take the partition that params describe from the cache of partitions, instead of data/.
        until: Pause after this round; `resume` continues. 0 plays all rounds.
    """
    method_settings = method_of(project.params, method)
    name = run_name(method, seed, cell)
    if experiment:
        plain(experiment, "the experiment")
    with project.data.working(name):
        # inside a comparison the outer flow is the one that Prefect retries, and it passes `resume`
        alone = not experiment
        retried = begun_before(project, "run") if alone else None
        if retried is not None:
            experiment, resume = retried, True
        if not experiment and resume:
            experiment = newest_experiment(project, "run", inside=name)
        if not experiment:
            info = {"methods": [method], "seeds": [seed], "data_version": project.silos.version}
            experiment = new_experiment(project, "run", info)
        folder = RunFolder(project.store.runs / experiment / name)
        return _run_in_folder(project, method_settings, method, seed, folder, resume, until, alone)


def probe(project: Project, method: str, seed: int) -> RunResult:
    """Run a method inside another flow, in a project whose scratch folder stores what the run leaves."""
    folder = RunFolder(project.store.runs / new_experiment(project, "run", {}) / run_name(method, seed))
    result = _run_in_folder(project, method_of(project.params, method), method, seed, folder, resume=False)
    assert result is not None, "it does not pause"
    return result


def _run_in_folder(
    project: Project,
    method: Method,
    method_name: str,
    seed: int,
    folder: RunFolder,
    resume: bool,
    until: int = 0,
    alone: bool = False,
) -> RunResult | None:
    """Play the run in its folder; return the result on disk if it is complete and logged to MLflow.

    A run that is `alone` checks the silos' privacy budgets; a comparison has checked those of all its runs.

    A run that may pause also lets clients store the outcomes of their validation rows, at the pause and at the end.
    """
    lock = project.data.working(f"{folder.path.parent.name}/{folder.name}")
    with lock, exclusive_lock(folder.path), project_workers(project) as workers:
        began, setup = time.perf_counter(), training_setup(project, seed)
        fingerprint, noted = fingerprint_of(project, setup, method, method_name), Noted(plugins=project.params.plugins)
        identity = folder.identify(fingerprint, resume, project.data.same_rows, noted)
        result = folder.finished()
        if result is not None and result["mlflow_run_id"] is not None:
            return result
        runner = PrefectRunner(workers, waits=True)
        run = open_run(project, method, setup, identity, folder, runner, began)
        if alone and method.pays_as is not None:
            answers = project.params.training.rounds - run.number
            if cost := check_budgets(project, setup, runner, project.ledgers, answers, folder.path.parent):
                progress.say(f"training.privacy: {cost}")
        extra = user_callbacks(project.params.callbacks)
        return Trainer(run, default_callbacks(project.params.evaluation, extra, bool(until))).fit(until)


def run_trial(
    project: Project, method: str, seed: int, experiment: str, cell: str = "", until: int = 0
) -> RunResult | str | None:
    """Return a run's result, or the reason why it failed; an error that other runs would also meet is raised.

    The result is None if the run paused after the round `until`. A run that Prefect's server failed, but that still
    answers, is continued once.

    Prefect's page shows the project's overrides as the run's parameters; the run gets the project itself.
    """
    for is_last in (False, True):
        try:
            with _no_heartbeat():
                place = {"experiment": experiment, "cell": cell, "derived": project.derived}
                return run.on(project, method=method, seed=seed, resume=True, **place, until=until)
        except Exception as error:
            stop = interruption(error)
            if not is_last and stop is None and is_prefect_failure(error) and api_answers():
                continue
            if unwritable(error) or (
                isinstance(error, UserError) and not isinstance(error, MethodError | DivergedError)
            ):
                raise
            if stop is not None:
                raise stop from None
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            progress.current().fail(run_name(method, seed, cell), reason)
            return reason
    raise AssertionError("the second attempt returns or raises")


def _no_heartbeat() -> AbstractContextManager[Any]:
    """Run flows without a heartbeat of their own; that of the outer flow shows that the process lives.

    Joining a thread for each run would take a second, and to change settings takes tenths.
    """
    if PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() is None:
        return nullcontext()
    return temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
