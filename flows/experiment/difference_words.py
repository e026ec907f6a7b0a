"""What the difference between two sets of runs is worth, as plain JSON and in words."""

from collections.abc import Sequence
from typing import Any

from models.assessment.paired_difference import Difference, better, in_words
from models.assessment.quantities import Quantity


def difference_record(first: str, second: str, found: Difference, quantity: Quantity) -> dict[str, Any]:
    """Who is better, and by how much."""
    return {
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "better": better(first, second, found, quantity),
        "words": in_words(first, second, found, quantity),
    }


def difference_of_cells(
    first: str, second: str, found: Difference, quantity: Quantity, classes: Sequence[str] | None = None
) -> dict[str, Any]:
    """The same of two cells of a table, with their names, and with the classes whose rows alone were compared."""
    said = difference_record(first, second, found, quantity)
    where = f" on {', '.join(classes)}" if classes else ""
    return {"first": first, "second": second, **said, "words": f"{said['words']}{where}"}
