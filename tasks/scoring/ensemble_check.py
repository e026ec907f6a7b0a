"""Each client of a cohort says how unsure several models are together: a deep ensemble."""

from collections.abc import Sequence

import torch

from models.metrics.uncertainty import Predictive, doubts, predictive
from models.model import Model
from models.training.engine import Training
from silos.client_store import PrivateStore
from silos.cohort import Cohort
from tasks.messages import Doubts
from tasks.running.opening import open_rows, open_weights
from tasks.running.step import step


@step
def ensemble_check(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: PrivateStore,
    members: Sequence[tuple[Model, PrivateStore]],
    split: str = "test",
    device: str = "cpu",
) -> list[Doubts]:
    """One record a stack: numbers of each client, of the mean prediction of the members (Lakshminarayanan et al. 2017).

    Every member brings the store in which its clients keep what is private to it; dropout is off.
    """
    messages = []
    for stack in cohort.stacks:
        rows = open_rows(cohort.silos, stack, split, device)
        said = []
        for member, store in members:
            weights, context = open_weights(member, stack, store, device)
            said.append(predictive(member.network, weights, context, rows.x, None, 0, training.engine))
        mean = Predictive(*(torch.stack(parts).mean(0) for parts in zip(*said, strict=True)))
        numbers = doubts(mean, rows.y, rows.counts)
        places = slice(len(stack.clients))
        messages.append(
            Doubts(stack.clients, split, rows.counts[places].cpu(), {n: v[places].cpu() for n, v in numbers.items()})
        )
    return messages
