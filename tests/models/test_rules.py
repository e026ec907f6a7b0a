"""Rules that make groups: against brute force, SciPy, and what they promise."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from models.clustering import (
    across_clusters,
    best_fit,
    bipartition,
    chance_of_groups,
    cluster_by_threshold,
    cosines,
    find_cluster,
    largest_gap,
)


def every_bipartition(clients: int):
    for size in range(1, clients):
        for rest in combinations(range(1, clients), size - 1):
            first = [0, *rest]
            yield first, [i for i in range(clients) if i not in first]


@given(st.integers(2, 7), st.integers(0, 2**32 - 1))
def test_single_linkage_makes_the_largest_similarity_across_as_small_as_any_bipartition(clients, seed):
    alpha = cosines(np.random.default_rng(seed).normal(size=(clients, 3)))
    best = min(across_clusters(alpha, first, second) for first, second in every_bipartition(clients))
    assert across_clusters(alpha, *bipartition(alpha)) == pytest.approx(best, abs=1e-12)


def test_single_and_complete_linkage_differ_on_a_chain():
    """0-1-2 are a chain of like neighbours, 3 stands apart: the exact parts leave it whole, complete linkage cuts it."""
    alpha = np.array([[1.0, 0.9, 0.1, -0.3], [0.9, 1, 0.8, 0.0], [0.1, 0.8, 1, 0.7], [-0.3, 0.0, 0.7, 1]])
    single, complete = bipartition(alpha, "single"), bipartition(alpha, "complete")
    assert single == ([0, 1, 2], [3])
    assert complete == ([0, 1], [2, 3])
    assert across_clusters(alpha, *single) == 0.7 < across_clusters(alpha, *complete) == 0.8


@pytest.mark.parametrize("by", ["single", "complete"])
def test_where_all_are_alike_there_are_still_two_parts(by):
    first, second = bipartition(np.ones((5, 5)), by)
    assert sorted(first + second) == list(range(5))
    assert first
    assert second
    assert first[0] == 0


@pytest.mark.parametrize("by", ["single", "complete"])
@given(st.integers(3, 8), st.integers(0, 2**32 - 1))
def test_the_order_of_the_clients_is_nothing(by, clients, seed):
    rng = np.random.default_rng(seed)
    updates, order = rng.normal(size=(clients, 4)), rng.permutation(clients)
    one = bipartition(cosines(updates), by)
    other = bipartition(cosines(updates[order]), by)
    assert {frozenset(part) for part in one} == {frozenset(order[part].tolist()) for part in other}


def test_similarities_are_cosines_and_no_update_is_like_nothing():
    updates = np.array([[3.0, 4.0], [6.0, 8.0], [-3.0, -4.0], [4.0, -3.0], [0.0, 0.0]])
    expected = np.array([[1, 1, -1, 0, 0], [1, 1, -1, 0, 0], [-1, -1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])
    np.testing.assert_allclose(cosines(updates), expected, atol=1e-10)


def table_of(clients, seed, values=None):
    rng = np.random.default_rng(seed)
    table = rng.random((clients, clients)) if values is None else rng.choice(values, (clients, clients))
    table = np.triu(table, 1)
    return table + table.T + np.eye(clients)


tables = st.tuples(st.integers(1, 9), st.integers(0, 2**32 - 1))
ASSIGNS = ["complete", "greedy"]


@pytest.mark.parametrize("assign", ASSIGNS)
@given(tables, st.floats(0, 1))
def test_every_client_is_in_one_group_and_every_pair_of_a_group_is_alike_enough(assign, case, threshold):
    table = table_of(*case)
    groups = cluster_by_threshold(table, threshold, assign)
    assert sorted(place for group in groups for place in group) == list(range(len(table)))
    assert groups == sorted(map(sorted, groups))
    for group in groups:
        assert table[np.ix_(group, group)].min() >= threshold


@given(tables, st.floats(0, 1))
def test_complete_linkage_is_scipys(case, threshold):
    clients, seed = case
    table = table_of(max(clients, 2), seed)
    tree = linkage(squareform(1 - table, checks=False), "complete")
    labels = fcluster(tree, 1 - threshold, "distance")
    assert {frozenset(np.flatnonzero(labels == at).tolist()) for at in set(labels)} == {
        frozenset(group) for group in cluster_by_threshold(table, threshold)
    }


@given(tables, st.floats(0, 1), st.randoms(use_true_random=False))
def test_the_order_of_the_clients_decides_no_group_of_complete_linkage(case, threshold, dice):
    table = table_of(*case)
    order = list(range(len(table)))
    dice.shuffle(order)
    one, other = cluster_by_threshold(table, threshold), cluster_by_threshold(table[np.ix_(order, order)], threshold)
    assert {frozenset(group) for group in one} == {frozenset(order[place] for place in group) for group in other}


@given(tables, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_threshold_never_makes_fewer_groups(case, first, second):
    table = table_of(*case)
    assert len(cluster_by_threshold(table, min(first, second))) <= len(cluster_by_threshold(table, max(first, second)))


@pytest.mark.parametrize("assign", ASSIGNS)
def test_where_the_graph_is_of_cliques_all_rules_find_them(assign):
    truth = [[0, 3, 4], [1], [2, 5]]
    table = np.full((6, 6), 0.35)
    for group in truth:
        table[np.ix_(group, group)] = 0.95
    assert cluster_by_threshold(table, 0.82, assign) == truth
    assert cluster_by_threshold(table, 0.0, assign) == [[0, 1, 2, 3, 4, 5]]
    assert cluster_by_threshold(table, 1.01, assign) == [[place] for place in range(6)]


def test_the_authors_rule_looks_at_first_members_and_joins_every_group():
    hub = np.array([[1, 0.9, 0.9], [0.9, 1, 0.1], [0.9, 0.1, 1]])
    assert cluster_by_threshold(hub, 0.82, "first_member") == [[0, 1, 2]]
    last = [1, 2, 0]
    assert cluster_by_threshold(hub[np.ix_(last, last)], 0.82, "first_member") == [[0, 2], [1, 2]]
    assert cluster_by_threshold(np.full((2, 2), 0.82), 0.82, "first_member") == [[0], [1]], "more than the threshold"


def test_a_newcomer_joins_the_group_that_it_is_least_unlike():
    groups = [[0, 1], [2], [3, 4]]
    likeness = np.array([0.9, 0.5, 0.7, 0.8, 0.7])
    assert find_cluster(likeness, groups, 0.6) == 1, "of equals the first"
    assert find_cluster(likeness, groups, 0.7) == 1, "the threshold itself is enough"
    assert find_cluster(likeness, groups, 0.75) is None
    assert find_cluster(np.zeros(0), [], 0.0) is None


def test_the_widest_gap_is_a_threshold_that_parts_it():
    table = np.array([[1, 0.9, 0.2], [0.9, 1, 0.3], [0.2, 0.3, 1]])
    assert largest_gap(table) == pytest.approx(0.6)
    assert cluster_by_threshold(table, largest_gap(table)) == [[0, 1], [2]]
    assert largest_gap(np.full((3, 3), 0.4)) == 0
    assert largest_gap(np.eye(1)) == 1
    assert largest_gap(table_of(3, 0, [0.25])) == 0
    even = np.array([[1, 0.25, 0.5], [0.25, 1, 0.75], [0.5, 0.75, 1]])
    assert largest_gap(even) == 0.625, "of equal gaps the upper"


def correctness(rng, law, classes=10, good=0.9, other=0.9, rows=400):
    """Bits of clients that are good at the classes of their law, each with strengths and weaknesses of its own."""
    labels = np.arange(rows) % classes
    share = np.where(law[:, None] == np.arange(classes) % (law.max() + 1), good, other)
    share = (share + rng.normal(0, 0.05, share.shape))[:, labels] + rng.normal(0, 0.05, rows)
    return np.packbits(rng.random(share.shape) < share, axis=1), labels


@pytest.mark.slow
@pytest.mark.parametrize("clients", [3, 9])
def test_clients_of_one_law_are_called_groups_at_most_at_the_level(clients):
    rng = np.random.default_rng(clients)
    alike = np.zeros(clients, int)
    chances = np.array([chance_of_groups(*correctness(rng, alike), rng) for _ in range(80)])
    assert (chances <= 0.05).mean() < 0.14  # of 80 draws 11; 4 are expected
    assert 0.05 < (chances <= 0.5).mean() < 0.75  # both of two tests must agree


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "laws"), [(3, 2), (4, 2), (9, 3), (300, 3)])
def test_clients_of_laws_that_know_other_classes_are_no_chance(clients, laws):
    rng = np.random.default_rng(clients)
    found = [
        chance_of_groups(*correctness(rng, np.arange(clients) * laws // clients, other=0.15), rng) for _ in range(5)
    ]
    assert max(found) <= 0.05


@pytest.mark.parametrize(
    ("clients", "classes", "tested"),
    [(2, 10, False), (4, 3, False), (4, 4, True), (5, 2, False), (5, 3, True), (19, 2, False), (20, 2, True)],
)
def test_groups_are_tested_where_permutations_could_tell(clients, classes, tested):
    rng = np.random.default_rng(0)
    bits, labels = correctness(rng, np.arange(clients) % 2, classes)
    assert (chance_of_groups(bits, labels, rng) is not None) == tested
    assert chance_of_groups(bits, np.zeros_like(labels), rng) is None
    assert chance_of_groups(bits[:0], labels, rng) is None


def test_groups_are_tested_if_there_are_more_permutations_than_floats_hold():
    rng = np.random.default_rng(0)
    bits, labels = correctness(rng, np.zeros(9, int), classes=400)
    assert 0 < chance_of_groups(bits, labels, rng) <= 1


def test_the_best_fit_is_the_first_of_the_smallest_and_no_number_is_the_last_choice():
    losses = np.array([[2.0, 1.0, 1.0], [np.nan, 3.0, np.inf], [np.nan, np.nan, np.nan]])
    choice, loss = best_fit(losses)
    assert choice.tolist() == [1, 1, 0]
    assert loss.tolist() == [1, 3, np.inf]
