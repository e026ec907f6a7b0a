"""Export the model of a finished run, of one client or of all, as a file for programs without siloflow.

The file is torch's .pt2 or ONNX, and is compared to the original.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flows.project.project import Project
from flows.training.load_finished_run import FinishedRun, finished_run
from models.networks.exported_network import ExportedModel, any_rows
from models.preprocessing import RawInputModel
from models.server_state import ClientStateRefs
from silos.cohort import Stack, inputs_standardizer
from silos.errors import UserError, shown
from silos.io.atomic_io import writing
from silos.param_types import is_plain
from silos.privacy.owner_file import check_command, check_own_models, folder_name
from silos.standardizer import AgreedRecord
from silos.storage.partition_store import open_client, open_common_rows
from tasks.execution.load_client_data import load_weights
from tasks.tracking.json_io import output_file, unwritable
from tasks.tracking.raw_columns import input_columns
from tasks.tracking.result_types.model_results import ExportedCard, ExportResult

Format = Literal["pt2", "onnx"]
Predict = Callable[[Tensor], Tensor]

TOLERANCE = 1e-5
"""Largest difference of a prediction, relative to the largest prediction if that is above 1."""

CARD = "siloflow.json"

_ROWS = 256  # on which outputs of the file and of our model are compared


def write_exported(path: Path, format: Format, model: ExportedModel, rows: Tensor, card: ExportedCard) -> float:
    """Write the model, and return the largest difference between the opened file and the model, on all rows and on one.

    `card` describes the model and is stored as extra file CARD of a .pt2, or as metadata of an ONNX file. UserError,
    and no file, if the difference is above TOLERANCE, or if the extra `onnx` is not installed.
    """
    writer = _WRITERS[format]
    example = torch.zeros(2, *rows.shape[1:], dtype=rows.dtype)
    with torch.no_grad():
        model(example)  # creates before the trace what a network creates at its first call
    with _silence_torch():
        content = writer.to_bytes(model, example, json.dumps(card))
        with writing(path) as file, torch.no_grad():
            file.write(content)
            file.flush()
            predict = writer.open(Path(file.name).read_bytes())
            difference = max(_difference(predict(part), model(part)) for part in (rows, rows[:1]))
            if not difference <= TOLERANCE:  # also true for NaN
                raise UserError(
                    f"export: got a difference of {difference:.2g} from the original model, expected at most "
                    f"{TOLERANCE:.0e}; no file was written. A model whose weights are not finite cannot be "
                    "exported."
                )
    return difference


def check_format(format: Format) -> None:
    """Raise UserError if packages that the format needs are not installed."""
    missing = [name for name in _WRITERS[format].needs if not find_spec(name)]
    if missing:
        raise UserError(
            f"--format: got {format}, which needs {', '.join(missing)}, expected a format whose packages are installed. "
            "Run `pip install -c constraints.txt -e '.[onnx]'` in siloflow's checkout, or use `--format pt2`."
        )


def _difference(predicted: Tensor, expected: Tensor) -> float:
    return float((predicted - expected).abs().max() / expected.abs().max().clamp_min(1))


def _pt2(model: ExportedModel, example: Tensor, card: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(model.export(example), file, extra_files={CARD: card})
    return file.getvalue()


def _open_pt2(content: bytes) -> Predict:
    module: Predict = torch.export.load(io.BytesIO(content)).module()
    return module


def _onnx(model: ExportedModel, example: Tensor, card: str) -> bytes:
    output = "probabilities" if model.classes else "prediction"
    program: Any = torch.onnx.export(
        model.eval(),
        (example,),
        dynamo=True,
        dynamic_shapes=any_rows(),
        input_names=["rows"],
        output_names=[output],
        verbose=False,
    )
    program.model.metadata_props[CARD] = card
    content: bytes = program.model_proto.SerializeToString()
    return content


def _open_onnx(content: bytes) -> Predict:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda rows: torch.from_numpy(session.run(None, {"rows": rows.numpy()})[0])


class _Writer(NamedTuple):
    """How a format is written and opened, and the packages that it needs in addition to siloflow's."""

    to_bytes: Callable[[ExportedModel, Tensor, str], bytes]
    open: Callable[[bytes], Predict]
    needs: tuple[str, ...] = ()


_WRITERS: Mapping[Format, _Writer] = {
    "pt2": _Writer(_pt2, _open_pt2),
    "onnx": _Writer(_onnx, _open_onnx, ("onnx", "onnxscript", "onnxruntime")),
}


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Silence torch's messages about its own internals during an export, on which a user cannot act."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def export_model(project: Project, run: str, client: str | None, format: Format, output: str | None) -> ExportResult:
    """Write the model that the run reports, and return its card, with the largest difference from our model's outputs.

    Args:
        project: The open project.
        run: The run's folder, as `finished_run` takes it.
        client: The client whose model to write. Its weights and context are opened, so call this on its machine.
        format: Of the file.
        output: The file to write; in the run's folder if None.

    Raises:
        UserError: If models are personal and no client is named, and as `finished_run` and `write_exported` raise it.
    """
    check_format(format)
    opened = finished_run(project, run)
    manifest = opened.scorer.silos.manifest
    if client is not None:
        check_command(Path(project.ledgers.folder), "export", [client])
        if _is_private(opened):
            check_own_models(Path(project.ledgers.folder), [client], "--client: got weights or scales")
    rows, whose = _rows(opened, client)
    reads = opened.scorer.method.conditioning() if opened.model.context else None
    scaling = _scaling_of(opened, client)
    # all that a program without siloflow needs to prepare rows and to name the outputs
    card: ExportedCard = {
        "method": opened.method,
        "seed": opened.round.setup.seed,
        "round": opened.round.number,
        "client": client,
        "data_version": opened.scorer.silos.version,
        "task": manifest.task,
        "classes": list(manifest.classes),
        "shape": list(manifest.shape),
        "dtype": manifest.dtype,
        "features": [feature.name for feature in manifest.features],
        "columns": input_columns(manifest, opened.project.params.data),
        "inputs": scaling["inputs"],
        "targets": scaling["targets"],
        "statistics": reads.described(opened.scorer.silos) if reads else None,
    }
    try:
        place = _place(project.root, opened, client, format, output)
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
    model, classes = opened.model, len(opened.scorer.silos.manifest.classes)
    raw = RawInputModel(**_scaling_of(opened, client))
    if not model.is_personal:
        return ExportedModel(model.network.served, model.shared, {}, classes, raw)
    known = ", ".join(model.clients[:5]) + (" …" if len(model.clients) > 5 else "")
    if client is None:
        raise UserError(
            f"--client: got no client, expected one, since {opened.method} has a model for each "
            f"client. Choose one of {known}."
        )
    if client not in model.clients:
        raise UserError(
            f"--client: got {client}, which has no model in this run, expected one of {known}. Choose another client."
        )
    parts = load_weights(model, Stack((client,), 1), opened.round.private, "cpu")
    weights, context = ({name: tensor[0] for name, tensor in part.items()} for part in parts)
    return ExportedModel(model.network.served, weights, context, classes, raw)


def _scaling_of(opened: FinishedRun, client: str | None) -> AgreedRecord:
    """Return the standardization of the client's rows as plain JSON, in part by its own rows if params say so."""
    silos = opened.scorer.silos
    scaling = silos.scaling
    if client is not None:
        entry = silos.manifest.client(client)
    if not scaling.own_columns:
        return scaling.agreed_as_json()
    if client is None:
        raise UserError(
            "--client: got no client, expected one, since each client aligns features by its own rows "
            f"(clients.align). Choose one, such as {silos.clients[0]}."
        )
    silos.check([client])
    return replace(scaling, inputs=inputs_standardizer(silos, entry)).agreed_as_json()


def _is_private(opened: FinishedRun) -> bool:
    """Return whether the file holds private state of its client."""
    return bool(opened.scorer.silos.scaling.own_columns) or any(
        isinstance(part, ClientStateRefs) for part in (opened.model.personal, opened.model.context)
    )


def _rows(opened: FinishedRun, client: str | None) -> tuple[Tensor, Literal["test", "random"]]:
    """Return rows as they were partitioned, and their kind: test rows of the client, or random ones without a client.

    Random rows of a plugin's module are 0 and 1, since it may take tokens only.
    """
    silos = opened.scorer.silos
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
    if silos.scaling.inputs:  # unscaled, all of them would be alike for the network
        agreed = silos.scaling.inputs
        mean, scale = (torch.tensor(part).reshape(manifest.shape) for part in (agreed.mean, agreed.scale))
        rows = mean + scale * rows
    return rows, "random"


def _place(root: Path, opened: FinishedRun, client: str | None, format: Format, output: str | None) -> Path:
    """Return the file to write, as `output_file` does; in the run's folder if none is named."""
    if output is None:
        name = client or "model"
        return opened.folder.path / f"{name if is_plain(name) else folder_name(name)}.{format}"
    return output_file(root, output, getattr(opened.project.params.data.source, "path", None))
