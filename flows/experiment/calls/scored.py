"""On whose rows models are scored where not everybody's are."""

from models.streams import client_streams
from silos.cohort import Silos

ROLES = ("federated", "fresh", "unseen")


def scored(silos: Silos, wanted: int, seed: int) -> Silos:
    """At most so many clients of each role, in listing order, which follow from the seed and their names."""
    ticket = dict(zip(silos.clients, client_streams(seed, silos.clients, 0, "scored").tolist(), strict=True))
    drawn: list[str] = []
    for role in ROLES:
        drawn += sorted((c for c in silos.clients if silos.role(c) == role), key=lambda c: (ticket[c], c))[:wanted]
    return silos.select(sorted(drawn, key=silos.index))
