"""Count or measure what a network needs of a client's machine: arithmetic, memory, bytes and time."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from flows.methods.base import start_method
from flows.methods.method_settings import method_of
from flows.methods.round_context import TrainingSetup
from flows.project.project import Project
from flows.training.peak_memory import Measured, Pass, can_measure, peak_bytes
from flows.training.training_setup import training_setup
from models.client_model import Model, first_client, size_in_bytes
from models.metrics.flops import largest_activation, network_cost, training_floor
from models.networks.network import Network
from models.networks.network_factory import is_bundled, kind_of
from models.networks.statistics_context import STATISTICS
from models.prng import server_stream
from models.server_state import Weights
from silos.errors import UserError
from silos.io.memory_and_disk import free_bytes
from tasks.messages.round_messages import Update
from tasks.tracking.result_types.profile_result import (
    Latency,
    MeasuredBatch,
    MemoryProfile,
    ModelBytes,
    NetworkProfile,
)

_PASSES, _SECONDS = 50, 3.0  # at most, of forward passes on one row
_PATIENCE = 30.0  # seconds for one measurement of memory
_REPEATS = 2  # of each measurement of memory, in parallel


class _Client(NamedTuple):
    """Holds the network of one client: weights and context without a client axis."""

    network: Network
    weights: Weights
    context: Weights


def network_profile(
    project: Project, method: str | None, memory: bool, report: Callable[[str], None]
) -> NetworkProfile:
    """Return what the network needs, with weights as at a run's start, as plain JSON.

    Args:
        project: The open project.
        method: The method whose network is profiled; the network of params.yaml if None.
        memory: Whether memory is measured.
        report: Takes lines of progress.

    Raises:
        UserError: If params do not fit together, or data/ is not as recorded.
    """
    if memory and not can_measure():
        raise UserError(
            "memory: got a system other than Linux, expected Linux, whose counters are used. Add --without-memory."
        )
    setup = training_setup(project, 0)
    client = _of_method(project, method, setup) if method else _plain(setup)
    manifest, rows = setup.silos.manifest, setup.silos.rows("train")
    largest = max(rows, key=lambda name: rows[name])
    # values do not matter: operations are counted, and passes are timed
    x = torch.rand(1, *manifest.shape)
    y = torch.zeros(1, dtype=torch.int64 if manifest.classes else torch.float32)
    counted = network_cost(*client, x, y, setup.training.objective)
    return {
        "method": method,
        "network": kind_of(client.network),
        "shape": list(manifest.shape),
        "outputs": len(manifest.classes) or 1,
        "data_version": setup.silos.version,
        "parameters": counted.parameters,
        "buffers": counted.buffers,
        "macs": {
            "forward": counted.forward,
            "forward_and_backward": counted.both,
            "round": counted.both * rows[largest] * setup.training.epochs,
        },
        "largest_client": {"client": largest, "rows": rows[largest], "epochs": setup.training.epochs},
        "bytes": _bytes(client.weights),
        "latency": _latency(client, x),
        "memory": _memory(client, project, setup, rows[largest], memory, report),
    }


def _plain(setup: TrainingSetup) -> _Client:
    return _Client(setup.network, setup.network.init(server_stream(setup.seed, 0, "init")), {})


def _of_method(project: Project, method_name: str, setup: TrainingSetup) -> _Client:
    """Return the network of a client of the method in the first round, before it has stored anything."""
    method = method_of(project.params, method_name)
    model: Model = method.model(start_method(method, setup), setup)
    reads = method.conditioning()
    given = {STATISTICS: torch.zeros(reads.count(setup.silos))} if reads else {}
    return _Client(
        model.network, {**model.shared, **first_client(model.personal)}, first_client(model.context) or given
    )


def _bytes(weights: Weights) -> ModelBytes:
    """Return the size of the weights as a file, and of what a client sends and receives in a round of FedAvg."""
    one, none = torch.ones(1, dtype=torch.int64), torch.zeros(1)
    up = Update(("a",), one, weights, none).bytes_up
    file = len(save({name: w.contiguous() for name, w in weights.items()}))
    return {"file": file, "up": up, "down": size_in_bytes(weights)}


def _latency(client: _Client, x: Tensor) -> Latency:
    """Return milliseconds of one row's forward pass on one thread: median and quartiles."""
    threads = torch.get_num_threads()
    seconds: list[float] = []
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            begun = time.perf_counter()
            while len(seconds) < 3 or (len(seconds) < _PASSES and time.perf_counter() - begun < _SECONDS):
                start = time.perf_counter()
                client.network.apply(client.weights, client.context, x, None)
                seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    timed = [1000 * s for s in seconds[1:]]  # the first one warms up
    low, _, high = quantiles(timed, n=4)
    return {"milliseconds": median(timed), "quartiles": [low, high], "passes": len(timed)}


def _memory(
    client: _Client, project: Project, setup: TrainingSetup, rows: int, measure: bool, report: Callable[[str], None]
) -> MemoryProfile:
    """Return bytes for each batch size: of the largest layer, of a training step at least, and as measured.

    Batches of test rows are evaluated only.
    """
    network, weights, _ = client
    lines: list[MeasuredBatch] = [
        {
            "rows": count,
            "what": what,
            "largest_activation": largest_activation(network, count),
            "training_floor": training_floor(network, weights, setup.training.optimiser, count) if trains else None,
            "evaluation": None,
            "training": None,
        }
        for count, what, trains in _batches(project, setup.training.batch, rows)
    ]
    note = _unmeasured(network) if measure else "not measured (--without-memory)"
    within = None if note else _measure(client, setup, lines, report)
    return {"rows": lines, "repeats_within": within, "note": note}


def _batches(project: Project, batch: int, rows: int) -> list[tuple[int, str, bool]]:
    """Return each batch size, ascending, with its name and whether a client trains on such a batch."""
    test = max(project.silos.common("test"), *project.silos.rows("test").values())
    trained = {rows: "largest client", min(batch, rows): "a batch", 1: "one row"}
    tested = {test: "most test rows"} if test and test not in trained else {}
    return sorted((count, what, count in trained) for count, what in {**tested, **trained}.items())


def _unmeasured(network: Network) -> str | None:
    if is_bundled(network):
        return None
    return f"not measured: {kind_of(network)} is defined in a plugin file, and another process would not have it"


def _measure(client: _Client, setup: TrainingSetup, lines: list[MeasuredBatch], report: Callable[[str], None]) -> int:
    """Fill in the larger of two measurements for each line; return the largest difference between the two."""
    weights, context = ({name: tuple(t.shape) for name, t in part.items()} for part in client[1:])
    shape, within = tuple(setup.silos.manifest.shape), 0
    report(f"measuring memory: four processes, at most {_PATIENCE:.0f} s each")
    kinds: tuple[Pass, ...] = ("evaluation", "training")
    for kind in kinds:
        done = [line for line in lines if kind == "evaluation" or line["training_floor"] is not None]
        rows = tuple(line["rows"] for line in done)
        measured = Measured(kind, client.network, weights, context, setup.training, shape, rows)
        with ThreadPoolExecutor(_REPEATS) as pool:
            limit = free_bytes() // (_REPEATS + 1)  # each; a part is left to other processes
            times = list(pool.map(peak_bytes, [measured] * _REPEATS, [_PATIENCE] * _REPEATS, [limit] * _REPEATS))
        for line, peaks in zip(done, zip(*times, strict=True), strict=True):
            known = [peak for peak in peaks if peak is not None]
            line[kind] = max(known, default=None)
            within = max(within, max(known, default=0) - min(known, default=0))
        missing = [f"{line['rows']:,}" for line in done if line[kind] is None]
        report(
            f"{kind}: done" + (f", but not of {', '.join(missing)} rows: too little memory or time" if missing else "")
        )
    return within
