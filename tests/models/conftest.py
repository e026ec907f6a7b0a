"""Rows and weights of a stack of clients, in memory."""

from collections.abc import Callable, Sequence

import pytest
import torch

from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.resnet_vgg import Residual
from models.prng import client_streams, server_stream
from models.training.engine import Rows, Training, broadcast_weights, per_example_metrics, train
from models.training.objectives import Batch, CrossEntropy
from models.training.optimizers import Adam


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
    return lambda clients: broadcast_weights(network.init(server_stream(0, 0, "init")), clients)


ENDING = {
    "linear": MLP(64, (), 3),
    "mlp": MLP(64, (8, 6), 3),
    "cnn": CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True),
    "residual": Residual((8, 8), 3, (6,), 0.0, True, (4, 8)),
}
"""Networks of images of 8 x 8 that end in a dense layer."""


@pytest.fixture(params=ENDING.values(), ids=ENDING)
def inner(request):
    """Each network in turn that other networks can be made around."""
    return request.param


@pytest.fixture
def images() -> Callable[..., tuple[dict[str, torch.Tensor], Rows, torch.Tensor]]:
    """Weights that are a little different for each client, padded images of three clients, and their streams."""

    def build(network, counts: Sequence[int] = (7, 4, 1), dtype: torch.dtype = torch.float64):
        draw = torch.Generator().manual_seed(0)
        start = broadcast_weights(network.init(server_stream(0, 0, "init")), len(counts))
        moved = {n: w * (1 + 0.2 * torch.rand(w.shape, generator=draw)) for n, w in start.items()}
        width = max(counts)
        x = torch.rand(len(counts), width, 8, 8, generator=draw)
        y = torch.arange(len(counts) * width).view(len(counts), -1) % 3
        rows = Rows(x.to(dtype), y, torch.tensor(counts))
        return (
            {n: w.to(dtype) for n, w in moved.items()},
            rows,
            client_streams(0, list("abcdef")[: len(counts)], 1, "t"),
        )

    return build


@pytest.fixture
def batch_of() -> Callable[[Rows, torch.Tensor], Batch]:
    """All rows of the stack as one batch."""

    def build(rows: Rows, streams: torch.Tensor) -> Batch:
        used = torch.arange(rows.y.shape[1]) < rows.counts[:, None]
        return Batch(rows.x, rows.y, used.to(rows.x.dtype), rows.counts, streams, True, bool(used.all()))

    return build


@pytest.fixture
def learns_alone() -> Callable[..., None]:
    """Fails if a stack of clients does not learn, and is not scored, as each of them is alone."""

    def check(network, weights, context, rows, streams, batch):
        plans = [Training(CrossEntropy(), Adam(0.01), 2, batch, kind) for kind in ("batched", "sequential")]
        found, reference = (train(network, weights, context, rows, plan, streams)[0] for plan in plans)
        for name, w in reference.items():
            torch.testing.assert_close(found[name], w, rtol=0, atol=1e-8, msg=name)
        scored = [
            per_example_metrics(network, reference, context, rows, CrossEntropy(), p.engine)["loss"] for p in plans
        ]
        torch.testing.assert_close(scored[0], scored[1], rtol=0, atol=1e-8)

    return check
