"""Clients that hold the same rows are more alike than chance allows, and others are not."""

import numpy as np
import pytest

from models.diagnosis.merged_tables import all_pairs
from models.diagnosis.shared_rows import chance_to_find_half, find_shared_rows


def rows(seed, count=1000, features=6, moved=0.0):
    rng = np.random.default_rng([seed, 9])
    y = rng.integers(0, 2, count)
    x = rng.normal(size=(count, features)) + moved
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1] + y
    return x, y


def with_half_of(own, other):
    half = len(other[1]) // 2
    return tuple(np.concatenate([part, more[:half]]) for part, more in zip(own, other, strict=True))


def found(told, clients):
    return find_shared_rows(told.summaries, *all_pairs(clients)).tolist()


@pytest.mark.parametrize("count", [300, 1000, 3000])
def test_half_of_a_client_copied_into_another_is_found(tell, count):
    hits = 0
    for seed in range(10):
        first, second = rows(2 * seed, count), rows(2 * seed + 1, count)
        hits += found(tell([first, with_half_of(second, first)]), 2)[0]
    assert hits >= 9


def test_of_several_clients_only_the_pair_that_shares_rows_is_found(tell):
    first, second, third = rows(0), rows(1), rows(2)
    assert found(tell([first, second, with_half_of(third, first)]), 3) == [False, True, False]


def test_of_300_pairs_without_shared_rows_none_is_found(tell):
    told = tell([rows(seed, 400) for seed in range(25)])
    assert not any(found(told, 25))
    pairs = [
        find_shared_rows(told.summaries, np.array([a]), np.array([b]))[0] for a, b in zip(*all_pairs(25), strict=True)
    ]
    assert sum(pairs) <= 3  # each at the level of a single pair


def test_clients_that_differ_are_no_pair_that_shares_rows(tell):
    assert found(tell([rows(0), rows(1, moved=0.5)]), 2) == [False]
    assert find_shared_rows(tell([rows(0)]).summaries, np.zeros(0, int), np.zeros(0, int)).tolist() == []


@pytest.mark.parametrize(("values", "least", "most"), [(3, 0, 5), (6, 3, 12), (None, 18, 20)])
def test_the_chance_to_find_half_of_a_client_is_that_of_20_pairs(tell, values, least, most):
    hits, chances = 0, []
    for seed in range(20):
        first, second = rows(2 * seed, 300), rows(2 * seed + 1, 300)
        if values:
            cuts = np.linspace(-2, 2, values + 1)[1:-1]
            first, second = ((1.0 + np.searchsorted(cuts, x), y) for x, y in (first, second))
        categories = (tuple(range(1, values + 1)) if values else None,) * 6
        told = tell([first, with_half_of(second, first)], categories=categories)
        hits += found(told, 2)[0]
        chances.append(chance_to_find_half(told.summaries, 0, 1, 1))
    assert least <= hits <= most
    assert least / 20 <= np.mean(chances) <= most / 20
    assert chance_to_find_half(told.summaries, 0, 1, 100) < chances[-1]
