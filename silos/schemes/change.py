"""Steps that make clients differ: what they see, what they call it, how much of it they have.

A step acts on all rows of a client alike, so that its test rows follow its own law; `imbalance` alone is for
training rows only. Rows that no client owns keep the law of the source, with merged labels.
"""

from dataclasses import replace

import numpy as np

from silos.rows import ATTEMPTS, At, ClientRows, Partition, blocks, class_codes, labelled
from silos.schemes.change_params import Imbalance, MergeLabels, Noise, PermuteLabels, Rotation
from silos.schemes.rotation import rotate


def rotation(step: Rotation, made: Partition, at: At) -> Partition:
    """The images of contiguous blocks of clients turned by one angle each; the angle names the domain."""
    shape = made.clients[0].x.shape[1:]
    if len(shape) not in (2, 3):
        raise at.error(
            f"turns images, and the rows of the source have the shape {shape}, not (height, width) or (height, "
            "width, channels); drop the step or change the source."
        )
    clients = []
    for client, block in _in_blocks(made.clients, len(step.angles), "angles", step.within, at):
        angle = step.angles[block] + 0.0  # no domain "rot-0"
        turned = rotate(client.x, angle, step.centre)
        clients.append(replace(client, x=turned, domain=labelled(client.domain, f"rot{angle:g}")))
    return replace(made, clients=clients)


def noise(step: Noise, made: Partition, at: At) -> Partition:
    """Gaussian noise added to every value that is not missing, N(0, sd^2); pixels are of 255, and are rounded and clipped.

    One sd for all clients, or one for each contiguous block of them.
    """
    clients = []
    for client, block in _in_blocks(made.clients, len(step.sd), "sd", step.within, at):
        x = client.x + step.sd[block] * at.stream(client.name).standard_normal(client.x.shape)
        if client.x.dtype == np.uint8:
            x = np.floor(x + 0.5).clip(0, 255)
        if client.missing is not None:
            x = np.where(client.missing, client.x, x)
        clients.append(
            replace(
                client, x=x.astype(client.x.dtype), domain=labelled(client.domain, f"noise{step.sd[block] + 0.0:g}")
            )
        )
    return replace(made, clients=clients)


def permute_labels(step: PermuteLabels, made: Partition, at: At) -> Partition:
    """Contiguous blocks of clients rename the classes: y becomes pi_block(y); the first block keeps them.

    The others have permutations that differ and leave no class in its place. Experiment E3b of the conditioning
    papers.
    """
    if len(made.classes) < 2:
        raise at.error(f"needs two classes or more, and the source has {len(made.classes)}; change the source.")
    # before anything is drawn: it refuses more clusters than clients
    in_blocks = _in_blocks(made.clients, step.clusters, "clusters", step.within, at)
    permutations = _permutations(step.clusters, len(made.classes), at)
    clients = []
    for client, block in in_blocks:
        clients.append(replace(client, y=permutations[block][client.y], domain=labelled(client.domain, f"perm{block}")))
    return replace(made, clients=clients)


def merge_labels(step: MergeLabels, made: Partition, at: At) -> Partition:
    """Classes take a new name, several the same one; a class that is not named keeps its own.

    A list of maps is for contiguous blocks of clients, one each: then clients agree on what they see and not on
    what it is called (experiment E3a of the conditioning papers).
    """
    if len(step.into) > 1 and made.common is not None:
        raise at.error(
            "names the classes differently by client, so that common rows would have no label of their own; "
            "set data.split.test_rows and validation_rows to own, or give one map."
        )
    renamed = []
    for into in step.into:
        names = list(made.classes)
        for new, olds in into.items():
            for code in class_codes(olds, made.classes, at):
                names[code] = new
        renamed.append(names)
    classes = list(dict.fromkeys(name for names in renamed for name in names))
    codes = [np.array([classes.index(name) for name in names], np.int64) for names in renamed]
    clients = []
    for client, block in _in_blocks(made.clients, len(step.into), "maps", step.within, at):
        domain = labelled(client.domain, f"merge{block}") if len(step.into) > 1 else client.domain
        clients.append(replace(client, y=codes[block][client.y], domain=domain))
    common = None if made.common is None else replace(made.common, y=codes[0][made.common.y])
    return replace(made, clients=clients, classes=classes, common=common)


def imbalance(step: Imbalance, made: Partition, at: At) -> Partition:
    """Of each client's training rows of the named classes, one in `ratio` is kept, drawn at random.

    n rows become floor(n / ratio + u) with u uniform in [0, 1), n / ratio on average however few they are; a
    client keeps one training row at least. Validation and test rows stay as they are.
    """
    codes = class_codes(step.classes, made.classes, at)
    clients, left_out = [], made.left_out
    for client in made.clients:
        kept = _thinned(client, codes, step.ratio, at.stream(client.name))
        left_out += int((~kept).sum())
        assert client.split is not None
        missing = None if client.missing is None else client.missing[kept]
        clients.append(replace(client, x=client.x[kept], y=client.y[kept], split=client.split[kept], missing=missing))
    return replace(made, clients=clients, left_out=left_out)


def _in_blocks(
    clients: list[ClientRows], parts: int, what: str, within: str | None, at: At
) -> list[tuple[ClientRows, int]]:
    """Each client with its block, counted over all clients or, `within` a domain, over those of its domain."""
    groups: dict[str, list[int]] = {}
    for position, client in enumerate(clients):
        groups.setdefault(client.domain if within else "", []).append(position)
    numbers = [0] * len(clients)
    for domain, members in groups.items():
        if len(members) < parts:
            inside = f" of the domain {domain!r}" if within else ""
            raise at.error(f"has {parts} {what} for {len(members)} clients{inside}; give at most one a client.")
        for position, block in zip(members, blocks(len(members), parts), strict=True):
            numbers[position] = block
    return list(zip(clients, numbers, strict=True))


def _permutations(count: int, classes: int, at: At) -> list[np.ndarray]:
    """The identity, and permutations without a fixed point, all different: (classes,) int64 each."""
    permutations = [np.arange(classes)]
    for cluster in range(1, count):
        rng = at.stream(cluster)
        for _ in range(ATTEMPTS):
            drawn = rng.permutation(classes)
            if (drawn != permutations[0]).all() and not any((drawn == other).all() for other in permutations):
                permutations.append(drawn)
                break
        else:
            raise at.error(
                f"found no {count - 1} different permutations that move all of {classes} classes, in {ATTEMPTS} draws "
                "each; lower clusters."
            )
    return permutations


def _thinned(client: ClientRows, codes: list[int], ratio: float, rng: np.random.RandomState) -> np.ndarray:
    """Which of a client's rows stay: (rows,) bool."""
    kept = np.ones(len(client.y), bool)
    train = client.split == "train"
    for code in codes:
        of_class = np.flatnonzero(train & (client.y == code))
        count = int(len(of_class) / ratio + rng.random_sample())
        kept[rng.permutation(of_class)[count:]] = False
    if not (kept & train).any():
        kept[np.flatnonzero(train)[0]] = True
    return kept
