"""How far training brought clients on their own validation rows, which they tell with what they trained."""

import math
from dataclasses import replace

from models.networks.network_factory import Network
from models.server_state import Weights
from models.training.engine import Training, per_example_metrics
from models.training.objectives import CrossEntropy, Objective, SquaredError
from silos.cohort import Silos, Stack
from tasks.execution.load_client_data import has_enough_rows, load_rows


def validation_losses(
    silos: Silos,
    stack: Stack,
    network: Network,
    before: Weights,
    after: Weights,
    context: Weights,
    training: Training,
    device: str,
) -> dict[str, tuple[float, float]]:
    """client to its mean loss with the weights before and after, (stack size, ...); NaN of fewer than ten different rows.

    Cross-entropy in nats whatever the objective, so that runs can be compared, or the squared error of a regression. The
    members of a pooled client answer each for itself, with the weights that they share and the context of each.
    """
    if silos.pooled:
        size = len(silos.members)
        silos, stack = replace(silos, clients=silos.members, members=()), Stack(silos.members, size)
        before, after = ({n: w.expand(size, *w.shape[1:]) for n, w in weights.items()} for weights in (before, after))
    rows, objective = load_rows(silos, stack, "validation", device), _OBJECTIVES[training.objective.task]
    counts, sums = rows.counts.tolist(), []
    for weights in (before, after):
        losses = per_example_metrics(network, weights, context, rows, objective, training.engine)["loss"]
        sums.append(losses.double().sum(1).tolist())
    told = has_enough_rows(rows).tolist()
    return {
        client: (sums[0][at] / counts[at], sums[1][at] / counts[at]) if told[at] else (math.nan, math.nan)
        for at, client in enumerate(stack.clients)
    }


_OBJECTIVES: dict[str, Objective] = {"classification": CrossEntropy(), "regression": SquaredError()}
