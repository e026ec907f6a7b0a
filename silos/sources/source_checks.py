"""Checks that the sources `npz` and `table` share, which read a user's own file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from silos.dataset import SPLITS
from silos.errors import UserError

ROUNDED = 0.01  # of the values' standard deviation, by which rounding to float32 may move a value
SPLIT_WORDS = {"training": "train", "val": "validation", "valid": "validation", "testing": "test"}
SPLIT_WORDS |= {name: name for name in SPLITS}
"""The split that a name means, in lower case."""
_SPLIT_CODES = {"0": "train", "1": "test", "2": "validation", **SPLIT_WORDS}


def must_be_there(name: str, path: Path) -> None:
    """Raise UserError if `path` is not a file; `name` is its name in params.yaml."""
    if not path.is_file():
        raise UserError(
            f"{name}: got {'a folder' if path.is_dir() else 'no such file'} (looked for {path}), expected "
            "a file. Correct data.source.path in params.yaml, which is relative to the folder of params.yaml."
        )


def stays_distinct(exact: np.ndarray, rounded: np.ndarray) -> bool:
    """Return whether rounding keeps values distinct. exact: (n,) real numbers; rounded: (n,) float32, all finite."""
    if exact.dtype != np.float64:
        exact = exact.astype(np.longdouble)  # holds integers of 64 bits
    if not len(exact) or exact.max() == exact.min():
        return True
    moved = np.abs(exact - rounded).max()
    if moved > ROUNDED * exact.std():
        return False
    low, high = np.quantile(exact, (0.25, 0.75))  # a few outliers, such as 0 for missing values, widen the deviation
    return bool(moved <= ROUNDED * (high - low)) or 2 * len(np.unique(rounded)) >= len(np.unique(exact))


def named_splits(texts: Sequence[str]) -> set[str] | None:
    """Return the splits that these texts name; None if one names no split."""
    splits = {_SPLIT_CODES.get(text.casefold()) for text in texts}
    return None if None in splits else {split for split in splits if split is not None}


def split_names(name: str, column: np.ndarray) -> np.ndarray:
    """Return a split column as "train", "validation" or "test": (n,) str; UserError for other values."""
    values, codes = np.unique(column, return_inverse=True)
    texts = [str(int(value)) if value in (0, 1, 2) else str(value) for value in values.tolist()]
    for text in texts:
        if text.casefold() not in _SPLIT_CODES:
            raise UserError(
                f"{name}: split: got {text!r}, expected 0 or train, 1 or test, 2 or validation. Correct the value."
            )
    return np.array([_SPLIT_CODES[text.casefold()] for text in texts])[codes]
