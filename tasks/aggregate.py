"""The server averages what clients sent.

Each client of a cohort sends weights that it kept, when the server has decided with whose they are averaged.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from models.client_model import Model
from models.server_state import Weights
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.execution.load_client_data import load_stacks
from tasks.execution.task_types import server_step, step
from tasks.local_train import shares_of, weighted_sum
from tasks.messages.update_messages import SentWeights, SummedMessage


@server_step
def aggregate(updates: Sequence[SummedMessage], current: Weights) -> dict[str, Tensor]:
    """sum_k n_k w_k / sum_k n_k (McMahan et al. 2017), stacks added in order in float64; `current` if nobody has rows.

    n_k are rows, or the shares that the updates were weighed with.
    """
    total = sum(u.total for u in updates)
    if not total:
        return dict(current)
    for name, now in current.items():
        if any(u.sums[name].shape != now.shape for u in updates):
            raise ValueError(f"aggregate: the clients' {name} is not of the server's shape, {tuple(now.shape)}")
    sums = {name: sum((u.sums[name] for u in updates[1:]), updates[0].sums[name]) for name in current}
    return {name: (sums[name] / total).to(now.dtype) for name, now in current.items()}


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
