"""Report the gradient of each client's loss over all of its training rows, in all weights or in the last layer's."""

from typing import cast

from models.client_model import Model
from models.networks.wrappers.fediir_network import GradientMatching, gradients
from models.training.engine import Training
from models.training.engine import full_gradient as gradient_of
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.execution.load_client_data import load_stacks, load_streams, may_report
from tasks.execution.task_types import step
from tasks.local_train import weighted_sum
from tasks.messages.update_messages import Gradients, HeadGradients


@step
def full_gradient(
    cohort: Cohort, model: Model, training: Training, private: ClientStore, seed: int, round: int, device: str = "cpu"
) -> list[Gradients]:
    """Report gradients of the shared weights; one record per stack.

    Epochs and the optimiser have no effect. Random draws are those of the round's local training.
    """
    messages = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        streams = load_streams(stack, seed, round, "local_train", device)
        gradients, loss = gradient_of(model.network, weights, context, rows, training, streams)
        counts, clients = rows.counts.cpu(), len(stack.clients)
        sums = {name: weighted_sum(gradients[name].cpu(), counts) for name in model.shared}
        messages.append(Gradients(stack.clients, counts[:clients], sums, loss[:clients].cpu()))
    return messages


@step
def head_gradient(
    cohort: Cohort, model: Model, training: Training, private: ClientStore, device: str = "cpu"
) -> list[HeadGradients]:
    """Report gradients of the last layer's weights over the clients' training rows; one record per stack.

    `model.network` is a `GradientMatching`, and nothing is trained. A client with fewer different rows than the
    policy of its store requires is not in the sums.
    """
    messages, network = [], cast(GradientMatching, model.network)
    for stack, rows, weights, context in load_stacks(cohort, model, private, "train", device):
        clients = slice(len(stack.clients))
        by_client = gradients(network, weights, context, rows, training.objective, training.engine)
        excluded = ~may_report(cohort.silos, stack, "train", rows, private)[clients]
        sums = {}
        for name, gradient in by_client.items():
            mask = excluded.view(-1, *[1] * (gradient.ndim - 1))
            sums[name] = gradient[clients].cpu().double().masked_fill(mask, 0).sum(0)
        messages.append(HeadGradients(stack.clients, rows.counts[clients].cpu().masked_fill(excluded, 0), sums))
    return messages
