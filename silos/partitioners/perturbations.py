"""Steps that make clients differ: noise in what they see, what they call it, how much of it they have.

A step acts on all rows of a client alike, so that its test rows follow its own law; `imbalance` alone is for
training rows only. Rows that no client owns keep the law of the source, with merged labels, and with noise where
that is asked for.
"""

from dataclasses import replace

import numpy as np

from silos.dataset import (
    ATTEMPTS,
    At,
    ClientRows,
    Clients,
    Partition,
    Rows,
    class_codes,
    in_blocks,
    labelled,
)
from silos.partitioners.perturbation_params import Imbalance, MergeLabels, Noise, PermuteLabels


def noise(step: Noise, made: Partition, at: At) -> Partition:
    """Gaussian noise added to every value that is not missing, N(mean, sd^2); pixels are of 255.

    They are rounded and clipped; without `clip` they become float32 of 255ths, as clients train on them, and stay so.
    One sd for all clients, or one for each contiguous block of them. Common rows stay clean unless `common_rows`.
    """
    clients = []
    for client, block in in_blocks(made.clients, len(step.sd), "sd", step.within, at):
        law = f"noise{step.sd[block] + 0.0:g}" + (f"{step.mean:+g}" if step.mean else "")
        x = _noisy(client, _drawn(step, step.sd[block], client, at.stream(client.name)), step.clip)
        clients.append(replace(client, x=x, domain=labelled(client.domain, law)))
    common = made.common
    if step.common_rows:
        if common is None:
            raise at.error(
                "has common_rows, and there are none; set data.split.test_rows or validation_rows to common, or drop "
                "common_rows."
            )
        # two names, so that no client's name gives the same stream
        drawn = _drawn(step, step.sd[0], common, at.stream("common", "rows"))
        common = replace(common, x=_noisy(common, drawn, step.clip))
    elif common is not None and not step.clip:
        common = replace(common, x=_noisy(common, np.zeros(1), step.clip))
    return replace(made, clients=Clients.of(clients), common=common)


def permute_labels(step: PermuteLabels, made: Partition, at: At) -> Partition:
    """Contiguous blocks of clients rename the classes: y becomes pi_block(y); the first block keeps them.

    The others have permutations that differ and leave no class in its place. Experiment E3b of the conditioning
    papers.
    """
    if len(made.classes) < 2:
        raise at.error(f"needs two classes or more, and the source has {len(made.classes)}; change the source.")
    # before anything is drawn: it refuses more clusters than clients
    with_block = in_blocks(made.clients, step.clusters, "clusters", step.within, at)
    permutations = _permutations(step.clusters, len(made.classes), at)
    clients = []
    for client, block in with_block:
        clients.append(replace(client, y=permutations[block][client.y], domain=labelled(client.domain, f"perm{block}")))
    return replace(made, clients=Clients.of(clients))


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
    for client, block in in_blocks(made.clients, len(step.into), "maps", step.within, at):
        domain = labelled(client.domain, f"merge{block}") if len(step.into) > 1 else client.domain
        clients.append(replace(client, y=codes[block][client.y], domain=domain))
    common = None if made.common is None else replace(made.common, y=codes[0][made.common.y])
    return replace(made, clients=Clients.of(clients), classes=classes, common=common)


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
        clients.append(client.take(kept))
    return replace(made, clients=Clients.of(clients), left_out=left_out)


def _drawn(step: Noise, sd: float, rows: ClientRows | Rows, rng: np.random.RandomState) -> np.ndarray:
    """Noise for these rows: (rows, *shape) float64."""
    drawn = sd * rng.standard_normal(rows.x.shape)
    # adding a mean of 0 would make -0.0 of rows and noise 0.0: other bytes than before there was a mean
    return drawn + step.mean if step.mean else drawn


def _noisy(rows: ClientRows | Rows, drawn: np.ndarray, clip: bool) -> np.ndarray:
    """x of rows with `drawn` added where no value is missing: pixels as pixels, or unless `clip` as float32 of 255ths."""
    x = rows.x + drawn
    if rows.x.dtype == np.uint8:
        x = np.floor(x + 0.5).clip(0, 255) if clip else x / 255
    if rows.missing is not None:
        x = np.where(rows.missing, rows.x, x)
    return x.astype(rows.x.dtype if clip else np.float32)


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
