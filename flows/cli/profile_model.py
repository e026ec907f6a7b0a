"""What a network asks of a client's machine: arithmetic, memory, bytes and time; counted where it can be, else measured."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from flows.cli.peak_memory import Does, Measured, peak_bytes, told
from flows.config.method_settings import method_of
from flows.experiment.project import Project
from flows.methods.base import start_method
from flows.methods.context import TrainingSetup
from models.client_model import Model, of_one, size_in_bytes
from models.metrics.flops import largest_activation, network_cost, training_floor
from models.networks.network import Network
from models.networks.network_factory import is_bundled, kind_of
from models.networks.wrappers.per_row_context import STATISTICS
from models.prng import server_stream
from models.server_state import Weights
from silos.errors import UserError
from silos.io.free_memory import free_bytes
from tasks.messages.update_messages import Update

_PASSES, _SECONDS = 50, 3.0  # of one row, to be timed
_PATIENCE = 30.0  # seconds for one measurement of memory
_TIMES = 2  # that memory is measured, side by side


class _Client(NamedTuple):
    """The network of one client: weights and context without a client axis."""

    network: Network
    weights: Weights
    context: Weights


def cost(project: Project, method: str | None, memory: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Of the network of params.yaml, or of the method's own if one is named, with weights as at a run's start: plain JSON.

    `memory`: whether it is measured. UserError for what does not fit together, and where data/ is not as recorded.
    """
    if memory and not told():
        raise UserError("memory is measured as Linux tells it, and this is another system; give --without-memory.")
    setup = project.training_setup(0)
    client = _of_method(project, method, setup) if method else _plain(setup)
    manifest, rows = setup.silos.manifest, setup.silos.rows("train")
    largest = max(rows, key=lambda name: rows[name])
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
        "memory": _memory(client, project, setup, rows[largest], memory, say),
    }


def _plain(setup: TrainingSetup) -> _Client:
    return _Client(setup.network, setup.network.init(server_stream(setup.seed, 0, "init")), {})


def _of_method(project: Project, method_name: str, setup: TrainingSetup) -> _Client:
    """What a client of the method has in the first round, before it has stored anything."""
    method = method_of(project.params, method_name)
    model: Model = method.model(start_method(method, setup), setup)
    reads = method.conditioning()
    given = {STATISTICS: torch.zeros(reads.count(setup.silos))} if reads else {}
    return _Client(model.network, {**model.shared, **of_one(model.personal)}, of_one(model.context) or given)


def _bytes(weights: Weights) -> dict[str, int]:
    """The weights as a file, and what one client sends and receives in a round of FedAvg that shares all of them."""
    one, none = torch.ones(1, dtype=torch.int64), torch.zeros(1)
    up = Update(("a",), one, weights, none).bytes_up
    file = len(save({name: w.contiguous() for name, w in weights.items()}))
    return {"file": file, "up": up, "down": size_in_bytes(weights)}


def _latency(client: _Client, x: Tensor) -> dict[str, Any]:
    """Milliseconds of one row's forward pass on one thread: median and quartiles."""
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
    client: _Client, project: Project, setup: TrainingSetup, rows: int, measure: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Bytes for each number of rows at once: of the largest layer, what a training step needs at least, what was measured.

    Nobody trains on test rows, so of these there is evaluation only.
    """
    network, weights, _ = client
    lines: list[dict[str, Any]] = [
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
    note = _unmeasured(network) if measure else "not measured, as asked"
    within = None if note else _measure(client, setup, lines, say)
    return {"rows": lines, "repeats_within": within, "note": note}


def _batches(project: Project, batch: int, rows: int) -> list[tuple[int, str, bool]]:
    """How many rows at once, what they are, and whether somebody trains on them; ascending."""
    test = max(project.silos.common("test"), *project.silos.rows("test").values())
    trained = {rows: "largest client", min(batch, rows): "a batch", 1: "one row"}
    tested = {test: "most test rows"} if test and test not in trained else {}
    return sorted((count, what, count in trained) for count, what in {**tested, **trained}.items())


def _unmeasured(network: Network) -> str | None:
    if is_bundled(network):
        return None
    return f"not measured: {kind_of(network)} is a network of your own page, and another process would not know it"


def _measure(client: _Client, setup: TrainingSetup, lines: list[dict[str, Any]], say: Callable[[str], None]) -> int:
    """Fills in bytes beside those of holding the network, the larger of two times; answers by how much two times differ."""
    weights, context = ({name: tuple(t.shape) for name, t in part.items()} for part in client[1:])
    shape, within = tuple(setup.silos.manifest.shape), 0
    say(f"measuring memory: four processes, each {_PATIENCE:.0f} s at most")
    kinds: tuple[Does, ...] = ("evaluation", "training")
    for does in kinds:
        done = [line for line in lines if does == "evaluation" or line["training_floor"] is not None]
        rows = tuple(line["rows"] for line in done)
        asked = Measured(does, client.network, weights, context, setup.training, shape, rows)
        with ThreadPoolExecutor(_TIMES) as pool:
            limit = free_bytes() // (_TIMES + 1)  # each; others on this machine keep a part
            times = list(pool.map(peak_bytes, [asked] * _TIMES, [_PATIENCE] * _TIMES, [limit] * _TIMES))
        for line, peaks in zip(done, zip(*times, strict=True), strict=True):
            there = [peak for peak in peaks if peak is not None]
            line[does] = max(there, default=None)
            within = max(within, max(there, default=0) - min(there, default=0))
        missed = [f"{line['rows']:,}" for line in done if line[does] is None]
        say(f"{does}: done" + (f", but of {', '.join(missed)} rows: no memory or no time for it" if missed else ""))
    return within
