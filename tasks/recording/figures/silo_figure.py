"""What is in data/, as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.recording.figures import style
from tasks.recording.figures.style import COLOURS, drawable_names, new_figure, room_below, set_names, set_title

_SPLITS = {"train": COLOURS[0], "validation": COLOURS[4], "test": "#cfe3f3"}
"""From dark to light, so that they differ in grey."""

_NAMED = 30  # classes

Examples = Mapping[str, Sequence[Any | None]]
"""Client to one image for each class that is shown, None where it has no row of that class."""


def draw_silos(path: Path, overview: Mapping[str, Any], examples: Examples) -> None:
    """Rows of each client, its label shares or its targets, and where rows are images one of each class."""
    clients, classes = overview["clients"], overview["classes"]
    height = min(max(3.2, 0.34 * len(clients) + 1.4), 14)
    height += room_below(classes) if len(classes) <= _NAMED else 0.0
    panels = 2 + bool(examples)
    figure, axes = new_figure(4.5 * panels, height, panels)
    _draw_rows(axes[0], clients, overview["count"])
    if classes:
        shares = [list(c["label_shares"].values()) for c in clients]
        shown = axes[1].imshow(shares, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        set_title(axes[1], "Label shares")
        axes[1].set(yticks=[], ylim=(len(clients) - 0.5, -0.5))
        axes[1].grid(visible=False)
        if len(classes) <= _NAMED:
            set_names(axes[1], classes)
        axes[1].set(xlabel="label")
        figure.colorbar(shown, ax=axes[1], fraction=0.04, pad=0.02, label="share of the client's rows")
    else:
        _draw_targets(axes[1], clients)
    if examples:
        sheet, step = _contact_sheet(list(examples.values()))
        columns = len(next(iter(examples.values())))
        axes[-1].imshow(sheet, cmap="gray", aspect="equal", interpolation="nearest")
        set_title(
            axes[-1],
            "A training row of each class" + (f" ({len(examples)} clients)" if len(clients) > len(examples) else ""),
        )
        set_names(axes[-1], classes[:columns], [step * (i + 0.5) for i in range(columns)])
        axes[-1].set(yticks=[], xlabel="label")
        axes[-1].spines[["left", "bottom"]].set_visible(False)
        axes[-1].tick_params(length=0)
        axes[-1].grid(visible=False)
    style.write_figure(figure, path)


def _draw_rows(ax: Any, clients: Sequence[Mapping[str, Any]], count: int) -> None:
    """Stacked bars; above some hundred clients one filled outline a split, since a bar each takes half a minute."""
    few = len(clients) <= 200
    start = [0] * len(clients)
    for split, colour in _SPLITS.items():
        rows = [c["rows"][split] for c in clients]
        ends = [a + b for a, b in zip(start, rows, strict=True)]
        if few:
            ax.barh(range(len(clients)), rows, left=start, color=colour, label=split, height=0.75)
        else:
            ax.fill_betweenx(range(len(clients)), start, ends, color=colour, label=split, step="mid", linewidth=0)
        start = ends
    set_title(ax, "Rows")
    ax.set(ylim=(len(clients) - 0.5, -0.5), xlabel="rows")
    ax.set(ylabel="client" if len(clients) == count else f"client ({len(clients):,} of {count:,})")
    ax.locator_params(axis="x", integer=True)
    if len(clients) <= 60:
        roles = [f"({c['role']})" if c.get("role", "federated") != "federated" else "" for c in clients]
        names = [" ".join(filter(None, (c["name"], c["domain"], role))) for c, role in zip(clients, roles, strict=True)]
        ax.set_yticks(range(len(clients)), drawable_names(names))
    ax.legend(
        frameon=False,
        ncols=3,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.995),
        handlelength=1,
        fontsize=8,
        columnspacing=1,
        borderaxespad=0,
    )


def _draw_targets(ax: Any, clients: Sequence[Mapping[str, Any]]) -> None:
    """Each client's mean of y, and a standard deviation to both sides."""
    means, spreads = ([c["target"][name] for c in clients] for name in ("mean", "standard_deviation"))
    ax.errorbar(means, range(len(clients)), xerr=spreads, fmt="o", color=COLOURS[0], markersize=4, linewidth=1)
    set_title(ax, "y, mean ± standard deviation")
    ax.set(yticks=[], xlabel="y", ylim=(len(clients) - 0.5, -0.5))


def _contact_sheet(clients: Sequence[Sequence[Any | None]]) -> tuple[Any, int]:
    """One line of images a client, (lines, columns) pixels in [0, 1] with a pixel of white between; and a column's width."""
    import numpy as np

    first = next(image for images in clients for image in images if image is not None)
    height, width = first.shape[:2]
    sheet = np.ones((len(clients) * (height + 1), len(clients[0]) * (width + 1), *first.shape[2:]))
    for line, images in enumerate(clients):
        for column, image in enumerate(images):
            if image is not None:
                scale = 255 if image.dtype == np.uint8 else max(float(np.abs(image).max()), 1e-9)
                y, x = line * (height + 1), column * (width + 1)
                sheet[y : y + height, x : x + width] = np.clip(image / scale, 0, 1)
    return sheet, width + 1
