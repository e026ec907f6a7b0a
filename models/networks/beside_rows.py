"""A client's statistics beside each of its rows: what makes one shared network conditional."""

import torch
from torch import Tensor

from ..state import Weights

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
    return of_client(x, context, length).expand(*x.shape[:-1], length)


def of_client(x: Tensor, context: Weights, length: int) -> Tensor:
    """The same before they are repeated: (..., 1, length) where a client's rows share them."""
    statistics = context.get(STATISTICS)
    if statistics is None:
        return x.new_zeros(*x.shape[:-2], 1, length)
    if statistics.shape[-1] != length:
        raise ValueError(f"the network takes {length} statistics of a client, and was given {statistics.shape[-1]}.")
    return (statistics.unsqueeze(-2) if statistics.dim() < x.dim() else statistics).to(x.dtype)
