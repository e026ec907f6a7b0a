"""Pictures that a method may ask for at the end of its runs: files in the run's folder, which MLflow gets too."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flows.experiment.run.run_folder import RunFolder
from flows.methods.context import RoundContext
from models.client_model import Model
from models.metrics.task_metrics import TaskMetrics
from silos.cohort import Silos
from silos.io.atomic_io import write_bytes


@dataclass(frozen=True)
class FigureContext:
    """What a picture may show: the model that is reported, its clients, and what the journal has of the rounds."""

    folder: Path
    model: Model
    silos: Silos
    round: RoundContext
    records: list[dict[str, Any]]
    journal: Callable[[], Iterable[dict[str, Any]]]  # the same with a row a client told of, one in memory at a time
    quantity: TaskMetrics
    personal: bool  # whether params let what is a client's own be seen (tracking.personal_models)


FigureWriter = Callable[[FigureContext], Path | None]
"""Draws a file into the scene's folder; None where there is nothing to see."""


def draw_figures(pictures: Sequence[FigureWriter], scene: FigureContext) -> tuple[Path, ...]:
    """Their files in the scene's folder, which is the run's; each is drawn in an empty one.

    ValueError for what is no file there, since all of it goes to MLflow, and for one that is called as a file of the run's
    own.
    """
    found = [_drawn(picture, scene) for picture in pictures]
    return tuple(path for path in found if path is not None)


def _drawn(picture: FigureWriter, scene: FigureContext) -> Path | None:
    with TemporaryDirectory() as folder:
        path = picture(replace(scene, folder=Path(folder)))
        if path is None:
            return None
        path = Path(path)
        if path.parent != Path(folder) or not path.is_file():
            raise ValueError(f"a picture answers with {str(path)!r}, and not with a file that is in its scene's folder")
        if RunFolder.is_own(path.name):
            raise ValueError(f"a picture is called {path.name}, as a file of the run's own; give it another name")
        place = scene.folder / path.name
        write_bytes(place, path.read_bytes())
        return place
