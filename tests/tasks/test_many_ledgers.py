"""Many clients tell mean and scale: their ledgers are written side by side, read at a glance, and whole after a kill."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import silos
from silos.client_store import ClientStore
from silos.cohort import Cohort, make_stacks
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import make_store
from tasks.fit_scale import report_moments

CLIENTS = {f"c{number}": 12 + number for number in range(40)}
WANTED = {"inputs": True, "targets": False}
ASK = """
import os, pickle, signal, sys
from pathlib import Path
from itertools import count
synced, seen = os.fsync, count(1)

def kill_then(file):
    if next(seen) == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    synced(file)

os.fsync = kill_then
from silos.client_store import ClientStore
from tasks.fit_scale import report_moments
cohort = pickle.loads(Path(sys.argv[1]).read_bytes())
for message in report_moments.fn(cohort, None, ClientStore(sys.argv[2]), inputs=True, targets=False):
    for client, sums in zip(message.clients, message.sums, strict=True):
        print(client, sums.numpy().tobytes().hex())
"""


@pytest.fixture
def cohort(write_silos, tmp_path) -> Cohort:
    for name in ("private", "other/private"):
        make_store(tmp_path / name)
    clients = write_silos(CLIENTS)
    return Cohort(clients, make_stacks(clients, 3))


@pytest.mark.slow
@pytest.mark.parametrize(("beside", "least", "most"), [(1 << 26, 4, 16), ((50 + 49) * 5 * 8 - 1, 1, 2)])
def test_clients_of_several_stacks_have_their_ledgers_synced_at_once_as_far_as_their_rows_fit(
    beside, least, most, cohort, tmp_path, monkeypatch
):
    monkeypatch.setattr("tasks.fit_scale._MOST_CONCURRENT_BYTES", beside)
    sync, at_once, now = os.fsync, Counter(), Counter()
    lock, enough = threading.Lock(), threading.Event()

    def slow(file):
        with lock:
            now["inside"] += 1
            at_once[now["inside"]] += 1
            if now["inside"] >= least:
                enough.set()
        assert enough.wait(60)
        time.sleep(0.01)  # in which more would come, were they let
        sync(file)
        with lock:
            now["inside"] -= 1

    monkeypatch.setattr(os, "fsync", slow)
    report_moments.fn(cohort, None, ClientStore(str(tmp_path / "private")), **WANTED)
    assert least <= max(at_once) <= most


def test_asked_again_of_the_same_rows_a_client_takes_no_turn_and_hashes_no_row(cohort, tmp_path, monkeypatch):
    private = ClientStore(str(tmp_path / "private"))
    first = report_moments.fn(cohort, None, private, **WANTED)
    for name in ("answer_or_stand_in", "unit_hashes"):
        monkeypatch.setattr(Ledger, name, lambda *_, name=name: pytest.fail(f"{name} of what is known"))
    assert sums(report_moments.fn(cohort, None, private, **WANTED)) == sums(first)


@pytest.mark.slow
def test_after_a_kill_at_any_sync_what_was_told_stays_told_and_nobody_tells_twice(cohort, tmp_path):
    whole = sums(report_moments.fn(cohort, None, ClientStore(str(tmp_path / "other" / "private")), **WANTED))
    (tmp_path / "cohort.pickle").write_bytes(pickle.dumps(cohort))
    kept = []
    for moment in (3, 160, 80, 0):  # of eight a client, of which sixteen are asked at once
        command = [sys.executable, "-c", ASK, tmp_path / "cohort.pickle", tmp_path / "private", str(moment)]
        here = {**os.environ, "PYTHONPATH": str(Path(silos.__file__).parents[1])}
        done = subprocess.run(command, env=here, capture_output=True, text=True, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        kept.append({client: Ledger(str(tmp_path / "private"), client).entries() for client in CLIENTS})
    assert dict(line.split() for line in done.stdout.splitlines()) == whole
    assert [len(entries) for entries in kept[0].values()] == [0] * len(CLIENTS)
    assert 0 < sum(map(len, kept[1].values())) < len(CLIENTS), "killed on the way"
    for before, after in pairwise(kept):
        assert all(after[client][: len(entries)] == entries for client, entries in before.items())
    assert [len(entries) for entries in kept[-1].values()] == [1] * len(CLIENTS)


def sums(messages):
    """Client to the bytes of what it told."""
    return {
        client: row.numpy().tobytes().hex()
        for message in messages
        for client, row in zip(message.clients, message.sums, strict=True)
    }
