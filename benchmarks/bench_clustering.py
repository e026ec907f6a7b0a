"""Measure the cost of clustering clients by the common rows that they classify correctly, on the server and in a round."""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.run_benchmark import PAUSE, command, scratch
from flows.project.make_partition import make
from flows.project.project import Project
from flows.training.run_records.run_folder import RunFolder
from tasks.cluster_clients import overlap
from tasks.messages.round_messages import CorrectnessBits

ROWS = 10_000
CLIENTS = (100, 1000)
TRAINED = 500
_GROUPS = 10
_ROUNDS = 8  # the first warms up, the last is evaluated
_METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "selective": {
        "local_rounds": 1,
        "threshold": 0.0,
        "regroup_every": 1,
    },  # one group: FedAvg and regrouping
}


def regroup_cost(repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure overlaps and groups of 100 and 1,000 clients on 10,000 rows, and rounds with and without regrouping."""
    return {
        "rows": ROWS,
        "repeats": repeats,
        "server": [_server(clients, repeats, say) for clients in CLIENTS],
        "round": _rounds(CLIENTS[0], repeats, say),
    }


def _server(clients: int, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure seconds and peak memory (by tracemalloc) of the step `overlap`.

    Memory is measured in a separate call, since tracemalloc takes time.
    """
    say(f"{clients} clients: overlaps and groups on {ROWS} rows")
    torch.set_num_threads(1)
    answers = [_answers(clients)]
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        made = overlap.fn(answers, ROWS, "jaccard", None, "complete", 0)
        seconds.append(time.perf_counter() - start)
    tracemalloc.start()
    try:
        overlap.fn(answers, ROWS, "jaccard", None, "complete", 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return {
        "clients": clients,
        "groups": len(made.groups),
        "seconds": {"least": min(seconds), "median": median(seconds)},
        "peak_bytes": peak,
    }


def _answers(clients: int) -> CorrectnessBits:
    """Draw the answers of clients of ten groups: correct on most rows of the group, and on few others."""
    draw = np.random.default_rng(0)
    own = np.arange(clients)[:, None] % _GROUPS == np.arange(ROWS) % _GROUPS
    right = draw.random((clients, ROWS), np.float32) < np.where(own, 0.97, 0.02)
    names = tuple(f"c{at:05d}" for at in range(clients))
    return CorrectnessBits(names, torch.from_numpy(np.packbits(right, axis=1)))


def _rounds(clients: int, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Time FedAvg, and the same with regrouping in every round, in turns; all clients are in one group."""
    with scratch() as root:
        _prepare(root, clients)
        whole: dict[str, list[float]] = {name: [] for name in _METHODS}
        tasks: dict[str, list[float]] = {}
        for turn in range(repeats):
            for name in _METHODS:
                say(f"{clients} clients: {name}, {turn + 1} of {repeats}")
                time.sleep(PAUSE)
                seconds = _seconds(root, name)
                whole[name].append(median(s.pop("round") for s in seconds))
                if name == "selective":
                    for task in seconds[0]:
                        tasks.setdefault(task, []).extend(s[task] for s in seconds)
    more = [b / a - 1 for a, b in zip(whole["fedavg"], whole["selective"], strict=True)]
    return {
        "clients": clients,
        "trained_rows": TRAINED,
        "seconds": {name: median(turns) for name, turns in whole.items()},
        "share": median(more),
        "share_by_turn": more,
        "task_seconds": {name: median(each) for name, each in tasks.items()},
    }


def _prepare(root: Path, clients: int) -> None:
    """Write params.yaml, random pixels and labels, and partition them."""
    draw = np.random.default_rng(0)
    count = clients * TRAINED + ROWS
    x = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    np.savez(root / "regroup.npz", x=x, y=draw.integers(0, 10, count))
    params = {
        "data": {
            "name": "regroup",
            "seed": 0,
            "source": {"kind": "npz", "path": "regroup.npz"},
            "scheme": [{"kind": "equal", "clients": clients}],
            "split": {"validation": ROWS / count, "validation_rows": "common", "test": 0.0},
        },
        "model": {"kind": "mlp", "hidden": [30]},
        "training": {
            "rounds": _ROUNDS,
            "epochs": 1,
            "batch": 128,
            "optimiser": {"kind": "adam", "learning_rate": 1e-3},
            "objective": {"kind": "cross_entropy"},
        },
        "evaluation": {"every": _ROUNDS},
        "comparison": {"methods": list(_METHODS), "seeds": [0]},
        "method": _METHODS,
        "runner": {"workers": 2},
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    make(Project.open([], root))


def _seconds(root: Path, method: str) -> list[dict[str, float]]:
    """Run a method, and return the seconds of each round but the first and the last, and of its tasks."""
    result, _ = command(root, "run", method, "--json")
    records = RunFolder(root / result["folder"]).rounds(result["rounds"])
    return [dict(record["seconds"]) for record in records[1:-1]]
