"""Closes what a process that is gone left open in Prefect and MLflow.

A process that works on a flow run holds a file of the run's id in `runs/open/`. The kernel takes the lock from a process,
however it ends: an unlocked file belongs to a process that was killed, or was stopped before Prefect recorded the end.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.console import progress
from silos.errors import UserError
from silos.io.locks import is_copy, is_held, is_locked, workers
from tasks.tracking.json_io import read_json

OPEN = Path("runs") / "open"
SCHEDULE = OPEN / "schedule"
"""Held by `siloflow schedule` while its deployment exists."""

_NOT_OVER: list[Any] = [kind for kind in StateType if kind not in TERMINAL_STATES]
_BEGUN: list[Any] = [kind for kind in _NOT_OVER if kind != StateType.SCHEDULED]
_MESSAGE = "The process that worked on this run is gone."
_PAGE = 200  # runs, the most that Prefect answers at once


def close_abandoned(root: Path) -> None:
    """Close the runs of processes that are gone, and tell the user which: Crashed in Prefect, KILLED in MLflow.

    What Prefect or MLflow does not answer to is left for the next command.
    """
    left = _left(root)
    if not left:
        return
    try:
        closed = close_in_prefect(root)
    except (HTTPError, ObjectNotFound):
        return
    killed, whole = _killed(root)
    for path in left if whole else []:
        path.unlink(missing_ok=True)
    if closed or killed:
        named = [
            f"{', '.join(map(repr, names))} in {of}" for names, of in ((closed, "Prefect"), (killed, "MLflow")) if names
        ]
        progress.current().say(f"closed what a stopped command had left running: {'; '.join(named)}")


def close_in_prefect(root: Path) -> list[str]:
    """Close the flow runs and task runs of processes that are gone; return the names of the flow runs."""
    closed = []
    for path in _left(root):
        if path == root / SCHEDULE:
            closed += delete_deployment(root)
        else:
            with get_client(sync_client=True) as client:
                closed += _closed(client, UUID(path.name))
    return closed


def _left(root: Path) -> list[Path]:
    """Return the unlocked files. A copied file is removed: its run may still work in the original folder."""
    ours = [path for path in sorted((root / OPEN).glob("[!.]*")) if path == root / SCHEDULE or _is_id(path.name)]
    left = [path for path in ours if not is_locked(path)]
    for path in filter(is_copy, left):
        path.unlink(missing_ok=True)
    return [path for path in left if path.exists()]


def _is_id(name: str) -> bool:
    """Return whether the name is the id of a flow run; another file in the folder is a user's."""
    try:
        UUID(name)
    except ValueError:
        return False
    return True


def deployment_name(root: Path) -> str:
    """Return the name of the schedule's deployment: another one for each project, since several may share a server."""
    place = f"{gethostname()}:{root.resolve()}"
    return f"siloflow-compare-{sha256(os.fsencode(place)).hexdigest()[:8]}"


def delete_deployment(root: Path) -> list[str]:
    """Delete the deployment of `siloflow schedule` and the runs that it planned; return the names of runs that it closed."""
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(f"compare/{deployment_name(root)}")
        except ObjectNotFound:
            return []
        begun = client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN))),
            limit=_PAGE,
        )
        client.delete_deployment(deployment.id)
        left = [run.id for run in begun if not is_locked(root / OPEN / str(run.id))]
        return [name for run in left for name in _closed(client, run)]


def _closed(client: Any, flow_run_id: UUID) -> list[str]:
    """Names of the flow runs that were not over, of this one and its subflows; their task runs are closed, too."""
    names = []
    not_over = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_NOT_OVER)))
    for run in _family(client, flow_run_id):
        seen: set[UUID] = set()
        while tasks := [
            task
            for task in client.read_task_runs(flow_run_filter=_of(run.id), task_run_filter=not_over, limit=_PAGE)
            if task.id not in seen
        ]:
            for task in tasks:
                client.set_task_run_state(task.id, Crashed(message=_MESSAGE), force=True)
                seen.add(task.id)
        if not run.state.is_final():
            client.set_flow_run_state(run.id, Crashed(message=_MESSAGE), force=True)
            names.append(run.name)
    return names


def _family(client: Any, flow_run_id: UUID) -> Iterator[Any]:
    """The flow run, if Prefect knows it, and all its subflows; the innermost first."""
    within = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run_id]))
    offset = 0
    while subflows := client.read_flow_runs(flow_run_filter=within, limit=_PAGE, offset=offset):
        offset += len(subflows)
        for run in subflows:
            yield from _family(client, run.id)
    yield from client.read_flow_runs(flow_run_filter=_of(flow_run_id))


def _of(flow_run_id: UUID) -> FlowRunFilter:
    return FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))


def _killed(root: Path) -> tuple[list[str], bool]:
    """Return the names of the runs that MLflow had as running without a process, and whether MLflow answered."""
    from flows.experiment.project import Project  # here: seldom needed, and it imports scipy and MLflow
    from tasks.tracking.mlflow_logging.connection import mark_killed

    try:
        tracking = Project.open_shared(root=root).tracking
        ours = _ours(root)
    except UserError:  # the command itself tells the user
        return [], False
    return mark_killed(tracking, ours)


def _ours(root: Path) -> Mapping[str, Mapping[str, Callable[[], bool]]]:
    """MLflow's experiments of this project: for each the tags of its runs, and whether a process works on one."""
    ours: dict[str, dict[str, Callable[[], bool]]] = {}
    for path in (root / "runs").glob("*/experiment.json"):
        kind, name = (read_json(path) or {}).get("kind"), path.parent.name
        if kind == "diagnose":
            ours.setdefault("diagnoses", {})[name] = partial(_works, root, kind)
            continue
        runs = ours.setdefault("single-runs" if kind == "run" else name, {})
        if kind == "compare":
            runs["comparison"] = partial(_works, root, name)
        for file in path.parent.glob("*/run.json"):
            runs[str((read_json(file) or {}).get("tag"))] = partial(is_held, file.parent)
    return ours


def _works(root: Path, name: str) -> bool:
    return name in workers(root / "runs" / "locks")
