"""Report the evidence by which clients are clustered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.clustering import best_fit
from models.training.engine import Training, broadcast_weights, correct_on_common_rows, per_example_metrics
from models.training.execution_plan import resolve
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack, open_common
from silos.privacy.owner_file import policy_of_run
from tasks.execution.load_client_data import load_rows, load_weights, may_report, reportable_classes
from tasks.execution.steps import step
from tasks.messages.message_policy import Message
from tasks.messages.round_messages import ABSENT, ClusterChoice, CorrectnessBits, Descriptor, PriorShiftAccuracy
from tasks.paired_outcomes import prior_shift_accuracies

_ROWS_AT_ONCE = 256


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
    correct, finite = _correct_on_common_rows(query)
    bits = correct & finite[:, None]
    return CorrectnessBits(query.stack.clients, torch.from_numpy(np.packbits(bits.numpy(), axis=1)))


def prior_shift_fit(query: EvidenceQuery, places: Sequence[int]) -> PriorShiftAccuracy:
    """Report the model's accuracy on some common validation rows, with classes weighted as in each client's training rows.

    With many models, these accuracies reveal a client's label shares. A client with fewer different training rows than
    its policy requires reports NaN. ValueError if validation rows belong to clients.
    """
    of_clients, silos = _correct_on_common_rows(query)[0], query.cohort.silos
    labels = open_common(silos, "validation")[1][places]
    correct = [client[places].numpy() for client in of_clients]
    return PriorShiftAccuracy(
        query.stack.clients, prior_shift_accuracies(silos, query.stack, correct, labels, query.private)
    )


def report_descriptor(query: EvidenceQuery, axes: Tensor, classes: int) -> Descriptor:
    """Report the moments of each client's training rows along axes of the encoder's features (FLUX's descriptors).

    Args:
        query: The clients, and a model whose network has an encoder.
        axes: (features, components) float64.
        classes: The number of classes; with 0 no label is read.

    Returns:
        Moments of all rows and of each class that a client may report; clients with too few rows are `silent`.
    """
    cohort, stack = query.cohort, query.stack
    rows = load_rows(cohort.silos, stack, "train", query.device)
    counts = rows.counts[: len(stack.clients)].cpu()
    components = _components(query, rows.x, axes)
    moments = torch.full((len(stack.clients), 1 + classes, 2, axes.shape[1]), ABSENT)
    may = may_report(cohort.silos, stack, "train", rows, query.private)[: len(stack.clients)]
    may &= torch.stack([z[:n].isfinite().all() for z, n in zip(components, counts.tolist(), strict=True)])
    for index in may.nonzero()[:, 0].tolist():
        client, count = stack.clients[index], int(counts[index])
        x, y, z = rows.x[index, :count], rows.y[index, :count].cpu(), components[index, :count]
        moments[index, 0] = _moments(z)
        least = policy_of_run(Path(query.private.folder), client).least_rows
        for label in reportable_classes(cohort.silos, client, "train", x, y.numpy(), classes, least):
            moments[index, 1 + label] = _moments(z[y == label])
    silent = tuple(client for client, reports in zip(stack.clients, may.tolist(), strict=True) if not reports)
    return Descriptor(stack.clients, counts, moments, silent)


def _components(query: EvidenceQuery, x: Tensor, axes: Tensor) -> Tensor:
    """Project the encoder's features of the clients' rows: (clients, rows, components) float64, on the CPU."""
    model, stack = query.model, query.stack
    weights, context = load_weights(model, stack, query.private, query.device)
    plan, parts = resolve(model.network, query.training.engine), []
    with torch.no_grad():
        for start in range(0, x.shape[1], _ROWS_AT_ONCE):
            features = plan.features(weights, context, x[:, start : start + _ROWS_AT_ONCE])
            parts.append(features.flatten(2)[: len(stack.clients)].cpu().double() @ axes)
    return torch.cat(parts, 1)


def _moments(components: Tensor) -> Tensor:
    """Return the mean and the standard deviation over rows: (2, components) float32."""
    return torch.stack([components.mean(0), components.std(0, correction=0)]).float()


def _correct_on_common_rows(query: EvidenceQuery) -> tuple[Tensor, Tensor]:
    """Return where each client's model is correct, (clients, rows), and has finite losses only, (clients,), both bool.

    ValueError if there are no common validation rows.
    """
    if not query.cohort.silos.common("validation"):
        raise ValueError(
            "validation rows: got rows of clients, expected common rows, since the correctness on "
            "clients' rows would leave"
        )
    model, training = query.model, query.training
    weights, context = load_weights(model, query.stack, query.private, query.device)
    x, y = (torch.from_numpy(part).to(query.device) for part in open_common(query.cohort.silos, "validation"))
    correct, finite = correct_on_common_rows(
        model.network, weights, context, (x, y), training.objective, training.engine
    )
    clients = len(query.stack.clients)
    return correct[:clients].cpu(), finite[:clients].cpu()


@partial(step, name="regroup")  # as on Prefect's page, in `seconds` and at places
def report_evidence(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    evidence: Evidence = report_cluster_fit,
    device: str = "cpu",
) -> list[Message]:
    """Report the evidence by which the server clusters clients.

    Args:
        cohort: The clients, in stacks.
        model: The model, or the sets of models, that evidence is computed for.
        training: The local training, of which the objective and the engine are used.
        private: Where clients keep private state.
        evidence: Computes the message of a stack.
        device: Where clients are computed, such as "cpu".

    Returns:
        One message per stack; see `messages_of` for its type.
    """
    return [evidence(EvidenceQuery(cohort, stack, model, training, private, device)) for stack in cohort.stacks]
