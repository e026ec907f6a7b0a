"""Find the silos that lose by FedAvg, and leave them out of training; these silos then train alone."""

import json
import math
from collections.abc import Mapping, Sequence

from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.training.paired_runs import client_strata
from flows.training.training_setup import training_setup
from models.metrics.paired_difference import difference, holm
from silos.errors import UserError
from tasks.messages.message_policy import LEAST_ROWS
from tasks.paired_outcomes import Outcomes

_LEAVE = "clients.leave"

_LEVEL = 0.05  # of all silos that may lose


def losing_silos(project: Project, shared: Outcomes, alone: Outcomes) -> list[str]:
    """Return the silos for which FedAvg is worse than training alone on validation rows (Holm over all silos).

    Empty if half of the silos lose or more, since FedAvg is then wrong for all. Also empty if validation or test rows are
    common, since these belong to no silo.

    Args:
        project: The project.
        shared: The outcomes of FedAvg in the race.
        alone: The outcomes of training alone in the race.
    """
    silos, quantity = project.scored.federated(), project.quantity
    if silos.common("validation") or silos.common("test"):
        return []
    strata = client_strata(
        plain_runner(project), silos, [shared], [alone], quantity, split="validation", least_of_class=LEAST_ROWS
    )
    found = {
        client: difference([stratum], 1 - _LEVEL, quantity.bound, quantity.alike)
        for client, stratum in strata.items()
        if stratum.rows >= LEAST_ROWS
    }
    tested = [client for client, measured in found.items() if math.isfinite(measured.p)]
    corrected = holm([found[client].p for client in tested])
    losers = [
        client
        for client, p in zip(tested, corrected, strict=True)
        if p <= _LEVEL and quantity.gain(found[client].mean) < 0
    ]
    return losers if 2 * len(losers) < len(silos.clients) else []


def leave_setting(leave: Mapping[str, int], silos: Sequence[str]) -> str:
    """Return the setting by which these silos never train; those that `leave` in params.yaml still do."""
    rounds = {**leave, **dict.fromkeys(silos, 1)}
    return f"{_LEAVE}={{{', '.join(f'{json.dumps(client)}: {number}' for client, number in rounds.items())}}}"


def can_leave(project: Project, silos: Sequence[str], seed: int) -> bool:
    """Return whether params.yaml allows that these silos take no part in training."""
    try:
        training_setup(project.with_overrides([leave_setting(project.params.clients.leave, silos)]), seed)
    except UserError:
        return False
    return True
