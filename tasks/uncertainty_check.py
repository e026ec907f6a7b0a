"""Each client of a cohort says how unsure the model is of its rows."""

import torch
from torch import Tensor

from models.client_model import Model
from models.metrics.uncertainty import doubts, predictive
from models.networks.wrappers.codebook_network import code_usage
from models.training.engine import Rows, Training
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import DivergedError
from tasks.execution.load_client_data import load_stacks, load_streams
from tasks.execution.task_types import step
from tasks.messages.codebook_messages import UncertaintyScores


@step
def uncertainty_check(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    seed: int,
    round: int,
    split: str = "validation",
    passes: int = 20,
    refuse: bool = True,
    device: str = "cpu",
) -> list[UncertaintyScores]:
    """One record a stack: numbers of each client, of `passes` with dropout on (0: one without); none of a row leaves.

    Of a deep ensemble they are of all members' passes together, and of words the mean over members. Nothing is trained,
    running statistics included. With `refuse` DivergedError names a client to whom the model gives no finite numbers; else
    they are NaN.
    """
    messages = []
    for stack, rows, weights, context in load_stacks(cohort, model, private, split, device):
        streams = load_streams(stack, seed, round, "uncertainty_check", device)
        values = _doubts(model, weights, context, rows, streams if passes else None, passes, training)
        numbers = {name: value[: len(stack.clients)].cpu() for name, value in values.items()}
        counts = rows.counts[: len(stack.clients)].cpu()
        if refuse:
            _refuse_nonsense(stack.clients, counts, numbers["entropy"], cohort.silos.folder)
        messages.append(UncertaintyScores(stack.clients, split, counts, numbers))
    return messages


def _doubts(
    model: Model,
    weights: dict[str, Tensor],
    context: dict[str, Tensor],
    rows: Rows,
    streams: Tensor | None,
    passes: int,
    training: Training,
) -> dict[str, Tensor]:
    prediction = predictive(model.network, weights, context, rows.x, streams, passes, training.engine)
    numbers = doubts(prediction, rows.y, rows.counts)
    each = [one for one in model.network.single_networks if one.network.coded]
    words = [
        code_usage(one.network, one.of(weights), one.of(context), rows.x, rows.counts, training.engine) for one in each
    ]
    return numbers | {
        name: torch.stack([answer[name] for answer in words]).mean(0) for name in (words[0] if words else ())
    }


def _refuse_nonsense(clients: tuple[str, ...], counts: Tensor, entropy: Tensor, folder: str) -> None:
    """A diverged client would count as certain, since no number is above a limit of NaN."""
    for client, rows, value in zip(clients, counts.tolist(), entropy.tolist(), strict=True):
        if rows and value != value:
            raise DivergedError(
                f"client {client} of {folder}: its predictions are no finite numbers, so its uncertainty is not known; "
                "training has diverged: try a lower training.optimiser.learning_rate."
            )
