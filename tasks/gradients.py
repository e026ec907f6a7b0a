"""Report the gradient of each client's loss over all of its training rows, in all weights or in the last layer's."""

from typing import cast

from torch import Tensor

from models.client_model import Model
from models.networks.wrappers.fediir_network import GradientMatching, gradients
from models.training.engine import Training
from models.training.engine import full_gradient as gradient_of
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.execution.load_client_data import has_enough_rows, load_stacks, load_streams
from tasks.execution.task_types import step
from tasks.local_train import weighted_sum
from tasks.messages.update_messages import Gradients, HeadGradients


@step
def full_gradient(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    device: str = "cpu",
) -> list[Gradients]:
    """One record a stack; epochs and optimiser do not count. Its draws are those of the round's local training."""
    sent = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        gradients, loss = gradient_of(model.network, weights, context, rows, training, streams)
        counts, clients = rows.counts.cpu(), len(stack.clients)
        sums = {name: weighted_sum(gradients[name].cpu(), counts) for name in model.shared}
        sent.append(Gradients(stack.clients, counts[:clients], sums, loss[:clients].cpu()))
    return sent


@step
def head_gradient(
    cohort: Cohort, model: Model, training: Training, private: ClientStore, device: str = "cpu"
) -> list[HeadGradients]:
    """One record a stack, over the training rows of its clients; `model.network` is a `GradientMatching`, and nothing
    is trained.

    A client of fewer different rows than LEAST_ROWS is not in the sums.
    """
    sent, network = [], cast(GradientMatching, model.network)
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        places = slice(len(stack.clients))
        each = gradients(network, weights, context, rows, training.objective, training.engine)
        silent = ~has_enough_rows(rows)[places]
        sums = {name: _without(total[places].cpu().double(), silent).sum(0) for name, total in each.items()}
        sent.append(HeadGradients(stack.clients, rows.counts[places].cpu().masked_fill(silent, 0), sums))
    return sent


def _without(each: Tensor, clients: Tensor) -> Tensor:
    """each: (clients, ...), zeros where `clients` (clients,) bool says so."""
    return each.masked_fill(clients.view(-1, *[1] * (each.ndim - 1)), 0)
