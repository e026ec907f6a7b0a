"""A client's model of a finished run, or the one of all, as a file for programs without siloflow."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flows.config.method_settings import method_of
from flows.experiment.project import Project
from flows.experiment.run.load_finished_run import FinishedRun, finished_run
from models.networks.exported_network import ExportedModel
from models.preprocessing import RawInputModel
from models.server_state import ClientStateRefs
from silos.cohort import Stack
from silos.errors import UserError, shown
from silos.sources.tabular.table_reader import columns_of
from silos.storage.partition_store import open_client, open_common_rows
from tasks.execution.load_client_data import load_weights
from tasks.tracking.exported_files import Format, check_format, write_exported
from tasks.tracking.json_io import unwritable

_ROWS = 256  # that the file's answers are compared on


def export(project: Project, run: str, client: str | None, format: Format, output: str | None) -> dict[str, Any]:
    """Writes the model that the run reports, and says what it takes, what it answers, and by how much it differs from ours.

    With `client` it is that client's: its own weights and context are opened, so it is done where they lie. UserError where
    models are personal and no client is named, and for what `finished_run` and `write_exported` refuse.
    """
    check_format(format)
    opened = finished_run(project, run)
    manifest = opened.project.manifest
    rows, whose = _rows(opened, client)
    reads = method_of(opened.project.params, opened.method).conditioning() if opened.model.context else None
    card = {
        "method": opened.method,
        "seed": opened.seed,
        "round": opened.round,
        "client": client,
        "data_version": opened.project.silos.version,
        "task": manifest.task,
        "classes": list(manifest.classes),
        "shape": list(manifest.shape),
        "dtype": manifest.dtype,
        "features": [feature.name for feature in manifest.features],
        "columns": columns_of(manifest, opened.project.params.data),
        **opened.project.scaling.as_json(),
        "statistics": reads.described(opened.project.silos) if reads else None,
    }
    try:
        place = _place(opened, client, format, output)
        difference = write_exported(place, format, _model(opened, client), rows, card)
    except OSError as error:
        raise UserError(
            f"--output: {unwritable(error) or f'cannot write {shown(output or opened.folder.name)}: {error.strerror}.'}"
        ) from None
    return {
        **card,
        "run": str(opened.folder.path.relative_to(project.root)),
        "format": format,
        "file": str(place.relative_to(project.root) if place.is_relative_to(project.root) else place),
        "bytes": place.stat().st_size,
        "personal": _is_private(opened),
        "compared": {"rows": len(rows), "whose": whose, "largest_difference": difference},
    }


def _model(opened: FinishedRun, client: str | None) -> ExportedModel:
    model, classes = opened.model, len(opened.project.manifest.classes)
    raw = RawInputModel(**opened.project.scaling.as_json())
    if client is not None:
        opened.project.manifest.client(client)
    if not model.is_personal:
        return ExportedModel(model.network.served, model.shared, {}, classes, raw)
    known = ", ".join(model.clients[:5]) + (" …" if len(model.clients) > 5 else "")
    if client is None:
        raise UserError(f"{opened.method} has a model for each client; choose one by --client: {known}.")
    if client not in model.clients:
        raise UserError(f"client {client} has no model in this run; these have: {known}.")
    parts = load_weights(model, Stack((client,), 1), opened.private, "cpu")
    weights, context = ({name: tensor[0] for name, tensor in part.items()} for part in parts)
    return ExportedModel(model.network.served, weights, context, classes, raw)


def _is_private(opened: FinishedRun) -> bool:
    """Whether the file holds what its client keeps to itself."""
    return any(isinstance(part, ClientStateRefs) for part in (opened.model.personal, opened.model.context))


def _rows(opened: FinishedRun, client: str | None) -> tuple[Tensor, str]:
    """Rows as they were partitioned, and whose: test rows of the client, or random ones where nobody's are to be opened.

    Random rows of a plugin's module are 0 and 1, since it may take tokens only.
    """
    silos = opened.project.silos
    manifest, folder = silos.manifest, Path(silos.folder)
    x = np.zeros((0, *manifest.shape), manifest.dtype)
    if client is not None and silos.common("test"):
        x, _ = open_common_rows(folder, manifest, "test")
    elif client is not None:
        entry = manifest.client(client)
        silos.check([client])
        x, _ = open_client(folder, entry, "test")
    if len(x):
        return torch.from_numpy(np.array(x[:_ROWS])), "test"
    draw = torch.Generator().manual_seed(0)
    if manifest.dtype == "uint8":
        return torch.randint(0, 256, (_ROWS, *manifest.shape), generator=draw, dtype=torch.uint8), "random"
    if not opened.model.network.portable:
        return torch.randint(0, 2, (_ROWS, *manifest.shape), generator=draw).float(), "random"
    rows = torch.randn(_ROWS, *manifest.shape, generator=draw)
    if silos.scaling.inputs:  # else all of them would be one row for the network
        mean, scale = (torch.tensor(part).reshape(manifest.shape) for part in astuple(silos.scaling.inputs))
        rows = mean + scale * rows
    return rows, "random"


def _place(opened: FinishedRun, client: str | None, format: Format, output: str | None) -> Path:
    """Where the user said, or in the run's folder; a folder or a device is not written over."""
    if output is None:
        return opened.folder.path / f"{client or 'model'}.{format}"
    place = Path(output).resolve()
    if place.exists() and not place.is_file():
        raise UserError(f"--output {shown(repr(output))}: that is there, and no file; name one.")
    return place
