"""Which worker handles which stacks of clients."""

from collections.abc import Sequence

from silos.cohort import Cohort, Silos, Stack


def deal(silos: Silos, stacks: Sequence[Stack], workers: int) -> list[Cohort]:
    """Whole stacks in contiguous runs, at most `workers` and none empty.

    The largest run has as few training rows as a contiguous dealing can give it.
    """
    rows = silos.rows("train")
    weights = [sum(rows[name] for name in stack.clients) for stack in stacks]
    low, high = max(weights, default=0), sum(weights)
    while low < high:
        limit = (low + high) // 2
        if len(_runs(weights, limit)) <= workers:
            high = limit
        else:
            low = limit + 1
    return [Cohort(silos, tuple(stacks[first:last])) for first, last in _runs(weights, low)]


def _runs(weights: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """(first, past the last) of the fewest contiguous runs whose weights add up to `limit` at most."""
    runs: list[tuple[int, int]] = []
    total = 0
    for at, weight in enumerate(weights):
        if runs and total + weight <= limit:
            runs[-1] = (runs[-1][0], at + 1)
            total += weight
        else:
            runs.append((at, at + 1))
            total = weight
    return runs
