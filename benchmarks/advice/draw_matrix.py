"""Draw the evidence matrix for docs/: `python -m benchmarks.advice.draw_matrix`, which `make pictures` calls."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.advice.federations import matrix
from flows.experiments.advice.candidates import POOLED, SHARED
from flows.experiments.comparison.client_gains import ALONE
from tasks.tracking.json_io import read_json
from tasks.tracking.plots.style import new_figure, set_title, write_figure

_MOST = 15.0  # points, at which colours are full
_FIRST = (ALONE, POOLED)  # references, before the methods
_SUFFIXES = {"many": "", "few": ", few rows"}


def draw_matrix(path: Path, cells: Mapping[str, Any]) -> None:
    """Draw each method's gain over FedAvg in points, by cell; a number is bold if its interval excludes zero.

    Args:
        path: The picture to write.
        cells: The records of the matrix, by the name of the cell.
    """
    shown = [cell.cell for cell in matrix() if cell.cell is not None and cell.name in cells]
    shown.sort(key=lambda cell: (cell.source, cell.size == "few", cell.kind != "none", cell.kind, cell.strength))
    records = [cells[cell.name][0]["methods"] for cell in shown]
    methods = sorted({method for record in records for method in record} - {SHARED, *_FIRST})
    columns = [*_FIRST, *methods]
    gains = np.array([[record.get(m, {"gain": [np.nan] * 3})["gain"] for m in columns] for record in records])
    figure, axes = new_figure(11, 0.9 + 0.3 * len(shown), 1)
    axes.imshow(gains[..., 0], cmap="RdBu", vmin=-_MOST, vmax=_MOST, aspect="auto", interpolation="nearest")
    for (row, column), gain in np.ndenumerate(gains[..., 0]):
        low, high = gains[row, column, 1:]
        weight = "bold" if low > 0 or high < 0 else "normal"
        colour = "white" if abs(gain) > 0.75 * _MOST else "black"
        axes.text(column, row, _points(gain), ha="center", va="center", color=colour, fontsize=8, fontweight=weight)
    for row, (above, below) in enumerate(pairwise(shown)):
        if (above.source, above.size) != (below.source, below.size):
            axes.axhline(row + 0.5, color="black", linewidth=1)
    names = [
        " ".join((cell.source, cell.kind, *(() if cell.kind == "none" else (cell.strength,)))) + _SUFFIXES[cell.size]
        for cell in shown
    ]
    axes.set_yticks(range(len(shown)), names)
    axes.set_xticks(range(len(columns)), columns)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    set_title(axes, "Points over FedAvg, by shift; bold where the interval excludes 0")
    write_figure(figure, path)


def _points(gain: float) -> str:
    """Format a gain in whole points, with a sign unless it is 0."""
    text = f"{gain:+.0f}".replace("-", "−")
    return "0" if text[1:] == "0" else text


if __name__ == "__main__":
    root = Path(__file__).parents[2] / "docs"
    draw_matrix(root / "pictures" / "advice.png", read_json(root / "results" / "advice.json")["matrix"])
