"""What stands for a picture where shift is named: a few numbers that no data decided, the same for every client."""

import numpy as np

SIDE = 8
"""Pixels that a picture is pooled to, each way, before it is projected."""

MOST_CHANNELS = 16

_SEED, _DIRECTIONS = 7, 8


def projected(x: np.ndarray, light: bool = True) -> tuple[tuple[str, ...], np.ndarray]:
    """Names, and the numbers of each picture, (rows, numbers) float64; x: (rows, *shape), whose last two axes are a picture.

    Eight random directions and sixteen patches of the picture pooled to 8 by 8, moments of the whole, and the mean of each
    channel where there are several, up to MOST_CHANNELS. Channels are averaged for all but the last. light: pixels are
    light, in [0, 1], so that where it lies has moments, too; other numbers may be negative.
    """
    height, width = ((1, *x.shape[1:]) if x.ndim == 2 else x.shape)[-2:]
    channels = x.reshape(len(x), -1, height, width)
    grey = channels.mean(1)
    small = _pooled(grey)
    parts = [_directions(small), _patches(small), _moments(grey, light)]
    if 1 < channels.shape[1] <= MOST_CHANNELS:
        means = channels.mean((2, 3))
        parts.append(([f"channel {at}" for at in range(means.shape[1])], means))
    return tuple(name for names, _ in parts for name in names), np.concatenate([numbers for _, numbers in parts], 1)


def bounds(names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that each number of light can be, (numbers,) each, known without data."""
    weights = _weights()
    reach = {
        f"direction {at}": (weights[:, at].clip(max=0).sum(), weights[:, at].clip(min=0).sum())
        for at in range(_DIRECTIONS)
    }
    reach |= {"deviation": (0, 0.5), "xx": (0, 0.25), "yy": (0, 0.25), "xy": (-0.25, 0.25)}
    ends = np.array([reach.get(name, (0, 1)) for name in names], float)
    return ends[:, 0], ends[:, 1]


def _weights() -> np.ndarray:
    drawn = np.random.default_rng(_SEED).standard_normal((SIDE * SIDE, _DIRECTIONS))
    return drawn / np.linalg.norm(drawn, axis=0)


def _directions(small: np.ndarray) -> tuple[list[str], np.ndarray]:
    return [f"direction {at}" for at in range(_DIRECTIONS)], small.reshape(len(small), -1) @ _weights()


def _patches(small: np.ndarray) -> tuple[list[str], np.ndarray]:
    half = SIDE // 2
    patches = small.reshape(-1, half, 2, half, 2).mean((2, 4))
    return [f"patch {row},{column}" for row in range(half) for column in range(half)], patches.reshape(len(small), -1)


def _moments(grey: np.ndarray, light: bool) -> tuple[list[str], np.ndarray]:
    """Of where light is, its centre and spread, across (x) and down (y), as shares of the picture; and of edges."""
    height, width = grey.shape[1:]
    y, x = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None]
    numbers = {
        "brightness": grey.mean((1, 2)),
        "deviation": grey.std((1, 2)),
        "edges across": np.abs(np.diff(grey, axis=2)).mean((1, 2)) if width > 1 else np.zeros(len(grey)),
        "edges down": np.abs(np.diff(grey, axis=1)).mean((1, 2)) if height > 1 else np.zeros(len(grey)),
    }
    if light:
        whole = grey.sum((1, 2))

        def mean(of: np.ndarray, empty: float) -> np.ndarray:
            return np.divide((grey * of).sum((1, 2)), whole, out=np.full(len(grey), empty), where=whole > 0)

        cx, cy = mean(x, 0.5), mean(y, 0.5)
        dx, dy = x - cx[:, None, None], y - cy[:, None, None]
        numbers |= {"centre x": cx, "centre y": cy}
        numbers |= {"xx": mean(dx * dx, 0.0), "yy": mean(dy * dy, 0.0), "xy": mean(dx * dy, 0.0)}
    return list(numbers), np.stack(list(numbers.values()), 1)


def _pooled(grey: np.ndarray) -> np.ndarray:
    """Means of equal areas: (rows, SIDE, SIDE)."""
    down, across = (_shares(size) for size in grey.shape[1:])
    return np.einsum("ih,nhw,jw->nij", down, grey, across, optimize=True)


def _shares(size: int) -> np.ndarray:
    """How much each pixel counts in each of SIDE equal parts of a line: (SIDE, size), rows add up to 1."""
    ends = np.arange(SIDE + 1) * size / SIDE
    low = np.maximum(ends[:-1, None], np.arange(size)[None])
    high = np.minimum(ends[1:, None], np.arange(1, size + 1)[None])
    shares = np.clip(high - low, 0, None)
    return shares / shares.sum(1, keepdims=True)
