"""Steps that move the pixels of images: rotation in exact integer arithmetic, and a fixed permutation.

The bytes are the same on any machine. Common rows are not changed.
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from silos.dataset import ATTEMPTS, At, Clients, Partition, extend_domain, pair_with_blocks
from silos.partitioners.perturbation_params import PermutePixels, Rotation

_FRACTION = 16  # fractional bits of a source position
_ANGLE = 32  # fractional bits of a sine
_CHUNK = 512  # images rotated at once, to bound memory


def rotate(x: np.ndarray, angle: float, centre: str = "middle") -> np.ndarray:
    """Rotate images by `angle` degrees about their centre, counter-clockwise with row 0 at the top.

    x: (n, height, width) or (n, height, width, channels), uint8 or float32; the result has the same shape and type.
    Interpolation is bilinear, with black beyond the border. Multiples of 90 degrees move pixels of square images
    exactly, and 0 changes nothing. With `centre="opencv"` images rotate about the pixel position (width / 2, height /
    2), half a pixel beyond the middle in both directions.
    """
    cosine = _fixed_point(math.cos(math.radians(angle)))
    sine = _fixed_point(math.sin(math.radians(angle)))
    if sine == 0 and cosine > 0:
        return x.copy()
    corners = _corners(x.shape[1], x.shape[2], cosine, sine, 0 if centre == "opencv" else 1)
    chunks = [_blend(x[start : start + _CHUNK], corners) for start in range(0, len(x), _CHUNK)]
    return np.concatenate(chunks) if chunks else x.copy()


def _fixed_point(value: float) -> int:
    # rounding hides the last bits, in which the C libraries' sine differs between machines
    return round(value * 2**_ANGLE)


@lru_cache(maxsize=32)
def _corners(height: int, width: int, cosine: int, sine: int, inset: int) -> list[tuple[np.ndarray, ...]]:
    """Return the four source pixels of every pixel: (row, column, weight in 2^-32), each (height, width) int64.

    The centre is at ((height - inset) / 2, (width - inset) / 2).
    """
    # twice the offset from the centre is an integer, even if the centre lies between pixels
    offset_down = 2 * np.arange(height, dtype=np.int64)[:, None] - (height - inset)
    offset_right = 2 * np.arange(width, dtype=np.int64)[None, :] - (width - inset)
    shift = _ANGLE + 1 - _FRACTION
    half = np.int64(1) << (shift - 1)
    row = (cosine * offset_down + sine * offset_right + ((height - inset) << _ANGLE) + half) >> shift
    column = (cosine * offset_right - sine * offset_down + ((width - inset) << _ANGLE) + half) >> shift
    unit = np.int64(1) << _FRACTION
    corners: list[tuple[np.ndarray, ...]] = []
    for low in (0, 1):
        for left in (0, 1):
            source_row, source_column = (row >> _FRACTION) + low, (column >> _FRACTION) + left
            fraction_row, fraction_column = row & (unit - 1), column & (unit - 1)
            weight = (fraction_row if low else unit - fraction_row) * (
                fraction_column if left else unit - fraction_column
            )
            inside = (source_row >= 0) & (source_row < height) & (source_column >= 0) & (source_column < width)
            weight = np.where(inside, weight, 0)
            corners.append((source_row.clip(0, height - 1), source_column.clip(0, width - 1), weight))
    return corners


def _blend(x: np.ndarray, corners: list[tuple[np.ndarray, ...]]) -> np.ndarray:
    integer = x.dtype == np.uint8
    total: np.ndarray = np.zeros(x.shape, np.int64 if integer else np.float64)
    for row, column, weight in corners:
        total += x[:, row, column] * weight.reshape(weight.shape + (1,) * (x.ndim - 3))
    if integer:
        return ((total + (1 << (2 * _FRACTION - 1))) >> (2 * _FRACTION)).astype(np.uint8)
    return (total / 2.0 ** (2 * _FRACTION)).astype(np.float32)


def rotation(step: Rotation, partition: Partition, at: At) -> Partition:
    """Rotate the images of each contiguous block of clients by one angle, which names the domain."""
    _image_size("turns", partition, at)
    clients = []
    for client, block in pair_with_blocks(partition.clients, len(step.angles), "angles", step.within, at):
        angle = step.angles[block] + 0.0  # no domain "rot-0"
        x = rotate(client.x, angle, step.centre)
        clients.append(replace(client, x=x, domain=extend_domain(client.domain, f"rot{angle:g}")))
    return replace(partition, clients=Clients.concatenate(clients))


def permute_pixels(step: PermutePixels, partition: Partition, at: At) -> Partition:
    """Permute the pixels of each contiguous block of clients by one order, which names the domain.

    Channels stay together. All orders are random, including the first block's, and no two are equal. With one client a
    block, this is permuted MNIST.
    """
    height, width = _image_size("moves the pixels of", partition, at)
    clusters = len(partition.clients) if step.clusters is None else step.clusters
    # before any draw, since it refuses more clusters than clients
    with_block = pair_with_blocks(partition.clients, clusters, "clusters", step.within, at)
    orders = _pixel_orders(clusters, height * width, at)
    clients = []
    for client, block in with_block:
        flat = client.x.reshape(len(client.x), height * width, *client.x.shape[3:])
        x = flat[:, orders[block]].reshape(client.x.shape)
        clients.append(replace(client, x=x, domain=extend_domain(client.domain, f"pixels{block}")))
    return replace(partition, clients=Clients.concatenate(clients))


def _image_size(action: str, partition: Partition, at: At) -> tuple[int, int]:
    """Return height and width of the clients' images; UserError if rows are no images."""
    shape = partition.clients[0].x.shape[1:]
    if len(shape) not in (2, 3):
        raise at.error(
            f"got rows of shape {shape}, expected images of shape (height, width) or (height, width, channels), "
            f"since the step {action} images. Drop the step or change the source."
        )
    return shape[0], shape[1]


def _pixel_orders(count: int, pixels: int, at: At) -> list[np.ndarray]:
    """Return distinct orders of pixels: (pixels,) int64 each."""
    orders: dict[bytes, np.ndarray] = {}
    for cluster in range(count):
        rng = at.stream(cluster)
        for _ in range(ATTEMPTS):
            candidate = rng.permutation(pixels)
            if orders.setdefault(candidate.tobytes(), candidate) is candidate:
                break
        else:
            raise at.error(
                f"clusters: got {count}, expected fewer, since {ATTEMPTS} draws each gave no {count} different "
                f"orders of {pixels} pixels. Lower clusters."
            )
    return list(orders.values())
