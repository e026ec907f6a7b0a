"""Appends the statistics of a client, which are a part of a model's context, to its rows or features."""

import torch
from torch import Tensor

from ..server_state import Weights

STATISTICS = "statistics"
"""Name of the statistics in a model's context."""


def append_statistics(x: Tensor, context: Weights, length: int) -> Tensor:
    """Append a client's statistics to the last axis of x.

    x is (rows, n) and statistics are (length,) for one client; for a stack both have a leading client axis. Statistics
    may also be given per row, (rows, length), if rows of several clients are trained together. Without statistics in
    the context, zeros are appended: the dummy that makes a reference network equally large.
    """
    return torch.cat([x, row_statistics(x, context, length)], -1) if length else x


def row_statistics(x: Tensor, context: Weights, length: int) -> Tensor:
    """Return the statistics of every row, (..., rows, length); ValueError if they have another length."""
    return client_statistics(x, context, length).expand(*x.shape[:-1], length)


def client_statistics(x: Tensor, context: Weights, length: int) -> Tensor:
    """Return the statistics before they are repeated per row: (..., 1, length) if a client's rows share them."""
    statistics = context.get(STATISTICS)
    if statistics is None:
        return x.new_zeros(*x.shape[:-2], 1, length)
    if statistics.shape[-1] != length:
        raise ValueError(f"statistics: got {statistics.shape[-1]} numbers, expected {length}.")
    return (statistics.unsqueeze(-2) if statistics.dim() < x.dim() else statistics).to(x.dtype)
