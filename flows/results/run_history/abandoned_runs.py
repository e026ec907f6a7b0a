"""Close in Prefect and MLflow the runs of processes that are gone.

A process that works on a flow run locks a file named by the run's id in `runs/open/`. The kernel releases the lock
however the process ends. An unlocked file belongs to a process that was killed, or was stopped before Prefect recorded
the end.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TERMINAL_STATES, FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.core.console import progress
from silos.errors import UserError
from silos.io.locks import is_copy, is_held, is_locked, workers
from tasks.tracking.json_io import read_json

if TYPE_CHECKING:
    from flows.project.project import Project

OPEN = Path("runs") / "open"
SCHEDULE = OPEN / "schedule"
"""The file that `siloflow schedule` locks while its deployment exists."""

_NOT_OVER = [kind for kind in StateType if kind not in TERMINAL_STATES]
_BEGUN = [kind for kind in _NOT_OVER if kind != StateType.SCHEDULED]
_MESSAGE = "The process that ran this run has ended."
_PAGE = 200  # runs, the most that Prefect returns at once


def close_abandoned(root: Path, project: "Project | None" = None) -> None:
    """Close the runs of processes that are gone, and report them: Crashed in Prefect, KILLED in MLflow.

    If Prefect or MLflow does not answer, the rest is left for the next command.

    Args:
        root: The project's folder.
        project: The project there; opened if needed.
    """
    abandoned = _abandoned_files(root)
    if not abandoned:
        return
    try:
        closed = close_in_prefect(root)
    except (HTTPError, ObjectNotFound):
        return
    killed, is_complete = _mark_killed(root, project)
    for path in abandoned if is_complete else []:
        path.unlink(missing_ok=True)
    if closed or killed:
        lists = ((closed, "Prefect"), (killed, "MLflow"))
        parts = [f"{', '.join(map(repr, names))} in {where}" for names, where in lists if names]
        progress.say(f"closed runs that a stopped command had left open: {'; '.join(parts)}")


def close_in_prefect(root: Path) -> list[str]:
    """Close the flow runs and task runs of processes that are gone; return the names of the flow runs."""
    closed = []
    for path in _abandoned_files(root):
        if path == root / SCHEDULE:
            closed += delete_deployment(root)
        else:
            with get_client(sync_client=True) as client:
                closed += _closed(client, UUID(path.name))
    return closed


def _abandoned_files(root: Path) -> list[Path]:
    """Return the unlocked files; remove a copied file, because its run may still work in the original folder."""
    files = [path for path in sorted((root / OPEN).glob("[!.]*")) if path == root / SCHEDULE or _is_id(path.name)]
    unlocked = [path for path in files if not is_locked(path)]
    for path in filter(is_copy, unlocked):
        path.unlink(missing_ok=True)
    return [path for path in unlocked if path.exists()]


def _is_id(name: str) -> bool:
    """Return whether the name is the id of a flow run; other files in the folder belong to the user."""
    try:
        UUID(name)
    except ValueError:
        return False
    return True


def deployment_name(root: Path) -> str:
    """Return the name of the schedule's deployment, different for each project because projects may share a server."""
    project = f"{gethostname()}:{root.resolve()}"
    return f"siloflow-compare-{sha256(os.fsencode(project)).hexdigest()[:8]}"


def delete_deployment(root: Path) -> list[str]:
    """Delete the deployment of `siloflow schedule` and its planned runs; return the names of the closed runs."""
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(f"compare/{deployment_name(root)}")
        except ObjectNotFound:
            return []
        begun = client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": _BEGUN}}}),
            limit=_PAGE,
        )
        client.delete_deployment(deployment.id)
        abandoned = [run.id for run in begun if not is_locked(root / OPEN / str(run.id))]
        return [name for run in abandoned for name in _closed(client, run)]


def _closed(client: SyncPrefectClient, flow_run_id: UUID) -> list[str]:
    """Close this flow run, its subflows and their task runs; return the names of the flow runs that had not ended."""
    names = []
    not_over = TaskRunFilter.model_validate({"state": {"type": {"any_": _NOT_OVER}}})
    for run in _with_subflows(client, flow_run_id):
        seen: set[UUID] = set()
        while tasks := [
            task
            for task in client.read_task_runs(flow_run_filter=_by_id(run.id), task_run_filter=not_over, limit=_PAGE)
            if task.id not in seen
        ]:
            for task in tasks:
                client.set_task_run_state(task.id, Crashed(message=_MESSAGE), force=True)
                seen.add(task.id)
        if run.state is not None and not run.state.is_final():
            client.set_flow_run_state(run.id, Crashed(message=_MESSAGE), force=True)
            names.append(run.name)
    return names


def _with_subflows(client: SyncPrefectClient, flow_run_id: UUID) -> Iterator[FlowRun]:
    """Yield all subflows of the flow run, innermost first, and the flow run itself if Prefect knows it."""
    within = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run_id]}})
    offset = 0
    while subflows := client.read_flow_runs(flow_run_filter=within, limit=_PAGE, offset=offset):
        offset += len(subflows)
        for run in subflows:
            yield from _with_subflows(client, run.id)
    yield from client.read_flow_runs(flow_run_filter=_by_id(flow_run_id))


def _by_id(flow_run_id: UUID) -> FlowRunFilter:
    return FlowRunFilter.model_validate({"id": {"any_": [flow_run_id]}})


def _mark_killed(root: Path, project: "Project | None") -> tuple[list[str], bool]:
    """Set the status KILLED for MLflow's runs without a process; return their names, and whether MLflow answered."""
    from flows.project.project import Project  # seldom needed, and it imports torch
    from tasks.tracking.mlflow_logging.connection import mark_killed

    try:
        # a run was tracked where params.yaml says, whatever this command's --set says
        project = project.derive([], derived=False) if project is not None else Project.open(root=root)
        runs = _is_active_by_tag(root)
    except UserError:  # reported by the command itself
        return [], False
    return mark_killed(project.store.tracking, project.store.mlflow_experiment, runs)


def _is_active_by_tag(root: Path) -> Mapping[str, Callable[[], bool]]:
    """Return whether a process works on a run, by the run's tag in MLflow."""
    runs: dict[str, Callable[[], bool]] = {}
    for path in (root / "runs").glob("*/experiment.json"):
        about, name = read_json(path) or {}, path.parent.name
        kind, tag = about.get("kind"), str(about.get("tag", name))  # earlier versions wrote no tag
        if kind == "diagnose":
            runs[tag] = partial(_is_active, root, kind)
        elif kind in ("compare", "advise"):
            runs[tag] = partial(_is_active, root, name)
        for file in path.parent.glob("*/run.json"):
            runs[str((read_json(file) or {}).get("tag"))] = partial(is_held, file.parent)
    return runs


def _is_active(root: Path, name: str) -> bool:
    return name in workers(root / "runs" / "locks")
