"""Time whole rounds against a loop written by hand and against peer frameworks, in one run on one machine.

Each contestant is a separate process. Contestants take turns, with a pause between them, since a thread pool of the one
before may still be spinning. Ratios of medians can be compared; seconds depend on the machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from shutil import which
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from benchmarks.bench_results import processor_name
from benchmarks.workloads import THREADS, Workload, chosen_workloads
from flows.methods.base import start_method
from flows.methods.method_settings import method_of
from flows.project.make_partition import make
from flows.project.project import Project
from flows.training.run_records.run_folder import RunFolder
from flows.training.training_setup import training_setup
from models.client_model import first_client
from models.metrics.flops import network_cost
from silos.errors import UserError

_OURS = ("numpy", "psutil", "pydantic", "safetensors")  # needed to open rows
_LOOK = "import sys; from importlib.util import find_spec; print(*(m for m in sys.argv[1:] if not find_spec(m)))"


class _Peer(NamedTuple):
    program: str  # of benchmarks/baselines
    package: str  # as an argument of pip
    modules: tuple[str, ...]


PEERS = {
    "flower": _Peer("flower", "'flwr[simulation]'", ("flwr", "ray")),
    "pfl": _Peer("pfl_research", "pfl", ("pfl",)),
    "fedlab": _Peer("fedlab", "fedlab", ("fedlab",)),
}


def check_peers(peers: Sequence[str]) -> None:
    """Raise UserError for a peer that is unknown, or if its packages are not installed."""
    for name in peers:
        if name not in PEERS:
            raise UserError(f"there is no peer {name!r}; there are {', '.join(PEERS)}.")
        python, install = interpreter(name), _install(name)
        if not which(python):
            raise UserError(f"{variable(name)} is {python!r}, which is no interpreter; make one with `{install}`.")
        command = [python, "-c", _LOOK, *PEERS[name].modules, "torch", *_OURS]
        missing = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        if missing:
            raise UserError(f"{name} needs {', '.join(missing)}, not installed for {python}; install with `{install}`.")


_PROGRAMS = {"plain": "reference_loop", "authors": "uefl_author_code", "bayes": "bayes_by_backprop"}


def program(contestant: str) -> list[str]:
    """Return the start of a contestant's command line: an interpreter, and a module of benchmarks/baselines."""
    peer = PEERS.get(contestant)
    return [interpreter(contestant), "-m", f"benchmarks.baselines.{peer.program if peer else _PROGRAMS[contestant]}"]


def interpreter(contestant: str) -> str:
    """Return a contestant's interpreter: for a peer the one that the environment names, for all others this one."""
    return (contestant in PEERS and os.environ.get(variable(contestant))) or sys.executable


def variable(peer: str) -> str:
    """Return the environment variable that names a peer's interpreter."""
    return f"SILOFLOW_{peer.upper()}_PYTHON"


def _install(peer: str) -> str:
    """Return the command that installs a peer in a separate environment with our version of torch."""
    torch = version("torch").partition("+")[0]
    packages = " ".join([PEERS[peer].package, f"torch=={torch}", *_OURS])
    python = f"{variable(peer)}=$PWD/{peer}/bin/python"
    return f"python3.11 -m venv {peer} && {peer}/bin/pip install {packages} && export {python}"


PAUSE = 0.5
_ROUNDS_OF_OTHERS = 11  # one of them with evaluation; ours run longer, to measure the memory that stays
_SIGNAL = 40  # of 256, added to a pixel by a label's picture
_TRAINING = ("local_train", "update_site")  # the tasks in which clients train


def bench(
    names: Sequence[str],
    repeats: int,
    peers: Sequence[str],
    say: Callable[[str], None],
    done: Callable[[dict[str, Any]], object] = lambda _: None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Time every workload with its contestants, as plain JSON.

    Args:
        names: Workloads; all if none is named.
        repeats: Turns of every contestant.
        peers: Peer frameworks that take part.
        say: Reports progress.
        done: Called with the record of each workload at its end.
        device: Where ours and the plain loop compute: cpu or cuda. Peers are measured on a CPU.
    """
    chosen = chosen_workloads(names)
    _check_device(device, peers)
    check_peers(peers)
    records = []
    with scratch() as root:
        for workload in chosen:
            records.append(_contest(root, workload, workload.contestants(peers, device), repeats, say, device))
            done(records[-1])
    return {"cores": os.cpu_count(), "repeats": repeats, "workloads": records}


def _check_device(device: str, peers: Sequence[str]) -> None:
    """Raise UserError for a device that is unknown or missing, or that peers are not measured on."""
    if device not in ("cpu", "cuda"):
        raise UserError(f"--device: got {device}, expected cpu or cuda. Use one of these.")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device: got cuda, expected cpu, since torch finds no GPU. Use cpu.")
    if device == "cuda" and peers:
        raise UserError(f"--peer: got {peers[0]} with --device cuda, expected cpu. Measure peers on the CPU.")


def _contest(
    root: Path,
    workload: Workload,
    contestants: Sequence[str],
    repeats: int,
    say: Callable[[str], None],
    device: str = "cpu",
) -> dict[str, Any]:
    say(f"{workload.name}: {workload.clients} clients of {workload.rows} rows, {workload.about}: partition")
    _prepare(root, workload, device)
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for repeat in range(repeats):
        for name in contestants:
            say(f"{workload.name}: {name}, {repeat + 1} of {repeats}")
            time.sleep(PAUSE)
            kind, _, threads = name.partition(" ")
            if kind == "siloflow" or kind in workload.others:
                arguments = workload.others.get(kind, (workload.method,))
                measured[name].append(_siloflow(root, arguments, repeat))
            else:
                measured[name].append(_other(root, workload, kind, threads or str(THREADS), device))
    record = {"workload": workload.name, "about": workload.about, **_summary(measured, workload)}
    if device == "cuda":
        record["gpu"] = processor_name(device)
    record["limits"] = _limits(root, workload, record["seconds_per_round"]["siloflow"])
    seconds = ", ".join(f"{name} {value:.3f} s" for name, value in record["seconds_per_round"].items())
    say(f"{workload.name}: {seconds} a round; ratio {record['ratio']:.2f}")
    return record


def _prepare(root: Path, workload: Workload, device: str) -> None:
    """Write params.yaml and the source, and partition it."""
    (root / "params.yaml").write_text(yaml.safe_dump(workload.params(device)))
    if workload.shape:
        _write_pixels(root / f"{workload.name}.npz", workload)
    make(Project.open([], root))


def _write_pixels(path: Path, workload: Workload) -> None:
    """Write random pixels and labels; if the label is to be learned, pixels contain its picture."""
    draw = np.random.default_rng(0)
    sizes = {"train": workload.rows, "validation": workload.checked, "test": workload.learned or 2}
    each = sum(sizes.values())
    count = workload.clients * each
    split = np.tile(np.repeat(list(sizes), list(sizes.values())), workload.clients)
    signal = _SIGNAL if workload.learned else 0
    x = draw.integers(0, 256 - signal, (count, *workload.shape), dtype=np.uint8)
    client = np.repeat([f"c{i:05d}" for i in range(workload.clients)], each)
    y = draw.integers(0, 10, count)
    x += signal * draw.integers(0, 2, (10, *workload.shape), dtype=np.uint8)[y]
    np.savez(path, x=x, y=y, client=client, split=split)


def _siloflow(root: Path, arguments: Sequence[str], seed: int) -> dict[str, Any]:
    """Run siloflow's command, and return the seconds between ends of rounds and the seconds of tasks."""
    start = time.perf_counter()
    result, peak = command(root, "run", *arguments, "--seed", str(seed), "--json")
    whole = time.perf_counter() - start
    folder = RunFolder(root / result["folder"])
    records = folder.rounds(result["rounds"])
    ends = [r["time_ms"] / 1000 for r in records]
    last = len(records) - 1  # the last round is always evaluated
    rounds = [b - a for a, b in pairwise(ends[:last])]
    inside = [{k: v for k, v in r["seconds"].items() if k != "round"} for r in records[1:last]]
    tasks = {name: [s.get(name, 0.0) for s in inside] for name in inside[0]}
    return {
        "rounds": rounds,
        "tasks": tasks,
        "orchestration": [
            r["seconds"]["round"] - sum(s.values()) for r, s in zip(records[1:last], inside, strict=True)
        ],
        "around": whole - sum(rounds),
        "accuracy": result["metrics"].get("accuracy/mean"),  # a regression has no accuracy
        "peak_bytes": peak,
        "resident_bytes": [r["memory"]["resident"] for r in folder.journal.each(result["rounds"])],
    }


def _other(root: Path, workload: Workload, kind: str, threads: str, device: str) -> dict[str, Any]:
    described = {**workload.params(device), "clients": workload.clients, "threads": int(threads)}
    described["training"]["rounds"] = min(workload.rounds, _ROUNDS_OF_OTHERS)
    command = [*program(kind), str(root / "data" / workload.name.lower()), json.dumps(described)]
    answer, peak = child(command, root)
    return {**answer, "peak_bytes": peak}


def _summary(measured: dict[str, list[dict[str, Any]]], workload: Workload) -> dict[str, Any]:
    """Return averages over rounds and repeats, the ratio to the better plain loop, and the ratio of each turn."""
    average = fmean if workload.every else median  # the median would ignore rounds with evaluation
    middle = {name: average([s for turn in turns for s in turn["rounds"]]) for name, turns in measured.items()}
    plain = min((n for n in workload.by_hand if n in middle), key=lambda n: middle[n])
    ours = measured["siloflow"]
    turns = _ratios(measured[plain], ours, average)
    share = {
        name: median(s for turn in ours for s in turn["tasks"][name]) / middle["siloflow"] for name in ours[0]["tasks"]
    }
    trained = sum(share.get(name, 0.0) for name in _TRAINING) * middle["siloflow"]
    apart = median(s for turn in ours for s in turn["orchestration"])
    return {
        "seconds_per_round": middle,
        "better_plain": plain,
        "ratio": middle[plain] / middle["siloflow"],
        "ratio_by_turn": turns,
        "times": {name: _ratios(ours, measured[name], average) for name in workload.others if name in measured},
        "accuracy": {n: fmean(t["accuracy"] for t in measured[n]) for n in measured} if workload.learned else {},
        "local_train": trained,
        "local_train_ratio": middle[plain] / trained,
        "orchestration_share": apart / middle["siloflow"],
        "task_shares": share,
        "around": median(turn["around"] for turn in ours),
        "peak_bytes": {name: max(t["peak_bytes"] for t in turns) for name, turns in measured.items()},
        "resident_bytes": {n: ours[0]["resident_bytes"][n - 1] for n in (5, 30) if workload.rounds >= n},
    }


def _limits(root: Path, workload: Workload, seconds: float) -> dict[str, float]:
    """Measure the machine's limits, and the share of them that the products of a round reach.

    Products of matrices and convolutions in training are counted as in `siloflow cost`, and timed alone, as one client's
    batch calls them.
    """
    project = Project.open([], root)
    setup = training_setup(project, 0)
    method = method_of(project.params, workload.method)
    model = method.model(start_method(method, setup), setup)
    weights = {**model.shared, **first_client(model.personal)}
    manifest = setup.silos.manifest
    x, y = torch.rand(1, *manifest.shape), torch.zeros(1, dtype=torch.int64 if manifest.classes else torch.float32)
    counted = network_cost(model.network, weights, first_client(model.context), x, y, setup.training.objective)
    rows = workload.clients * workload.rows
    flop = 2 * counted.both * rows
    found, _ = child([sys.executable, "-m", "benchmarks.bench_kernels", workload.method, str(THREADS)], root)
    return {
        "flop_per_second": found["flop_per_second"],
        "bytes_per_second": found["bytes_per_second"],
        "flop_of_a_round": flop,
        "share_of_products": flop / seconds / found["flop_per_second"],
        "kernel_seconds": found["kernel_seconds_of_a_row"] * rows,
    }


def _ratios(
    turns: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], average: Callable[..., float]
) -> list[float]:
    """Return the round of the first over that of the second, turn by turn."""
    return [average(a["rounds"]) / average(b["rounds"]) for a, b in zip(turns, others, strict=True)]


def command(root: Path, *arguments: str) -> tuple[dict[str, Any], int]:
    """Run `siloflow ARGUMENTS` in this folder, and return its JSON and its peak memory in bytes."""
    return child([sys.executable, "-c", "from flows.cli import main; main()", *arguments], root)


def child(command: list[str], folder: Path) -> tuple[dict[str, Any], int]:
    """Run a process, and return the last line of its output, as JSON, and its peak memory in bytes."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=err, text=True, env=clean_environment())
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()  # its folder is removed next
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise UserError(f"a contestant failed: {err.read().strip()[-1500:]}")
        unit = 1 if sys.platform == "darwin" else 1024
        return json.loads(out.read().splitlines()[-1]), usage.ru_maxrss * unit


def clean_environment() -> dict[str, str]:
    """Return an environment without settings of Prefect and MLflow, and with this checkout on the path."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    code = str(Path(__file__).resolve().parents[1])
    return {**variables, "PYTHONPATH": os.pathsep.join(p for p in (code, os.environ.get("PYTHONPATH")) if p)}


@contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder; SIGTERM acts like Ctrl-C, so that the folder is removed then as well."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="siloflow-bench-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
