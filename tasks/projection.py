"""Where a client's features and words lie, as two numbers each: for a picture."""

import torch
from torch import Tensor

from models.codebook import COUNT, OWN, SHARED, Quantised
from models.cohort import Training
from models.deep_ensemble import members_of
from models.model import Model
from silos.cohort import Cohort
from silos.private import PrivateStore
from tasks.messages import Projected
from tasks.opening import open_rows, open_weights
from tasks.step import step

_TOKENS = 60  # of a client: more would hide each other


@step
def projection(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: PrivateStore,
    axes: Tensor,
    split: str = "validation",
    device: str = "cpu",
) -> list[Projected]:
    """One record a stack: every client's first tokens of a split, and its own words, on axes (d, 2).

    Of a deep ensemble, those of the first member.
    """
    one, found = members_of(model.network)[0], []
    network = one.network
    assert isinstance(network, Quantised)
    for stack in cohort.stacks:
        rows = open_rows(cohort.silos, stack, split, device)
        weights, context = map(one.of, open_weights(model, stack, private, device))
        count = -(-_TOKENS // network.tokens)
        with torch.no_grad():
            z, _ = network.encode(weights, context, rows.x[:, :count])
            tokens = network.cut(z) @ axes.to(device)
        own = weights[OWN] @ axes.to(device)
        used = (rows.counts.clamp_max(count) * network.tokens).tolist()
        held = context[COUNT].tolist() if network.room else [0] * stack.size
        clients = range(len(stack.clients))
        found.append(
            Projected(
                stack.clients,
                tuple(tokens[at, : used[at]].cpu() for at in clients),
                tuple(own[at, : held[at]].cpu() for at in clients),
            )
        )
    return found


def plane(words: Tensor) -> Tensor:
    """The two directions in which words (words, d) spread most: (d, 2); of one number the second is empty."""
    _, _, directions = torch.linalg.svd(words - words.mean(0), full_matrices=False)
    axes = directions[:2].T
    return torch.cat([axes, axes.new_zeros(len(axes), 2 - axes.shape[1])], 1)


def shared_words(model: Model) -> Tensor | None:
    """The words that all clients share, where there are any and the server has them; the first member's of an ensemble."""
    one = members_of(model.network)[0]
    words = model.shared.get(one.prefix + SHARED)
    return words if isinstance(one.network, Quantised) and words is not None and len(words) > 1 else None
