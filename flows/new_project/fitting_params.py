"""What params.yaml says for rows of one's own: source, silos, network, objective, rate."""

from typing import Any

import numpy as np
import yaml

from flows.new_project.own_data import OwnData
from silos.errors import UserError
from silos.rows import Rows

_LEAST_PICTURE = 4  # pixels of a side, which two poolings halve
_SMALL_PICTURE = 20  # pixels, up to which two convolutions of 5 x 5 without padding leave too little
_FEW_ROWS = 1000
_RATES = {"classification": 0.05, "regression": 0.01}  # for rows of mean 0 and deviation 1
_STABLE = 0.4  # of a squared error: rate times features, which may all say the same
_ABOUT = {
    "kind": "docs/bring-your-data.md",
    "path": "beside this file",
    "label": "the column that is predicted",
    "client": "the column of a row's silo",
    "drop": "columns that are no features",
    "decimal": "the decimal mark of the file",
    "censored": "how <0.5 is read: limit or half",
    "na_values": "texts that are missing values",
}
_CHANNELS = (1, 3, 4)  # that pictures have


def fitting(data: OwnData, name: str, clients: int | None) -> dict[str, str]:
    """section.key to YAML, for `filled`; `clients` are so many silos of equal laws in place of the file's own.

    UserError for pictures whose channels come first.
    """
    rows = data.rows
    said = {"data.name": name, "data.source": _source(data), "data.scheme": _scheme(clients), **_network(rows)}
    if rows.task == "regression":
        said["training.objective"] = "{kind: squared_error}"
    return said


def _source(data: OwnData) -> str:
    """One key a line: what was guessed is found at once."""
    held = {key: _yaml(value) for key, value in data.source.model_dump(mode="json", exclude_defaults=True).items()}
    lines = [(f"    {key}: {value}", _ABOUT.get(key)) for key, value in held.items()]
    return "\n".join(["  source:", *(f"{line:<31} # {about}" if about else line for line, about in lines)])


def _scheme(clients: int | None) -> str:
    step = "{kind: column, column: client}" if clients is None else f"{{kind: equal, clients: {clients}}}"
    return f"  scheme:                       # how rows become clients: docs/sources-and-schemes.md\n    - {step}"


def _network(rows: Rows) -> dict[str, str]:
    shape = rows.x.shape[1:]
    if len(shape) == 3 and shape[0] in _CHANNELS and shape[2] not in _CHANNELS:
        raise UserError(
            f"x has rows of shape {shape}, and pictures are read as height × width × channels; save "
            "numpy.moveaxis(x, 1, -1) instead."
        )
    if len(shape) in (2, 3) and min(shape[:2]) >= _LEAST_PICTURE:
        return _convolutional(min(shape[:2]))
    return {} if rows.x.dtype == np.uint8 else _of_table(rows)


def _of_table(rows: Rows) -> dict[str, str]:
    """Standardised; linear where rows are few, since hidden layers learn them by heart."""
    said = {"model.inputs": "standardise"}
    if len(rows.y) < _FEW_ROWS:
        said["model.hidden"] = "[]"
    if rows.task == "regression":
        said["model.targets"] = "standardise"
    rate = _RATES[rows.task] if rows.task == "classification" else min(_RATES[rows.task], _STABLE / rows.x[0].size)
    return {**said, "training.optimiser": f"{{kind: sgd, learning_rate: {rate:.1g}}}"}


def _convolutional(side: int) -> dict[str, str]:
    kernel = "  kernel: 3\n  padding: true" if side < _SMALL_PICTURE else "  kernel: 5\n  padding: false"
    return {
        "model.kind": "cnn",
        "model.hidden": f"  channels: [10, 20]\n{kernel}\n  hidden: [50]\n  channel_dropout: 0.0",
        "training.optimiser": "{kind: sgd, learning_rate: 0.1}",
    }


def _yaml(value: Any) -> str:
    """On one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**31)
    return str(text).removesuffix("...\n").strip()
