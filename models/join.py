"""A client's statistics beside each of its rows: what makes one shared network conditional."""

import torch
from torch import Tensor

from models.state import Weights

STATISTICS = "statistics"
"""The name of the statistics in a model's context."""


def join(x: Tensor, context: Weights, length: int) -> Tensor:
    """[x, statistics] in the last axis: of one client x (rows, n) and statistics (length,), of a stack (clients, ...).

    Statistics may also come row by row, (rows, length), where rows of several clients are trained together. A model
    without statistics in its context has zeros in their place: the dummy that makes a reference as large.
    """
    return torch.cat([x, of_rows(x, context, length)], -1) if length else x


def of_rows(x: Tensor, context: Weights, length: int) -> Tensor:
    """The statistics of every row: (..., rows, length); ValueError if they have another length."""
    found = context.get(STATISTICS)
    if found is None:
        return x.new_zeros(length).expand(*x.shape[:-1], length)
    if found.shape[-1] != length:
        raise ValueError(f"the network takes {length} statistics of a client, and was given {found.shape[-1]}.")
    if found.dim() < x.dim():
        found = found.unsqueeze(-2)
    return found.to(x.dtype).expand(*x.shape[:-1], length)
