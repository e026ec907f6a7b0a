"""What a round counts."""

import pytest

NAMES = [f"c{i:02d}" for i in range(20)]


@pytest.fixture
def problem(make_problem):
    return make_problem(dict.fromkeys(NAMES, 2), silos={"validation": 0, "test": 1})


def test_a_rounds_silos_are_those_that_take_part(problem, make_round):
    assert make_round(problem, clients=NAMES[3:5]).silos.clients == tuple(NAMES[3:5])


def test_the_longest_cohort_counts_for_the_seconds(problem, make_round):
    """Cohorts run side by side: two workers' time is the slower one's, not the sum."""
    from flows.methods.fedavg import FedAvg

    round = make_round(problem, workers=2)
    page = FedAvg()
    page.one_round(page.init(problem), round)
    assert set(round.tally.seconds) == {"local_train"}
    assert round.tally.seconds["local_train"] > 0
