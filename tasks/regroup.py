"""Each client of a cohort answers the evidence by which clients are grouped."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.clustering import best_fit
from models.metrics.task_metrics import prior_shift_accuracy
from models.training.engine import Training, broadcast_weights, per_example_metrics
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack, open_common
from tasks.execution.load_client_data import has_enough_rows, load_rows, load_weights
from tasks.execution.task_types import step
from tasks.messages.clustering_messages import ClusterChoice, CorrectnessBits, PriorShiftAccuracy
from tasks.messages.message_policy import Message


@dataclass(frozen=True)
class Asked:
    """A stack of the cohort's clients, and what they are asked about."""

    cohort: Cohort
    stack: Stack
    model: Model
    training: Training
    private: ClientStore
    device: str


Evidence = Callable[[Asked], Message]
"""What the clients of a stack answer; a page may bring one of its own."""


def report_cluster_fit(asked: Asked) -> ClusterChoice:
    """A row of a table of fit, of which only the best leaves: the model with the smallest mean loss over training rows.

    model.shared: (sets, models, ...), the offered weights; in every set the first of equals is taken. A model whose loss is
    no number is the last choice; a client without rows takes the first.
    """
    model, stack, device = asked.model, asked.stack, asked.device
    offered = next(iter(model.shared.values())).shape[:2]
    rows = load_rows(asked.cohort.silos, stack, "train", device)
    _, context = load_weights(replace(model, shared={}), stack, asked.private, device)
    loss = np.zeros((len(stack.clients), *offered))
    for place in np.ndindex(*offered):
        weights = broadcast_weights({n: w[place].to(device) for n, w in model.shared.items()}, stack.size)
        per_row = per_example_metrics(
            model.network, weights, context, rows, asked.training.objective, asked.training.engine, shared=not context
        )["loss"]
        mean = (per_row.double().sum(1) / rows.counts.clamp_min(1)).cpu().numpy()
        loss[(slice(None), *place)] = mean[: len(stack.clients)]
    choice, least = best_fit(loss)
    counts = rows.counts[: len(stack.clients)].cpu()
    return ClusterChoice(stack.clients, counts, torch.from_numpy(choice), torch.from_numpy(least))


def report_correctness(asked: Asked) -> CorrectnessBits:
    """On which common validation rows each client's own model is right (selection vectors of Liu, Lee and Julien).

    ValueError where validation rows are clients' own: bits of those would tell of them.
    """
    measured = _on_common_rows(asked)
    right = measured["correct"] & torch.isfinite(measured["loss"]).all(1)[:, None]
    return CorrectnessBits(asked.stack.clients, torch.from_numpy(np.packbits(right.numpy(), axis=1)))


def prior_shift_fit(asked: Asked, places: Sequence[int]) -> PriorShiftAccuracy:
    """How right the model is on those common validation rows, classes counted as each client trains on them.

    Of many models that tells a client's label shares; one of fewer different training rows than LEAST_ROWS answers NaN.
    ValueError where validation rows are clients' own.
    """
    measured = _on_common_rows(asked)
    labels = open_common(asked.cohort.silos, "validation")[1][places]
    classes, train = (
        len(asked.cohort.silos.manifest.classes),
        load_rows(asked.cohort.silos, asked.stack, "train", "cpu"),
    )
    speaks = has_enough_rows(train).tolist()
    accuracy = [
        prior_shift_accuracy(right[places].numpy(), labels, train.y[at, : train.counts[at]].numpy(), classes)
        if speaks[at]
        else math.nan
        for at, right in enumerate(measured["correct"])
    ]
    return PriorShiftAccuracy(asked.stack.clients, torch.tensor(accuracy, dtype=torch.float64))


def _on_common_rows(asked: Asked) -> dict[str, Tensor]:
    """Measures of each client's model on the common validation rows, (clients, rows); ValueError if there are none."""
    if not asked.cohort.silos.common("validation"):
        raise ValueError("validation rows are clients' own, and what is right on them would leave")
    model, training = asked.model, asked.training
    weights, context = load_weights(model, asked.stack, asked.private, asked.device)
    rows = load_rows(asked.cohort.silos, asked.stack, "validation", asked.device)
    measured = per_example_metrics(model.network, weights, context, rows, training.objective, training.engine)
    return {name: values[: len(asked.stack.clients)].cpu() for name, values in measured.items()}


@step
def regroup(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    evidence: Evidence = report_cluster_fit,
    device: str = "cpu",
) -> list[Message]:
    """The evidence, one record a stack."""
    return [evidence(Asked(cohort, stack, model, training, private, device)) for stack in cohort.stacks]
