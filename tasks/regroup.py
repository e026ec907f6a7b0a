"""Report the evidence by which clients are clustered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.clustering import best_fit
from models.training.engine import Training, broadcast_weights, per_example_metrics
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack, open_common
from tasks.execution.load_client_data import load_rows, load_weights
from tasks.execution.task_types import step
from tasks.messages.clustering_messages import ClusterChoice, CorrectnessBits, PriorShiftAccuracy
from tasks.messages.message_policy import Message
from tasks.paired_outcomes import prior_shift_accuracies


@dataclass(frozen=True)
class EvidenceQuery:
    """A stack of the cohort's clients, and the model that evidence is computed for."""

    cohort: Cohort
    stack: Stack
    model: Model
    training: Training
    private: ClientStore
    device: str


Evidence = Callable[[EvidenceQuery], Message]
"""Computes the message of a stack's clients; methods may bring their own."""


def report_cluster_fit(query: EvidenceQuery) -> ClusterChoice:
    """Report, of every set of models offered, the one with the smallest mean loss over the client's training rows.

    model.shared holds the offered weights (sets, models, ...). Of equal losses the first model is chosen. A model whose
    loss is not finite is chosen last; a client without rows chooses the first. Only the best loss is sent.
    """
    model, stack, device = query.model, query.stack, query.device
    offered = next(iter(model.shared.values())).shape[:2]
    rows = load_rows(query.cohort.silos, stack, "train", device)
    _, context = load_weights(replace(model, shared={}), stack, query.private, device)
    loss = np.zeros((len(stack.clients), *offered))
    for index in np.ndindex(*offered):
        weights = broadcast_weights({n: w[index].to(device) for n, w in model.shared.items()}, stack.size)
        per_row = per_example_metrics(
            model.network, weights, context, rows, query.training.objective, query.training.engine, shared=not context
        )["loss"]
        mean = (per_row.double().sum(1) / rows.counts.clamp_min(1)).cpu().numpy()
        loss[(slice(None), *index)] = mean[: len(stack.clients)]
    choice, smallest = best_fit(loss)
    counts = rows.counts[: len(stack.clients)].cpu()
    return ClusterChoice(stack.clients, counts, torch.from_numpy(choice), torch.from_numpy(smallest))


def report_correctness(query: EvidenceQuery) -> CorrectnessBits:
    """Report on which common validation rows each client's own model is correct (selection vectors of Liu, Lee and Julien).

    ValueError if validation rows belong to clients, because the bits would reveal information about them.
    """
    metrics = _on_common_rows(query)
    correct = metrics["correct"] & torch.isfinite(metrics["loss"]).all(1)[:, None]
    return CorrectnessBits(query.stack.clients, torch.from_numpy(np.packbits(correct.numpy(), axis=1)))


def prior_shift_fit(query: EvidenceQuery, places: Sequence[int]) -> PriorShiftAccuracy:
    """Report the model's accuracy on some common validation rows, with classes weighted as in each client's training rows.

    With many models, these accuracies reveal a client's label shares. A client with fewer different training rows than
    LEAST_ROWS reports NaN. ValueError if validation rows belong to clients.
    """
    metrics, silos = _on_common_rows(query), query.cohort.silos
    labels = open_common(silos, "validation")[1][places]
    correct = [client[places].numpy() for client in metrics["correct"]]
    return PriorShiftAccuracy(query.stack.clients, prior_shift_accuracies(silos, query.stack, correct, labels))


def _on_common_rows(query: EvidenceQuery) -> dict[str, Tensor]:
    """Return metrics (clients, rows) of each client's model on the common validation rows; ValueError if there are none."""
    if not query.cohort.silos.common("validation"):
        raise ValueError(
            "validation rows: got rows of clients, expected common rows, since the correctness on "
            "clients' rows would leave"
        )
    model, training = query.model, query.training
    weights, context = load_weights(model, query.stack, query.private, query.device)
    rows = load_rows(query.cohort.silos, query.stack, "validation", query.device)
    metrics = per_example_metrics(model.network, weights, context, rows, training.objective, training.engine)
    return {name: values[: len(query.stack.clients)].cpu() for name, values in metrics.items()}


@step
def regroup(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    evidence: Evidence = report_cluster_fit,
    device: str = "cpu",
) -> list[Message]:
    """Report the evidence, one record per stack."""
    return [evidence(EvidenceQuery(cohort, stack, model, training, private, device)) for stack in cohort.stacks]
