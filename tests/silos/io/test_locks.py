"""Any number of processes work on data/, or one changes it; what a process holds goes with it."""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from silos.errors import UserError
from silos.io.locks import exclusive_lock, in_turn, read_lock, workers, write_lock

HOLD = """
import sys
from pathlib import Path
from silos.io.locks import exclusive_lock, write_lock, in_turn, wait_for_writer, read_lock
say = lambda line: print(line, flush=True)
told = {"changing": write_lock, "looking": wait_for_writer, "working": read_lock}
untold = {"alone": exclusive_lock, "in_turn": in_turn}
role, path, *name = sys.argv[1:]
with told[role](Path(path), *name, say) if role in told else untold[role](Path(path, *name)):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Another process that holds a lock, or waits for it, until its stdin closes."""
    started = []

    def start(role: str, *name: str, has_it: bool = True) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLD, role, str(tmp_path), *name]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        if has_it:
            assert started[-1].stdout.readline() == "has it\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_who_changes_data_is_refused_at_once_and_told_who_works_on_it(hold, tmp_path):
    hold("working", "compare-1")
    hold("working", "run-2/fedavg-seed0")
    with (
        pytest.raises(UserError, match="partition: got data/ in use by compare-1, run-2/fedavg-seed0") as told,
        write_lock(tmp_path, "partition", pytest.fail),
    ):
        pass
    assert "compare-1" in str(told.value)
    assert "run-2/fedavg-seed0" in str(told.value)


def test_a_comparison_is_told_by_its_run(hold, tmp_path):
    with (
        read_lock(tmp_path, "compare-1", pytest.fail),
        read_lock(tmp_path, "compare-1/fedavg-seed0", pytest.fail),
    ):
        other = hold("working", "x")  # many may work
        other.communicate()
        asked = subprocess.run(
            [sys.executable, "-c", HOLD, "changing", str(tmp_path), "partition"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert "got data/ in use by compare-1/fedavg-seed0, expected no other user" in asked.stderr
    with write_lock(tmp_path, "partition", pytest.fail):
        pass


@pytest.mark.parametrize("role", ["changing", "working"])
def test_who_finds_data_being_changed_waits_and_says_so(role, hold, tmp_path):
    with write_lock(tmp_path, "the first", pytest.fail):
        second = hold(role, "the second", has_it=False)
        assert second.stdout.readline() == "waiting for the first to end\n"
        assert second.poll() is None
    assert second.stdout.readline() == "has it\n"


def test_a_look_is_waited_for(hold, tmp_path, monkeypatch):
    look, pauses = hold("looking"), []

    def end_the_look(seconds: float) -> None:
        pauses.append(seconds)
        look.communicate()

    monkeypatch.setattr("silos.io.locks.time.sleep", end_the_look)
    with write_lock(tmp_path, "partition", pytest.fail):
        assert pauses
        assert look.returncode == 0


@pytest.mark.parametrize("role", ["changing", "working"])
def test_a_killed_process_holds_nothing(role, hold, tmp_path):
    killed = hold(role, "killed")
    killed.kill()
    killed.wait()
    assert len(list(tmp_path.glob("*-*"))) == 1  # its name is still there
    with write_lock(tmp_path, "partition", pytest.fail):
        pass
    other = hold("working", "living")
    with pytest.raises(UserError, match="partition: got data/ in"), write_lock(tmp_path, "partition", pytest.fail):
        pass
    other.communicate()
    assert [path.name for path in tmp_path.iterdir() if "-" in path.name and "works" in path.name] == []


def test_a_lock_that_was_thrown_away_with_its_folder_is_taken_anew(tmp_path, monkeypatch):
    """Its last holder removes the folder between our opening of the lock and our taking it."""
    folder, take, taken = tmp_path / "estimate", fcntl.flock, []

    def removed_meanwhile(file, kind):
        if not taken:
            shutil.rmtree(folder)
        taken.append(kind)
        take(file, kind)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with (
        exclusive_lock(folder),
        pytest.raises(UserError, match="estimate: got a second process, expected one at a time"),
        exclusive_lock(folder),
    ):
        pass
    assert len(taken) == 3


def test_who_would_work_beside_another_is_refused_and_a_killed_process_is_in_nobodys_way(hold, tmp_path):
    first = hold("alone", "run")
    with (
        pytest.raises(UserError, match="run: got a second process, expected one at a time"),
        exclusive_lock(tmp_path / "run"),
    ):
        pass
    first.kill()
    first.wait()
    with exclusive_lock(tmp_path / "run"):
        pass


@pytest.mark.slow
def test_writers_take_turns_and_nobody_is_told(hold, tmp_path):
    with in_turn(tmp_path / "new" / "lock"):
        second = hold("in_turn", "new", "lock", has_it=False)
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1)
    assert second.stdout.readline() == "has it\n"


def test_a_process_works_under_all_of_its_names_and_is_called_by_its_longest(tmp_path):
    with read_lock(tmp_path, "compare", print), read_lock(tmp_path, "ab", print):
        assert sorted(workers(tmp_path)) == ["ab", "compare"]
        with pytest.raises(UserError, match="it: got data/ in use by compare"), write_lock(tmp_path, "it", print):
            pass
