"""A client is asked by several processes at once, and by some that are killed: budget and answers are as if by one."""

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import silos
from silos.errors import UserError
from silos.privacy.ledger import Draw, Ledger

ASK = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from silos.errors import UserError
from silos.privacy.differencing import Values
from silos.privacy.ledger import Ledger

folder, kill_at, cost, budget, *questions = sys.argv[1:]
ledger, synced, seen = Ledger(folder, "oslo"), os.fsync, 0

def kill_then(file):
    global seen
    seen += 1
    if seen == int(kill_at):
        os.kill(os.getpid(), signal.SIGKILL)
    synced(file)

os.fsync = kill_then

def compute(draw):
    with Path(folder, "computed").open("a") as file:
        file.write("once\\n")
    time.sleep(0.2)
    return {"counts": np.arange(6) + draw("counts").normal(size=6)}

print("ready", flush=True)
sys.stdin.readline()
none, rows = np.zeros((40, 0), np.uint32), np.arange(40).astype(np.uint64) << np.uint64(34)
reported = Values.of((), none, none.astype(bool), np.zeros(40, int), ["oak"], rows)
for question in questions:
    try:
        answer = ledger.answer("v1", question, compute, reported, float(cost), float(budget))
    except UserError as error:
        print("refused", error, flush=True)
    else:
        print(question, answer["counts"].tobytes().hex(), flush=True)
"""
COST = 0.25


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """A process that has started, and asks the client of `tmp_path` these questions once it is reported to."""
    started = []

    def start(*questions: str, kill_at: int = 0, cost: float = COST, budget: float = 100.0) -> subprocess.Popen:
        command = [sys.executable, "-c", ASK, str(tmp_path), str(kill_at), str(cost), str(budget), *questions]
        here = {**os.environ, "PYTHONPATH": str(Path(silos.__file__).parents[1])}
        started.append(subprocess.Popen(command, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_of_processes_that_ask_at_once_as_many_are_answered_as_the_budget_has_room_for(ask, tmp_path):
    heard = together([ask(name, budget=2 * COST) for name in "abc"])
    assert sorted(line.split()[0] == "refused" for line in heard) == [False, False, True]
    assert [entry.rho for entry in Ledger(str(tmp_path), "oslo").entries()] == [COST, COST]


@pytest.mark.slow
def test_processes_that_ask_the_same_at_once_hear_the_same_which_is_computed_once(ask, tmp_path):
    heard = together([ask("a") for _ in range(3)])
    assert len(set(heard)) == 1
    assert (tmp_path / "computed").read_text() == "once\n"


@pytest.mark.slow
@pytest.mark.parametrize(("cost", "moments"), [(COST, 7), (0.0, 8)])
def test_killed_before_or_after_any_write_it_has_told_nothing_or_the_whole(cost, moments, ask, of_rows, tmp_path):
    """Secret, answer, rows where there is no noise, and ledger are synced before they have their names.

    The folder is, before the ledger has its line and after. A line that was written is there, also if it was not synced.
    """
    folders = []
    for moment in range(1, moments + 2):
        killed = ask("a", kill_at=moment, cost=cost)
        out, _ = killed.communicate("\n")
        folders.append(held(tmp_path))
        whole = moment >= moments - 3  # the ledger has its line; then both folders and the number of lines are synced
        assert killed.returncode == (0 if moment > moments else -signal.SIGKILL)
        assert bool(out) == (moment > moments)
        ledger = Ledger(str(tmp_path), "oslo")
        reported = of_rows({"oak": np.arange(40.0)[:, None]})
        assert [entry.rho for entry in ledger.entries()] == [cost] * whole
        again = ledger.answer("v1", "a", never if whole else truth, reported, cost, COST)
        np.testing.assert_array_equal(again["counts"], np.arange(6) + noise(tmp_path, cost))
        assert [entry.rho for entry in ledger.entries()] == [cost], "and it has cost once"
        assert not [name for name in held(tmp_path) if name.endswith(".tmp")] or whole
        for path in tmp_path.rglob("*"):
            if path.is_file():
                path.unlink()
    assert any(name.endswith(".tmp") for name in folders[0]), "the kill is in the middle of a write"


def test_what_was_heard_before_a_kill_at_any_time_is_in_the_ledger(ask, tmp_path):
    heard: dict[str, str] = {}
    for number in range(3):
        process = ask(*(f"{number}-{at}" for at in range(50)))
        process.stdin.write("\n")
        process.stdin.flush()
        heard |= dict([process.stdout.readline().split()])
        time.sleep(0.07 * number + 0.1)
        process.kill()
        rest, _ = process.communicate()
        heard |= dict(line.split() for line in rest.splitlines())
    ledger = Ledger(str(tmp_path), "oslo")
    kept = [entry.question for entry in ledger.entries()]
    assert len(kept) == len(set(kept))
    assert set(heard) <= set(kept)
    assert len(kept) - len(heard) <= 3, "one a kill was reported to nobody any more"
    for question, answer in heard.items():
        again = ledger.answer("v1", question, never, rho=COST, budget=0.0)
        assert again["counts"].tobytes().hex() == answer
    with pytest.raises(UserError, match=f"of which {len(kept) * COST:.4g} is spent"):
        ledger.answer("v1", "new", truth, rho=COST, budget=len(kept) * COST)


def never(draw: Draw) -> dict[str, np.ndarray]:
    pytest.fail("what was reported is computed again")


def truth(draw: Draw) -> dict[str, np.ndarray]:
    return {"counts": np.arange(6) + draw("counts").normal(size=6)}


def noise(folder: Path, cost: float) -> np.ndarray:
    """What the secret says, by hand."""
    (secret,) = folder.rglob("secret")
    names = json.dumps(["noise", "v1", "a", cost.hex(), "counts"]).encode()
    key = hmac.new(secret.read_bytes(), names, hashlib.sha256).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little"))).normal(size=6)


def held(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def together(processes: list[subprocess.Popen]) -> list[str]:
    """What each says, if all are let go at once."""
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate()[0].strip() for process in processes]
