"""What the difference between two sets of runs is worth, row by row: for a comparison and for a published table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.folder import RunFolder
from flows.project import Project
from models.paired import Difference, Stratum, better, difference, in_words
from models.quantities import Quantity
from silos.cohort import Silos
from tasks.pair import Kept, pair
from tasks.runner import PrefectRunner


def kept(project: Project, folder: Path) -> Kept:
    """Where the clients of a run keep their outcomes."""
    return project.private(folder), RunFolder(folder).kept()


def compared(
    silos: Silos,
    first: Sequence[Kept],
    second: Sequence[Kept],
    quantity: Quantity,
    classes: Sequence[str] | None = None,
) -> Difference | None:
    """First less second on the same seeds and rows, or on those of some classes; None if there are no such rows."""
    sums = PrefectRunner().once(pair, silos, first, second, classes)
    strata = [Stratum(s.rows, s.by_seed, s.mean_squares, s.squares) for s in sums]
    return difference(strata, bound=quantity.bound, alike=quantity.alike) if strata else None


def told(first: str, second: str, found: Difference, quantity: Quantity) -> dict[str, Any]:
    """The difference as plain JSON, and in words."""
    return {
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "better": better(first, second, found, quantity),
        "words": in_words(first, second, found, quantity),
    }
