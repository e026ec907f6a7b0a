"""Features that some clients seem to record in another unit than most clients."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.diagnosis.client_summaries.client_summary import Layout, Summaries, mixture
from models.diagnosis.name_shift_types import MIN_ROWS

FAHRENHEIT, CELSIUS, KELVIN = "degrees Fahrenheit", "degrees Celsius", "kelvins"
_OFFSET_UNITS = (
    (FAHRENHEIT, CELSIUS, 1.8, 32.0),
    (CELSIUS, FAHRENHEIT, 1 / 1.8, -32 / 1.8),
    (KELVIN, CELSIUS, 1.0, 273.15),
    (CELSIUS, KELVIN, 1.0, -273.15),
    (FAHRENHEIT, KELVIN, 1.8, -459.67),
    (KELVIN, FAHRENHEIT, 1 / 1.8, 459.67 / 1.8),
)
"""A unit, the unit of most clients, and the scale and offset that convert the latter into the former."""

_LEAST_FACTOR, _PLAIN_FACTOR = 2.0, 8.0
"""A lesser factor names no unit. From the second on, it also names one of a quantity that varies as much as its mean."""
_MOST_VARIATION = 0.6  # deviation over mean: above it, as for waiting times, unlike cases often differ by such a factor
_TOLERANCE, _PLAIN_TOLERANCE = 1.25, 1.6  # of deviations, which one factor multiplies as it does means
_LIKE, _APART, _CONVERTED = 1.5, 2.0, 0.75
"""In deviations: means of clients with the same unit, means before conversion, and means after it."""


@dataclass(frozen=True)
class OtherUnit:
    """A feature, the clients that seem to record it in another unit, by index, and how it follows from that of most.

    Attributes:
        feature: The index of the feature.
        clients: Their indices.
        scale: A value of these clients is about `scale` times one of most clients, plus `offset`.
        offset: Likewise.
        unit: The likely unit of these clients; empty if only a factor is known.
        usual_unit: The likely unit of most clients.
        means: The means of these clients.
        usual_mean: The mean of most clients.
    """

    feature: int
    clients: tuple[int, ...]
    scale: float
    offset: float
    unit: str
    usual_unit: str
    means: tuple[float, ...]
    usual_mean: float


def find_other_units(summaries: Summaries, layout: Layout) -> list[OtherUnit]:
    """Return features of which a few clients' means and deviations fit those of most clients in another unit.

    Only means and deviations are needed, so clients also show it that count few cells. None under noise, where moments
    are those of bins.
    """
    if summaries.noise is not None:
        return []
    found = list[OtherUnit]()
    for feature in np.flatnonzero(layout.numeric).tolist():
        moments = mixture(summaries.moments[:, feature])
        rows, mean, spread = moments.T[:3]
        compared = np.flatnonzero((np.nan_to_num(rows) >= MIN_ROWS) & (np.nan_to_num(spread) > 0) & np.isfinite(mean))
        if len(compared) > 1:
            found += _of_feature(feature, moments, compared)
    return found


def _of_feature(feature: int, moments: np.ndarray, compared: np.ndarray) -> Iterator[OtherUnit]:
    usual = _most_alike(moments, compared)
    _, center, spread = mixture(moments[usual])[:3].tolist()
    by_conversion: dict[tuple[str, str, float], list[tuple[int, float, float]]] = {}
    for client in compared[~np.isin(compared, usual)].tolist():
        mean, deviation = moments[client, 1:3].tolist()
        conversion = _offset_unit(mean, deviation, center, spread)
        if conversion:
            by_conversion.setdefault((conversion[0], conversion[1], 0.0), []).append((client, *conversion[2:]))
            continue
        factor = _factor(mean, deviation, center, spread, moments[usual, 1])
        if factor:
            shown = _round_factor(factor)
            by_conversion.setdefault(("", "", shown), []).append((client, shown, 0.0))
    for (unit, usual_unit, _), clients in by_conversion.items():
        indices = tuple(client for client, _, _ in clients)
        means = tuple(moments[list(indices), 1].tolist())
        yield OtherUnit(feature, indices, clients[0][1], clients[0][2], unit, usual_unit, means, center)


def _most_alike(moments: np.ndarray, compared: np.ndarray) -> np.ndarray:
    """Return the largest set of clients whose means and deviations are about those of one of them."""
    mean, spread = moments[compared, 1], moments[compared, 2]
    narrower, wider = np.minimum(spread[:, None], spread), np.maximum(spread[:, None], spread)
    like = (np.abs(mean[:, None] - mean) <= _LIKE * narrower) & (wider <= _LEAST_FACTOR * narrower)
    return compared[like[int(like.sum(1).argmax())]]


def _offset_unit(mean: float, spread: float, center: float, usual: float) -> tuple[str, str, float, float] | None:
    """Return the temperatures that convert the usual mean and deviation into these, if these are far away otherwise."""
    if abs(mean - center) < _APART * max(spread, usual):
        return None
    for unit, usual_unit, scale, offset in _OFFSET_UNITS:
        fits = 1 / _TOLERANCE <= spread / (scale * usual) <= _TOLERANCE
        if fits and abs(mean - scale * center - offset) <= _CONVERTED * scale * usual:
            return unit, usual_unit, scale, offset
    return None


def _factor(mean: float, spread: float, center: float, usual: float, means: np.ndarray) -> float | None:
    """Return the factor of the mean if it is also that of the deviation, and far larger than between usual clients."""
    if mean * center <= 0 or (means * center <= 0).any():
        return None
    factor = mean / center
    away = max(factor, 1 / factor)
    between = max(float((means / center).max()), float((center / means).max()))
    if away < _LEAST_FACTOR * between or (away < _PLAIN_FACTOR and usual > _MOST_VARIATION * abs(center)):
        return None
    tolerance = _PLAIN_TOLERANCE if away >= _PLAIN_FACTOR else _TOLERANCE
    return factor if 1 / tolerance <= spread / usual / factor <= tolerance else None


def _round_factor(factor: float) -> float:
    """Return the power of ten that a factor is about, or else the factor to two digits."""
    power = 10.0 ** round(np.log10(factor))
    return power if power != 1 and abs(np.log(factor / power)) < np.log(_TOLERANCE) else float(f"{factor:.2g}")
