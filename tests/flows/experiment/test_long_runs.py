"""What is read of a run's folder at its end: a round at a time, however many there are."""

import gc
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.experiment.one_run.run_folder import RunFolder
from models.assessment.quantities import QUANTITIES
from silos.machine.files import write_bytes
from tasks.recording.result_tables import write_client_table

ACCURACY = QUANTITIES["classification"]
CLIENTS, FEW, MANY = 1_000, 3, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
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
def test_many_rounds_take_no_more_memory_than_a_few(read: Callable[[RunFolder, int], Any], folder: RunFolder) -> None:
    few, many = (peak(lambda n=n: read(folder, n)) for n in (FEW, MANY))
    assert many < 2 * few  # all at once would take some ten times as much, and a round at a time takes 0.99 to 1.02


def test_what_is_read_is_all_of_it(folder: RunFolder) -> None:
    records = folder.rounds(MANY)
    assert [r["round"] for r in records] == list(range(1, MANY + 1))
    assert {r["dropped"] for r in records} == {CLIENTS // 2}
    assert folder.best_round(MANY, ACCURACY) == ((1.0, -math.inf), 7)
    assert folder.curve("accuracy/mean", 3) == [(1, 0.01), (2, 0.02), (3, 0.03)]
    table: Path = READS["the table of clients"](folder, 2)
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "round,client,dropped,role,test/accuracy,train_loss"
    assert lines[1] == "1,c0000,1,federated,,1.0"
    assert lines[1 + CLIENTS + 3] == f"2,c0003,0,federated,0.5,{2 + 3 / 7}"
    assert len(lines) == 1 + 2 * CLIENTS


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
