"""Where a client's features and words lie, as two numbers each: for a picture."""

import torch
from torch import Tensor

from models.client_model import Model
from models.networks.wrappers.codebook_network import COUNT, OWN
from models.prng import client_streams
from models.training.engine import Training
from silos.client_store import ClientStore
from silos.cohort import Cohort
from tasks.codebook.token_kmeans import reportable_centroids
from tasks.execution.load_client_data import load_weights
from tasks.execution.task_types import step
from tasks.messages.diagnosis_messages import ProjectedRows

_POINTS = 60  # of a client: more would hide each other


@step
def projection(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    axes: Tensor,
    seed: int,
    split: str = "validation",
    device: str = "cpu",
) -> list[ProjectedRows]:
    """One record a stack: where centres of every client's tokens of a split, and its own words, lie on axes (d, 2).

    Of a deep ensemble, those of the first member.
    """
    one, messages = model.network.single_networks[0], []
    network = one.network
    for stack in cohort.stacks:
        weights, context = map(one.of, load_weights(model, stack, private, device))
        seeds = client_streams(seed, stack.clients, 0, "projection").tolist()
        pairs = reportable_centroids(
            cohort, stack, one, weights, context, seeds, _POINTS, split, training.engine, device
        )
        tokens = tuple(torch.from_numpy(centres) @ axes for centres, _ in pairs)
        words = weights[OWN].cpu() @ axes
        held = context[COUNT].tolist() if network.room else [0] * stack.size
        messages.append(
            ProjectedRows(stack.clients, tokens, tuple(words[at, : held[at]] for at in range(len(stack.clients))))
        )
    return messages


def plane(words: Tensor) -> Tensor:
    """The two directions in which words (words, d) spread most: (d, 2); of one number the second is empty."""
    _, _, directions = torch.linalg.svd(words - words.mean(0), full_matrices=False)
    axes = directions[:2].T
    return torch.cat([axes, axes.new_zeros(len(axes), 2 - axes.shape[1])], 1)
