"""Draws the figures of a finished run as files in the run's folder, which MLflow receives too."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.core.config.params_schema import Params
from flows.methods.figure_context import FigureContext, FigureWriter
from flows.plugins import FIGURES
from flows.training.run_records.run_folder import RunFolder
from silos.io.atomic_io import write_bytes
from silos.plugin_registry import Registered, bind_options


def figures_of(params: Params) -> list[FigureWriter]:
    """Return the functions that draw the figures that params name."""
    return [
        bind_options(section) if isinstance(section, Registered) else FIGURES.find(section.kind)
        for section in params.figures
    ]


def draw_figures(writers: Sequence[FigureWriter], context: FigureContext) -> tuple[Path, ...]:
    """Draw each figure in an empty folder, move it to the run's folder, and return the files.

    Raises:
        ValueError: If a writer returns anything but a file in that folder, or if the file has the name of a run file.
    """
    paths = [_draw(writer, context) for writer in writers]
    return tuple(path for path in paths if path is not None)


def _draw(writer: FigureWriter, context: FigureContext) -> Path | None:
    with TemporaryDirectory() as folder:
        path = writer(replace(context, folder=Path(folder)))
        if path is None:
            return None
        path = Path(path)
        if path.parent != Path(folder) or not path.is_file():
            raise ValueError(f"figure: got the path {str(path)!r}, expected a file in the folder of its scene")
        if RunFolder.is_own(path.name):
            raise ValueError(
                f"figure: got the name {path.name}, which is a file of the run itself, expected another name"
            )
        target = context.folder / path.name
        write_bytes(target, path.read_bytes())
        return target
