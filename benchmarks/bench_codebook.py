"""Measure the cost of a codebook against the same network without one: parameters, and milliseconds of a step."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from models.networks.network_factory import build, num_trainable
from models.networks.wrappers.codebook_network import QuantizedNetwork
from models.prng import client_streams, server_stream
from models.training.engine import broadcast_weights
from models.training.objectives import Batch, CrossEntropy

WORDS = 256
_ROWS = 32
_ENCODERS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "residual": ((28, 28), {"widths": (128, 256, 512)}),
    "vgg16_bn": ((32, 32, 3), {}),
}


def overhead(repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure parameters and the median time of forward and backward of 32 rows, for each encoder of the paper's widths.

    FedAvg's network and UEFL's with 256 words take turns in one process, on one torch thread.
    """
    torch.set_num_threads(1)
    lines = []
    for kind, (shape, options) in _ENCODERS.items():
        plain = build(kind, shape, 10, {"hidden": (512,), "dropout": 0.1, **options})
        contestants: dict[str, Any] = {"fedavg": plain, "uefl": QuantizedNetwork(plain, WORDS)}
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        steps = {name: _step(network, shape) for name, network in contestants.items()}
        for turn in range(repeats + 1):
            say(f"{kind}, {turn} of {repeats}" if turn else f"{kind}: warming up")
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                seconds[name] += [time.perf_counter() - start] if turn else []
        learned = {name: num_trainable(network) for name, network in contestants.items()}
        ratios = [b / a for a, b in zip(seconds["fedavg"], seconds["uefl"], strict=True)]
        lines.append(
            {
                "encoder": kind,
                "parameters": learned,
                "milliseconds": {name: 1000 * median(s) for name, s in seconds.items()},
                "ratio": median(ratios),
                "ratio_by_turn": ratios,
            }
        )
    return {"rows": _ROWS, "words": WORDS, "repeats": repeats, "encoders": lines}


def _step(network: Any, shape: tuple[int, ...]) -> Callable[[], None]:
    """Return a function that runs forward and backward of one batch of random rows."""
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 1)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(1, _ROWS, *shape, generator=draw), torch.arange(_ROWS)[None] % 10
    streams = client_streams(0, ["a"], 1, "overhead")
    batch = Batch(x, y, torch.ones(1, _ROWS), torch.full((1,), _ROWS), streams, True, True)
    leaves = {n: w.clone().requires_grad_() for n, w in weights.items() if n not in network.buffers and w.numel()}

    def step() -> None:
        loss, _ = network.cost_stack({**weights, **leaves}, {}, batch, CrossEntropy())
        torch.autograd.grad(loss.sum(), list(leaves.values()))

    return step
