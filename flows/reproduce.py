"""The flow `reproduce`: a published table beside ours, cell by cell.

flows/papers/sweep.py says which runs there are and which are recorded in docs/results/<paper>.json, flows/papers/fill.py
runs those that are missing, flows/papers/table.py makes the table of what is recorded.
"""

from typing import Any

from prefect import flow
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from flows.experiment.flow_parameters import admitted, outside
from flows.experiment.project import Project
from flows.papers.estimate import estimate as seconds_of
from flows.papers.fill import fill
from flows.papers.published_tables import is_own
from flows.papers.sweep import Sweep
from flows.papers.table import table_of_records
from silos.errors import UserError


@flow(name="reproduce", task_runner=ThreadPoolTaskRunner(), validate_parameters=False)  # type: ignore[arg-type]
def reproduce(
    paper: str,
    table: str,
    scale: str = "cpu",
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    estimate: bool = False,
) -> dict[str, Any]:
    """Published beside ours for every cell of a table; with `estimate` only how long that would take."""
    overrides = admitted(overrides or [])
    if outside() and is_own(paper):
        raise UserError(f"{paper} is a file, and a flow run's parameters name none; name a page of flows/papers/pages.")
    sweep = Sweep(paper, table, scale, seeds, overrides)
    if estimate or not sweep.finished:
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), Project.open(overrides).workers():
            if estimate:
                return seconds_of(sweep)
            fill(sweep)
    return table_of_records(sweep)
