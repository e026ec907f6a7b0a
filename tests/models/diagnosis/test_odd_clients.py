"""The clients that take part in most differences: found where a split explains them, and not by chance."""

import numpy as np
import pytest

from models.diagnosis.merged_tables import all_pairs
from models.diagnosis.odd_clients import find_odd_clients


def drawn(clients, odd, across, within, seed):
    """Pairs that differ at random, at one rate between odd clients and others and at another one between alike ones."""
    first, second = all_pairs(clients)
    is_odd = np.isin(np.arange(clients), odd)
    rate = np.where(is_odd[first] != is_odd[second], across, within)
    return first, second, np.random.default_rng(seed).random(len(first)) < rate


@pytest.mark.parametrize("seed", range(5))
def test_ten_odd_clients_of_forty_are_found_though_most_pairs_do_not_differ(seed):
    odd = [1, 4, 9, 12, 17, 23, 24, 30, 38, 39]
    assert find_odd_clients(*drawn(40, odd, 0.25, 0.002, seed), 40) == odd


def test_differences_at_one_rate_single_out_hardly_any_clients():
    found = [find_odd_clients(*drawn(20, [], 0.0, rate, seed), 20) for rate in (0.05, 0.2, 0.5) for seed in range(20)]
    assert sum(map(bool, found)) <= 3


def test_one_client_that_differs_from_all_others_is_found():
    assert find_odd_clients(*drawn(9, [5], 1.0, 0.0, 0), 9) == [5]


def test_clients_that_differ_among_themselves_only_are_not_odd():
    """Five clients all differ from each other and from none of the other five."""
    first, second = all_pairs(10)
    assert find_odd_clients(first, second, (first < 5) & (second < 5), 10) == []


def test_pairs_that_were_not_compared_count_for_nothing():
    first, second, differ = drawn(12, [10, 11], 1.0, 0.0, 0)
    kept = (first != 3) & (second != 3)
    assert find_odd_clients(first[kept], second[kept], differ[kept], 12) == [10, 11]


@pytest.mark.parametrize("clients", [0, 1, 2])
def test_of_two_clients_or_fewer_none_is_odd(clients):
    first, second = all_pairs(clients)
    assert find_odd_clients(first, second, np.ones(len(first), bool), clients) == []
