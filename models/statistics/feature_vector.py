"""The statistics of one client's training rows: a vector of fixed length, in float64.

A statistic is a frozen record of its options, created by name; several are concatenated. The vector is bit-identical
for any order of the client's rows, since they are sorted first.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import torch
from torch import Tensor

from ..model_card import StatisticSpec
from . import row_moments, spectrum
from .statistic_base import Statistic, StatisticError, StatisticResult

__all__ = ["KINDS", "Statistic", "StatisticError", "Statistics", "check", "compute", "length", "make", "too_few_rows"]

KINDS: Mapping[str, type[Statistic]] = {
    kind.kind: kind
    for kind in (
        row_moments.Mean,
        row_moments.Variance,
        row_moments.Covariance,
        row_moments.Skewness,
        row_moments.Kurtosis,
        row_moments.LabelMean,
        row_moments.ClassFrequencies,
        row_moments.ClassMeans,
        row_moments.CovarianceXY,
        row_moments.LeastSquares,
        spectrum.Loadings,
        spectrum.Fingerprint,
    )
}


@dataclass(frozen=True)
class Statistics:
    """One client's vector (length,) float64, and for each statistic `ok`, `gap` and `agreement` as in `StatisticResult`."""

    vector: Tensor
    ok: tuple[bool, ...]
    gap: tuple[float | None, ...]
    agreement: tuple[float | None, ...]


def make(spec: StatisticSpec) -> Statistic:
    """Create a statistic from a record such as `{kind: mean}`; ValueError for an unknown kind or option."""
    options = dict(spec)
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        near = get_close_matches(str(kind), KINDS, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Choose one of {', '.join(KINDS)}."
        raise ValueError(f"statistic: got {kind!r}, expected a known kind. {hint}")
    fields = {field.name: field.type for field in dataclasses.fields(KINDS[kind])}  # type: ignore[arg-type]
    for name, value in options.items():
        if name not in fields:
            available = f"one of {', '.join(fields)}" if fields else "no options"
            raise ValueError(f"{kind}: got the option {name!r}, expected {available}")
        if fields[name] in (int, bool) and type(value) is not fields[name]:
            kind_of = "a whole number" if fields[name] is int else "true or false"
            raise ValueError(f"{kind}: {name}: got {value!r}, expected {kind_of}")
    return KINDS[kind](**options)


def length(statistics: Sequence[Statistic], features: int, classes: int) -> int:
    """Return the length of the vector, which is the same for every client."""
    return sum(statistic.length(features, classes) for statistic in statistics)


def too_few_rows(statistics: Sequence[Statistic], rows: int, features: int, classes: int) -> str | None:
    """Return what a client with `rows` rows lacks, as the end of a sentence; None if it has enough."""
    for s in statistics:
        needed = s.rows_needed(features, classes)
        if rows < needed:
            return f"has {rows} training row{'' if rows == 1 else 's'}, expected {needed} for the statistic {s.kind}"
    return None


def compute(statistics: Sequence[Statistic], x: Tensor, y: Tensor, classes: int) -> Statistics:
    """Compute and concatenate the statistics of one client's rows; with too few rows they are zeros and not `ok`.

    x: (rows, *shape), any float; y: (rows,) int64 codes below `classes`, or targets if classes is 0. StatisticError if
    a row or a result is not finite, or a class is unknown.
    """
    x, y = _sort_rows(x.flatten(1).double(), y)
    _check_rows(x, y, classes)
    parts = [_compute_one(s, x, y, classes) for s in statistics]
    vector = torch.cat([torch.zeros(0, dtype=torch.float64), *(part.vector for part in parts)])
    check(vector, statistics, x.shape[1], classes)
    flags = (tuple(getattr(part, name) for part in parts) for name in ("ok", "gap", "agreement"))
    return Statistics(vector, *flags)


def check(vector: Tensor, statistics: Sequence[Statistic], features: int, classes: int) -> None:
    """Raise StatisticError unless the last axis has the agreed length and all numbers are finite, also in float32."""
    lengths = [s.length(features, classes) for s in statistics]
    if vector.ndim == 0 or vector.shape[-1] != sum(lengths):
        shape = tuple(vector.shape)
        raise StatisticError(f"statistics: got shape {shape}, expected the agreed {sum(lengths)} in the last axis")
    for s, part in zip(statistics, vector.split(lengths, -1), strict=True):
        if not bool(torch.isfinite(part.float()).all()):
            raise StatisticError(
                f"the statistic {s.kind}: got NaN, infinity or a number too large for float32, expected finite "
                "numbers. Scale the features"
            )


def _compute_one(statistic: Statistic, x: Tensor, y: Tensor, classes: int) -> StatisticResult:
    width = statistic.length(x.shape[1], classes)
    if len(x) < statistic.least_rows:
        return StatisticResult(torch.zeros(width, dtype=torch.float64), ok=False)
    return statistic.compute(x, y, classes)


def _sort_rows(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sort rows by their bytes, so that sums, and the bases of equal eigenvalues, do not depend on their order."""
    together = np.ascontiguousarray(torch.cat([x, y.double()[:, None]], 1).numpy())
    order = np.argsort(together.view(np.dtype((np.void, together.strides[0])))[:, 0], kind="stable")
    index = torch.from_numpy(order)
    return x[index], y[index]


def _check_rows(x: Tensor, y: Tensor, classes: int) -> None:
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise StatisticError("training rows: got NaN or infinity, expected finite numbers. Fill in or drop such rows")
    if not classes:
        return
    if y.is_floating_point():
        raise StatisticError(f"labels: got {y.dtype} numbers, expected the codes of {classes} classes")
    outside = y[(y < 0) | (y >= classes)]
    if len(outside):
        agreed = f"{classes} classes, 0 to {classes - 1}"
        fault = f"training rows: got class {int(outside[0])}, expected one of {agreed}"
        raise StatisticError(f"{fault}. All clients need one list")
