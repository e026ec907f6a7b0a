"""How long a published table would take, from a few rounds of each of its cells."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.experiment.project import Project, thrown_away
from flows.papers.sweep import Sweep
from flows.papers.trials import seconds_of_cell
from flows.run import probe
from tasks.tracking.mlflow_logging.connection import connect, own_store

PROBE_ROUNDS = 3


def estimate(sweep: Sweep) -> dict[str, Any]:
    """Seconds of the whole table from a few rounds of each cell and the published count of rounds; it leaves nothing."""
    with thrown_away(sweep.root / "cache" / "estimate") as scratch:
        connect(own_store(scratch))  # making its tables is no cost of the first cell
        seconds = {cell: _seconds(sweep, cell, scratch) for cell in sweep.page.cells}
    return {"paper": sweep.paper, "table": sweep.table, "scale": sweep.scale, "seconds": seconds}


def _seconds(sweep: Sweep, cell: str, scratch: Path) -> float:
    """Of a cell's runs or trials."""
    if sweep.page.judged:
        return seconds_of_cell(sweep, cell)
    seed, choice = sweep.tries(cell)[0]
    published, counts = sweep.page.cells[cell].published, sweep.page.measure_of(cell).rounds_to is not None
    rounds = published if counts and published else sweep.rounds(cell)
    probed = min(PROBE_ROUNDS, sweep.rounds(cell))
    settings = [*sweep.settings(cell, seed, choice), f"training.rounds={probed}", "evaluation.stop_at=null"]
    project = replace(Project.open_shared(settings, sweep.root, derived=True), scratch=scratch)
    start = time.perf_counter()
    record = probe(project, sweep.page.method_of(cell), seed)
    fixed = time.perf_counter() - start - record["seconds"]["per_round"] * probed
    return sweep.count(cell) * (fixed + rounds * record["seconds"]["per_round"])
