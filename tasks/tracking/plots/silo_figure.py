"""Draw an overview of the data of all clients."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tasks.tracking.plots import style
from tasks.tracking.plots.style import COLOURS, drawable_names, new_figure, room_below, set_names, set_title

if TYPE_CHECKING:  # matplotlib takes long to import
    import numpy as np
    from matplotlib.axes import Axes

_SPLITS = {"train": COLOURS[0], "validation": COLOURS[4], "test": "#cfe3f3"}
"""From dark to light, so that they differ in grey."""

_NAMED = 30  # classes
_LEAST, _MOST = 16, 64  # pixels of a side of an image, approximately

Examples: TypeAlias = "Mapping[str, Sequence[np.ndarray | None]]"
"""Client to one image per class, None if it has no row of the class."""


def draw_silos(path: Path, overview: Mapping[str, Any], examples: Examples) -> None:
    """Draw each client's rows, its label shares or targets, and an image of each class if rows are images."""
    clients, classes = overview["clients"], overview["classes"]
    height = min(max(3.2, 0.34 * len(clients) + 1.4), 14)
    height += room_below(classes) if len(classes) <= _NAMED else 0.0
    panels = 2 + bool(examples)
    figure, axes = new_figure(4.5 * panels, height, panels)
    figure.set_layout_engine("constrained", wspace=0.06)  # for the label of the colour bar
    _draw_rows(axes[0], clients, overview["count"])
    if classes:
        withheld = dict.fromkeys(classes)
        shares = [list({**withheld, **client["label_shares"]}.values()) for client in clients]
        shares = [[math.nan if share is None else share for share in of_client] for of_client in shares]
        image = axes[1].imshow(shares, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        set_title(axes[1], "Label shares")
        axes[1].set(yticks=[], ylim=(len(clients) - 0.5, -0.5))
        axes[1].grid(visible=False)
        if len(classes) <= _NAMED:
            set_names(axes[1], classes)
        axes[1].set(xlabel="label")
        figure.colorbar(image, ax=axes[1], fraction=0.04, pad=0.02, label="share of the client's rows")
    else:
        _draw_targets(axes[1], clients)
    if examples:
        sheet, width = _contact_sheet(list(examples.values()))
        columns = len(next(iter(examples.values())))
        axes[-1].imshow(sheet, cmap="gray", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
        axes[-1].set_anchor("W")  # the title uses the space right of the sheet
        notes = [f"{len(examples)} clients"] if len(clients) > len(examples) else []
        notes += _channels_shown(overview["shape"])
        set_title(axes[-1], "A training row of each class" + (f" ({', '.join(notes)})" if notes else ""))
        set_names(axes[-1], classes[:columns], [(width + 1) * column + (width - 1) / 2 for column in range(columns)])
        axes[-1].set(yticks=[], xlabel="label")
        axes[-1].spines[["left", "bottom"]].set_visible(False)
        axes[-1].tick_params(length=0)
        axes[-1].grid(visible=False)
    style.write_figure(figure, path)


def _draw_rows(ax: "Axes", clients: Sequence[Mapping[str, Any]], count: int) -> None:
    """Draw stacked bars, or filled outlines for more than 200 clients, because bars would take half a minute."""
    few = len(clients) <= 200
    start = [0] * len(clients)
    for split, colour in _SPLITS.items():
        rows = [client["rows"][split] for client in clients]
        ends = [first + second for first, second in zip(start, rows, strict=True)]
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
    spacing = {"handlelength": 1, "columnspacing": 1, "borderaxespad": 0}
    ax.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 0.995), fontsize=8, **spacing)


def _draw_targets(ax: "Axes", clients: Sequence[Mapping[str, Any]]) -> None:
    """Draw each client's mean of y, with one standard deviation to both sides."""
    targets = [client["target"] or {"mean": math.nan, "standard_deviation": math.nan} for client in clients]
    means, spreads = ([target[name] for target in targets] for name in ("mean", "standard_deviation"))
    ax.errorbar(means, range(len(clients)), xerr=spreads, fmt="o", color=COLOURS[0], markersize=4, linewidth=1)
    set_title(ax, "y, mean ± standard deviation")
    ax.set(yticks=[], xlabel="y", ylim=(len(clients) - 0.5, -0.5))


def _contact_sheet(clients: "Sequence[Sequence[np.ndarray | None]]") -> "tuple[np.ndarray, int]":
    """Arrange images as one row per client, with a white pixel between them.

    Returns:
        The pixels in [0, 1], (height, width) in grey or (height, width, 3) in colour, and the width of an image.
    """
    import numpy as np

    thumbnails = [[None if image is None else _thumbnail(image) for image in images] for images in clients]
    height, width, *colours = next(image for images in thumbnails for image in images if image is not None).shape
    sheet = np.ones((len(thumbnails) * (height + 1), len(thumbnails[0]) * (width + 1), *colours))
    for row, images in enumerate(thumbnails):
        for column, image in enumerate(images):
            if image is not None:
                y, x = row * (height + 1), column * (width + 1)
                sheet[y : y + height, x : x + width] = image
    return sheet, width


def _thumbnail(image: "np.ndarray") -> "np.ndarray":
    """Make an image of any size, channels and type drawable: (height, width) or (height, width, 3) in [0, 1].

    Bytes are divided by 255; other numbers are scaled from the image's minimum to its maximum.
    """
    import numpy as np

    if image.ndim == 3:
        image = image[..., :3] if image.shape[2] in (3, 4) else image[..., 0]
    coarse = math.ceil(max(image.shape[:2]) / _MOST)
    steps = [min(coarse, max(1, side // _LEAST)) for side in image.shape[:2]]  # a short side keeps its pixels
    pixels = image[:: steps[0], :: steps[1]]
    low, high = (0, 255) if pixels.dtype == np.uint8 else (float(pixels.min()), float(pixels.max()))
    for axis in (0, 1):
        pixels = pixels.repeat(max(1, round(_LEAST / pixels.shape[axis])), axis)
    return (pixels - low) / max(high - low, 1e-9)


def _channels_shown(shape: Sequence[int]) -> list[str]:
    """Return a note on which channels are drawn if not all are."""
    if len(shape) < 3 or shape[2] in (1, 3):
        return []
    return [f"{'first 3' if shape[2] == 4 else 'first'} of {shape[2]} channels"]
