"""Compare a published table with the records, as plain JSON, and draw figures of the runs on this machine.

Nothing is run, and Prefect is not imported.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from models.metrics.paired_difference import CellDifferenceRecord, cell_difference_record, difference_over_draws
from models.metrics.task_metrics import TaskMetrics
from publications.clinical_rates import rates_by_size
from publications.curves import Curves, cell_at
from publications.detection_rates import truth_table
from publications.published_tables import Pair
from publications.sweep import Sweep
from tasks.tracking.plots.curve_figures import draw_curves, draw_lines

MOST_CURVES = 8  # more lines in one figure are hard to tell apart


def table_of_records(sweep: Sweep) -> dict[str, Any]:
    """Compare every cell with the published number; all runs or trials must be recorded."""
    page = sweep.page
    if page.judged:
        rates = {"by_size": rates_by_size(sweep)} if page.family == "clinical" else {}
        return truth_table(sweep) | rates
    rows = [_row(sweep, cell) for cell in page.cells]
    return {
        "paper": sweep.paper,
        "table": sweep.table,
        "title": page.title,
        "source": page.source,
        "unit": page.unit or " or ".join(dict.fromkeys(row["quantity"] for row in rows)),
        "known_errors": page.known_errors,
        "seeds_are": page.seeds_are,
        "tune_seed": sweep.tune_seed,
        "scale": sweep.scale,
        "rows": rows,
        "by_class": {name: _of_class(sweep, name) for name in page.by_class},
        "also": {title: _also(sweep, name) for name, title in page.also.items()},
        "ensembles": {cell: sweep.ensemble(cell) for cell in page.cells} if page.ensembles else {},
        "paired": [record for pair in sweep.pairs() if (record := difference(sweep, pair)) is not None],
        "results": sweep.results.where(sweep.root),
        "figures": list(_draw(sweep)),
        "experiment": sweep.experiment,
    }


def _row(sweep: Sweep, cell: str) -> dict[str, Any]:
    """Compare a cell with the published number; `missed` counts the seeds that did not reach the target."""
    page_cell, quantity, records, values = (
        sweep.page.cells[cell],
        sweep.quantity(cell),
        sweep.records(cell),
        sweep.values(cell),
    )
    others = {}
    for role in ("fresh", "unseen"):
        there = [v for r in records if (v := r.get(f"{role}/{quantity.headline}")) is not None]
        others[role] = statistics.fmean(there) if there else None
    return {
        "cell": cell,
        "about": page_cell.about,
        "method": sweep.page.method_of(cell),
        "quantity": quantity.name,
        "published": sweep.page.published_of(cell),
        "floor": statistics.fmean(floors) if (floors := sweep.floors(cell)) else None,
        "floors": floors,
        **_mean_and_sd(values),
        **others,
        "values": values,
        "missed": len(records) - len(values),
        "seeds": sweep.seeds_of(cell),
        "choice": sweep.choice(cell),
        "tried": len(sweep.tries(cell)),
        "at_edge": sweep.at_edge(cell),
        "with_tuning": sweep.with_tuning(cell),
        "seconds": statistics.fmean(r["seconds"] for r in records),
    }


def _of_class(sweep: Sweep, name: str) -> dict[str, dict[str, float | None]]:
    """Return by cell the published accuracy on a class and ours, the mean over seeds."""
    by_cell = {}
    for cell in sweep.page.cells:
        counts = [record["by_class"].get(name, [0, 0]) for record in sweep.records(cell)]
        shares = [right / rows for right, rows in counts if rows]
        ours = statistics.fmean(shares) if shares else None
        by_cell[cell] = {"published": sweep.page.by_class[name].get(cell), "ours": ours}
    return by_cell


def _also(sweep: Sweep, name: str) -> dict[str, dict[str, float | None]]:
    """Return by cell the published number of another metric, and our mean and standard deviation over seeds."""
    by_cell = {}
    for cell, page_cell in sweep.page.cells.items():
        there = [v for record in sweep.records(cell) if (v := record.get("also", {}).get(name)) is not None]
        by_cell[cell] = {"published": page_cell.beside.get(name), **_mean_and_sd(there)}
    return by_cell


def _mean_and_sd(values: list[float]) -> dict[str, float | None]:
    sd = statistics.stdev(values) if len(values) > 1 else None
    return {"ours": statistics.fmean(values) if values else None, "sd": sd}


def difference(sweep: Sweep, pair: Pair) -> Mapping[str, Any] | None:
    """Return the paired difference of two cells; None if it is not recorded and does not follow from two seeds or more.

    If seeds draw the data, or the measure is no mean over rows, the difference follows from the records, without seeds for
    which one of the cells has no number. The difference of runs that only another machine had, of two seeds or more, does
    too; its interval is over seeds alone.
    """
    if sweep.from_records(pair):
        return over_draws(sweep, pair.first, pair.second)
    recorded = sweep.difference(pair)
    first, second = (sweep.seeds_of(cell) for cell in (pair.first, pair.second))
    if recorded is None and first == second and len(first) > 1 and not pair.classes:
        return over_draws(sweep, pair.first, pair.second)
    return recorded


def over_draws(sweep: Sweep, first: str, second: str, other: Sweep | None = None) -> CellDifferenceRecord | None:
    """Return the difference of two cells over seeds; None if fewer than two seeds have both numbers.

    Args:
        sweep: The table of the first cell.
        first: The cell from which is subtracted.
        second: The cell that is subtracted.
        other: The table of the second cell, with the same seeds, if it is another one.
    """
    quantity = sweep.quantity(first)
    draws = zip(sweep.of_seeds(first), (other or sweep).of_seeds(second), strict=True)
    differences = [quantity.mean_of(a) - quantity.mean_of(b) for a, b in draws if not (a is None or b is None)]
    if len(differences) < 2:
        return None
    return cell_difference_record(first, second, difference_over_draws(differences, bound=quantity.bound), quantity)


def _draw(sweep: Sweep) -> Iterator[str]:
    """Draw the page's own figure, or the learning curves of runs on this machine, one figure a quantity."""
    if sweep.page.curves is not None:
        yield _draw_lines(sweep, sweep.page.curves)
        return
    by_quantity: dict[TaskMetrics, list[str]] = {}
    for cell in sweep.page.cells:
        by_quantity.setdefault(sweep.quantity(cell), []).append(cell)
    for quantity, cells in by_quantity.items():
        if len(cells) > MOST_CURVES:
            continue
        curves = {cell: lines for cell in cells if (lines := _curves(sweep, cell))}
        if curves:
            name = "curves" if len(by_quantity) == 1 else f"curves-{quantity.name}"
            figure = sweep.root / "runs" / sweep.experiment / f"{name}.png"
            draw_curves(figure, curves, sweep.page.measure.rounds_to, sweep.page.title, quantity)
            yield str(figure.relative_to(sweep.root))


def _draw_lines(sweep: Sweep, curves: Curves) -> str:
    """Draw our number of every seed and the published numbers over the figure's axis."""
    ours: dict[str, dict[float, list[float]]] = {}
    published: dict[str, dict[float, float]] = {}
    for name, _, at in curves.points():
        cell = cell_at(name, at)
        ours.setdefault(name, {})[at] = sweep.values(cell)
        of_paper = sweep.page.published_of(cell)
        if of_paper is not None:
            published.setdefault(name, {})[at] = of_paper
    figure = sweep.root / "runs" / sweep.experiment / f"{sweep.table}.png"
    unit = sweep.page.unit or " or ".join(dict.fromkeys(sweep.quantity(cell).name for cell in sweep.page.cells))
    draw_lines(figure, ours, published, curves.over, unit, sweep.page.title)
    return str(figure.relative_to(sweep.root))


def _curves(sweep: Sweep, cell: str) -> list[list[tuple[int, float]]]:
    """Return the headline metric by round, for each run on this machine."""
    finished = [(folder, folder.finished()) for folder in sweep.folders(cell)]
    headline = sweep.quantity(cell).headline
    return [folder.curve(headline, result["rounds"]) for folder, result in finished if result]
