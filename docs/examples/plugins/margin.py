"""The margin: by how much the probability of the right class exceeds that of every other class."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from flows.plugins import register_metric


@register_metric("margin")
def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Of each row, (rows,), from -1 to 1; `margin/mean` is the mean over clients of their means over rows."""
    p, right = torch.softmax(logits, -1), one_hot(y, logits.shape[-1]).bool()
    return p[right] - p.masked_fill(right, 0).amax(-1)
