"""The query that the server sends to every client: the same for all, decided before any client answers.

A few features represent a picture, by projections that depend on no data.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from models.diagnosis.client_summaries.client_summary import Layout

SIDE = 8
"""Pixels per side to which a picture is pooled before it is projected."""

MAX_CHANNELS = 16

_SEED, _DIRECTIONS = 7, 8


@dataclass(frozen=True, eq=False)
class Query:
    """Counts on a layout, and moments.

    schema: the id of the agreed features; pictures: how pictures are projected, as light or as other numbers, None for
    tables; counts: whether counts are requested besides moments; targets: whether the target is appended as a feature,
    which is how groups of targets are agreed on; rho: the cost if clients add noise and report counts only, 0
    without noise.
    """

    schema: str
    layout: Layout
    pictures: Literal["light", "numbers"] | None = None
    counts: bool = True
    targets: bool = False
    rho: float = 0.0

    @cached_property
    def id(self) -> str:
        """Identify the requested numbers: equal for queries that request the same."""
        layout = self.layout
        request = {
            "schema": self.schema,
            "pictures": self.pictures,
            "counts": self.counts,
            "of targets": self.targets,
            "noise": self.rho > 0,
            "names": layout.names,
            "categories": layout.categories,
            "low": layout.low.tolist(),
            "high": layout.high.tolist(),
            "bins": layout.bins,
            "classes": layout.classes,
            "targets": layout.targets,
            "missing": layout.missing,
        }
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]


def project_pictures(x: np.ndarray, light: bool = True) -> tuple[tuple[str, ...], np.ndarray]:
    """Project pictures, x: (rows, *shape) with a picture in the last two axes: names, and (rows, features) float64.

    The features are eight random directions and sixteen patches of the picture pooled to 8 by 8, and moments of the
    whole picture. The mean of each channel follows if there are several, up to MAX_CHANNELS; all else averages over
    channels. light: whether pixels are light in [0, 1], so that its position has moments too; other numbers may be
    negative.
    """
    height, width = ((1, *x.shape[1:]) if x.ndim == 2 else x.shape)[-2:]
    channels = x.reshape(len(x), -1, height, width)
    grey = channels.mean(1)
    small = _pooled(grey)
    parts = [_directions(small), _patches(small), _moments(grey, light)]
    if 1 < channels.shape[1] <= MAX_CHANNELS:
        means = channels.mean((2, 3))
        parts.append(([f"channel {index}" for index in range(means.shape[1])], means))
    return tuple(name for names, _ in parts for name in names), np.concatenate([numbers for _, numbers in parts], 1)


def light_bounds(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest value of each feature of light, (features,) each, without data."""
    weights = _weights()
    range_of = {
        f"direction {index}": (weights[:, index].clip(max=0).sum(), weights[:, index].clip(min=0).sum())
        for index in range(_DIRECTIONS)
    }
    range_of |= {"deviation": (0, 0.5), "xx": (0, 0.25), "yy": (0, 0.25), "xy": (-0.25, 0.25)}
    limits = np.array([range_of.get(name, (0, 1)) for name in names], float)
    return limits[:, 0], limits[:, 1]


def _weights() -> np.ndarray:
    directions = np.random.default_rng(_SEED).standard_normal((SIDE * SIDE, _DIRECTIONS))
    return directions / np.linalg.norm(directions, axis=0)


def _directions(small: np.ndarray) -> tuple[list[str], np.ndarray]:
    return [f"direction {index}" for index in range(_DIRECTIONS)], small.reshape(len(small), -1) @ _weights()


def _patches(small: np.ndarray) -> tuple[list[str], np.ndarray]:
    half = SIDE // 2
    patches = small.reshape(-1, half, 2, half, 2).mean((2, 4))
    return [f"patch {row},{column}" for row in range(half) for column in range(half)], patches.reshape(len(small), -1)


def _moments(grey: np.ndarray, light: bool) -> tuple[list[str], np.ndarray]:
    """Return moments of brightness and edges, and the centre and spread of light as shares of the picture."""
    height, width = grey.shape[1:]
    y, x = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None]
    features = {
        "brightness": grey.mean((1, 2)),
        "deviation": grey.std((1, 2)),
        "edges across": np.abs(np.diff(grey, axis=2)).mean((1, 2)) if width > 1 else np.zeros(len(grey)),
        "edges down": np.abs(np.diff(grey, axis=1)).mean((1, 2)) if height > 1 else np.zeros(len(grey)),
    }
    if light:
        total = grey.sum((1, 2))

        def mean(weights: np.ndarray, empty: float) -> np.ndarray:
            return np.divide((grey * weights).sum((1, 2)), total, out=np.full(len(grey), empty), where=total > 0)

        cx, cy = mean(x, 0.5), mean(y, 0.5)
        dx, dy = x - cx[:, None, None], y - cy[:, None, None]
        features |= {"centre x": cx, "centre y": cy}
        features |= {"xx": mean(dx * dx, 0.0), "yy": mean(dy * dy, 0.0), "xy": mean(dx * dy, 0.0)}
    return list(features), np.stack(list(features.values()), 1)


def _pooled(grey: np.ndarray) -> np.ndarray:
    """Return means over equal areas: (rows, SIDE, SIDE)."""
    down, across = (_shares(size) for size in grey.shape[1:])
    return np.einsum("ih,nhw,jw->nij", down, grey, across, optimize=True)


def _shares(size: int) -> np.ndarray:
    """Return the weight of each pixel in SIDE equal parts of a line: (SIDE, size), each row of sum 1."""
    edges = np.arange(SIDE + 1) * size / SIDE
    low = np.maximum(edges[:-1, None], np.arange(size)[None])
    high = np.minimum(edges[1:, None], np.arange(1, size + 1)[None])
    shares = np.clip(high - low, 0, None)
    return shares / shares.sum(1, keepdims=True)
