"""The cells of a source as they came, before any setting of params changes them: the same whatever is made of them.

A cell is stored as a hash that is keyed with a secret of the silos. A client's ledger compares these, so that a row that
left or a value that changed is found under any other reading of the source.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

MOST_TOKEN = 2**30 - 2
"""The largest hash of a cell; two bits are left for the number of copies of a row."""

_PICTURE = ("picture 0", "picture 1")
_EMPTY = 0


@dataclass(frozen=True)
class RawColumns:
    """The columns of a source.

    Attributes:
        names: Their names, in the order of the source; two for a picture, whose cells are its two halves of one hash.
        of_feature: The index in `names` of the column that each feature is made from; empty for pictures.
        label: The index of the label, or of the target.
    """

    names: tuple[str, ...]
    of_feature: tuple[int, ...]
    label: int


@dataclass(frozen=True, eq=False)
class RawCells:
    """The cells of rows, and the columns: hashes (rows, columns) uint32 of 30 bits, equal for equal cells; 0 if empty."""

    hashes: np.ndarray
    columns: RawColumns

    def take(self, rows: np.ndarray) -> "RawCells":
        """Return the cells of the rows at these indices, or where this mask is true."""
        return replace(self, hashes=self.hashes[rows])


def cells_of_arrays(x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> RawCells:
    """Return the cells of rows x (rows, *shape) with labels or targets y (rows,), as a source returned them.

    names: of the features of a table, "" for others.
    """
    label = hash_numbers(np.asarray(y, np.float64))[:, None]
    if x.ndim != 2:
        flat = np.ascontiguousarray(x.reshape(len(x), int(np.prod(x.shape[1:]))))
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in flat)
        halves = np.frombuffer(digests, "<u4").reshape(len(x), 2).astype(np.uint32) >> np.uint32(2)
        return RawCells(np.concatenate([halves, label], 1), RawColumns((*_PICTURE, "the label"), (), 2))
    width = x.shape[1]
    named = tuple(names) or tuple(f"x{index}" for index in range(width))
    hashes = np.concatenate([hash_numbers(x.astype(np.float64)), label], 1)
    return RawCells(hashes, RawColumns((*named, "the label"), tuple(range(width)), width))


def join_cells(hashes: np.ndarray) -> np.ndarray:
    """Hash each row of cells (rows, columns) to 64 bits, (rows,) uint64."""
    joined = np.zeros(len(hashes), np.uint64)
    for column in hashes.T:
        joined = (joined ^ column) * np.uint64(0x9E3779B97F4A7C15)
        joined ^= joined >> np.uint64(29)
    return joined


def hash_numbers(values: np.ndarray) -> np.ndarray:
    """Hash numbers, float64 of any shape, to 30 bits: −0 as 0; a missing value, NaN, is an empty cell."""
    bits = (np.ascontiguousarray(values, np.float64) + 0.0).view(np.uint64)
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    hashes = np.clip((bits ^ bits >> np.uint64(31)) >> np.uint64(34), 1, MOST_TOKEN)
    return np.where(np.isnan(values), _EMPTY, hashes).astype(np.uint32)


def hash_texts(values: Sequence[object]) -> np.ndarray:
    """Hash the distinct values of a column of a file, (values,) uint32: a text that is a plain number as this number.

    So 17 and 17.0 are equal, and so are a number of a Parquet file and its text in a CSV. Spaces around a text do not count.
    """
    numbers, texts = np.full(len(values), np.nan), list[tuple[int, str]]()
    for index, value in enumerate(values):
        text = "" if value is None else str(value).strip()
        try:
            numbers[index] = float(text)
        except ValueError:
            texts.append((index, text))
    hashes = hash_numbers(numbers)
    for index, text in texts:
        if text:
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4, person=b"cell").digest()
            hashes[index] = min(max(int.from_bytes(digest, "little") >> 2, 1), MOST_TOKEN)
    return hashes
