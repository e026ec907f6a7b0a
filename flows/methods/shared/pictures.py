"""Pictures that a method may ask for at the end of its runs: files in the run's folder, which MLflow gets too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.round import Round
from models.assessment.quantities import Quantity
from models.method_networks.codebook import SHARED
from models.model import Model
from silos.cohort import Silos
from tasks.projection import plane, projection
from tasks.recording.figures import draw_codebook, draw_stages


@dataclass(frozen=True)
class Scene:
    """What a picture may show: the model that is reported, its clients, and what the journal has of the rounds."""

    folder: Path
    model: Model
    silos: Silos
    round: Round
    records: list[dict[str, Any]]
    quantity: Quantity
    personal: bool  # whether params let what is a client's own be seen (tracking.personal_models)


Picture = Callable[[Scene], Path | None]
"""Draws a file into the scene's folder; None where there is nothing to see."""


def drawn(pictures: Sequence[Picture], scene: Scene) -> tuple[Path, ...]:
    """Their files; ValueError for what is no file in the scene's folder, since all of it goes to MLflow."""
    paths = []
    for picture in pictures:
        path = picture(scene)
        if path is None:
            continue
        if Path(path).parent != scene.folder or not Path(path).is_file():
            raise ValueError(f"a picture answers with {str(path)!r}, and not with a file that is in its scene's folder")
        paths.append(Path(path))
    return tuple(paths)


def stages(scene: Scene) -> Path:
    """The quantity and the clients' doubts over rounds, with the end of each stage."""
    path = scene.folder / "stages.png"
    draw_stages(path, scene.records, scene.quantity)
    return path


def codewords(scene: Scene) -> Path | None:
    """Features of each client and its own words in the plane of the shared words; only where params let them be seen."""
    one = scene.model.network.singles[0]
    shared = scene.model.shared.get(one.prefix + SHARED)
    if shared is None or len(shared) < 2 or not scene.personal:
        return None
    silos, axes, problem = scene.silos.select(scene.model.clients), plane(shared), scene.round.problem
    options: dict[str, Any] = {"training": problem.training, "axes": axes, "seed": problem.seed}
    points = {
        client: (tokens.tolist(), words.tolist())
        for message in scene.round.each(projection, scene.model, silos=silos, **options)
        for client, tokens, words in zip(message.clients, message.tokens, message.words, strict=True)
    }
    path = scene.folder / "codebook.png"
    draw_codebook(path, (shared @ axes).tolist(), points, {c: silos.domain(c) or "" for c in points})
    return path
