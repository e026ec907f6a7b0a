"""How much memory a network takes, measured in a process that does nothing else.

`python -m flows.cli.peak_memory` is such a process. It looks at the most memory that it ever held (VmHWM of Linux: what
`resource` calls ru_maxrss begins in a new process with its parent's) when it holds the network, and after each thing done.
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

Does = Literal["evaluation", "training"]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Measured:
    """One client's network, by the shapes of its weights and context, on random rows, (rows, *shape).

    Done once for each number of rows, which ascend: `evaluation` is a pass over all of them at once, `training` one step of
    local training with all of them as its batch.
    """

    does: Does
    network: Network
    weights: Shapes
    context: Shapes
    training: Training
    shape: tuple[int, ...]
    rows: tuple[int, ...]


def told() -> bool:
    """Whether this system tells what is measured."""
    return _STATUS.is_file()


def peak_bytes(asked: Measured, seconds: float, limit: int) -> list[int | None]:
    """For each number of rows the most memory so far on one thread, less what holding the network takes.

    None where that is not reached in so many seconds, or needs more than `limit` bytes in all.
    """
    command = [sys.executable, "-m", __name__, str(limit)]
    try:
        done = subprocess.run(
            command, cwd=_ROOT, input=pickle.dumps(asked), capture_output=True, timeout=seconds, check=False
        )
        said, ended = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        said, ended = late.stdout or b"", _TOO_MUCH
    if ended not in (0, _TOO_MUCH, _KILLED):
        raise RuntimeError(f"the process that measures memory failed:\n{done.stderr.decode(errors='replace')}")
    holding, *peaks = map(int, said.split()) if said else (0,)
    return [None if peak is None else peak - holding for peak, _ in zip_longest(peaks, asked.rows)]


_ROOT = Path(__file__).parents[2]
_STATUS = Path("/proc/self/status")
_TOO_MUCH, _KILLED = 3, -9  # by the kernel, which has no other way of saying so


def _main() -> None:
    asked: Measured = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]), resource.RLIM_INFINITY))
    try:
        weights, context = _drawn(asked.weights), _drawn(asked.context)
        _tell()
        for rows in asked.rows:
            _do(asked, weights, context, rows)
            _tell()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        raise SystemExit(_TOO_MUCH) from None


def _do(asked: Measured, weights: dict[str, Tensor], context: dict[str, Tensor], rows: int) -> None:
    x = torch.rand(rows, *asked.shape)
    if asked.does == "evaluation":
        with torch.no_grad():
            asked.network.apply(weights, context, x, None)
        return
    y = torch.zeros(1, rows, dtype=torch.int64 if asked.training.objective.task == "classification" else torch.float32)
    training = replace(asked.training, epochs=1, batch=rows, engine="sequential")
    batch = Rows(x[None], y, torch.tensor([rows]))
    train(
        asked.network,
        broadcast_weights(weights, 1),
        broadcast_weights(context, 1),
        batch,
        training,
        client_streams(0, ["a"], 1, "cost"),
    )


def _drawn(shapes: Shapes) -> dict[str, Tensor]:
    return {name: torch.rand(shape) for name, shape in shapes.items()}


def _tell() -> None:
    lines = _STATUS.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmHWM:")]
    print(1024 * int(line.split()[1]), flush=True)


if __name__ == "__main__":
    _main()
