"""What a model that leaves siloflow does with rows as they were partitioned, and with its answers.

Rows of a table, as its file has them, to the numbers that a model takes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

Scale = Mapping[str, Sequence[float]]
"""`mean` and `scale` of each number of a row, or of the target; as silos.standardizer has them."""


class RawInputModel(nn.Module):
    """Rows to what the network is trained on, and its outputs to units of y; the arithmetic is that of silos.standardizer.

    Pixels, uint8, are divided by 255; other numbers are scaled where there is a scale, in float64, else taken as they are.
    """

    inputs_mean: Tensor
    inputs_scale: Tensor
    targets_mean: Tensor
    targets_scale: Tensor

    def __init__(self, inputs: Scale | None, targets: Scale | None) -> None:
        super().__init__()
        self.scaled, self.answers = inputs is not None, targets is not None
        for name, of in (("inputs", inputs), ("targets", targets)):
            for part in ("mean", "scale") if of else ():
                self.register_buffer(f"{name}_{part}", torch.tensor(of[part], dtype=torch.float64))  # type: ignore[index]

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, *shape) in the type of the data to float32."""
        if rows.dtype == torch.uint8:
            return rows.float() / 255
        if not self.scaled:
            return rows.float()
        columns = rows.flatten(1).double()
        return ((columns - self.inputs_mean) / self.inputs_scale).float().reshape(rows.shape)

    def predictions(self, output: Tensor) -> Tensor:
        """(rows, 1), a network's output of a regression, to (rows,) in units of y."""
        if not self.answers:
            return output[:, 0]
        return (output[:, 0].double() * self.targets_scale + self.targets_mean).float()


Columns = Sequence[Mapping[str, Any]]
"""What `silos.sources.tabular.table_reader` returns: name, kind, missing, and the values of a text column."""

_TRUTHS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}


def encode(rows: pd.DataFrame, columns: Columns) -> np.ndarray:
    """Return the features of rows, (rows, features) float32, as `siloflow partition` makes them of a file.

    Columns are found by name, in any order. A missing value is filled in as the rule of its column says.

    Raises:
        ValueError: if a name is missing, unknown or repeated, or a value is unusable; rows are counted from 1.
    """
    _check_names([str(name) for name in rows.columns], [column["name"] for column in columns])
    parts = [(_one_hot if column["kind"] == "text" else _numbers)(rows[column["name"]], column) for column in columns]
    return np.concatenate(parts, axis=1)


def _check_names(found: list[str], expected: list[str]) -> None:
    count, known = Counter(found), set(expected)
    faults = {
        "no": [name for name in expected if name not in count],
        "unknown": [name for name in count if name not in known],
        "repeated": [name for name in count if count[name] > 1],
    }
    if got := ", ".join(f"{fault} {_some(names, 5)}" for fault, names in faults.items() if names):
        raise ValueError(f"columns: got {got}, expected each of {_some(expected, 20)} once. Correct the names.")


def _numbers(values: pd.Series, column: Mapping[str, Any]) -> np.ndarray:
    """Return (rows, 1) float32."""
    truth = column["kind"] == "boolean"
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "f" and not truth:
        made = values.to_numpy(np.float64, copy=True)
    else:
        made = np.array([_number(value, truth) for value in values.tolist()], np.float64)
    with np.errstate(over="ignore"):
        odd = np.flatnonzero(~np.isfinite(made.astype(np.float32)))
    for at in odd.tolist():
        if not _is_missing(values.iloc[at]):
            wanted = "true or false" if truth else "a finite float32 number"
            raise _unusable(column, at, values.iloc[at], wanted)
        made[at] = _filled(column, at)
    return made.astype(np.float32)[:, None]


def _number(value: Any, truth: bool) -> float:
    """Return NaN for a value that is missing or no number."""
    if truth:
        return _TRUTHS.get(str(value).strip().lower(), np.nan)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _filled(column: Mapping[str, Any], at: int) -> float:
    """Return the number that the column's rule fills in for a missing value."""
    rule = column["missing"]
    if not isinstance(rule, str):
        return float(rule)
    if rule == "mean":
        raise _unusable(column, at, None, "one, since the model holds no client's mean", "Fill in the client's mean")
    raise _unusable(column, at, None, "one, since `missing: refuse` holds", "Fill in a value")


def _one_hot(values: pd.Series, column: Mapping[str, Any]) -> np.ndarray:
    """Return (rows, values) float32: 1 for the value of the row; if values may be missing, the last place is for them."""
    known = column["values"]
    made = np.zeros((len(values), len(known) + column["missing"]), np.float32)
    for at, value in enumerate(values.tolist()):
        place = None if _is_missing(value) else _place(value, known)
        # in `inputs` and `instances` MLflow turns null into the text None
        if place is None and column["missing"] and (_is_missing(value) or value == "None"):
            place = len(known)
        if place is None:
            raise _unusable(column, at, value, f"one of {_some(known, 20)}{' or none' * column['missing']}")
        made[at, place] = 1
    return made


def _place(value: Any, known: list[str]) -> int | None:
    """Return the place of a value among the texts of the file: as it is written, or the only one that is equal."""
    text = str(value).strip()
    if text in known:
        return known.index(text)
    same = [at for at, each in enumerate(known) if not isinstance(value, str) and _is_same(value, each)]
    return same[0] if len(same) == 1 else None


def _is_same(value: Any, text: str) -> bool:
    """Whether a truth or a number, such as 7, is what a file writes in another way, such as 7.0."""
    if isinstance(value, bool | np.bool_):
        return text.lower() == str(value).lower()
    try:
        return float(text) == float(value)
    except (TypeError, ValueError):
        return False


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value is pd.NA or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _unusable(
    column: Mapping[str, Any], at: int, value: Any, expected: str, way_out: str = "Correct the value"
) -> ValueError:
    value = value.item() if isinstance(value, np.generic) else value
    got = "no value" if _is_missing(value) else repr(value)[:60]
    return ValueError(f"{column['name']}: got {got} in row {at + 1}, expected {expected}. {way_out}, or drop the row.")


def _some(names: Sequence[str], shown: int) -> str:
    text = ", ".join(repr(name)[:60] for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
