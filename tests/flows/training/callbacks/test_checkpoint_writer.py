"""Commits beside training: what is on disk, who is told, and what is kept, at every moment."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from flows.core.console import progress
from flows.training.callbacks.score_and_save import CheckpointWriter
from flows.training.run_records.run_folder import RetainedRefs, RunFolder
from models.server_state import ServerState
from silos.client_store import ClientStore
from tasks.tracking.checkpoint import load_state

NOTHING = RetainedRefs({})
SHORT, LONG = 1e-9, 1e9  # seconds of a round, beside which a commit is long, and short


def state(number: int, refs: dict[str, str] | None = None) -> ServerState:
    return ServerState({"weights": {"w": torch.full((3,), float(number))}}, private={"weights": refs} if refs else {})


def record(number: int, seconds: float = SHORT) -> dict:
    return {"round": number, "metrics": {}, "seconds": {"round": seconds}}


@pytest.fixture
def gate(monkeypatch) -> threading.Event:
    """Set at first; while it is not, no file gets its name."""
    opened, rename = threading.Event(), Path.replace
    opened.set()

    def wait(old: Path, new: Path) -> Path:
        assert opened.wait(10)
        return rename(old, new)

    monkeypatch.setattr(Path, "replace", wait)
    return opened


def test_beside_a_short_round_a_commit_is_not_waited_for_and_nobody_is_told_before_it_is_there(tmp_path, gate):
    folder, told = RunFolder(tmp_path / "run"), []
    with CheckpointWriter(folder, NOTHING) as commits:
        commits.submit(record(1), state(1), {}, 0, lambda: told.append(1))
        assert told == [1]  # how long it takes is not known before
        gate.clear()
        commits.submit(record(2), state(2), {}, 0, lambda: told.append(2))
        assert load_state(folder.checkpoint).round == 1
        assert told == [1]
        gate.set()
        commits.flush()
    assert told == [1, 2]
    assert load_state(folder.checkpoint).state.sha256() == state(2).sha256()


def test_beside_a_long_round_it_is_waited_for(tmp_path):
    folder, told = RunFolder(tmp_path / "run"), []
    with CheckpointWriter(folder, NOTHING) as commits:
        for number in (1, 2, 3):
            commits.submit(record(number, LONG), state(number), {}, 0, lambda number=number: told.append(number))
            assert told[-1] == number == load_state(folder.checkpoint).round


def test_a_round_is_not_begun_to_be_written_before_the_one_before_counts(tmp_path):
    folder, told = RunFolder(tmp_path / "run"), []
    with CheckpointWriter(folder, NOTHING) as commits:
        for number in range(1, 20):
            commits.submit(record(number), state(number), {}, 0, lambda number=number: told.append(number))
            assert told[:-1] == list(range(1, number))[: len(told) - 1]
            assert len(told) >= number - 1
            assert load_state(folder.checkpoint).round >= number - 1
        commits.flush()
    assert told == list(range(1, 20))
    assert load_state(folder.checkpoint).round == 19


def test_what_changes_after_it_was_put_is_written_as_it_was(tmp_path, gate):
    folder, weights, memory = RunFolder(tmp_path / "run"), torch.ones(3), {"seen": ["lyon"]}
    with CheckpointWriter(folder, NOTHING) as commits:
        commits.submit(record(1), state(1), {}, 0, lambda: None)
        gate.clear()
        commits.submit(record(2), ServerState({"weights": {"w": weights}}), memory, 0, lambda: None)
        weights.zero_()
        memory["seen"].append("oslo")
        gate.set()
    held = load_state(folder.checkpoint)
    assert held.state.tensors["weights"]["w"].tolist() == [1, 1, 1]
    assert held.memory == {"seen": ["lyon"]}


def test_an_error_of_the_disk_is_raised_by_who_waits_and_the_round_before_stays(tmp_path, monkeypatch):
    folder, told, rename = RunFolder(tmp_path / "run"), [], Path.replace

    def full(old: Path, new: Path) -> Path:
        if new.name == "000002.json":
            raise OSError(28, "the disk is full")
        return rename(old, new)

    monkeypatch.setattr(Path, "replace", full)
    with CheckpointWriter(folder, NOTHING) as commits:
        commits.submit(record(1), state(1), {}, 0, lambda: told.append(1))
        commits.submit(record(2), state(2), {}, 0, lambda: told.append(2))
        with pytest.raises(OSError, match="the disk is full"):
            commits.submit(record(3), state(3), {}, 0, lambda: told.append(3))
    assert told == [1]
    assert load_state(folder.checkpoint).round == 1


def test_a_run_that_fails_leaves_what_was_begun_whole_and_tells_nobody(tmp_path, gate):
    folder, told = RunFolder(tmp_path / "run"), []

    def fail() -> None:
        with CheckpointWriter(folder, NOTHING) as commits:
            commits.submit(record(1), state(1), {}, 0, lambda: told.append(1))
            gate.clear()
            commits.submit(record(2), state(2), {}, 0, lambda: told.append(2))
            gate.set()
            raise ValueError("the next round")

    with pytest.raises(ValueError, match="the next round"):
        fail()
    assert told == [1]
    assert load_state(folder.checkpoint).round == 2


def test_a_run_that_fails_while_the_disk_does_too_says_both(tmp_path, gate, monkeypatch):
    folder, rename, shown = RunFolder(tmp_path / "run"), Path.replace, []
    monkeypatch.setattr(progress.current(), "say", shown.append, raising=False)

    def full(old: Path, new: Path) -> Path:
        renamed = rename(old, new)
        if new.name == "000002.json":
            raise OSError(28, "the disk is full")
        return renamed

    monkeypatch.setattr(Path, "replace", full)

    def fail() -> None:
        with CheckpointWriter(folder, NOTHING) as commits:
            commits.submit(record(1), state(1), {}, 0, lambda: None)
            gate.clear()
            commits.submit(record(2), state(2), {}, 0, lambda: None)
            gate.set()
            raise ValueError("the next round")

    with pytest.raises(ValueError, match="the next round"):
        fail()
    assert shown == ["run: the previous round could not be written: OSError(28, 'the disk is full')"]
    assert load_state(folder.checkpoint).round == 1


def test_a_second_interrupt_does_not_leave_a_round_that_is_still_being_written(tmp_path, gate):
    folder = RunFolder(tmp_path / "run")

    def interrupted() -> None:
        with CheckpointWriter(folder, NOTHING) as commits:
            commits.submit(record(1), state(1), {}, 0, lambda: None)
            gate.clear()
            commits.submit(record(2), state(2), {}, 0, lambda: None)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            threading.Timer(0.6, gate.set).start()
            raise KeyboardInterrupt

    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, heard)
    assert load_state(folder.checkpoint).round == 2


def test_private_state_and_best_states_stay_until_no_checkpoint_can_name_them(tmp_path, gate):
    folder, store = RunFolder(tmp_path / "run"), ClientStore(str(tmp_path / "private"))

    def keeps(number: int) -> dict[str, str]:
        return store.save("weights", ["lyon"], {"w": torch.full((1, 3), float(number)).numpy()})

    def there() -> tuple[int, list[str]]:
        return len(list((tmp_path / "private").rglob("*.safetensors"))), sorted(
            path.name for path in folder.path.glob("best-*")
        )

    with CheckpointWriter(folder, NOTHING) as commits:
        for number in (1, 2):
            held = state(number, keeps(number))
            folder.save_best(held, number)
            if number == 2:
                gate.clear()
            commits.submit(record(number), held, {}, number, lambda: None)
            gate_was_shut, before = not gate.is_set(), commits.retained
            folder.delete_unused(store.keep, before)
        assert gate_was_shut
        # round 2 does not count yet: a kill now goes on from round 1
        assert there() == (2, ["best-000001.safetensors", "best-000002.safetensors"])
        assert load_state(folder.checkpoint).round == 1
        assert store.load("weights", load_state(folder.checkpoint).state.private["weights"], "lyon")["w"][0] == 1
        gate.set()
        commits.flush()
        folder.delete_unused(store.keep, commits.retained)
    assert there() == (1, ["best-000002.safetensors"])


def test_private_state_of_the_best_round_stays_with_it(tmp_path):
    folder, store = RunFolder(tmp_path / "run"), ClientStore(str(tmp_path / "private"))
    best = store.save("weights", ["lyon"], {"w": torch.ones(1, 3).numpy()})
    folder.save_best(state(1, best), 1)
    last = store.save("weights", ["lyon"], {"w": torch.zeros(1, 3).numpy()})
    folder.delete_unused(store.keep, [RetainedRefs({"weights": last.values()}, 1)])
    assert store.load("weights", best, "lyon")["w"].tolist() == [1, 1, 1]
    assert store.load("weights", last, "lyon")["w"].tolist() == [0, 0, 0]


def test_what_a_counted_round_names_stays_where_a_method_changes_its_references_in_place(tmp_path, gate):
    folder, store, refs = RunFolder(tmp_path / "run"), ClientStore(str(tmp_path / "private")), {}
    held = ServerState({}, private={"weights": refs})
    with CheckpointWriter(folder, NOTHING) as commits:
        for number in (1, 2):
            held.private["weights"].update(store.save("weights", ["lyon"], {"w": torch.full((1, 3), number).numpy()}))
            if number == 2:
                gate.clear()
            commits.submit(record(number), held, {}, 0, lambda: None)
            folder.delete_unused(store.keep, commits.retained)
        counted = load_state(folder.checkpoint)
        assert counted.round == 1
        assert store.load("weights", counted.state.private["weights"], "lyon")["w"].tolist() == [1, 1, 1]
        gate.set()


def test_a_run_that_is_resumed_with_no_round_left_keeps_what_its_last_round_needs(tmp_path):
    folder, store = RunFolder(tmp_path / "run"), ClientStore(str(tmp_path / "private"))
    held = state(3, store.save("weights", ["lyon"], {"w": torch.ones(1, 3).numpy()}))
    folder.save_best(held, 2)
    with CheckpointWriter(folder, RetainedRefs.of(held, 2)) as commits:
        commits.flush()
        folder.delete_unused(store.keep, commits.retained)
    assert [path.name for path in folder.path.glob("best-*")] == ["best-000002.safetensors"]
    assert store.load("weights", held.private["weights"], "lyon")["w"].tolist() == [1, 1, 1]


@pytest.mark.slow
def test_a_run_killed_after_its_last_round_counts_still_reports_its_best_round(play_run, folder):
    settings = ["evaluation.report=best", "training.optimiser.learning_rate=3.0"]
    whole = play_run("ditto", "threads", 1, *settings)
    assert whole["reported_round"] < whole["rounds"]
    (folder / whole["folder"] / "result.json").unlink()
    again = play_run("ditto", "threads", 1, *settings, resume=True)
    assert again["resumed_from_round"] == whole["rounds"]
    told = ("reported_round", "weights_sha256", "metrics")
    assert [again[key] for key in told] == [whole[key] for key in told]
