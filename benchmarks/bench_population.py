"""Measure the cost of clients that take no part: W6, rounds of a hundred clients of a thousand to a million."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.run_benchmark import PAUSE, child, command, scratch
from flows.training.run_records.run_folder import RunFolder

SIZES = (1_000, 10_000, 100_000, 1_000_000)
CALLED = 100
ROWS = 8
SCORED = 1000
ROUNDS = 12  # the first opens the data, the last is evaluated
_CLUSTERS = 4


def population_cost(repeats: int, say: Callable[[str], None], sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Partition each size once, and run FedAvg of a linear model on the sizes in turns.

    Args:
        repeats: The number of turns.
        say: Reports progress.
        sizes: Numbers of clients.
    """
    with scratch() as root:
        made = {size: _made(root / str(size), size, say) for size in sizes}
        runs: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
        for turn in range(repeats):
            for size in sizes:
                say(f"{size:,} clients: {turn + 1} of {repeats}")
                time.sleep(PAUSE)
                runs[size].append(_run(root / str(size), turn))
    lines = {str(size): {"clients": size, **made[size], **_summary(runs[size])} for size in sizes}
    least = [run["round"] for run in runs[sizes[0]]]
    for line, size in zip(lines.values(), sizes, strict=True):
        line["times_by_turn"] = [run["round"] / first for run, first in zip(runs[size], least, strict=True)]
        line["times"] = median(line["times_by_turn"])
    return {"called": CALLED, "rows": ROWS, "scored": SCORED, "repeats": repeats, "sizes": lines}


def _made(root: Path, size: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure seconds and peak memory of `siloflow partition`, and the bytes of data/."""
    say(f"{size:,} clients: partition")
    root.mkdir()
    (root / "params.yaml").write_text(yaml.safe_dump(_params(size)))
    start = time.perf_counter()
    _, peak = command(root, "partition", "--json")
    seconds = time.perf_counter() - start
    bytes_on_disk = sum(path.stat().st_size for path in (root / "data").rglob("*") if path.is_file())
    return {"partition_seconds": seconds, "partition_peak_bytes": peak, "data_bytes": bytes_on_disk}


def _params(size: int) -> dict[str, Any]:
    law = {"kind": "synthetic", "task": "linear", "clusters": _CLUSTERS, "clients_per_cluster": size // _CLUSTERS}
    return {
        "data": {
            "name": "w6",
            "seed": 0,
            "source": {**law, "rows": ROWS, "test_rows": 2},
            "scheme": [{"kind": "column", "column": "client"}],
            "split": {"validation": 0.0, "test": 0.0},
        },
        "model": {"kind": "mlp", "hidden": []},
        "training": {
            "rounds": ROUNDS,
            "epochs": 1,
            "batch": ROWS,
            "optimiser": {"kind": "sgd", "learning_rate": 0.01},
            "objective": {"kind": "squared_error"},
        },
        "clients": {"fraction": CALLED / size},
        "evaluation": {"every": ROUNDS, "clients": SCORED, "passes": 0},
        "comparison": {"methods": ["fedavg"], "seeds": [0]},
        "method": {},
    }


def _run(root: Path, seed: int) -> dict[str, Any]:
    opened, _ = child([sys.executable, "-m", "benchmarks.bench_open_data"], root)
    start = time.perf_counter()
    result, peak = command(root, "run", "fedavg", "--seed", str(seed), "--json")
    whole = time.perf_counter() - start
    folder = RunFolder(root / result["folder"])
    seconds = [record["seconds"]["round"] for record in folder.rounds(result["rounds"])]
    journal = [path.stat().st_size for path in sorted(folder.journal.folder.glob("*.json"))]
    return {
        "opened": opened["seconds"],
        "first": seconds[0],
        "round": median(seconds[1:-1]),
        "around": whole - sum(seconds),
        "peak_bytes": peak,
        "journal_bytes": median(journal[1:-1]),
    }


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    middle = {
        name: median(run[name] for run in runs) for name in ("opened", "first", "round", "around", "journal_bytes")
    }
    return {**middle, "peak_bytes": max(run["peak_bytes"] for run in runs)}
