"""Measure what clipping of rows and keyed noise add to a training step, in time and memory."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.run_benchmark import child
from benchmarks.workloads import WORKLOADS
from models.networks.network_factory import build
from models.prng import client_streams, server_stream
from models.training.engine import Privacy, Rows, Training, broadcast_weights, train
from models.training.engine_and_stack_size import pick_kernel
from models.training.keyed_noise import KeyedNormals
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD
from models.training.private_training import clipped_sums, train_privately
from tasks.execution.process_memory import resident_bytes, tune_malloc
from tasks.privacy.train_with_noise import draw_noise

_WORKLOADS = ("W1", "W3")
_ROWS = (32, 128, 600)  # of a client, all in one batch
_ROWS_OF_A_TURN = 600  # at least, of each client
_NORMALS = 2**20
STEPS = ("plain", "clipped", "noisy")


def privacy_cost(repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure a plain step, a clipped one, and a clipped one with keyed noise: CPU seconds of one thread, and memory.

    The steps take turns in one process, each on one stack of clients as the engine makes it. The peak memory is that of
    a process that only takes such steps, and what the steps add to the process with its rows and weights.
    """
    tune_malloc()
    torch.set_num_threads(1)
    lines = []
    for name in _WORKLOADS:
        for rows in _ROWS:
            say(f"{name}, {rows} rows")
            clients, steps = _steps(name, rows)
            seconds = _turns(steps, repeats, max(1, _ROWS_OF_A_TURN // rows))
            lines.append({"workload": name, "rows": rows, "clients": clients, **_compared(seconds)})
    for line in [line for line in lines if line["rows"] == max(_ROWS)]:
        arguments = (line["workload"], str(line["rows"]))
        say(f"memory of {' '.join(arguments)} rows")
        command = [sys.executable, "-m", "benchmarks.bench_privacy", *arguments]
        found = {step: child([*command, step], Path.cwd())[0] for step in ("plain", "noisy")}
        peaks = {step: answer["peak_bytes"] for step, answer in found.items()}
        own = {step: answer["peak_bytes"] - answer["bytes_before"] for step, answer in found.items()}
        line |= {"peak_bytes": peaks, "step_bytes": own, "times_memory": peaks["noisy"] / peaks["plain"]}
    return {"repeats": repeats, "lines": lines, "normal_nanoseconds": 1e9 * _normal(repeats) / _NORMALS}


def _steps(name: str, rows: int) -> tuple[int, dict[str, Callable[[], object]]]:
    """Return the clients of a stack, and a function for each of STEPS."""
    workload = WORKLOADS[name]
    network = build(
        workload.model["kind"], workload.shape, 10, {k: v for k, v in workload.model.items() if k != "kind"}
    )
    kernel = pick_kernel(network, workload.batch, "cpu")
    clients = min(workload.clients, kernel.stack)
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(clients, rows, *workload.shape, generator=draw)
    y = torch.randint(0, 10, (clients, rows), generator=draw)
    stack = Rows(x, y, torch.full((clients,), rows))
    shared = network.init(server_stream(0, 0, "init"))
    weights = {n: w.contiguous() for n, w in broadcast_weights(shared, clients).items()}
    privacy = Privacy(1.0, 1.0, float(rows), 1)
    training = Training(CrossEntropy(), SGD(0.05), 1, rows, kernel.kind, privacy=privacy)
    streams, shares = (
        client_streams(0, [str(client) for client in range(clients)], 1, "bench"),
        torch.ones(clients, rows),
    )
    noise = partial(draw_noise, [KeyedNormals(bytes([client]) * 32) for client in range(clients)], x.device)

    def clipped() -> object:
        sums = clipped_sums(network, weights, {}, stack, training, shares)
        own = {n: w.clone() for n, w in weights.items()}  # as the other steps copy what they received
        return training.optimiser.step(own, {n: total.div_(privacy.divisor) for n, total in sums.items()}, {})

    return clients, {
        "plain": lambda: train(network, weights, {}, stack, replace(training, privacy=None), streams),
        "clipped": clipped,
        "noisy": lambda: train_privately(network, weights, {}, stack, training, noise, shares),
    }


def _turns(steps: dict[str, Callable[[], object]], repeats: int, times: int) -> dict[str, list[float]]:
    """Return the CPU seconds of a step by turn; the first turn warms up."""
    seconds: dict[str, list[float]] = {step: [] for step in steps}
    for turn in range(repeats + 1):
        for step, take in steps.items():
            start = time.process_time()
            for _ in range(times):
                take()
            seconds[step] += [(time.process_time() - start) / times] if turn else []
    return seconds


def _compared(seconds: dict[str, list[float]]) -> dict[str, Any]:
    by_turn = {
        step: [theirs / plain for theirs, plain in zip(seconds[step], seconds["plain"], strict=True)]
        for step in STEPS[1:]
    }
    return {
        "milliseconds": {step: 1000 * median(turns) for step, turns in seconds.items()},
        "ratio": {step: median(ratios) for step, ratios in by_turn.items()},
        "ratio_by_turn": by_turn,
    }


def _normal(repeats: int) -> float:
    """Return the CPU seconds in which a key gives _NORMALS normal numbers, the median of a few turns."""
    stream, numbers = KeyedNormals(bytes(32)), torch.empty(_NORMALS)
    return median(_turns({"fill": lambda: stream.fill(numbers)}, repeats, 1)["fill"])


def main(arguments: Sequence[str]) -> None:
    """Take one kind of step a few times, for the peak memory of the process."""
    name, rows, step = arguments
    tune_malloc()
    torch.set_num_threads(1)
    take = _steps(name, int(rows))[1][step]
    before = resident_bytes()
    for _ in range(3):
        take()
    # the peak that a parent reads of its child is at least the parent's own
    peak = Path("/proc/self/status").read_text(encoding="ascii").split("VmHWM:")[1].split()[0]
    print(json.dumps({"bytes_before": before, "peak_bytes": 1024 * int(peak)}))


if __name__ == "__main__":
    main(sys.argv[1:])
