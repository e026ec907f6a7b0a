"""Evidence as a table of how alike clients are, (clients, clients) float64, symmetric; rules that read one are in rules."""

from typing import Literal

import numpy as np

Overlap = Literal["jaccard", "equal", "dot"]

_TINY = 1e-12  # an update of zeros is like no other
_BYTES_AT_ONCE = 2**26  # of rows unpacked to float32; one product serves so many, and counts below 2^24 are exact


def directions(updates: np.ndarray) -> np.ndarray:
    """Each update divided by its length: (clients, numbers) float64; zeros stay zeros."""
    return updates / (np.linalg.norm(updates, axis=1, keepdims=True) + _TINY)


def cosines(updates: np.ndarray) -> np.ndarray:
    """Of all pairs of updates (clients, numbers)."""
    unit = directions(updates)
    return unit @ unit.T


def both_right(bits: np.ndarray, other: np.ndarray | None = None) -> np.ndarray:
    """On how many rows both of a pair are right: (clients, others) float64, whole numbers.

    bits: (clients, bytes) uint8, eight rows a byte as numpy packs them, the last filled up with zeros; `other` likewise,
    or the same clients. Memory does not grow with the rows.
    """
    other = bits if other is None else other
    counts = np.zeros((len(bits), len(other)))
    step = max(1, _BYTES_AT_ONCE // (32 * max(1, len(bits) + len(other))))
    for at in range(0, bits.shape[1], step):
        left = np.unpackbits(bits[:, at : at + step], axis=1).astype(np.float32)
        right = left if other is bits else np.unpackbits(other[:, at : at + step], axis=1).astype(np.float32)
        counts += left @ right.T
    return counts


def right_counts(bits: np.ndarray) -> np.ndarray:
    """On how many rows each is right: (clients,) float64."""
    return np.bitwise_count(bits).sum(1, dtype=np.int64).astype(np.float64)


def overlaps(bits: np.ndarray, rows: int, kind: Overlap, other: np.ndarray | None = None) -> np.ndarray:
    """How much pairs are right on the same of `rows` rows, (clients, others) in [0, 1]; `bits` as for `both_right`.

    With d the share of rows on which both are right, and c each one's own share of right rows: `dot` is d, as Liu, Lee and
    Julien print it, bounded by the smaller c; `equal` is 1 - c_i - c_j + 2 d, as their code has it, the share of equal
    bits, for which common errors are as good as common knowledge; `jaccard` is d / (c_i + c_j - d), and 0 where neither is
    ever right. ValueError without rows.
    """
    if not rows:
        raise ValueError("there are no rows to be right on")
    d, c = (
        both_right(bits, other),
        right_counts(bits)[:, None],
    )  # whole numbers up to the one division: equals are equal
    each = c + (c.T if other is None else right_counts(other)[None])
    if kind == "dot":
        return d / rows
    if kind == "equal":
        return (rows - each + 2 * d) / rows
    return np.divide(d, each - d, out=np.zeros_like(d), where=each > 0)
