"""Each client of a cohort sends weights that it kept, when the server has decided with whose they are averaged."""

from models.model import Model
from silos.cohort import Cohort
from silos.private import PrivateStore
from tasks.local_train import weighted_sum
from tasks.messages import Sent
from tasks.running.opening import open_stacks
from tasks.running.step import step


@step
def send(cohort: Cohort, model: Model, private: PrivateStore, device: str = "cpu") -> list[Sent]:
    """One record a stack: the model's personal weights, times training rows."""
    sent = []
    for stack, rows, weights, _ in open_stacks(cohort, model, private, "train", device):
        counts = rows.counts.cpu()
        sums = {name: weighted_sum(w.cpu(), counts) for name, w in weights.items()}
        sent.append(Sent(stack.clients, counts[: len(stack.clients)], sums))
    return sent
