"""Measure the peak memory of a network in a process that does nothing else.

`python -m flows.training.peak_memory` is that process. It prints its peak (VmHWM of Linux) with the network alone, and after
each pass. `ru_maxrss` of `resource` does not serve: in a new process it starts with the parent's peak.
"""

import pickle
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from models.networks.network import Network
from models.prng import client_streams
from models.training.engine import Rows, Training, broadcast_weights, train

Pass = Literal["evaluation", "training"]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Measured:
    """Describes what to measure: one client's network on random rows of `shape`.

    `kind` is done for each number of `rows`, which ascend: `evaluation` is a forward pass over all rows at once, `training`
    one step of local training with all rows as its batch. `weights` and `context` have the shapes of tensors.
    """

    kind: Pass
    network: Network
    weights: Shapes
    context: Shapes
    training: Training
    shape: tuple[int, ...]
    rows: tuple[int, ...]


def can_measure() -> bool:
    """Return whether this system reports the peak memory of a process."""
    return _STATUS.is_file()


def peak_bytes(measured: Measured, seconds: float, limit: int) -> list[int | None]:
    """Return the peak memory on one thread for each number of rows, less the memory of the network alone.

    A number is None if `seconds` are over before it is known, or if the process needs more than `limit` bytes in all.
    """
    command = [sys.executable, "-m", __name__, str(limit)]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, input=pickle.dumps(measured), capture_output=True, timeout=seconds, check=False
        )
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output, code = late.stdout or b"", _TOO_MUCH
    if code not in (0, _TOO_MUCH, _KILLED):
        raise RuntimeError(f"the process that measures memory failed:\n{done.stderr.decode(errors='replace')}")
    holding, *peaks = map(int, output.split()) if output else (0,)
    return [None if peak is None else peak - holding for peak, _ in zip_longest(peaks, measured.rows)]


_ROOT = Path(__file__).parents[2]
_STATUS = Path("/proc/self/status")
_TOO_MUCH, _KILLED = 3, -9  # the kernel kills a process that takes too much


def _main() -> None:
    measured: Measured = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), resource.RLIM_INFINITY))
    try:
        weights, context = _random(measured.weights), _random(measured.context)
        _print_peak()
        for rows in measured.rows:
            _do(measured, weights, context, rows)
            _print_peak()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise SystemExit(_TOO_MUCH) from None


def _do(measured: Measured, weights: dict[str, Tensor], context: dict[str, Tensor], rows: int) -> None:
    x = torch.rand(rows, *measured.shape)
    if measured.kind == "evaluation":
        with torch.no_grad():
            measured.network.apply(weights, context, x, None)
        return
    y = torch.zeros(
        1, rows, dtype=torch.int64 if measured.training.objective.task == "classification" else torch.float32
    )
    training = replace(measured.training, epochs=1, batch=rows, engine="sequential")
    batch = Rows(x[None], y, torch.tensor([rows]))
    train(
        measured.network,
        broadcast_weights(weights, 1),
        broadcast_weights(context, 1),
        batch,
        training,
        client_streams(0, ["a"], 1, "cost"),
    )


def _random(shapes: Shapes) -> dict[str, Tensor]:
    return {name: torch.rand(shape) for name, shape in shapes.items()}


def _print_peak() -> None:
    lines = _STATUS.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    print(1024 * int(line.split()[1]), flush=True)


if __name__ == "__main__":
    _main()
