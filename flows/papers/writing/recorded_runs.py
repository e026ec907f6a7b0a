"""How much of a table is recorded."""

from flows.papers.sweep import Sweep


def whole(sweep: Sweep, cell: str) -> bool:
    """Whether all of a cell's runs are recorded."""
    return runs(sweep, cell) == sweep.count(cell)


def runs(sweep: Sweep, cell: str) -> int:
    """So many of a cell's runs are recorded."""
    tries = sweep.tries(cell)
    recorded = {one for one in tries if sweep.record(cell, *one)}
    if len(recorded) < len(tries) > 1:  # the other seeds have the choice that is yet to be made
        return len(recorded)
    return len(recorded | {one for one in sweep.wanted(cell) if sweep.record(cell, *one)})
