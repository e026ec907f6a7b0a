"""A round of very many clients: who is drawn, and that nobody else is looked at."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flows.methods import client_sampler as module
from flows.methods.client_sampler import BySize, LossBasedSampler, Uniform, sampling_keys, select_smallest
from flows.methods.round_context import uniform_by_client

KINDS = [Uniform, BySize, LossBasedSampler]


@pytest.fixture
def setup(make_problem):
    return make_problem({f"c{i:03d}": 1 + i % 3 for i in range(120)}, silos={"validation": 0, "test": 1})


@pytest.fixture
def many(monkeypatch):
    """More than ten clients are very many."""
    monkeypatch.setattr(module, "MAX_HASHED_CLIENTS", 10)


@given(st.data())
def test_the_least_are_the_first_of_a_sorted_list_where_equals_are_sorted_by_name(data):
    numbers = data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, math.inf]), min_size=1, max_size=20))
    clients = data.draw(st.permutations([f"c{i:02d}" for i in range(len(numbers))]))
    count = data.draw(st.integers(-1, len(numbers) + 1))
    by_name = sorted(zip(numbers, clients, strict=True))
    assert set(select_smallest(np.array(numbers), clients, count)) == {client for _, client in by_name[: max(count, 0)]}


def test_up_to_two_thousand_clients_are_drawn_by_a_hash_of_their_names(setup):
    drawn = [Uniform(0.25).sample(setup, number, {}).clients for number in range(1, 20)]
    for number, clients in enumerate(drawn, 1):
        ticket = uniform_by_client(setup, setup.silos.clients, number, "draw")
        assert {*clients} == {*sorted(ticket, key=lambda client: (ticket[client], client))[:30]}


@pytest.mark.usefixtures("many")
def test_numbers_of_very_many_are_uniform_and_have_nothing_to_do_with_each_other(setup):
    rounds = [sampling_keys(setup, setup.silos.clients, number, "draw") for number in range(1, 200)]
    assert stats.kstest(np.concatenate(rounds), "uniform").pvalue > 0.001
    others = (
        sampling_keys(replace(setup, seed=1), setup.silos.clients, 1, "draw"),
        sampling_keys(setup, setup.silos.clients, 1, "x"),
    )
    for first, second in [*pairwise(rounds[:9]), *((rounds[0], other) for other in others)]:
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(len(first))


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("kind", KINDS)
def test_of_very_many_each_is_drawn_about_as_often_as_its_chance_says(kind, setup):
    counts = Counter(c for number in range(300) for c in kind(0.1).sample(setup, number, {}).clients)
    rows = setup.silos.rows("train")
    sizes = {n: [counts[c] / 300 for c in rows if rows[c] == n] for n in (1, 2, 3)}
    means = [float(np.mean(sizes[n])) for n in (1, 2, 3)]
    if kind is BySize:
        assert means[1] / means[0] == pytest.approx(2, rel=0.15)
        assert means[2] / means[0] == pytest.approx(3, rel=0.15)
    else:
        assert means == pytest.approx([0.1] * 3, abs=4 * math.sqrt(0.1 * 0.9 / (300 * 40)))


@pytest.mark.usefixtures("many")
def test_who_is_not_there_changes_nobody_elses_number(setup):
    everybody = setup.silos.clients
    there = tuple(client for client in everybody if not client.endswith("7"))
    of_all = dict(zip(everybody, sampling_keys(setup, everybody, 3, "draw"), strict=True))
    assert sampling_keys(setup, there, 3, "draw").tolist() == [of_all[client] for client in there]


def test_a_number_is_the_same_whether_those_that_are_there_are_very_many_or_not(setup, monkeypatch):
    monkeypatch.setattr(module, "MAX_HASHED_CLIENTS", 100)
    everybody = setup.silos.clients
    of_all = dict(zip(everybody, sampling_keys(setup, everybody, 3, "draw"), strict=True))
    assert sampling_keys(setup, everybody[:90], 3, "draw").tolist() == [of_all[client] for client in everybody[:90]]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("kind", KINDS)
def test_clients_join_and_leave_among_very_many(kind, setup):
    late, early = setup.silos.clients[:60], setup.silos.clients[60:90]
    sampler = kind(0.5, 0.2, join=dict.fromkeys(late, 4), leave=dict.fromkeys(early, 3))
    for number, expected in ((1, 30), (2, 30), (3, 15), (4, 45)):
        answer = sampler.sample(setup, number, {})
        drawn = {*answer.clients, *answer.dropped}
        assert len(drawn) == expected
        assert number >= 4 or not drawn & {*late}
        assert number < 3 or not drawn & {*early}
        assert answer.leaving == (early if number == 3 else ())
