"""The Brier score: the squared distance of the probabilities from the class that came."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from flows.plugins import register_metric


@register_metric("brier")
def brier(logits: Tensor, y: Tensor) -> Tensor:
    """Of each row, (rows,), from 0 to 2; `brier/mean` is the mean over clients of their means over rows."""
    p = torch.softmax(logits, -1)
    return ((p - one_hot(y, p.shape[-1])) ** 2).sum(-1)
