"""Export a model to a file for programs without siloflow, as torch's .pt2 or as ONNX, and compare it to the original."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from models.networks.exported_network import ExportedModel, any_rows
from silos.errors import UserError
from silos.io.atomic_io import writing

Format = Literal["pt2", "onnx"]
Predict = Callable[[Tensor], Tensor]

TOLERANCE = 1e-5
"""Largest difference of a prediction, relative to the largest prediction if that is above 1."""

CARD = "siloflow.json"


def write_exported(path: Path, format: Format, model: ExportedModel, rows: Tensor, card: Mapping[str, Any]) -> float:
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
            "Run `pip install -c constraints.txt -e '.[onnx]'`, or use --format pt2."
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
