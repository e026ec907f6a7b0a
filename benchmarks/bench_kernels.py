"""Measure what the machine can do at most, and how long the kernels of a round take alone.

The limits are products of large matrices and copies of memory. The kernels are the products and convolutions of one batch,
recorded as torch calls them and called again: one client after another, its tensors in the cache, a thread a core, or one
thread that calls a GPU. A round
that takes less time calls other kernels, such as products of several clients at once.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchmarks.baselines.reference_loop import finish
from flows.methods.base import Method, start_method
from flows.methods.method_settings import method_of
from flows.methods.round_context import TrainingSetup
from flows.project.project import Project
from flows.training.training_setup import device_of, training_setup
from models.client_model import first_client
from models.prng import client_streams

_KERNELS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
_BATCHES = 200  # of a thread, in each turn
_TURNS = 4
_SIDES = {"cpu": 1024, "cuda": 8192}  # of a square matrix, 4 MB and 256 MB
_BYTES = 2**28  # of a copy: more than any cache
_LIMIT_TURNS = 8  # the first warms up


def main() -> None:
    """Print the machine's limits and the seconds of a row's kernels, for the project in the current folder."""
    project = Project.open([], Path.cwd())
    device = device_of(project.params.engine)
    threads = int(sys.argv[2]) if device == "cpu" else 1
    limits = _limits(threads, device)
    setup, method = training_setup(project, 0), method_of(project.params, sys.argv[1])
    calls, batch = _calls(setup, method, device), setup.training.batch
    seconds = min(_turn(calls, threads, device) for _ in range(_TURNS))
    print(json.dumps({**limits, "kernel_seconds_of_a_row": seconds / (threads * _BATCHES * batch)}))


def _limits(threads: int, device: str) -> dict[str, float]:
    """Measure operations and bytes per second, the best of a few turns."""
    torch.set_num_threads(threads)
    side = _SIDES[device]
    first, second, product = (torch.rand(side, side, device=device) for _ in range(3))
    source, target = (torch.rand(_BYTES // 4, device=device) for _ in range(2))
    return {
        "flop_per_second": 2 * side**3 / _least(lambda: torch.mm(first, second, out=product), device),
        "bytes_per_second": 2 * _BYTES / _least(lambda: target.copy_(source), device),  # each byte is read and written
    }


def _least(work: Callable[[], object], device: str) -> float:
    seconds = []
    for _ in range(_LIMIT_TURNS):
        start = time.perf_counter()
        work()
        finish(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable, tuple, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func.overloadpacket.__name__ in _KERNELS:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _calls(setup: TrainingSetup, method: Method, device: str) -> list[tuple[Callable, tuple, dict[str, Any]]]:
    """Record the kernels of one batch of one client, forward and backward."""
    model = method.model(start_method(method, setup), setup)
    drawn = {**model.shared, **first_client(model.personal)}
    weights = {n: w.to(device, copy=True).requires_grad_() for n, w in drawn.items()}
    context = {n: w.to(device) for n, w in first_client(model.context).items()}
    manifest, batch = setup.silos.manifest, setup.training.batch
    x = torch.rand(batch, *manifest.shape, device=device)
    y = torch.zeros(batch, dtype=torch.int64 if manifest.classes else torch.float32, device=device)
    stream = client_streams(0, ["a"], 1, "kernels")[0].to(device)
    with _Recorder() as recorder:
        loss = setup.training.objective(model.network.apply(weights, context, x, stream), y).mean()
        torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return recorder.calls


def _turn(calls: list[tuple[Callable, tuple, dict[str, Any]]], threads: int, device: str) -> float:
    def work(mine: list[tuple[Callable, tuple, dict[str, Any]]]) -> None:
        torch.set_num_threads(1)  # for the kernels that this thread calls
        with torch.no_grad():
            for _ in range(_BATCHES):
                for func, args, options in mine:
                    func(*args, **options)

    copies = [tree_map(lambda a: a.detach().clone() if torch.is_tensor(a) else a, calls) for _ in range(threads)]
    working = [Thread(target=work, args=(mine,)) for mine in copies]
    begun = time.perf_counter()
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    finish(device)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
