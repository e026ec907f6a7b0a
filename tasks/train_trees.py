"""Train boosted trees at each client, or on the pooled rows of all clients."""

from dataclasses import replace
from typing import cast

import torch

from models.client_model import Model
from models.networks.tree_ensemble import TreeEnsemble, fit_trees
from models.server_state import ClientStateRefs
from models.training.engine import Training, per_example_metrics
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_types import step
from tasks.local_train import store_client_state
from tasks.messages.round_messages import SentTrees


@step
def train_trees(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    rate: float,
    least_rows: int,
    device: str = "cpu",
) -> list[SentTrees]:
    """Train trees on each client's rows; one message per stack. Private personal weights stay with the client.

    Args:
        model: The sizes of the trees; its personal weights are private if trees stay with clients.
        rate: The learning rate.
        least_rows: The least rows of a leaf.
    """
    messages, network = [], cast(TreeEnsemble, model.network)
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, "train", "cpu")
        counts = rows.counts[: len(stack.clients)]
        fitted, losses = [], []
        for x, y, count in zip(rows.x, rows.y, counts.tolist(), strict=False):
            own = fit_trees(network, x[:count].numpy(), y[:count].numpy(), rate, least_rows)
            one = {name: w[None] for name, w in own.items()}
            alone = type(rows)(x[None, :count], y[None, :count], torch.tensor([count]))
            found = per_example_metrics(network, one, {}, alone, training.objective, "sequential")
            fitted.append(own)
            losses.append(float(found["loss"].double().sum()) / max(count, 1))
        trees = {name: torch.stack([own[name] for own in fitted]) for name in fitted[0]}
        message = SentTrees(stack.clients, counts, {}, torch.tensor(losses))
        if isinstance(model.personal, ClientStateRefs):
            messages.append(store_client_state(message, model.personal.section, trees, private))
        else:
            messages.append(replace(message, trees=trees))
    return messages
