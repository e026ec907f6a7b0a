"""What is in data/, as figures and a picture."""

from pathlib import Path
from typing import Any

from flows.project import Project
from silos import show as silos_show
from silos.store import open_client
from tasks.report import draw_silos


def show(project: Project) -> dict[str, Any]:
    """The silos' overview with their version, and the picture's path; UserError if the data are not as recorded."""
    manifest, folder = project.manifest, Path(project.silos.folder)
    found = {**silos_show.overview(manifest, folder), "data_version": project.silos.version}
    images = {c.name: open_client(folder, c, "train")[0][:6] for c in manifest.clients[:20]}
    figure = project.runs / f"show-{manifest.name}.png"
    draw_silos(figure, found, images)
    return {**found, "figure": str(figure.relative_to(project.root))}
