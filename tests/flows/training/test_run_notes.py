"""Whom a run asks whether rows are far from unit scale."""

from itertools import pairwise

import numpy as np
import pytest

from flows.project.project import Project
from flows.training.run_notes import (
    _MAX_CLIENTS,
    _evenly_spaced,
    notes_of_best,
    notes_of_rows,
    notes_of_training,
)
from flows.training.run_records.run_folder import RunFolder
from models.metrics.task_metrics import TASK_METRICS
from silos.client_store import ClientStore
from silos.io.atomic_io import write_bytes
from tasks.execution.task_runner import PlainRunner

FAR = 500 + np.random.default_rng(0).normal(size=(10, 5))


@pytest.mark.parametrize("clients", [1, 3, 999, 1000, 1001, 1500, 1999, 2000, 2001, 1_000_000])
def test_all_are_asked_or_as_many_as_may_be_at_places_as_even_as_can_be(clients):
    asked = [int(name) for name in _evenly_spaced(tuple(map(str, range(clients))), _MAX_CLIENTS)]
    assert len(asked) == min(clients, 1000)
    assert len({second - first for first, second in pairwise([*asked, clients])}) <= 2
    assert asked[0] == 0


@pytest.mark.slow
def test_of_a_thousand_and_one_clients_a_thousand_speak(project, make_problem, tmp_path):
    opened = Project.open([], project, derived=True)
    silos = {"validation": 0, "test": 0, "rows_of": lambda _, rows: (FAR[:rows], np.arange(rows) % 3)}
    setup = make_problem(dict.fromkeys(map(str, range(1001)), 10), silos=silos)
    (note,) = notes_of_rows(opened.params, setup, PlainRunner(1), ClientStore(str(tmp_path / "private")))
    assert note["sentence"].startswith("inputs of 1000 of 1000 clients are far from unit scale (a feature's mean or ")


@pytest.mark.parametrize(
    ("losses", "fell"),
    [
        ([2.0, 2.5], True),  # too few to say so
        ([2.0, 2.0, 2.0], False),
        ([2.0, 1.9, 2.5], True),
        ([2.0, 2.5, 1.9], True),
        ([2.0, 1.999, 2.1], False),
        ([2.0, 1.997, 2.1], True),
        ([-2.0, -2.001, -2.0], False),
        ([-2.0, -2.003, -1.0], True),
        ([2.0, 2.5, 2.5, 1.0], True),
    ],
)
def test_a_loss_fell_if_it_was_lower_than_the_first_rounds_by_a_thousandth_in_any_round(losses, fell, tmp_path):
    folder = journal(tmp_path, losses)
    metrics = {"accuracy/mean": 0.5}
    notes = notes_of_training(folder, len(losses), metrics, TASK_METRICS["classification"])
    assert [note["about"] for note in notes] == ([] if fell else ["training"])
    assert all("did not fall after the first round" in note["sentence"] for note in notes)


def test_a_loss_that_is_no_number_at_the_end_is_said_once_and_one_on_the_way_is_not(tmp_path):
    quantity = TASK_METRICS["classification"]
    for name, lost, said in (("end", 3, ["is not finite at the end"]), ("way", 2, [])):
        folder = journal(tmp_path / name, [2.0, 1.0, 0.5], lost)
        notes = notes_of_training(folder, 3, {"accuracy/mean": 0.5}, quantity)
        assert [note["sentence"].startswith("the training loss is not finite") for note in notes] == [True] * len(said)


def journal(path, losses, lost=0):
    """A run's folder with rounds of two clients, of which the second has no finite loss in round `lost`."""
    folder = RunFolder(path)
    for number, loss in enumerate(losses, 1):
        clients = {"a": {"train_loss": loss}, "b": {"train_loss": None if number == lost else loss}}
        about = {"round": number, "time_ms": number, "metrics": {"loss/train": loss}, "seconds": {}, "dropped": []}
        write_bytes(*folder.journal.file({**about, "clients": clients}))
    return folder


BEST = "on validation rows was worse at the end than in the best round, which is reported (evaluation.report is best)"


@pytest.mark.parametrize(
    ("task", "curve", "said"),
    [
        ("classification", [0.5, 0.8, 0.7, 0.78], True),
        ("classification", [0.5, 0.8, 0.7, 0.795], False),  # by less than a hundredth
        ("classification", [0.5, 0.6, 0.7, 0.8], False),
        ("regression", [9.0, 5.0, 6.0, 5.1], True),
        ("regression", [9.0, 5.0, 6.0, 5.01], False),
        ("regression", [9.0, 6.0, 5.5, 5.0], False),
    ],
)
def test_it_is_said_where_validation_became_worse_after_the_round_that_is_reported(task, curve, said, tmp_path):
    quantity, folder = TASK_METRICS[task], RunFolder(tmp_path / "run")
    for number, value in enumerate(curve, 1):
        metrics = {f"validation/{quantity.headline}": value}
        write_bytes(*folder.journal.file({"round": number, "metrics": metrics}))
    best = folder.best_round(len(curve), quantity)[1]
    notes = notes_of_best(folder, best, len(curve), quantity)
    assert [BEST in note["sentence"] for note in notes] == [True] * said
    assert not any("Fewer" in note["sentence"] for note in notes)  # a longer run is often better
    assert notes_of_best(folder, len(curve), len(curve), quantity) == []  # evaluation.report is last
