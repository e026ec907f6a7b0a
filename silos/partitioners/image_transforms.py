"""Partitioning steps that move the pixels of images: rotation in exact integer arithmetic, and a fixed permutation.

The bytes are the same on any machine. Common rows, which no client owns, stay as they are.
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from silos.dataset import ATTEMPTS, At, Clients, Partition, in_blocks, labelled
from silos.partitioners.perturbation_params import PermutePixels, Rotation

_FRACTION = 16  # bits of a source position after the point
_ANGLE = 32  # bits of a sine after the point
_CHUNK = 512  # images turned at once: bounds memory


def rotate(x: np.ndarray, angle: float, centre: str = "middle") -> np.ndarray:
    """Images turned by `angle` degrees about their centre, counter-clockwise as seen with row 0 at the top.

    x: (n, height, width) or (n, height, width, channels), uint8 or float32; the answer has its shape and
    type. Bilinear, with black beyond the border. Multiples of 90 degrees move pixels exactly (of square
    images), 0 leaves them untouched. With `centre="opencv"` they turn about the pixel position
    (width / 2, height / 2), half a pixel beyond the middle in both directions.
    """
    cosine = _rounded(math.cos(math.radians(angle)))
    sine = _rounded(math.sin(math.radians(angle)))
    if sine == 0 and cosine > 0:
        return x.copy()
    corners = _corners(x.shape[1], x.shape[2], cosine, sine, 0 if centre == "opencv" else 1)
    chunks = [_blend(x[at : at + _CHUNK], corners) for at in range(0, len(x), _CHUNK)]
    return np.concatenate(chunks) if chunks else x.copy()


def _rounded(value: float) -> int:
    # rounding hides the last bits, in which the C libraries' sine differs between machines
    return round(value * 2**_ANGLE)


@lru_cache(maxsize=32)
def _corners(height: int, width: int, cosine: int, sine: int, less: int) -> list[tuple[np.ndarray, ...]]:
    """The four source pixels of every pixel: (row, column, weight in 2^-32), each (height, width) int64.

    The centre is at ((height - less) / 2, (width - less) / 2).
    """
    # twice the offset from the centre is a whole number, also where the centre lies between pixels
    down = 2 * np.arange(height, dtype=np.int64)[:, None] - (height - less)
    right = 2 * np.arange(width, dtype=np.int64)[None, :] - (width - less)
    shift = _ANGLE + 1 - _FRACTION
    half = np.int64(1) << (shift - 1)
    row = (cosine * down + sine * right + ((height - less) << _ANGLE) + half) >> shift
    column = (cosine * right - sine * down + ((width - less) << _ANGLE) + half) >> shift
    one = np.int64(1) << _FRACTION
    corners: list[tuple[np.ndarray, ...]] = []
    for low in (0, 1):
        for left in (0, 1):
            at_row, at_column = (row >> _FRACTION) + low, (column >> _FRACTION) + left
            share_row, share_column = row & (one - 1), column & (one - 1)
            weight = (share_row if low else one - share_row) * (share_column if left else one - share_column)
            inside = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
            weight = np.where(inside, weight, 0)
            corners.append((at_row.clip(0, height - 1), at_column.clip(0, width - 1), weight))
    return corners


def _blend(x: np.ndarray, corners: list[tuple[np.ndarray, ...]]) -> np.ndarray:
    whole = x.dtype == np.uint8
    total: np.ndarray = np.zeros(x.shape, np.int64 if whole else np.float64)
    for row, column, weight in corners:
        total += x[:, row, column] * weight.reshape(weight.shape + (1,) * (x.ndim - 3))
    if whole:
        return ((total + (1 << (2 * _FRACTION - 1))) >> (2 * _FRACTION)).astype(np.uint8)
    return (total / 2.0 ** (2 * _FRACTION)).astype(np.float32)


def rotation(step: Rotation, made: Partition, at: At) -> Partition:
    """The images of contiguous blocks of clients turned by one angle each; the angle names the domain."""
    _size("turns", made, at)
    clients = []
    for client, block in in_blocks(made.clients, len(step.angles), "angles", step.within, at):
        angle = step.angles[block] + 0.0  # no domain "rot-0"
        turned = rotate(client.x, angle, step.centre)
        clients.append(replace(client, x=turned, domain=labelled(client.domain, f"rot{angle:g}")))
    return replace(made, clients=Clients.of(clients))


def permute_pixels(step: PermutePixels, made: Partition, at: At) -> Partition:
    """The pixels of contiguous blocks of clients put in one order each, which names the domain; channels stay together.

    Every order is drawn, also the first block's, and no two are the same. With a block a client, permuted MNIST.
    """
    height, width = _size("moves the pixels of", made, at)
    clusters = len(made.clients) if step.clusters is None else step.clusters
    # before anything is drawn: it refuses more clusters than clients
    with_block = in_blocks(made.clients, clusters, "clusters", step.within, at)
    orders = _orders(clusters, height * width, at)
    clients = []
    for client, block in with_block:
        flat = client.x.reshape(len(client.x), height * width, *client.x.shape[3:])
        x = flat[:, orders[block]].reshape(client.x.shape)
        clients.append(replace(client, x=x, domain=labelled(client.domain, f"pixels{block}")))
    return replace(made, clients=Clients.of(clients))


def _size(does: str, made: Partition, at: At) -> tuple[int, int]:
    """Height and width of the clients' images; UserError where rows are no images."""
    shape = made.clients[0].x.shape[1:]
    if len(shape) not in (2, 3):
        raise at.error(
            f"{does} images, and the rows of the source have the shape {shape}, not (height, width) or (height, "
            "width, channels); drop the step or change the source."
        )
    return shape[0], shape[1]


def _orders(count: int, pixels: int, at: At) -> list[np.ndarray]:
    """Orders of pixels, all different: (pixels,) int64 each."""
    orders: dict[bytes, np.ndarray] = {}
    for cluster in range(count):
        rng = at.stream(cluster)
        for _ in range(ATTEMPTS):
            drawn = rng.permutation(pixels)
            if orders.setdefault(drawn.tobytes(), drawn) is drawn:
                break
        else:
            raise at.error(
                f"found no {count} different orders of {pixels} pixels, in {ATTEMPTS} draws each; lower clusters."
            )
    return list(orders.values())
