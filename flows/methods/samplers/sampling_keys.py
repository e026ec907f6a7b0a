"""A number in [0, 1) for each client of a round, by which some are drawn; of a million clients in hundredths of a second.

On whose rows models are scored where not everybody's are, and on how many of each client.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from flows.methods.context import TrainingSetup, uniform_by_client
from models.prng import client_streams, server_stream, uniform
from silos.cohort import Silos
from silos.storage.client_table import ROLES

NAMED = 2_000
"""Clients of the data up to which a number follows from a hash of seed, round, purpose and name, at 1 µs each.

Of more clients each has a stream of its own, hashed once a run from seed and name, and a round's number is the next mix of
that: other numbers, and as random.
"""

_BLOCK = 1 << 15  # streams whose numbers stay in a core's cache


def sampling_keys(setup: TrainingSetup, clients: Sequence[str], number: int, purpose: str) -> np.ndarray:
    """(clients,) float64: it follows from the seed, the round, the purpose, the client's name and whether all are many."""
    if len(setup.silos.clients) <= NAMED:  # and not those that are there: who comes or leaves changes nobody's luck
        return np.array(list(uniform_by_client(setup, clients, number, purpose).values()))
    streams = setup.own_streams
    if clients is not setup.silos.clients:
        streams = streams[[setup.silos.index(client) for client in clients]]
    key = server_stream(setup.seed, number, purpose)
    blocks = [uniform(block ^ key, (1,))[:, 0] for block in streams.split(_BLOCK)]
    return torch.cat(blocks).numpy().astype(np.float64)


def min_rows(numbers: np.ndarray, clients: Sequence[str], count: int) -> list[str]:
    """So many clients with the least numbers, of equals the first by name."""
    if count <= 0:
        return []
    if count >= len(numbers):
        return list(clients)
    limit = np.partition(numbers, count - 1)[count - 1]
    sure = [clients[at] for at in np.flatnonzero(numbers < limit).tolist()]
    equal = sorted(clients[at] for at in np.flatnonzero(numbers == limit).tolist())
    return [*sure, *equal[: count - len(sure)]]


def min_rows_of(numbers: Mapping[str, float], count: int) -> list[str]:
    """As `least`, of numbers by client."""
    return min_rows(np.array([*numbers.values()]), [*numbers], count)


def evaluation_clients(silos: Silos, wanted: int, seed: int) -> Silos:
    """At most so many clients of each role, in listing order, which follow from the seed and their names."""
    tickets = client_streams(seed, silos.clients, 0, "scored").numpy()
    drawn: list[str] = []
    for role in ROLES:
        mine = np.flatnonzero(silos.of_role(role))
        drawn += min_rows(tickets[mine], [silos.clients[at] for at in mine.tolist()], wanted)
    return silos.select(sorted(drawn, key=silos.index))


def validation_rows(silos: Silos) -> Mapping[str, int]:
    """How many each client is tried on, its own or common ones."""
    common = silos.common("validation")
    return dict.fromkeys(silos.clients, common) if common else silos.rows("validation")
