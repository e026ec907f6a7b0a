"""Each client of a cohort tells the gradient of its loss in the last layer's weights."""

from typing import cast

from torch import Tensor

from models.model import Model
from models.networks.wrappers.fediir_network import Matched, gradients
from models.training.engine import Training
from silos.client_store import PrivateStore
from silos.cohort import Cohort
from tasks.messages import HeadGradients
from tasks.running.opening import enough, open_stacks
from tasks.running.step import step


@step
def head_gradient(
    cohort: Cohort, model: Model, training: Training, private: PrivateStore, device: str = "cpu"
) -> list[HeadGradients]:
    """One record a stack, over the training rows of its clients; `model.network` is a `Matched`, and nothing is trained.

    A client of fewer different rows than LEAST_ROWS is not in the sums.
    """
    sent, network = [], cast(Matched, model.network)
    for stack, rows, weights, context in open_stacks(cohort, model, private, "train", device):
        places = slice(len(stack.clients))
        each = gradients(network, weights, context, rows, training.objective, training.engine)
        silent = ~enough(rows)[places]
        sums = {name: _without(total[places].cpu().double(), silent).sum(0) for name, total in each.items()}
        sent.append(HeadGradients(stack.clients, rows.counts[places].cpu().masked_fill(silent, 0), sums))
    return sent


def _without(each: Tensor, clients: Tensor) -> Tensor:
    """each: (clients, ...), zeros where `clients` (clients,) bool says so."""
    return each.masked_fill(clients.view(-1, *[1] * (each.ndim - 1)), 0)
