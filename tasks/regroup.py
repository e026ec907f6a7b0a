"""Each client of a cohort takes, of the models that it is offered, the one that fits its training rows best."""

from dataclasses import replace

import numpy as np
import torch

from models.model import Model
from models.training.engine import Training, outcomes, stacked
from silos.cohort import Cohort
from silos.private import PrivateStore
from tasks.messages import Choices
from tasks.running.opening import open_rows, open_weights
from tasks.running.step import step


@step
def regroup(
    cohort: Cohort, model: Model, training: Training, private: PrivateStore, device: str = "cpu"
) -> list[Choices]:
    """One record a stack: the smallest mean loss over the training rows, the first of equals, in every set.

    model.shared: (sets, models, ...), the offered weights. A model whose loss is no number is the last choice; a client
    without rows takes the first.
    """
    messages = []
    offered = next(iter(model.shared.values())).shape[:2]
    for stack in cohort.stacks:
        rows = open_rows(cohort.silos, stack, "train", device)
        _, context = open_weights(replace(model, shared={}), stack, private, device)
        loss = np.zeros((len(stack.clients), *offered))
        for place in np.ndindex(*offered):
            weights = stacked({n: w[place].to(device) for n, w in model.shared.items()}, stack.size)
            per_row = outcomes(
                model.network, weights, context, rows, training.objective, training.engine, shared=not context
            )["loss"]
            mean = (per_row.double().sum(1) / rows.counts.clamp_min(1)).cpu().numpy()
            loss[(slice(None), *place)] = mean[: len(stack.clients)]
        loss = np.where(np.isnan(loss), np.inf, loss)
        choice = loss.argmin(2)  # numpy promises the first of equals, torch does not
        least = np.take_along_axis(loss, choice[..., None], 2)[..., 0]
        counts = rows.counts[: len(stack.clients)].cpu()
        messages.append(Choices(stack.clients, counts, torch.from_numpy(choice), torch.from_numpy(least)))
    return messages
