"""Rows and weights of a stack of clients, in memory."""

from collections.abc import Callable, Sequence

import pytest
import torch

from models.cohort import Rows, stacked
from models.dense import MLP
from models.streams import server_stream


@pytest.fixture
def network() -> MLP:
    """Five features, seven hidden units, three classes."""
    return MLP(5, (7,), 3)


@pytest.fixture
def make_rows() -> Callable[..., Rows]:
    """Padded rows of clients with these counts; a client's rows depend on its number alone."""

    def build(counts: Sequence[int], width: int | None = None, numbers: Sequence[int] | None = None) -> Rows:
        width = width or max(1, *counts)
        x, y = torch.zeros(len(counts), width, 5), torch.zeros(len(counts), width, dtype=torch.int64)
        for at, (count, number) in enumerate(zip(counts, numbers or range(len(counts)), strict=True)):
            draw = torch.Generator().manual_seed(number)
            x[at, :count] = torch.randn(count, 5, generator=draw)
            y[at, :count] = torch.randint(0, 3, (count,), generator=draw)
        return Rows(x, y, torch.tensor(counts))

    return build


@pytest.fixture
def start(network: MLP) -> Callable[[int], dict[str, torch.Tensor]]:
    """The same fresh weights for so many clients."""
    return lambda clients: stacked(network.init(server_stream(0, 0, "init")), clients)
