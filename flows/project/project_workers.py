"""Open the workers that a project's params name, and run its steps without workers."""

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from flows.core.console import progress
from flows.project.project import Project
from tasks.execution.task_runner import PlainRunner

if TYPE_CHECKING:
    from tasks.execution.worker_backends import Workers


def project_workers(project: Project) -> "AbstractContextManager[Workers]":
    """Open the workers that params name."""
    # imported here: it needs Prefect, and a place predicts without
    from tasks.execution.open_workers import open_workers

    runner = project.params.runner
    if runner.kind == "places":
        from tasks.remote.place_workers import PlaceWorkers

        make = partial(PlaceWorkers, project.root, progress.say, runner.patience)
        return open_workers("places", 1, f"{project.root} {runner.patience}", progress.say, make)
    return open_workers(runner.kind, runner.workers, runner.address, progress.say)


def plain_runner(project: Project) -> PlainRunner:
    """Return what runs steps apart from a flow's tasks: in this process, or at the places where rows lie."""
    if project.params.runner.kind != "places":
        return PlainRunner()
    from tasks.remote.place_workers import PlaceRunner

    return PlaceRunner(root=project.root, patience=project.params.runner.patience)
