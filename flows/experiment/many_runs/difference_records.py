"""What the difference between two sets of runs is worth, as plain JSON with its sentence."""

from collections.abc import Sequence
from typing import Any

from models.metrics.paired_difference import Difference, better, sentence_of
from models.metrics.task_metrics import Quantity


def difference_record(first: str, second: str, difference: Difference, quantity: Quantity) -> dict[str, Any]:
    """Who is better, and by how much."""
    return {
        "difference": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "better": better(first, second, difference, quantity),
        "sentence": sentence_of(first, second, difference, quantity),
    }


def difference_of_cells(
    first: str, second: str, difference: Difference, quantity: Quantity, classes: Sequence[str] | None = None
) -> dict[str, Any]:
    """The same of two cells of a table, with their names, and with the classes whose rows alone were compared."""
    record = difference_record(first, second, difference, quantity)
    where = f" on {', '.join(classes)}" if classes else ""
    return {"first": first, "second": second, **record, "sentence": f"{record['sentence']}{where}"}
