"""Preprocessing that an exported model applies to raw rows, and the conversion of its outputs to units of y.

Rows of a table are encoded from its file's columns to the numbers that a model takes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .model_card import Column, NumberColumn, Scale, TextColumn

if TYPE_CHECKING:  # flows import this module, and pandas takes long to import
    import pandas as pd

INPUTS_MEAN, INPUTS_SCALE, INPUTS_SEGMENTS = "inputs_mean", "inputs_scale", "inputs_segments"
"""Names of each client's scale among personal tensors, if it aligns features by its own rows."""


class RawInputModel(nn.Module):
    """Converts raw rows to the network's inputs, and its outputs to units of y.

    The arithmetic is that of silos.standardizer. uint8 pixels are divided by 255. Other numbers are standardised in
    float64 if there is a scale, else unchanged.
    """

    inputs_mean: Tensor
    inputs_scale: Tensor
    inputs_segments: Tensor
    targets_mean: Tensor
    targets_scale: Tensor

    def __init__(self, inputs: Scale | None, targets: Scale | None) -> None:
        super().__init__()
        self.scales_inputs, self.scales_targets = inputs is not None, targets is not None
        self.has_segments = bool(inputs and inputs.get("segments"))
        for name, scale in (("inputs", inputs), ("targets", targets)):
            if scale:
                self.register_buffer(f"{name}_mean", torch.tensor(scale["mean"], dtype=torch.float64))
                self.register_buffer(f"{name}_scale", torch.tensor(scale["scale"], dtype=torch.float64))
        if inputs and self.has_segments:
            parts = torch.tensor(inputs["segments"], dtype=torch.float64).permute(2, 1, 0)  # (segments, 4, columns)
            self.register_buffer(INPUTS_SEGMENTS, parts.contiguous())

    def forward(self, rows: Tensor) -> Tensor:
        """Convert (rows, *shape) of the data's type to float32."""
        if rows.dtype == torch.uint8:
            return rows.float() / 255
        if not self.scales_inputs:
            return rows.float()
        columns = rows.flatten(1).double()
        if self.has_segments:
            parts = [part.unbind(0) for part in self.inputs_segments.unbind(0)]
            columns = sum(slope * (columns.clamp(low, high) - offset) for low, high, slope, offset in parts)  # type: ignore[assignment]
        return ((columns - self.inputs_mean) / self.inputs_scale).float().reshape(rows.shape)

    def predictions(self, output: Tensor) -> Tensor:
        """Convert a regression network's output (rows, 1) to (rows,) in units of y."""
        if not self.scales_targets:
            return output[:, 0]
        return (output[:, 0].double() * self.targets_scale + self.targets_mean).float()


_BOOLEANS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}


@dataclass(frozen=True)
class UnreadNumber:
    """A text among numbers that the model's table does not read as one, though Python may, such as 1_000 or 1.250.

    `wanted`: what is expected instead, and what the user can do.
    """

    text: str
    wanted: str = "a finite float32 number. Correct the value"

    def __repr__(self) -> str:
        return repr(self.text)


class RowFault(NamedTuple):
    """Why a row cannot be encoded: a sentence, its column, and whether a value is missing that no rule fills in."""

    message: str
    column: str
    is_missing: bool


Faults = dict[int, RowFault]
"""The first fault of each row that cannot be encoded, by the row's position."""


def encode(rows: "pd.DataFrame", columns: Sequence[Column]) -> np.ndarray:
    """Return the features of rows, (rows, features) float32, as `siloflow partition` computes them from a file.

    Columns are matched by name, in any order. Missing values are filled in by their column's rule.

    Raises:
        ValueError: If a name is missing, unknown or repeated, or a value is unusable; rows are counted from 1.
    """
    features, faults = encode_usable(rows, columns)
    for fault in faults.values():
        raise ValueError(fault.message)
    return features


def encode_usable(
    rows: "pd.DataFrame", columns: Sequence[Column], numbers: Sequence[int] | None = None
) -> tuple[np.ndarray, Faults]:
    """Return the features of rows, without meaning in rows with a fault, and these faults; see `encode`.

    Args:
        rows: The rows.
        columns: The columns of the model's table.
        numbers: The number by which a message names each row; from 1 if not given.
    """
    rows = rows.set_axis([str(name) for name in rows.columns], axis=1)  # JSON may hold numbers as names
    _check_names(list(rows.columns), [column["name"] for column in columns])
    faults = _RowFaults(range(1, len(rows) + 1) if numbers is None else numbers)
    parts = [
        _one_hot(rows[column["name"]], column, faults)
        if column["kind"] == "text"
        else _numbers(rows[column["name"]], column, faults)
        for column in columns
    ]
    return np.concatenate(parts, axis=1), faults.found


class _RowFaults:
    """Collects the first fault of each row."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers, self.found = numbers, Faults()

    def add(self, column: Column, row: int, value: object, expected: str, advice: str = "Correct the value") -> None:
        """Record that this value of the row, counted from 0, is not what is expected."""
        if row in self.found:
            return
        value = value.item() if isinstance(value, np.generic) else value
        is_missing = _is_missing(value)
        got = "no value" if is_missing else repr(value)[:60]
        wanted = value.wanted if isinstance(value, UnreadNumber) else f"{expected}. {advice}"
        message = f"{column['name']}: got {got} in row {self._numbers[row]}, expected {wanted}, or drop the row."
        self.found[row] = RowFault(message, column["name"], is_missing)


def _check_names(names: list[str], expected: list[str]) -> None:
    count, allowed = Counter(names), set(expected)
    faults = {
        "no": [name for name in expected if name not in count],
        "unknown": [name for name in count if name not in allowed],
        "repeated": [name for name in count if count[name] > 1],
    }
    if got := ", ".join(f"{fault} {_some(found, 5)}" for fault, found in faults.items() if found):
        raise ValueError(f"columns: got {got}, expected each of {_some(expected, 20)} once. Correct the names.")


def _numbers(values: "pd.Series[object]", column: NumberColumn, faults: _RowFaults) -> np.ndarray:
    """Return (rows, 1) float32."""
    boolean = column["kind"] == "boolean"
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "f" and not boolean:
        numbers = values.to_numpy(np.float64, copy=True)
    else:
        numbers = np.array([_number(value, boolean) for value in values.tolist()], np.float64)
    with np.errstate(over="ignore"):
        unusable = np.flatnonzero(~np.isfinite(numbers.astype(np.float32)))
    rule, expected = column["missing"], "true or false" if boolean else "a finite float32 number"
    for row in unusable.tolist():
        numbers[row] = 0.0 if isinstance(rule, str) else float(rule)
        if not _is_missing(values.iloc[row]):
            faults.add(column, row, values.iloc[row], expected)
        elif rule == "mean":
            faults.add(column, row, None, "one, since the model holds no client's mean", "Fill in the client's mean")
        elif isinstance(rule, str):
            faults.add(column, row, None, "one, as in all rows that the model learned from", "Fill in a value")
    _check_limits(numbers.astype(np.float32), unusable, column, faults)
    return numbers.astype(np.float32)[:, None]


def _check_limits(numbers: np.ndarray, filled: np.ndarray, column: NumberColumn, faults: _RowFaults) -> None:
    """Find numbers that the schema does not allow; numbers: (rows,) float32, some of them filled in."""
    outside, expected = np.zeros(len(numbers), bool), ""
    if "allowed" in column:
        outside = ~np.isin(numbers, np.array(column["allowed"], np.float32))
        expected = f"one of {', '.join(f'{value:g}' for value in column['allowed'])}"
    elif "range" in column:
        low, high = column["range"]
        outside = (numbers < np.float32(low)) | (numbers > np.float32(high))
        expected = f"a number from {low:g} to {high:g}"
    outside[filled] = False
    for row in np.flatnonzero(outside).tolist():
        faults.add(column, row, float(numbers[row]), expected)


def _number(value: Any, boolean: bool) -> float:
    """Return NaN for a value that is missing or not a number."""
    if boolean:
        return _BOOLEANS.get(str(value).strip().lower(), np.nan)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _one_hot(values: "pd.Series[object]", column: TextColumn, faults: _RowFaults) -> np.ndarray:
    """Return (rows, values) float32: 1 for the row's value.

    If values may be missing, the last column stands for missing values.
    """
    categories = column["values"]
    encoded = np.zeros((len(values), len(categories) + column["missing"]), np.float32)
    for row, value in enumerate(values.tolist()):
        index = None if _is_missing(value) else _value_index(value, categories)
        # MLflow turns null into the text None in `inputs` and `instances`
        if index is None and column["missing"] and (_is_missing(value) or value == "None"):
            index = len(categories)
        if index is None:
            faults.add(column, row, value, f"one of {_some(categories, 20)}{' or none' * column['missing']}")
        else:
            encoded[row, index] = 1
    return encoded


def _value_index(value: object, texts: list[str]) -> int | None:
    """Return the index of a value among the file's texts: as written, or the only equal one."""
    text = str(value).strip()
    if text in texts:
        return texts.index(text)
    equal = [i for i, candidate in enumerate(texts) if not isinstance(value, str) and _is_same(value, candidate)]
    return equal[0] if len(equal) == 1 else None


def _is_same(value: Any, text: str) -> bool:
    """Whether a boolean or a number, such as 7, equals a file's text, such as 7.0."""
    if isinstance(value, bool | np.bool_):
        return text.lower() == str(value).lower()
    try:
        return float(text) == float(value)
    except (TypeError, ValueError, OverflowError):
        return False


def _is_missing(value: object) -> bool:
    import pandas as pd

    if isinstance(value, str):
        return not value.strip()
    return value is None or value is pd.NA or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _some(names: Sequence[str], limit: int) -> str:
    named = names if len(names) <= limit + 1 else names[:limit]
    text = ", ".join(repr(name)[:60] for name in named)
    return text if len(named) == len(names) else f"{text} and {len(names) - limit:,} more"
