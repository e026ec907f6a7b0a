"""Draws figures that several methods request at the end of their runs."""

from pathlib import Path
from typing import Any

from flows.experiment.figure_context import FigureContext
from models.networks.wrappers.codebook_network import SHARED
from tasks.codebooks import principal_plane, projection
from tasks.tracking.plots.run_figures import draw_codebook, draw_groups, draw_stages


def stages(scene: FigureContext) -> Path:
    """Draw the metric and the clients' uncertainty over rounds, with the end of each stage."""
    path = scene.folder / "stages.png"
    draw_stages(path, scene.records, scene.quantity)
    return path


def group_history(scene: FigureContext) -> Path | None:
    """Draw the group of each client after each round; return None if there were no groups."""
    history = {
        record["round"]: {client: int(row["group"]) for client, row in record["clients"].items() if "group" in row}
        for record in scene.journal()
    }
    if not any(history.values()):
        return None
    path = scene.folder / "groups.png"
    draw_groups(path, history)
    return path


def codewords(scene: FigureContext) -> Path | None:
    """Draw each client's features and own codewords in the plane of the shared codewords.

    Return None without two shared codewords, or if params.yaml hides personal state (`tracking.personal_models`).
    """
    member = scene.model.network.single_networks[0]
    shared = scene.model.shared.get(member.prefix + SHARED)
    if shared is None or len(shared) < 2 or not scene.personal:
        return None
    silos, axes, setup = scene.silos.select(scene.model.clients), principal_plane(shared), scene.round.setup
    options: dict[str, Any] = {"training": setup.training, "axes": axes, "seed": setup.seed}
    points = {
        client: (tokens.tolist(), codewords.tolist())
        for message in scene.round.map_clients(projection, scene.model, silos=silos, **options)
        for client, tokens, codewords in zip(message.clients, message.tokens, message.words, strict=True)
    }
    path = scene.folder / "codebook.png"
    draw_codebook(path, (shared @ axes).tolist(), points, {c: silos.domain(c) or "" for c in points})
    return path
