"""What is in data/, as figures and a picture."""

from pathlib import Path
from typing import Any

import numpy as np

from flows.experiment.project import Project
from silos import heterogeneity
from silos.store import Manifest, open_client
from tasks.recording.figures.silo_figure import Examples, draw_silos

CLIENTS_SHOWN, CLASSES_SHOWN = 20, 10


def show(project: Project) -> dict[str, Any]:
    """The silos' overview with their version, and the picture's path; UserError if the data are not as recorded."""
    manifest, folder = project.manifest, Path(project.silos.folder)
    project.silos.check(project.silos.clients)
    overview = {**heterogeneity.overview(manifest, folder), "data_version": project.silos.version}
    figure = project.runs / f"show-{manifest.name}.png"
    pictures = examples(manifest, folder)
    project.silos.check(project.silos.clients)  # nothing came between
    draw_silos(figure, overview, pictures)
    return {**overview, "figure": str(figure.relative_to(project.root))}


def examples(manifest: Manifest, folder: Path) -> Examples:
    """The first training row of each of the first classes, of the first clients; empty where rows are no images."""
    if len(manifest.shape) < 2 or not manifest.classes:
        return {}
    rows = {}
    for client in manifest.clients[:CLIENTS_SHOWN]:
        x, y = open_client(folder, client, "train")
        first = [np.flatnonzero(y == label)[:1] for label in range(min(len(manifest.classes), CLASSES_SHOWN))]
        rows[client.name] = [x[at[0]] if len(at) else None for at in first]
    return rows
