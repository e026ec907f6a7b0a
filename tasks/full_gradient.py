"""Each client of a cohort tells the gradient of its loss in all weights, over all of its training rows."""

from models.model import Model
from models.training.engine import Training
from models.training.engine import full_gradient as gradient_of
from silos.client_store import PrivateStore
from silos.cohort import Cohort
from tasks.local_train import weighted_sum
from tasks.messages import Gradients
from tasks.running.opening import open_stacks, open_streams
from tasks.running.step import step


@step
def full_gradient(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: PrivateStore,
    seed: int,
    round: int,
    device: str = "cpu",
) -> list[Gradients]:
    """One record a stack; epochs and optimiser do not count. Its draws are those of the round's local training."""
    sent = []
    for stack, rows, weights, context in open_stacks(cohort, model, private, "train", device):
        streams = open_streams(stack, seed, round, "local_train", device)
        gradients, loss = gradient_of(model.network, weights, context, rows, training, streams)
        counts, clients = rows.counts.cpu(), len(stack.clients)
        sums = {name: weighted_sum(gradients[name].cpu(), counts) for name in model.shared}
        sent.append(Gradients(stack.clients, counts[:clients], sums, loss[:clients].cpu()))
    return sent
