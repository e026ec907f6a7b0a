"""Define the flow `reproduce`: a published table and our results, cell by cell.

publications/sweep.py lists the runs and finds their records in docs/results/<paper>.json, publications/fill_sweep.py runs
the missing ones, and publications/compare_with_published.py makes the table from the records.
"""

from typing import Annotated, Any

from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from pydantic import WithJsonSchema

from flows.orchestration.flow_decorator import Seeds, from_overrides, one_of, project_flow
from flows.orchestration.open_project import is_from_outside
from flows.project.project import Project
from flows.project.project_workers import project_workers
from publications.compare_with_published import table_of_records
from publications.fill_sweep import estimate as seconds_of
from publications.fill_sweep import fill, run_again
from publications.published_tables import is_own, names
from publications.sweep import Sweep
from silos.errors import UserError

PaperName = Annotated[str, WithJsonSchema(one_of(*names()))]
Scale = Annotated[str, WithJsonSchema(one_of("cpu", "paper"))]
Count = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]


@project_flow(run_name="reproduce {paper} {table} at scale {scale}")
def reproduce(
    paper: PaperName,
    table: str,
    scale: Scale = "cpu",
    seeds: Seeds = (),
    project: Project = from_overrides(),
    estimate: bool = False,
    again: Count = 0,
) -> dict[str, Any]:
    """Compare a published table with ours, cell by cell; an interrupted sweep continues where it stopped.

    Args:
        paper: The page of the paper whose table it is.
        table: One of the paper's tables, as `siloflow reproduce` lists them; of figure 3 it is figure-3.
        scale: What the processors of one machine manage (cpu), or the published size (paper).
        seeds: Of training; those of the scale if none is given.
        overrides: Values over those of params.yaml, each as section.key=value, for example training.rounds=20.
        estimate: Only say how long it would take.
        again: Run this many of the recorded runs again instead, and compare them with their records. 0 runs the table.
    """
    if estimate and again:
        raise UserError("estimate, again: got both, expected one of them. Leave out one.")
    if is_from_outside() and is_own(paper):
        raise UserError(f"{paper} is a file, and a flow run's parameters name none; name a page of publications/pages.")
    sweep = Sweep(paper, table, scale, seeds, project.overrides, project)
    sweep.check_settings()
    if estimate or again or not sweep.finished:
        with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}), project_workers(project):
            if estimate:
                return seconds_of(sweep)
            if again:
                return run_again(sweep, again)
            fill(sweep)
    return table_of_records(sweep)
