"""Steps that make clients differ in their inputs, labels, or class balance.

A step changes all rows of a client, so that its test rows follow the client's own distribution; `imbalance` alone
changes training rows only. Common rows keep the distribution of the source, except for merged labels, and noise with
`common_rows`. Images are rotated in integer arithmetic, so that they have the same bytes on any machine.
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from silos.data_params import Imbalance, MergeLabels, Noise, PermuteLabels, PermutePixels, Rotation
from silos.dataset import (
    ATTEMPTS,
    At,
    ClientRows,
    Clients,
    Partition,
    Rows,
    class_codes,
    extend_domain,
    pair_with_blocks,
)

_FRACTION = 16  # fractional bits of a source position
_ANGLE = 32  # fractional bits of a sine
_CHUNK = 512  # images rotated at once, to bound memory


def noise(step: Noise, partition: Partition, at: At) -> Partition:
    """Add Gaussian noise N(mean, sd^2) to every value that is not missing; for pixels, in units of 0 to 255.

    Pixels are rounded and clipped; without `clip` they become float32 divided by 255, as in training, and stay so.
    There is one sd for all clients, or one for each contiguous block. Common rows stay clean unless `common_rows`.
    """
    clients = []
    for client, block in pair_with_blocks(partition.clients, len(step.sd), "sd", step.within, at):
        label = f"noise{step.sd[block] + 0.0:g}" + (f"{step.mean:+g}" if step.mean else "")
        x = _add_noise(client, _draw_noise(step, step.sd[block], client, at.stream(client.name)), step.clip)
        clients.append(replace(client, x=x, domain=extend_domain(client.domain, label)))
    common = partition.common
    if step.common_rows:
        if common is None:
            raise at.error(
                "common_rows: got no common rows, expected some. Set data.split.test_rows or validation_rows to "
                "common, or drop common_rows."
            )
        # two names, unlike the one name of a client's stream
        added = _draw_noise(step, step.sd[0], common, at.stream("common", "rows"))
        common = replace(common, x=_add_noise(common, added, step.clip))
    elif common is not None and not step.clip:
        common = replace(common, x=_add_noise(common, np.zeros(1), step.clip))
    return replace(partition, clients=Clients.concatenate(clients), common=common)


def permute_labels(step: PermuteLabels, partition: Partition, at: At) -> Partition:
    """Rename the classes in contiguous blocks of clients: y becomes pi_block(y); the first block keeps its labels.

    The permutations of the other blocks differ and have no fixed point. Experiment E3b of the conditioning papers.
    """
    if len(partition.classes) < 2:
        raise at.error(f"got a source of {len(partition.classes)} class, expected at least 2. Change the source.")
    # before any draw, since it refuses more clusters than clients
    with_block = pair_with_blocks(partition.clients, step.clusters, "clusters", step.within, at)
    permutations = _permutations(step.clusters, len(partition.classes), at)
    clients = [
        replace(client, y=permutations[block][client.y], domain=extend_domain(client.domain, f"perm{block}"))
        for client, block in with_block
    ]
    return replace(partition, clients=Clients.concatenate(clients))


def merge_labels(step: MergeLabels, partition: Partition, at: At) -> Partition:
    """Rename classes; several may get the same name, and unnamed classes keep their names.

    A list of maps has one for each contiguous block of clients: then clients agree on inputs and disagree on labels
    (experiment E3a of the conditioning papers).
    """
    if len(step.into) > 1 and partition.common is not None:
        raise at.error(
            "got a different label map for each client and common rows, expected one map, since a common row "
            "would have no single label. Set data.split.test_rows and validation_rows to own, or give one map."
        )
    renamed = []
    for into in step.into:
        names = list(partition.classes)
        for new, olds in into.items():
            for code in class_codes(olds, partition.classes, at):
                names[code] = new
        renamed.append(names)
    classes = list(dict.fromkeys(name for names in renamed for name in names))
    codes = [np.array([classes.index(name) for name in names], np.int64) for names in renamed]
    clients = []
    for client, block in pair_with_blocks(partition.clients, len(step.into), "maps", step.within, at):
        domain = extend_domain(client.domain, f"merge{block}") if len(step.into) > 1 else client.domain
        clients.append(replace(client, y=codes[block][client.y], domain=domain))
    common = None if partition.common is None else replace(partition.common, y=codes[0][partition.common.y])
    return replace(partition, clients=Clients.concatenate(clients), classes=classes, common=common)


def imbalance(step: Imbalance, partition: Partition, at: At) -> Partition:
    """Keep one in `ratio` of each client's training rows of the named classes, at random.

    n rows become floor(n / ratio + u) with u uniform in [0, 1), n / ratio on average for any n. A client keeps at least
    one training row. Validation and test rows stay.
    """
    codes = class_codes(step.classes, partition.classes, at)
    clients, left_out = [], partition.left_out
    for client in partition.clients:
        keep = _imbalance_mask(client, codes, step.ratio, at.stream(client.name))
        left_out += int((~keep).sum())
        clients.append(client.take(keep))
    return replace(partition, clients=Clients.concatenate(clients), left_out=left_out)


def _draw_noise(step: Noise, sd: float, rows: ClientRows | Rows, rng: np.random.RandomState) -> np.ndarray:
    """Draw noise for these rows: (rows, *shape) float64."""
    draws = sd * rng.standard_normal(rows.x.shape)
    # adding a mean of 0 would turn -0.0 into 0.0: other bytes than in versions without a mean
    return draws + step.mean if step.mean else draws


def _add_noise(rows: ClientRows | Rows, added: np.ndarray, clip: bool) -> np.ndarray:
    """Add noise to x where no value is missing: uint8 pixels, or unless `clip` float32 divided by 255."""
    x = rows.x + added
    if rows.x.dtype == np.uint8:
        x = np.floor(x + 0.5).clip(0, 255) if clip else x / 255
    if rows.missing is not None:
        x = np.where(rows.missing, rows.x, x)
    return x.astype(rows.x.dtype if clip else np.float32)


def _permutations(count: int, classes: int, at: At) -> list[np.ndarray]:
    """Return the identity and distinct permutations without a fixed point: (classes,) int64 each."""
    permutations = [np.arange(classes)]
    for cluster in range(1, count):
        rng = at.stream(cluster)
        for _ in range(ATTEMPTS):
            candidate = rng.permutation(classes)
            if (candidate != permutations[0]).all() and not any((candidate == other).all() for other in permutations):
                permutations.append(candidate)
                break
        else:
            raise at.error(
                f"clusters: got {count}, expected fewer, since {ATTEMPTS} draws found no further permutation that "
                f"moves all of {classes} classes. Lower clusters."
            )
    return permutations


def _imbalance_mask(client: ClientRows, codes: list[int], ratio: float, rng: np.random.RandomState) -> np.ndarray:
    """Return which of a client's rows stay: (rows,) bool."""
    keep = np.ones(len(client.y), bool)
    train = client.split == "train"
    for code in codes:
        of_class = np.flatnonzero(train & (client.y == code))
        count = int(len(of_class) / ratio + rng.random_sample())
        keep[rng.permutation(of_class)[count:]] = False
    if not (keep & train).any():
        keep[np.flatnonzero(train)[0]] = True
    return keep


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
                f"clusters: got {count}, expected fewer, since {ATTEMPTS} draws found no further order of {pixels} "
                "pixels. Lower clusters."
            )
    return list(orders.values())
