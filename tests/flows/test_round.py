"""Who takes part in a round, and what a round counts."""

from dataclasses import replace

import pytest

from flows.round import draw

NAMES = [f"c{i:02d}" for i in range(20)]


@pytest.fixture
def problem(make_problem):
    return make_problem(dict.fromkeys(NAMES, 2), silos={"validation": 0, "test": 1})


@pytest.mark.parametrize(
    ("fraction", "size"), [(1.0, 20), (0.5, 10), (0.1, 2), (0.05, 1), (0.001, 1), (0.12, 2), (0.13, 3), (0.99, 20)]
)
def test_a_fraction_of_the_clients_is_drawn_and_never_nobody(fraction, size, problem):
    for number in range(1, 6):
        there, dropped = draw(problem, number, fraction, 0.0)
        assert len(there) == size
        assert dropped == ()
        assert len(set(there)) == size
        assert list(there) == [c for c in problem.silos.clients if c in there]


def test_the_same_seed_draws_the_same_clients_and_another_others(problem):
    def drawn(p):
        return [draw(p, n, 0.25, 0.2) for n in range(1, 30)]

    assert drawn(problem) == drawn(problem)
    assert drawn(problem) != drawn(replace(problem, seed=1))
    assert len(set(drawn(problem))) > 20


def test_every_client_is_drawn_about_equally_often(problem):
    counts = dict.fromkeys(NAMES, 0)
    for number in range(400):
        for client in draw(problem, number, 0.25, 0.0)[0]:
            counts[client] += 1
    deviation = (400 * 0.25 * 0.75) ** 0.5
    assert all(abs(n - 100) < 4 * deviation for n in counts.values())


def test_a_client_that_joins_later_is_drawn_from_its_round_on(problem):
    join = {"c03": 4, "c11": 2}
    there = [set(draw(problem, number, 1.0, 0.0, join)[0]) for number in (1, 2, 3, 4)]
    assert [{"c03", "c11"} - clients for clients in there] == [{"c03", "c11"}, {"c03"}, {"c03"}, set()]
    assert all(set(NAMES) - {"c03", "c11"} <= clients for clients in there)
    assert draw(problem, 4, 0.5, 0.3, join) == draw(problem, 4, 0.5, 0.3)
    half = draw(problem, 1, 0.5, 0.0, dict.fromkeys(NAMES[:10], 2))[0]
    assert len(half) == 5
    assert set(half) <= set(NAMES[10:])


def test_about_the_asked_share_drops_out(problem):
    lost = [len(draw(problem, n, 1.0, 0.3)[1]) for n in range(300)]
    share = sum(lost) / (300 * 20)
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / 6000) ** 0.5
    assert len(set(lost)) > 5  # each by itself, not a fixed number


def test_who_drops_out_depends_on_seed_round_and_client_alone(problem):
    """Not on who else was drawn, nor on the method, which is not asked."""
    for number in range(1, 20):
        lost = set(draw(problem, number, 1.0, 0.4)[1])
        there, dropped = draw(problem, number, 0.5, 0.4)
        assert set(dropped) <= lost
        assert not lost & set(there)
        assert set(there) | set(dropped) == set(draw(problem, number, 0.5, 0.0)[0])
        assert lost <= set(draw(problem, number, 1.0, 0.6)[1])  # a higher chance loses the same and more


def test_a_client_leaves_with_the_same_luck_whoever_else_is_listed(problem):
    fewer = replace(problem, silos=problem.silos.select(NAMES[::-1][:7]))
    for number in range(10):
        assert set(draw(fewer, number, 1.0, 0.4)[1]) == set(draw(problem, number, 1.0, 0.4)[1]) & set(NAMES[::-1][:7])


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


def test_being_drawn_says_nothing_about_dropping_out(problem):
    lost = sum(len(draw(problem, n, 0.25, 0.3)[1]) for n in range(300))
    assert abs(lost / (300 * 5) - 0.3) < 4 * (0.3 * 0.7 / 1500) ** 0.5
