"""What can be computed of a cell's runs where they are on this machine: rows paired, seeds together, counts by class."""

from typing import Any

from flows.config.method_settings import method_of
from flows.experiment.comparison.paired_runs import compare_pairs, counted, paired_records
from flows.experiment.comparison.trials import ensemble
from models.metrics.paired_difference import difference_of_cells
from publications.published_tables import Pair
from publications.sweep import Sweep
from silos.errors import UserError
from tasks.execution.task_runner import PrefectRunner
from tasks.paired_outcomes import Kept


def paired_rows(sweep: Sweep, pair: Pair) -> dict[str, Any] | None:
    """First less second on the same seeds and rows, or on the rows of some classes; None if there are no such rows.

    UserError if the data have none of these classes.
    """
    first, second, classes = pair.first, pair.second, pair.classes
    project, quantity = sweep.project(first, *sweep.wanted(first)[0]), sweep.quantity(first)
    silos = project.scored.federated()
    unknown = [name for name in classes or () if name not in silos.manifest.classes]
    if unknown:
        raise UserError(f"{first} − {second}: the data have no class {unknown[0]!r}.")
    with project.workers() as workers:
        difference = compare_pairs(
            PrefectRunner(workers, f"{first} against {second}"),
            silos,
            _kept(sweep, first),
            _kept(sweep, second),
            quantity,
            classes,
        )
    return None if difference is None else difference_of_cells(first, second, difference, quantity, classes)


def together(sweep: Sweep, cell: str) -> dict[str, float] | None:
    """A cell's runs as one deep ensemble; None if one of them has no model here."""
    projects = [sweep.project(cell, *one) for one in sweep.wanted(cell)]
    method = method_of(projects[0].params, sweep.page.method_of(cell))
    return ensemble(
        method, list(zip(projects, sweep.seeds_of(cell), sweep.folders(cell), strict=True)), f"ensemble of {cell}"
    )


def by_class(sweep: Sweep, cell: str, seed: int, choice: str | None) -> dict[str, list[int]]:
    """class to [right, rows] over all clients of one run."""
    project = sweep.project(cell, seed, choice)
    with project.workers() as workers:
        run = paired_records(project, sweep.folder(cell, seed, choice).path)
        return counted(PrefectRunner(workers, f"{cell}, seed {seed}"), project.scored.federated(), run)


def _kept(sweep: Sweep, cell: str) -> list[Kept]:
    """Where the clients of each run keep their outcomes."""
    runs = zip(sweep.wanted(cell), sweep.folders(cell), strict=True)
    return [paired_records(sweep.project(cell, *one), folder.path) for one, folder in runs]
