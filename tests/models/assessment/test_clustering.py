"""Two parts of a set of clients by cosines: against brute force over all bipartitions."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.assessment.clustering import across, bipartition, similarities


def every_bipartition(clients: int):
    for size in range(1, clients):
        for rest in combinations(range(1, clients), size - 1):
            first = [0, *rest]
            yield first, [i for i in range(clients) if i not in first]


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_single_linkage_makes_the_largest_similarity_across_as_small_as_any_bipartition(clients, seed):
    alpha = similarities(np.random.default_rng(seed).normal(size=(clients, 3)))
    best = min(across(alpha, first, second) for first, second in every_bipartition(clients))
    assert across(alpha, *bipartition(alpha)) == pytest.approx(best, abs=1e-12)


def test_single_and_complete_linkage_differ_on_a_chain():
    """0-1-2 are a chain of like neighbours, 3 stands apart: the exact parts leave it whole, complete linkage cuts it."""
    alpha = np.array([[1.0, 0.9, 0.1, -0.3], [0.9, 1, 0.8, 0.0], [0.1, 0.8, 1, 0.7], [-0.3, 0.0, 0.7, 1]])
    single, complete = bipartition(alpha, "single"), bipartition(alpha, "complete")
    assert single == ([0, 1, 2], [3])
    assert complete == ([0, 1], [2, 3])
    assert across(alpha, *single) == 0.7 < across(alpha, *complete) == 0.8


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_where_all_are_alike_there_are_still_two_parts(linkage):
    first, second = bipartition(np.ones((5, 5)), linkage)
    assert sorted(first + second) == list(range(5))
    assert first
    assert second
    assert first[0] == 0


@pytest.mark.parametrize("linkage", ["single", "complete"])
@given(st.integers(3, 8), st.integers(0, 2**32 - 1))
def test_the_order_of_the_clients_is_nothing(linkage, clients, seed):
    rng = np.random.default_rng(seed)
    updates, order = rng.normal(size=(clients, 4)), rng.permutation(clients)
    one = bipartition(similarities(updates), linkage)
    other = bipartition(similarities(updates[order]), linkage)
    assert {frozenset(part) for part in one} == {frozenset(order[part].tolist()) for part in other}


def test_similarities_are_cosines_and_no_update_is_like_nothing():
    updates = np.array([[3.0, 4.0], [6.0, 8.0], [-3.0, -4.0], [4.0, -3.0], [0.0, 0.0]])
    expected = np.array([[1, 1, -1, 0, 0], [1, 1, -1, 0, 0], [-1, -1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])
    np.testing.assert_allclose(similarities(updates), expected, atol=1e-10)
