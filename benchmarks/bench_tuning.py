"""Find the form of the engine and the stack size that are fastest for this project on this machine."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from flows.methods.round_context import TrainingSetup
from flows.project.project import Project
from flows.training.training_setup import training_setup
from models.prng import client_streams, server_stream
from models.training.engine import broadcast_weights, train
from models.training.engine_and_stack_size import even_stack_size
from models.training.execution_plan import Kind, forms
from silos.cohort import make_stacks
from tasks.execution.load_client_data import load_rows

_SIZES = (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
_TURNS = 3
_HOPELESS = 3.0  # times the best of its form; beyond this, larger stacks are not tried
_AS_GOOD = 1.05


def tune(project: Project, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure milliseconds of one local epoch a client by form and stack size, and propose an `engine:` block.

    The smallest stack within 5 % of the fastest is proposed, since it leaves work for more workers.
    """
    setup = training_setup(project, 0)
    torch.set_num_threads(1)
    measured: list[dict[str, Any]] = []
    for kind in forms(setup.network):
        say(f"{kind}: stacks of 1 to {len(setup.silos.clients)} clients")
        measured += _sizes(setup, kind, setup.device)
    best = min(m["milliseconds"] for m in measured)
    good = [m for m in measured if m["milliseconds"] <= _AS_GOOD * best]
    chosen = min(good, key=lambda m: m["stack"])
    now = {"kind": setup.training.engine, "stack": even_stack_size(len(setup.silos.clients), setup.stack)}
    return {"measured": measured, "now": now, "engine": {"kind": chosen["kind"], "stack": chosen["stack"]}}


def _sizes(setup: TrainingSetup, kind: Kind, device: str) -> list[dict[str, Any]]:
    clients = len(setup.silos.clients)
    timings: list[dict[str, Any]] = []
    for size in dict.fromkeys(even_stack_size(clients, most) for most in _SIZES):
        seconds = median(_seconds(setup, kind, size, device) for _ in range(_TURNS))
        timings.append({"kind": kind, "stack": size, "milliseconds": 1000 * seconds})
        if seconds * 1000 > _HOPELESS * min(m["milliseconds"] for m in timings) or kind == "sequential":
            break
    return timings


def _seconds(setup: TrainingSetup, kind: Kind, size: int, device: str) -> float:
    """Time one local epoch of the stack of the largest clients, for each client in it."""
    stack = make_stacks(setup.silos, size)[0]
    rows = load_rows(setup.silos, stack, "train", device)
    weights = broadcast_weights(setup.network.init(server_stream(0, 0, "init")), size)
    weights = {name: w.to(device) for name, w in weights.items()}
    streams = client_streams(0, [str(i) for i in range(size)], 1, "local_train").to(device)
    training = replace(setup.training, engine=kind, epochs=1)
    start = time.perf_counter()
    trained = train(setup.network, weights, {}, rows, training, streams)
    float(next(iter(trained.weights.values())).sum())  # a GPU answers before it has finished
    return (time.perf_counter() - start) / len(stack.clients)
