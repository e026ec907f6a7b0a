"""What a round counts."""

from typing import Any

import pytest
import torch

from flows.methods.fedavg import FedAvg
from silos.cohort import Cohort
from tasks.messages import Update
from tasks.running.step import step

NAMES = [f"c{i:02d}" for i in range(20)]


@pytest.fixture
def problem(make_problem):
    return make_problem(dict.fromkeys(NAMES, 2), silos={"validation": 0, "test": 1})


def test_a_rounds_silos_are_those_that_take_part(problem, make_round):
    assert make_round(problem, clients=NAMES[3:5]).silos.clients == tuple(NAMES[3:5])


def test_the_longest_cohort_counts_for_the_seconds(problem, make_round):
    """Cohorts run side by side: two workers' time is the slower one's, not the sum."""
    round = make_round(problem, workers=2)
    page = FedAvg()
    page.one_round(page.init(problem), round)
    assert set(round.tally.seconds) == {"local_train"}
    assert round.tally.seconds["local_train"] > 0


@step
def says(cohort: Cohort, model: Any, private: Any, device: str, what: str = "", **when: Any) -> Any:
    rows, sums, loss = torch.ones(len(cohort.clients)), {}, torch.zeros(len(cohort.clients))
    whole = Update(cohort.clients, rows, sums, loss)
    answers = {
        "none": None,
        "nothing": [],
        "twice": [whole, whole],
        "others": [Update(("nobody",), rows[:1], sums, loss[:1])],
        "some": [Update(cohort.clients[:1], rows[:1], sums, loss[:1])],
    }
    return answers[what] if what != "shape" else [Update(cohort.clients, rows[:1], sums, loss)]


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("nothing", "says answers with nothing"),
        ("twice", r"says answers for client c0\d 2 times"),
        ("others", "says answers for 'nobody', which is none of the clients"),
        ("some", r"says answers for client c\d\d 0 times"),
        ("shape", "not one number for each of"),
    ],
)
def test_a_step_that_does_not_answer_for_its_clients_is_told(what, match, problem, make_round):
    page = FedAvg()
    model = page.model(page.init(problem), problem)
    with pytest.raises((TypeError, ValueError), match=match):
        make_round(problem, stack=20).train(says, model, what=what)
