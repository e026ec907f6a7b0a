"""Draw what privacy costs for docs/: `python -m publications.render.draw_privacy`, which `make pictures` calls."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from publications.compare_with_published import difference
from publications.published_tables import Pair
from publications.sweep import Sweep
from tasks.tracking.plots.style import GREY, new_figure, set_legend, set_title, style_of_line, write_figure

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.axes import Axes

_EPSILONS = (1, 2, 4, 8)
_TABLES = {
    "digits-equal": "Digits, equal labels",
    "digits-dirichlet": "Digits, Dirichlet 0.5",
    "tumours": "Tumours, 38 rows a silo",
    "simulated": "Simulated, 300 rows a silo",
}
_LINES = {"one": "one noise over all silos", "each": "noise at each silo", "secure": "secure sums of the silos"}
ALONE = "alone"


def draw_privacy(path: Path, sweeps: Mapping[str, Sweep]) -> None:
    """Draw accuracy against epsilon, a panel a table, with the line of training alone without noise.

    An interval is that of the paired difference from training alone: it excludes the line if the difference is real.

    Args:
        path: The picture to write.
        sweeps: The recorded tables, by the title of their panel.
    """
    figure, panels = new_figure(12.5, 3.6, len(sweeps))
    for axes, (title, sweep) in zip(panels, sweeps.items(), strict=True):
        _draw_panel(axes, sweep)
        set_title(axes, title)
    marks = [line for line in panels[0].get_lines() if not str(line.get_label()).startswith("_")]  # no intervals
    set_legend(panels[0], marks, [str(mark.get_label()) for mark in marks], loc="lower right", fontsize=8)
    panels[0].set_ylabel("accuracy on own test rows")
    write_figure(figure, path)


def _draw_panel(axes: "Axes", sweep: Sweep) -> None:
    alone = _mean(sweep, ALONE)
    axes.axhline(alone, color=GREY, linewidth=1.2, linestyle="--", label="train alone without noise")
    lines = {arm: name for arm, name in _LINES.items() if f"{arm}-{_EPSILONS[0]}" in sweep.page.cells}
    for index, (arm, name) in enumerate(lines.items()):
        line_style = style_of_line(index)
        line_style["markevery"] = 1
        axes.plot(_EPSILONS, [_mean(sweep, f"{arm}-{each}") for each in _EPSILONS], **line_style, label=name)
        for each in _EPSILONS:
            record = difference(sweep, Pair(first=f"{arm}-{each}", second=ALONE))
            assert record is not None, "five seeds"
            ends = [alone + record["low"], alone + record["high"]]
            axes.plot([each, each], ends, color=line_style["color"], linewidth=1.0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(_EPSILONS, [str(each) for each in _EPSILONS])
    axes.set_xlabel("epsilon of a run, delta 1e-5")


def _mean(sweep: Sweep, cell: str) -> float:
    values = sweep.values(cell)
    return sum(values) / len(values)


if __name__ == "__main__":
    tables = {title: Sweep("privacy", table, "cpu") for table, title in _TABLES.items()}
    draw_privacy(Path(__file__).parents[2] / "docs" / "pictures" / "privacy.png", tables)
