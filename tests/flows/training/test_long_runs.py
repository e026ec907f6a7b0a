"""However many rounds a run has, it needs no more memory and open files; also what is read of its folder at its end."""

import gc
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.training.run_records.run_folder import RunFolder
from models.metrics.task_metrics import TASK_METRICS
from silos.io.atomic_io import write_bytes
from tasks.tracking.result_tables import write_client_table

pytestmark = pytest.mark.slow

HALF = 24  # rounds; by then all that a run needs is imported, started and cached
WEIGHTS = 4 * (64 * 2048 + 2048 + 2048 * 10 + 10)  # bytes of the global model of the run
ACCURACY = TASK_METRICS["classification"]
CLIENTS, FEW, MANY = 1_000, 3, 24


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of many rounds of a thousand clients; the best is round 7."""
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    for number in range(1, MANY + 1):
        clients = {f"c{at:04d}": {"role": "federated", "train_loss": number + at / 7} for at in range(CLIENTS)}
        clients["c0003"]["test/accuracy"] = 0.5
        metrics = {"accuracy/mean": number / 100, "validation/accuracy/mean": 1 - abs(number - 7) / 100}
        about = {"round": number, "time_ms": number, "metrics": metrics, "seconds": {"round": 1.0}}
        write_bytes(
            *folder.journal.file(
                {**about, "clients": clients, "dropped": [f"c{at:04d}" for at in range(0, CLIENTS, 2)]}
            )
        )
    return folder


READS = {
    "the table of clients": lambda f, n: write_client_table(f.path / "clients.csv", lambda: f.journal.each(n)),
    "rounds as wholes": lambda f, n: f.rounds(n),
    "the best round": lambda f, n: f.best_round(n, ACCURACY),
    "a curve": lambda f, n: f.curve("accuracy/mean", n),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_many_rounds_take_no_more_memory_than_a_few(
    read: Callable[[RunFolder, int], Any], run_folder: RunFolder
) -> None:
    few, many = (peak(lambda n=n: read(run_folder, n)) for n in (FEW, MANY))
    assert many < 2 * few  # all at once would take some ten times as much, and a round at a time takes 0.99 to 1.02


def test_what_is_read_is_all_of_it(run_folder: RunFolder) -> None:
    records = run_folder.rounds(MANY)
    assert [r["round"] for r in records] == list(range(1, MANY + 1))
    assert {r["dropped"] for r in records} == {CLIENTS // 2}
    assert run_folder.best_round(MANY, ACCURACY) == ((1.0, -math.inf), 7)
    assert run_folder.curve("accuracy/mean", 3) == [(1, 0.01), (2, 0.02), (3, 0.03)]
    table: Path = READS["the table of clients"](run_folder, 2)
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "round,client,dropped,role,test/accuracy,train_loss"
    assert lines[1] == "1,c0000,1,federated,,1.0"
    assert lines[1 + CLIENTS + 3] == f"2,c0003,0,federated,0.5,{2 + 3 / 7}"
    assert len(lines) == 1 + 2 * CLIENTS


def test_a_run_of_twice_the_rounds_needs_no_more_memory_and_files(
    play_run: Callable[..., dict[str, Any]], told: Any
) -> None:
    """A copy of the weights kept of every round, or a file left open, would add up between half of the rounds and all.

    Of a number of rounds the least is taken, since other threads come and go.
    """
    process, seen = psutil.Process(), []

    def look() -> None:
        gc.collect()
        seen.append((process.memory_info().rss, process.num_fds()))

    told.after = {last - at: look for last in (HALF, 2 * HALF) for at in range(4)}
    play_run("fedavg", "threads", 1, f"training.rounds={2 * HALF}", "model.hidden=[2048]")
    assert len(seen) == 8
    half, whole = ([min(numbers) for numbers in zip(*part, strict=True)] for part in (seen[:4], seen[4:]))
    assert whole[0] - half[0] < HALF * WEIGHTS / 2
    assert whole[1] - half[1] < HALF / 2


def peak(read: Callable[[], Any]) -> int:
    """Bytes that Python held at most, beside what there was: the least of three times, for other threads hold some too."""
    read()  # what is imported or cached at first
    peaks = []
    for _ in range(3):
        gc.collect()
        tracemalloc.start()
        try:
            read()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)
