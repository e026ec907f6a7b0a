"""On whose rows models are scored where not everybody's are, and on how many of each client."""

from collections.abc import Mapping

import numpy as np

from flows.experiment.calls.luck import least
from models.prng import client_streams
from silos.cohort import Silos
from silos.storage.client_table import ROLES


def scored(silos: Silos, wanted: int, seed: int) -> Silos:
    """At most so many clients of each role, in listing order, which follow from the seed and their names."""
    tickets = client_streams(seed, silos.clients, 0, "scored").numpy()
    drawn: list[str] = []
    for role in ROLES:
        mine = np.flatnonzero(silos.of_role(role))
        drawn += least(tickets[mine], [silos.clients[at] for at in mine.tolist()], wanted)
    return silos.select(sorted(drawn, key=silos.index))


def validation_rows(silos: Silos) -> Mapping[str, int]:
    """How many each client is tried on, its own or common ones."""
    common = silos.common("validation")
    return dict.fromkeys(silos.clients, common) if common else silos.rows("validation")
