"""The runs behind a cell of a table: their curves, and what the difference between two cells is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.experiment.paired_runs import compared, kept, told
from flows.experiment.project import Project
from flows.experiment.run_folder import RunFolder
from flows.run import workers_of
from models.assessment.paired_difference import Difference, over_draws
from models.assessment.quantities import Quantity
from silos.errors import UserError
from tasks.pair import Kept
from tasks.running.runner import PrefectRunner


@dataclass(frozen=True)
class Runs:
    """One cell's runs and what the results keep of them, seed by seed; the folders may be on another machine."""

    cell: str
    projects: Sequence[Project]
    folders: Sequence[Path]
    records: Sequence[dict[str, Any]]

    @property
    def quantity(self) -> Quantity:
        """What the cell is judged by."""
        return self.projects[0].quantity

    @property
    def here(self) -> bool:
        """Whether all runs are on this machine."""
        return all(RunFolder(folder).outcomes.is_file() for folder in self.folders)

    def kept(self) -> list[Kept]:
        """Where the clients of each run keep their outcomes."""
        return [kept(project, folder) for project, folder in zip(self.projects, self.folders, strict=True)]

    def curves(self) -> list[list[tuple[int, float]]]:
        """The headline by round, of each run that is here."""
        finished = [(folder, folder.finished()) for folder in map(RunFolder, self.folders)]
        return [folder.curve(self.quantity.headline, result["rounds"]) for folder, result in finished if result]


def paired_rows(first: Runs, second: Runs, classes: Sequence[str] | None = None) -> dict[str, Any] | None:
    """First less second on the same seeds and rows, or on the rows of some classes; None if the runs are not here.

    UserError if the cells have other data, or none of these classes.
    """
    _same_data(first, second)
    if not (first.here and second.here):
        return None
    silos, quantity = first.projects[0].silos.federated(), first.quantity
    unknown = [name for name in classes or () if name not in silos.manifest.classes]
    if unknown:
        raise UserError(f"{first.cell} − {second.cell}: the data have no class {unknown[0]!r}.")
    with workers_of(first.projects[0]) as workers:
        found = compared(PrefectRunner(workers), silos, first.kept(), second.kept(), quantity, classes)
    return found if found is None else _told(first, second, found, f" on {', '.join(classes)}" if classes else "")


def paired_draws(first: Runs, second: Runs) -> dict[str, Any]:
    """First less second over draws of the data: the same draws, but neither rows nor laws that draws share."""
    _same_data(first, second)
    quantity = first.quantity
    pairs = zip(first.records, second.records, strict=True)
    found = [quantity.mean_of(a[quantity.name]) - quantity.mean_of(b[quantity.name]) for a, b in pairs]
    return _told(first, second, over_draws(found, bound=quantity.bound))


def _same_data(first: Runs, second: Runs) -> None:
    versions = [[record["data_version"] for record in side.records] for side in (first, second)]
    if versions[0] != versions[1]:
        raise UserError(
            f"the cells {first.cell} and {second.cell} have other data, and only runs on the same rows can be paired; "
            "drop the pair, or give both the same data settings."
        )


def _told(first: Runs, second: Runs, found: Difference, where: str = "") -> dict[str, Any]:
    said = told(first.cell, second.cell, found, first.quantity)
    return {"first": first.cell, "second": second.cell, **said, "words": f"{said['words']}{where}"}
