"""Steps that move the pixels of images: turned, or put in another order. Rows that no client owns stay as they are."""

from dataclasses import replace

import numpy as np

from silos.rows import ATTEMPTS, At, Clients, Partition, in_blocks, labelled
from silos.schemes.change_params import PermutePixels, Rotation
from silos.schemes.rotation import rotate


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
