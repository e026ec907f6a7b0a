"""A model as a file that programs run without siloflow, torch's .pt2 or ONNX; what is written is opened and compared."""

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from models.networks.exported_network import ExportedModel, any_rows
from silos.errors import UserError
from silos.io.atomic_io import writing

Format = Literal["pt2", "onnx"]
Answers = Callable[[Tensor], Tensor]

TOLERANCE = 1e-5
"""Most that an answer of the file may differ from ours, relative to the largest answer where that is above 1."""

CARD = "siloflow.json"


def write_exported(path: Path, format: Format, model: ExportedModel, rows: Tensor, card: Mapping[str, Any]) -> float:
    """Writes the model, and answers by how much the opened file differs from it at most, on all these rows and on one.

    `card` says what the model is, and goes with it: extra file CARD of a .pt2, metadata of an ONNX file. UserError, and no
    file, where the difference is above TOLERANCE, and where the extra `onnx` is not installed.
    """
    way = _WAYS[format]
    example = torch.zeros(2, *rows.shape[1:], dtype=rows.dtype)
    with torch.no_grad():
        model(example)  # what a network makes at its first call is made now, not while torch traces
    with _quiet():
        content = way.written(model, example, json.dumps(card))
        with writing(path) as file, torch.no_grad():
            file.write(content)
            file.flush()
            answers = way.opened(Path(file.name).read_bytes())
            difference = max(_difference(answers(some), model(some)) for some in (rows, rows[:1]))
            if not difference <= TOLERANCE:  # a number that is none is no agreement
                raise UserError(
                    f"the exported model differs from ours by {difference:.2g}, and may by {TOLERANCE:.0e}; no file was "
                    "written. A model whose weights are not finite cannot be exported."
                )
    return difference


def check_format(format: Format) -> None:
    """UserError if what the format needs is not installed."""
    missing = [name for name in _WAYS[format].needs if not _installed(name)]
    if missing:
        raise UserError(
            f"--format {format} needs {', '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed; "
            "`pip install -c constraints.txt -e '.[onnx]'` installs it, or use --format pt2."
        )


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1))


def _pt2(model: ExportedModel, example: Tensor, card: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(model.traced(example), file, extra_files={CARD: card})
    return file.getvalue()


def _open_pt2(content: bytes) -> Answers:
    module: Answers = torch.export.load(io.BytesIO(content)).module()
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


def _open_onnx(content: bytes) -> Answers:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda rows: torch.from_numpy(session.run(None, {"rows": rows.numpy()})[0])


class _Way(NamedTuple):
    """How a format is made and opened, and the packages that it needs besides siloflow's own."""

    written: Callable[[ExportedModel, Tensor, str], bytes]
    opened: Callable[[bytes], Answers]
    needs: tuple[str, ...] = ()


_WAYS: Mapping[Format, _Way] = {
    "pt2": _Way(_pt2, _open_pt2),
    "onnx": _Way(_onnx, _open_onnx, ("onnx", "onnxscript", "onnxruntime")),
}


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch says of its own insides while it exports is nothing that a user could act on."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
