"""The server averages what clients sent."""

from collections.abc import Sequence

from torch import Tensor

from models.server_state import Weights
from tasks.execution.task_types import server_step
from tasks.messages.update_messages import SummedMessage


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
