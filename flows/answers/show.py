"""What is in data/, as figures and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flows.experiment.project import Project
from silos import heterogeneity
from silos.storage.partition_store import ClientEntry, Manifest, open_client
from tasks.tracking.plots.silo_figure import Examples, draw_silos

CLIENTS_SHOWN, CLASSES_SHOWN = 20, 10


def show(project: Project) -> dict[str, Any]:
    """The silos' overview with their version, and the picture's path; UserError if the data are not as recorded.

    Of very many clients some are opened, which `opened` counts, and of these a few listed.
    """
    silos, folder = project.silos, Path(project.silos.folder)
    entries = heterogeneity.looked_at(silos.manifest)
    names = [entry.name for entry in entries]
    silos.check(names)
    overview = {**heterogeneity.overview(silos.manifest, folder), "data_version": silos.version}
    few = (
        slice(0, CLIENTS_SHOWN) if len(entries) == len(silos.clients) else slice(0, None, len(entries) // CLIENTS_SHOWN)
    )
    figure = project.runs / f"show-{silos.manifest.name}.png"
    pictures = examples(silos.manifest, folder, entries[few])
    silos.check(names)  # nothing came between
    draw_silos(figure, overview, pictures)
    if len(entries) < len(silos.clients):
        overview["clients"] = overview["clients"][few]
    return {**overview, "opened": len(entries), "figure": str(figure.relative_to(project.root))}


def examples(manifest: Manifest, folder: Path, clients: Sequence[ClientEntry]) -> Examples:
    """Find the first training row of each of the first classes, of these clients.

    Returns an empty mapping if rows are no images, or if no client has such a row.
    """
    if len(manifest.shape) not in (2, 3) or not manifest.classes:
        return {}
    rows = {}
    for client in clients:
        x, y = open_client(folder, client, "train")
        first = [np.flatnonzero(y == label)[:1] for label in range(min(len(manifest.classes), CLASSES_SHOWN))]
        rows[client.name] = [x[at[0]] if len(at) else None for at in first]
    return rows if any(image is not None for images in rows.values() for image in images) else {}
