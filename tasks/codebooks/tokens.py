"""The tokens of clients' rows: their features in pieces as long as a word."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from models.networks.network import Member
from models.state import Weights
from models.training.execution_plan import Kind, resolve
from silos.cohort import Cohort, Stack
from silos.errors import DivergedError
from tasks.running.opening import open_rows

_ROWS_AT_ONCE = 256


def tokens_of(
    cohort: Cohort,
    stack: Stack,
    one: Member,
    weights: Weights,
    context: Weights,
    engine: Kind,
    device: str,
    split: str = "train",
) -> dict[str, np.ndarray]:
    """Client to the tokens (tokens, d) of its rows in one member, by the running statistics and without dropout."""
    network, plan = one.network, resolve(one.network, engine)
    rows = open_rows(cohort.silos, stack, split, device)
    parts = []
    with torch.no_grad():
        for at in range(0, rows.x.shape[1], _ROWS_AT_ONCE):
            z = plan.features(weights, context, rows.x[:, at : at + _ROWS_AT_ONCE])
            parts.append(network.cut(z).cpu())
    tokens = torch.cat(parts, 1)
    counts = (rows.counts * network.tokens).tolist()
    return {c: tokens[at, : counts[at]].numpy() for at, c in enumerate(stack.clients)}


@contextmanager
def named(cohort: Cohort, client: str) -> Iterator[None]:
    """Whose features are no numbers."""
    try:
        yield
    except ValueError as error:
        raise DivergedError(f"client {client} of {cohort.silos.folder}: {error}.") from None
