"""A run's folder at every moment at which a kill may leave it."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.training.callbacks.score_and_save import BestModel
from flows.training.run_context import RunReport
from flows.training.run_records.run_folder import RunFolder
from models.metrics.task_metrics import TASK_METRICS
from models.server_state import ServerState
from silos.io.atomic_io import write_bytes, writing
from tasks.tracking.checkpoint import load_state

ACCURACY = TASK_METRICS["classification"]


def state(number: int) -> ServerState:
    return ServerState({"weights": {"w": torch.full((3,), float(number))}})


def record(number: int, validation: float | None = None, test: float = 0.5, loss: float | None = None) -> dict:
    metrics = {"accuracy/mean": test} | ({} if validation is None else {"validation/accuracy/mean": validation})
    return {"round": number, "metrics": metrics | ({} if loss is None else {"validation/loss/mean": loss})}


def reached(folder: RunFolder) -> tuple[int, int]:
    """The last round of the journal, and that of the checkpoint."""
    rounds = [int(path.stem) for path in folder.path.glob("journal/*.json")]
    found = load_state(folder.checkpoint)
    return max(rounds, default=0), found[1] if found else 0


def test_between_any_two_writes_the_journal_is_at_the_checkpoint_or_one_round_beyond(tmp_path, monkeypatch):
    """Every file appears by a rename: what is there after each is all that a kill can leave behind."""
    folder, seen, rename = RunFolder(tmp_path / "run"), [], Path.replace

    def look(old: Path, new: Path) -> Path:
        done = rename(old, new)
        seen.append(reached(folder))
        return done

    monkeypatch.setattr(Path, "replace", look)
    for number in (1, 2, 3):
        folder.commit(folder.files(record(number), state(number)))
    assert seen == [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]


def test_who_goes_on_with_a_run_deletes_what_a_killed_process_had_begun_to_write(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    folder.identify({"method": "fedavg"}, resume=False)
    folder.commit(folder.files(record(1), state(1)))
    whole = sorted(path for path in folder.path.rglob("*") if path.is_file())

    def full(*_: Path) -> None:
        raise OSError(28, "the disk is full")

    with monkeypatch.context() as patch:  # as a kill does, which runs no handler
        patch.setattr(Path, "replace", full)
        patch.setattr(Path, "unlink", lambda *_: None)
        for at in (0, 1):
            with pytest.raises(OSError, match="the disk is full"):
                write_bytes(*folder.files(record(2), state(2))[at])
    assert len(list(folder.path.rglob(".*.tmp"))) == 2
    folder.identify({"method": "fedavg"}, resume=True)
    assert sorted(path for path in folder.path.rglob("*") if path.is_file()) == whole
    assert reached(folder) == (1, 1)


def test_who_goes_on_with_a_run_leaves_what_others_are_writing_in_its_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.identify({"method": "fedavg"}, resume=False)
    with writing(folder.path / "model.onnx") as file:  # as `siloflow export` does, which holds no lock of the run
        file.write(b"a model")
        folder.identify({"method": "fedavg"}, resume=True)
    assert (folder.path / "model.onnx").read_bytes() == b"a model"


@pytest.mark.parametrize(("at", "left"), [(1, (1, 1)), (2, (2, 1))])
def test_a_write_that_fails_leaves_the_round_before_and_the_round_can_be_written_again(at, left, tmp_path, monkeypatch):
    folder, renames, rename = RunFolder(tmp_path / "run"), [], Path.replace
    folder.commit(folder.files(record(1), state(1)))

    def fail(old: Path, new: Path) -> Path:
        renames.append(new)
        if len(renames) == at:
            raise OSError(28, "the disk is full")
        return rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="the disk is full"):
            folder.commit(folder.files(record(2), state(2)))
    assert reached(folder) == left
    assert load_state(folder.checkpoint)[0].sha256() == state(1).sha256()
    folder.commit(folder.files(record(2), state(2)))
    assert reached(folder) == (2, 2)
    assert load_state(folder.checkpoint)[0].sha256() == state(2).sha256()


def test_the_best_round_is_the_first_of_the_best_on_validation_rows_up_to_the_last_that_counts(tmp_path):
    folder = RunFolder(tmp_path / "run")
    scores = [(0.5, 0.9), (None, 1.0), (0.7, 0.1), (0.7, 0.8), (float("nan"), 0.9), (0.9, 0.2)]
    for number, (validation, test) in enumerate(scores, 1):
        write_bytes(*folder.journal.file(record(number, validation, test)))
    assert [folder.best_round(last, ACCURACY)[1] for last in range(7)] == [0, 1, 1, 3, 3, 3, 6]
    assert folder.best_round(5, ACCURACY)[0] == (0.7, -math.inf)


def test_a_resumed_run_keeps_the_best_round_of_before_until_a_better_one(tmp_path):
    scorer, best = SimpleNamespace(quantity=ACCURACY), BestModel()
    run: Any = SimpleNamespace(folder=RunFolder(tmp_path / "run"), number=2, scorer=scorer, report=RunReport())
    for number, score in ((1, 0.5), (2, 0.7)):
        run.folder.commit(run.folder.files(record(number, score), state(number)))
    best.before_training(run)
    for number, score, expected in ((3, 0.6, 2), (4, 0.7, 2), (5, 0.8, 5)):
        run.number, run.state = number, state(number)
        played: Any = SimpleNamespace(record=record(number, score))
        best.after_round(run, played)
        assert run.report.best_round == expected
    assert [path.name for path in run.folder.path.glob("best-*")] == ["best-000005.safetensors"]


def test_a_resumed_run_took_its_own_seconds_and_those_of_the_rounds_before():
    rounds: Any = [{"seconds": {"round": 1e6 * number}} for number in (1, 2, 3, 4)]
    report = RunReport(resumed_from=2)
    assert report.seconds(rounds) - report.seconds([]) == pytest.approx(3e6, abs=1e5)


def test_of_rounds_with_equal_scores_on_validation_rows_the_best_has_the_least_loss_there(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for number, (score, loss) in enumerate([(0.9, 0.5), (0.9, 0.3), (0.9, 0.4), (0.8, 0.1), (0.9, 0.3)], 1):
        write_bytes(*folder.journal.file(record(number, score, loss=loss)))
    assert [folder.best_round(last, ACCURACY)[1] for last in range(1, 6)] == [1, 2, 2, 2, 2]
