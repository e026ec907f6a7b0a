"""A figure: the test accuracy of every client after the last round, as bars."""

from pathlib import Path

from flows.methods.figure_context import FigureContext
from flows.plugins import register_figure
from tasks.tracking.plots.style import COLOURS, new_figure, set_title, write_figure


@register_figure("client_bars")
def client_bars(scene: FigureContext, width: float = 8.0) -> Path | None:
    """A file in the scene's folder; None where no client has been scored."""
    name = scene.quantity.name
    *_, last = scene.journal()
    rows = {c: row[f"test/{name}"] for c, row in last["clients"].items() if row.get(f"test/{name}") is not None}
    if not rows:
        return None
    figure, axes = new_figure(width, 4.0, 1)
    axes.bar(range(len(rows)), list(rows.values()), color=COLOURS[0])
    axes.set_xticks(range(len(rows)), list(rows))
    set_title(axes, f"Test {name} of each client")
    write_figure(figure, scene.folder / "client_bars.png")
    return scene.folder / "client_bars.png"
