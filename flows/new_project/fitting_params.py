"""What params.yaml says for rows of one's own: source, silos, network, objective, rate."""

from typing import Any

import numpy as np
import yaml

from flows.new_project.own_data import OwnData
from silos.dataset import Rows

_LEAST_PICTURE = 4  # pixels of a side, which two poolings halve
_SMALL_PICTURE = 20  # pixels, up to which two convolutions of 5 x 5 without padding leave too little
_FEW_ROWS = {"classification": 1000, "regression": 2000}  # below which a hidden layer learns them by heart
_RATES = {"classification": 0.15, "regression": 0.01}  # for rows of mean 0 and deviation 1
_STABLE = 0.4  # of a squared error: rate times features, which may all say the same
_ABOUT = {
    "kind": "docs/bring-your-data.md",
    "path": "beside this file",
    "label": "the column that is predicted",
    "client": "the column of a row's silo",
    "drop": "columns that are no features",
    "size": "pixels of a side, to which each picture is squeezed",
    "decimal": "the decimal mark of the file",
    "censored": "how <0.5 is read: limit or half",
    "na_values": "texts that are missing values",
}


def fitting(data: OwnData, name: str, clients: int | None) -> dict[str, str]:
    """Return section.key to YAML, for `filled`; `clients` replaces the silos of the file by this many that are alike."""
    rows = data.rows
    said = {"data.name": name, "data.source": _source(data), "data.scheme": _scheme(rows, clients), **_network(rows)}
    if rows.task == "regression":
        said["training.objective"] = "{kind: squared_error}"
    return said


def _source(data: OwnData) -> str:
    """One key a line: what was guessed is found at once."""
    held = {key: _yaml(value) for key, value in data.source.model_dump(mode="json", exclude_defaults=True).items()}
    lines = [(f"    {key}: {value}", _ABOUT.get(key)) for key, value in held.items()]
    return "\n".join(["  source:", *(f"{line:<31} # {about}" if about else line for line, about in lines)])


def _scheme(rows: Rows, clients: int | None) -> str:
    column = "domain" if rows.client is None else "client"
    step = f"{{kind: column, column: {column}}}" if clients is None else f"{{kind: equal, clients: {clients}}}"
    return f"  scheme:                       # how rows become clients: docs/sources-and-schemes.md\n    - {step}"


def _network(rows: Rows) -> dict[str, str]:
    shape = rows.x.shape[1:]
    if len(shape) in (2, 3) and min(shape[:2]) >= _LEAST_PICTURE:
        scaled = {} if rows.x.dtype == np.uint8 else {"model.inputs": "standardise"}
        return {**_convolutional(min(shape[:2])), **scaled}
    return {} if rows.x.dtype == np.uint8 else _of_table(rows)


def _of_table(rows: Rows) -> dict[str, str]:
    """Standardise; report the best round; take a linear network and half of the steps where rows are few.

    Rows of the commonest class do not count as rows here: of 1,000 rows with 95 % in one class a network learns little.
    """
    said = {"model.inputs": "standardise", "evaluation.report": "best"}
    common = np.unique(rows.y, return_counts=True)[1].max() if rows.task == "classification" else 0
    if len(rows.y) - common < _FEW_ROWS[rows.task]:
        said |= {"model.hidden": "[]", "training.epochs": "1"}
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
