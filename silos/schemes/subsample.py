"""The step that thins classes exactly: of all rows before they are dealt, or of the training rows of all clients."""

from dataclasses import replace

import numpy as np

from silos.data_params import SplitParams
from silos.rows import At, Clients, Partition, Rows, class_codes
from silos.schemes.change_params import Subsample


def subsample_source(step: Subsample, rows: Rows, split: SplitParams, at: At) -> Rows:
    """The rows to deal, with max(1, round(n / ratio)) of the n rows of each named class that may train, drawn at random.

    Rows that the source marks as test or validation all stay. UserError where test rows are drawn only after the deal:
    they would be thinned too.
    """
    if rows.split is None and split.test_rows == "own" and split.test > 0:
        raise at.error(
            "stands before the clients' test rows are drawn, which would be thinned with the others; set "
            "data.split.test_rows to common, put the step after the one that makes clients, or mark rows as test in the "
            "source."
        )
    train = rows.parts()[0]
    stays = np.ones(len(rows.y), bool)
    stays[train] = _stay(step, rows.y[train], rows.classes, at)
    return rows.take(stays)


def subsample(step: Subsample, made: Partition, at: At) -> Partition:
    """Of the n training rows of a named class that all clients have together, max(1, round(n / ratio)) stay.

    Drawn at random from all of them at once. Validation and test rows stay as they are. UserError where a client would
    have no training rows any more.
    """
    train = [np.asarray(client.split == "train") for client in made.clients]
    labels = np.concatenate([client.y[mine] for client, mine in zip(made.clients, train, strict=True)])
    ends = np.cumsum([mine.sum() for mine in train])
    parts = np.split(_stay(step, labels, made.classes, at), ends[:-1])
    clients = []
    for client, mine, part in zip(made.clients, train, parts, strict=True):
        if not part.any():
            raise at.error(
                f"leaves client {client.name} without training rows; lower ratio, or leave the client out of the source."
            )
        stays = ~mine
        stays[mine] = part
        clients.append(client.take(stays))
    left_out = made.left_out + len(labels) - int(sum(part.sum() for part in parts))
    return replace(made, clients=Clients.of(clients), left_out=left_out)


def _stay(step: Subsample, labels: np.ndarray, classes: list[str], at: At) -> np.ndarray:
    """Which of these rows stay: (rows,) bool. A class's rows are drawn from a stream of its own."""
    stay = np.ones(len(labels), bool)
    for code in class_codes(step.classes, classes, at):
        of_class = np.flatnonzero(labels == code)
        count = max(1, round(len(of_class) / step.ratio))
        stay[at.stream(classes[code]).permutation(of_class)[count:]] = False
    return stay
