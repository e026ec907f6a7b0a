"""A diagnosis that is killed while clients answer, and asked again: nobody pays twice, and what was told stays told."""

import os
import pickle
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import silos
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import make_store

ASK = """
import os, pickle, signal, sys
from pathlib import Path
from silos.cohort import Cohort, Stack
from silos.client_store import ClientStore
from tasks.diagnosis.report_summary import report_summary
synced, seen = os.fsync, 0

def tell(moment, to):
    def kill_then(file):
        global seen
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        synced(file)

    os.fsync = kill_then
    silos, question, budget = pickle.loads(Path(sys.argv[1]).read_bytes())
    cohort = Cohort(silos, (Stack(silos.clients, 3),))
    with open(to, "w") as told:
        for message in report_summary.fn(cohort, private=ClientStore(sys.argv[2]), query=question, budget=budget):
            for client, counts in zip(message.clients, message.counts, strict=True):
                print(client, counts.numpy().tobytes().hex(), file=told)

for line in sys.stdin:
    moment, to = line.split()
    child = os.fork()
    if not child:
        tell(int(moment), to)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("noise", [None, {"epsilon": 4.0, "budget": 4.0}], ids=["counts", "noise"])
def test_after_a_kill_the_next_process_tells_the_same_and_spends_nothing_more(noise, silos_of, asked, tmp_path):
    rng = np.random.default_rng(0)
    rows = {name: (rng.normal(size=(60, 2)), np.arange(60) % 2) for name in "abc"}
    features = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4}]
    private, clients = tmp_path / "private" / "own", silos_of(rows, features=features)
    found = asked(clients, noise=noise)  # what is asked; the answers are of another private folder
    writes, left = 8 if noise is None else 7, []  # of a client: see test_ledger_processes
    with asking(tmp_path, private, clients, found.question, noise) as ask:
        for moment in (2, writes + 1, writes + 1):
            assert ask(moment)[0] == -signal.SIGKILL
            left.append(kept(private, clients.clients))
        assert len(left[0]) == 0
        assert 0 < len(left[1]) < len(left[2]) < 3, "each is in the middle of the stack"
        (_, first), (_, second) = ask(0), ask(0)
    assert first == second
    told = dict(line.split() for line in first.splitlines())
    assert set(told) == {"a", "b", "c"}
    for before in left:
        assert before.items() <= told.items(), "what was written down before the kill is what is told after"
    for client in told:
        entries = Ledger(str(private), client).entries()
        assert len(entries) == 1
        assert (entries[0].rho > 0) == (noise is not None)


@contextmanager
def asking(tmp_path, private, clients, question, noise):
    """Yields a function that asks from a forked process, and returns its exit code and what clients answered.

    The process is killed at the given sync; at 0 it is not.
    """
    make_store(private)
    budget = noise["budget"] if noise else None
    (tmp_path / "asked.pickle").write_bytes(pickle.dumps((clients, question, budget)))
    command = [sys.executable, "-c", ASK, str(tmp_path / "asked.pickle"), str(private)]
    here = {**os.environ, "PYTHONPATH": str(Path(silos.__file__).parents[1])}
    with subprocess.Popen(command, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:

        def ask(moment):
            parent.stdin.write(f"{moment} {tmp_path / 'told'}\n")
            parent.stdin.flush()
            return int(parent.stdout.readline()), (tmp_path / "told").read_text()

        yield ask
        parent.stdin.close()


def kept(private, clients):
    """What is written down as told: client to the bytes of its counts."""
    held = {}
    for client in clients:
        for entry in Ledger(str(private), client).entries():
            (file,) = private.rglob(f"{entry.answer}.safetensors")
            held[client] = load_file(file)["counts"][0].tobytes().hex()
    return held
