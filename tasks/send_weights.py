"""Each client of a cohort sends weights that it kept, when the server has decided with whose they are averaged."""

from collections.abc import Mapping

from models.client_model import Model
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.execution.load_client_data import load_stacks
from tasks.execution.task_types import step
from tasks.local_train import shares_of, weighted_sum
from tasks.messages.update_messages import SentWeights


@step
def send_weights(
    cohort: Cohort,
    model: Model,
    private: ClientStore,
    device: str = "cpu",
    shares: Mapping[str, float] | None = None,
) -> list[SentWeights]:
    """One record a stack: the model's personal weights, times training rows or, where there are some, times shares."""
    sent = []
    for stack, rows, weights, _ in load_stacks(cohort, model, private, "train", device):
        counts, places = rows.counts.cpu(), slice(len(stack.clients))
        share = None if shares is None else shares_of(stack.clients, shares, len(counts))
        sums = {name: weighted_sum(w.cpu(), counts if share is None else share) for name, w in weights.items()}
        told = None if share is None else share[places]
        sent.append(SentWeights(stack.clients, counts[places], sums, shares=told))
    return sent
