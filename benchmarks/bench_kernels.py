"""What the products and convolutions of a round take alone: one batch's, recorded as torch calls them, and called again.

One client after another, its tensors in the cache, a thread a core: what surrounds them in training comes on top. A round
that takes less calls other kernels, such as products of several clients at once.
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

from flows.config.method_settings import method_of
from flows.experiment.project import Project
from flows.methods.base import Method, start_method
from flows.methods.context import TrainingSetup
from models.client_model import of_one
from models.prng import client_streams

_KERNELS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
_BATCHES = 200  # of a thread, in each turn
_TURNS = 4


def main() -> None:
    """Prints {"kernel_seconds_of_a_row": ...} with so many threads, of the project in the current folder."""
    threads = int(sys.argv[2])
    project = Project.open([], Path.cwd())
    setup, page = project.training_setup(0), method_of(project.params, sys.argv[1])
    calls, batch = _calls(setup, page), setup.training.batch
    seconds = min(_turn(calls, threads) for _ in range(_TURNS))
    print(json.dumps({"kernel_seconds_of_a_row": seconds / (threads * _BATCHES * batch)}))


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable, tuple, dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func.overloadpacket.__name__ in _KERNELS:
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _calls(setup: TrainingSetup, method: Method) -> list[tuple[Callable, tuple, dict[str, Any]]]:
    """Of one batch of one client, forward and back."""
    model = method.model(start_method(method, setup), setup)
    weights = {n: w.clone().requires_grad_() for n, w in {**model.shared, **of_one(model.personal)}.items()}
    manifest, batch = setup.silos.manifest, setup.training.batch
    x = torch.rand(batch, *manifest.shape)
    y = torch.zeros(batch, dtype=torch.int64 if manifest.classes else torch.float32)
    stream = client_streams(0, ["a"], 1, "kernels")[0]
    with _Recorder() as recorder:
        loss = setup.training.objective(model.network.apply(weights, of_one(model.context), x, stream), y).mean()
        torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return recorder.calls


def _turn(calls: list[tuple[Callable, tuple, dict[str, Any]]], threads: int) -> float:
    def work(mine: list[tuple[Callable, tuple, dict[str, Any]]]) -> None:
        torch.set_num_threads(1)  # of the products that this thread calls
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
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
