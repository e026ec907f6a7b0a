"""Average clients' weights on the server, and send the weights that clients stored until the server formed clusters."""

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
    """Average the updates by sum_k n_k w_k / sum_k n_k (McMahan et al. 2017).

    n_k are the rows of a client, or the shares that its update was weighted by. Stacks are added in order, in float64.
    Returns `current` if the updates have no rows. Raises ValueError if a shape differs from the server's.
    """
    total = sum(u.total for u in updates)
    if not total:
        return dict(current)
    for name, tensor in current.items():
        if any(u.sums[name].shape != tensor.shape for u in updates):
            raise ValueError(
                f"aggregate: {name}: got the shape of another model, expected the server's, {tuple(tensor.shape)}"
            )
    sums = {name: sum((u.sums[name] for u in updates[1:]), updates[0].sums[name]) for name in current}
    return {name: (sums[name] / total).to(tensor.dtype) for name, tensor in current.items()}


@step
def send_weights(
    cohort: Cohort, model: Model, private: ClientStore, device: str = "cpu", shares: Mapping[str, float] | None = None
) -> list[SentWeights]:
    """Send the model's personal weights, one record per stack, multiplied by `shares` or else by training rows."""
    messages = []
    for stack, rows, weights, _ in load_stacks(cohort, model, private, "train", device):
        counts, clients = rows.counts.cpu(), slice(len(stack.clients))
        share = None if shares is None else shares_of(stack.clients, shares, len(counts))
        sums = {name: weighted_sum(w.cpu(), counts if share is None else share) for name, w in weights.items()}
        reported = None if share is None else share[clients]
        messages.append(SentWeights(stack.clients, counts[clients], sums, shares=reported))
    return messages
