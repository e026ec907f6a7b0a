"""Whom a run asks whether rows are far from unit scale."""

from itertools import pairwise

import numpy as np
import pytest

from flows.experiment.one_run.run_folder import RunFolder
from flows.experiment.project import Project
from flows.experiment.scaling.run_notes import _MOST_ASKED, _spread, notes_of_best, notes_of_rows
from models.assessment.quantities import QUANTITIES
from silos.machine.files import write_bytes
from silos.private import PrivateStore
from tasks.running.runner import PlainRunner

FAR = 500 + np.random.default_rng(0).normal(size=(10, 5))


@pytest.mark.parametrize("clients", [1, 3, 999, 1000, 1001, 1500, 1999, 2000, 2001, 1_000_000])
def test_all_are_asked_or_as_many_as_may_be_at_places_as_even_as_can_be(clients):
    asked = [int(name) for name in _spread(tuple(map(str, range(clients))), _MOST_ASKED)]
    assert len(asked) == min(clients, 1000)
    assert len({second - first for first, second in pairwise([*asked, clients])}) <= 2
    assert asked[0] == 0


def test_of_a_thousand_and_one_clients_a_thousand_speak(project, make_problem, tmp_path):
    opened = Project.open([], project, derived=True)
    silos = {"validation": 0, "test": 0, "rows_of": lambda _, rows: (FAR[:rows], np.arange(rows) % 3)}
    problem = make_problem(dict.fromkeys(map(str, range(1001)), 10), silos=silos)
    (note,) = notes_of_rows(opened, problem, PlainRunner(1), PrivateStore(str(tmp_path / "private")))
    assert note["sentence"].startswith("inputs of 1000 of 1000 clients are far from unit scale")


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
    quantity, folder = QUANTITIES[task], RunFolder(tmp_path / "run")
    for number, value in enumerate(curve, 1):
        metrics = {f"validation/{quantity.headline}": value}
        write_bytes(*folder.journal.file({"round": number, "metrics": metrics}))
    best = folder.best_round(len(curve), quantity)[1]
    notes = notes_of_best(folder, best, len(curve), quantity)
    assert [BEST in note["sentence"] for note in notes] == [True] * said
    assert notes_of_best(folder, len(curve), len(curve), quantity) == []  # evaluation.report is last
