"""The paper's distances: what they are invariant under, what bounds them, the readings of its text, and its edges."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from models.diagnosis.fomichev_distances import (
    Readings,
    Statistics,
    concept_distance,
    distance_at_equal_priors,
    distance_in_classes,
    feature_distance,
    label_distance,
    statistics_from_rows,
)
from publications.synthetic_pairs.generators import Logistic, Normals

PAIR = np.array([[0, 1]])
BACK = PAIR[:, ::-1]
SEEDS = st.integers(0, 2**32 - 1)


def random_clients(seed: int, classes: int = 3, features: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    """Two, with laws of their own; a class may have few rows or none."""
    rng = np.random.default_rng(seed)
    clients = []
    for _ in range(2):
        y = rng.choice(classes, rng.integers(5, 60), p=rng.dirichlet(np.ones(classes)))
        centre, width = rng.normal(size=(classes, features)), rng.uniform(0.1, 3, (classes, features))
        clients.append((centre[y] + width[y] * rng.normal(size=(y.size, features)), y))
    return clients


def all_distances(told: Statistics, pairs: np.ndarray = PAIR, readings: Readings = Readings()) -> list[np.ndarray]:
    return [
        feature_distance(told, pairs, readings),
        label_distance(told, pairs),
        concept_distance(told, pairs, readings),
        distance_at_equal_priors(told, pairs, readings),
    ]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-8)


def test_the_distances_are_the_printed_formulas_by_hand():
    (x, y), (other_x, other_y) = clients = [
        Normals(0.4)(np.random.default_rng(0), 50),
        Logistic(1)(np.random.default_rng(1), 70),
    ]
    told = statistics_from_rows(clients, 2)
    low, high = min(x.min(), other_x.min()), max(x.max(), other_x.max())
    sds = x.std(ddof=1), other_x.std(ddof=1)
    by_hand = np.hypot((x.mean() - other_x.mean()) / (high - low), (sds[0] - sds[1]) / max(sds))
    assert feature_distance(told, PAIR)[0, 0] == pytest.approx(by_hand, abs=1e-12)
    assert label_distance(told, PAIR)[0] == pytest.approx(2 * abs(y.mean() - other_y.mean()), abs=1e-12)
    total = 0.0
    for point in np.linspace(low, high, 100):
        chances = []
        for xs, ys in clients:
            of_class = [xs[ys == name, 0] for name in (0, 1)]
            joint = [norm.pdf(point, one.mean(), one.std(ddof=1)) * one.size for one in of_class]
            chances.append(np.array(joint) / sum(joint))
        total += np.abs(chances[0] - chances[1]).sum() / 100
    assert concept_distance(told, PAIR)[0, 0] == pytest.approx(total, abs=1e-9)


@given(SEEDS)
def test_a_client_is_at_no_distance_from_itself_and_a_pair_has_no_order(seed):
    clients = random_clients(seed)
    told = statistics_from_rows(clients, 3)
    for values in all_distances(told, np.array([[0, 0], [1, 1]])):
        assert not np.nan_to_num(values).any()
    same(all_distances(told), all_distances(told, BACK))


@given(SEEDS)
def test_the_order_of_features_and_of_classes_is_nothing(seed):
    clients, rng = random_clients(seed), np.random.default_rng(seed)
    features, classes = rng.permutation(3), rng.permutation(3)
    moved = [(x[:, features], classes[y]) for x, y in clients]
    d_x, d_y, d_yx, equal = all_distances(statistics_from_rows(clients, 3))
    same([d_x[:, features], d_y, d_yx[:, features], equal[:, features]], all_distances(statistics_from_rows(moved, 3)))


@given(SEEDS, st.floats(-4, 4), st.sampled_from([-1, 1]), st.floats(-5, 5))
def test_a_features_unit_and_its_zero_are_nothing(seed, exponent, sign, offset):
    clients = random_clients(seed)
    scale = sign * 10**exponent
    moved = [(scale * (x + offset), y) for x, y in clients]
    same(all_distances(statistics_from_rows(clients, 3)), all_distances(statistics_from_rows(moved, 3)))


@given(SEEDS, st.floats(0, 1e6))
def test_over_the_union_of_ranges_d_x_is_at_most_the_root_of_2(seed, apart):
    (x, y), (other_x, other_y) = random_clients(seed)
    told = statistics_from_rows([(x, y), (other_x + apart, other_y)], 3)
    assert (feature_distance(told, PAIR) <= np.sqrt(2) + 1e-12).all()


@given(SEEDS)
def test_the_other_distances_are_at_most_2(seed):
    for values in all_distances(statistics_from_rows(random_clients(seed), 3))[1:]:
        assert (np.nan_to_num(values) <= 2 + 1e-12).all()


def test_over_a_clients_own_range_as_printed_d_x_has_no_bound():
    """Uniform on [0, 1] and on [100, 101]: the reference's 100.3 and 0.990, on rows of ours."""
    rng = np.random.default_rng(0)
    x, other = rng.random((2000, 1)), 100 + rng.random((2000, 1))
    told = statistics_from_rows([(x, np.zeros(2000)), (other, np.zeros(2000))], 1)
    by_hand = (other.mean() - x.mean()) / max(np.ptp(x), np.ptp(other))
    assert feature_distance(told, PAIR, Readings(range="printed"))[0, 0] == pytest.approx(by_hand, rel=1e-3)
    assert by_hand > 99
    assert feature_distance(told, PAIR)[0, 0] == pytest.approx(0.990, abs=1e-3)


def test_the_printed_range_is_the_larger_of_both_clients_own():
    narrow, wide = np.array([[0.0], [1], [2]]), np.array([[0.0], [5], [10]])
    told = statistics_from_rows([(narrow, np.zeros(3)), (wide, np.zeros(3))], 1)
    by_hand = np.hypot((5 - 1) / 10, (5 - 1) / 5)
    for pair in (PAIR, BACK):
        assert feature_distance(told, pair, Readings(range="printed"))[0, 0] == pytest.approx(by_hand)


def test_the_order_in_which_categories_are_coded_changes_d_x():
    """Shares 0.5, 0.1, 0.4 and 0.1, 0.5, 0.4 of three categories: 0.378 or 0.400."""
    categories = np.repeat([0, 1, 2], [5, 1, 4]), np.repeat([0, 1, 2], [1, 5, 4])
    found = set()
    for order in permutations([1, 2, 3]):
        clients = [(np.array(order, float)[one][:, None], np.zeros(10)) for one in categories]
        found.add(round(float(feature_distance(statistics_from_rows(clients, 1, np.array([3])), PAIR)[0, 0]), 3))
    assert found == {0.378, 0.400}


@pytest.mark.parametrize(("divisor", "discrete", "numeric"), [("printed", 0, 1), ("n", 0, 0), ("n - 1", 1, 1)])
def test_variances_are_divided_by_n_of_discrete_features_and_by_n_less_1_of_numeric_ones_or_as_it_is_read(
    divisor, discrete, numeric
):
    clients = [(np.array([[1.0], [2], [2]]), np.zeros(3)), (np.array([[1.0], [3], [1], [3], [3]]), np.zeros(5))]
    both = [(np.hstack([x, x]), y) for x, y in clients]
    found = feature_distance(statistics_from_rows(both, 1, np.array([3, 0])), PAIR, Readings(divisor=divisor))[0]
    for place, less in enumerate((discrete, numeric)):
        sds = [x.std(ddof=less) for x, _ in clients]
        means = abs(clients[0][0].mean() - clients[1][0].mean()) / 2
        assert found[place] == pytest.approx(np.hypot(means, abs(sds[0] - sds[1]) / max(sds)))


def test_on_a_grid_of_all_clients_a_third_client_counts_and_on_a_pairs_own_it_does_not():
    clients = [Normals()(np.random.default_rng(s), 200) for s in (0, 1)]
    far = (np.array([[-40.0], [40.0], [0.0]]), np.array([0, 1, 1]))
    two, three = statistics_from_rows(clients, 2), statistics_from_rows([*clients, far], 2)
    np.testing.assert_array_equal(concept_distance(two, PAIR), concept_distance(three, PAIR))
    federation = Readings(grid="federation")
    np.testing.assert_array_equal(concept_distance(two, PAIR, federation), concept_distance(two, PAIR))
    assert concept_distance(three, PAIR, federation) != pytest.approx(concept_distance(three, PAIR))


def test_more_points_of_the_grid_come_nearer_to_the_integral():
    told = statistics_from_rows([law(np.random.default_rng(2), 300) for law in (Normals(), Logistic(slope=0.3))], 2)
    fine, coarse, more = (concept_distance(told, PAIR, Readings(points=points)) for points in (20001, 10, 1000))
    assert abs(more - fine) < abs(coarse - fine)
    assert more == pytest.approx(fine, abs=2e-3)


def test_pairs_that_do_not_fit_in_memory_at_once_are_as_pair_after_pair():
    """So many points that eleven pairs fit, and there are sixty."""
    told, many = (
        statistics_from_rows([client for seed in range(6) for client in random_clients(seed)], 3),
        Readings(points=5000),
    )
    pairs = np.stack(np.triu_indices(12, 1), -1)[:60]
    alone = np.vstack([concept_distance(told, pairs[place : place + 1], many) for place in range(len(pairs))])
    np.testing.assert_allclose(concept_distance(told, pairs, many), alone, atol=1e-12)


def test_label_shift_alone_leaves_no_distance_at_equal_priors_and_swapped_classes_leave_all_of_it():
    rng = np.random.default_rng(0)
    laws = Normals(), Normals(0.9), Normals(means=(1, -1))
    told = statistics_from_rows([law(rng, 20000) for law in laws], 2)
    pairs = np.array([[0, 1], [0, 2]])
    label, swapped = distance_at_equal_priors(told, pairs)[:, 0]
    assert label < 0.02 < 0.2 < concept_distance(told, pairs)[0, 0]
    assert swapped == pytest.approx(concept_distance(told, pairs)[1, 0], abs=0.02)


def test_at_equal_priors_a_class_of_one_client_alone_counts_only_where_own_classes_are_asked_for():
    rng = np.random.default_rng(3)
    y = np.arange(600) % 3
    x = (2.0 * y + rng.normal(size=600))[:, None]
    two = y < 2
    told = statistics_from_rows([(x, y), (x[two], y[two]), (x[y == 2], y[y == 2])], 3)
    assert distance_at_equal_priors(told, PAIR)[0, 0] == pytest.approx(0, abs=1e-12)
    assert distance_at_equal_priors(told, PAIR, classes="own")[0, 0] > 0.3
    assert np.isnan(distance_at_equal_priors(told, np.array([[0, 2]])))  # one shared class has no posterior to compare


def test_the_distance_within_classes_is_the_mean_over_shared_classes_of_twice_the_total_variation():
    joint = np.array([[[[5, 0, 4], [5, 2, 0]]], [[[1, 0, 0], [3, 7, 0]]]])
    assert distance_in_classes(joint, PAIR)[0, 0] == pytest.approx((2 * 0.25 + 0) / 2)
    assert distance_in_classes(joint[:, :, ::-1], BACK)[0, 0] == pytest.approx(0.25)
    apart = np.array([[[[5, 0], [5, 0]]], [[[0, 1], [0, 3]]]])
    assert np.isnan(distance_in_classes(apart, PAIR))


def constant(value: float, rows: int = 6) -> tuple[np.ndarray, np.ndarray]:
    return np.full((rows, 1), value), np.arange(rows) % 2


def test_a_feature_that_is_one_constant_on_both_sides_is_no_difference():
    told = statistics_from_rows([constant(3), constant(3)], 2)
    for range_ in ("union", "printed"):
        assert feature_distance(told, PAIR, Readings(range=range_)) == 0
    assert concept_distance(told, PAIR) == 0  # the grid is one point, and the posterior is the prior


def test_a_feature_of_two_constants_differs_by_the_whole_range():
    told = statistics_from_rows([constant(3), constant(4)], 2)
    assert feature_distance(told, PAIR) == 1
    assert feature_distance(told, PAIR, Readings(range="printed")) == np.inf


def test_a_class_that_is_constant_is_as_narrow_as_a_thousandth_of_the_feature():
    x = np.array([[0.0], [0], [0], [1], [2], [3]])
    y = np.array([0, 0, 0, 1, 1, 1])
    told = statistics_from_rows([(x, y), (x, 1 - y)], 2)
    narrow = replace(told, class_sd=np.where(told.class_sd == 0, 1e-3 * x.std(ddof=1), told.class_sd))
    np.testing.assert_array_equal(concept_distance(told, PAIR), concept_distance(narrow, PAIR))


def test_a_class_of_one_row_is_as_wide_as_the_others_or_absent_as_it_is_read():
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(41, 1)), np.array([0] * 20 + [1] * 20 + [2])
    told = statistics_from_rows([(x, y), (rng.normal(size=(40, 1)), np.arange(40) % 3)], 3)
    within = np.sqrt(sum(((x[y == name] - x[y == name].mean()) ** 2).sum() for name in (0, 1)) / 38)
    filled = replace(told, class_sd=np.where(np.isnan(told.class_sd), within, told.class_sd), present=told.present + 1)
    assert concept_distance(told, PAIR) == pytest.approx(concept_distance(filled, PAIR))
    gone = replace(told, class_mean=np.where(told.present == 1, np.nan, told.class_mean))
    absent = concept_distance(told, PAIR, Readings(one_row="absent"))
    assert absent == pytest.approx(concept_distance(gone, PAIR))
    assert absent != pytest.approx(concept_distance(told, PAIR))


def test_a_class_that_one_side_lacks_counts_fully_in_d_y_and_has_posterior_0_there():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(40, 1))
    told = statistics_from_rows([(x, np.arange(40) % 2), (x, np.zeros(40))], 2)
    assert label_distance(told, PAIR) == pytest.approx(1)
    assert concept_distance(told, PAIR) == pytest.approx(2 * (1 - _mean_of_first_class(told)))


def _mean_of_first_class(told: Statistics) -> float:
    grid = np.linspace(told.lowest.min(), told.highest.max(), 100)
    joint = [norm.pdf(grid, told.class_mean[0, 0, name], told.class_sd[0, 0, name]) for name in (0, 1)]
    return float((joint[0] / (joint[0] + joint[1])).mean())


def test_without_a_shared_class_labels_and_concept_differ_by_all_that_they_can():
    x = np.random.default_rng(7).normal(size=(40, 1))
    told = statistics_from_rows([(x, np.zeros(40)), (x, np.ones(40))], 2)
    assert label_distance(told, PAIR) == pytest.approx(2)
    assert concept_distance(told, PAIR) == pytest.approx(2)


def test_a_client_with_one_row_has_no_d_x():
    told = statistics_from_rows([(np.array([[1.0]]), np.array([0])), constant(2)], 2)
    assert np.isnan(feature_distance(told, PAIR))
    assert label_distance(told, PAIR) == pytest.approx(1)
    assert not np.isnan(concept_distance(told, PAIR))


def test_a_feature_that_a_client_never_has_is_unknown_and_the_others_are_as_without_it():
    clients = random_clients(8)
    clients[0][0][:, 1] = np.nan
    told = statistics_from_rows(clients, 3)
    without = statistics_from_rows([(x[:, [0, 2]], y) for x, y in clients], 3)
    for found, expected in ((f(told, PAIR), f(without, PAIR)) for f in (feature_distance, concept_distance)):
        assert np.isnan(found[0, 1])
        np.testing.assert_array_equal(found[:, [0, 2]], expected)


def test_a_category_that_one_client_lacks_keeps_its_code():
    x = np.array([[1.0], [2], [3], [3]])
    y = np.array([0, 0, 1, 1])
    lacks = np.array([[1.0], [3], [3], [3]])
    told = statistics_from_rows([(x, y), (lacks, y)], 2, np.array([3]))
    by_hand = np.hypot(abs(x.mean() - lacks.mean()) / 2, abs(x.std() - lacks.std()) / max(x.std(), lacks.std()))
    assert feature_distance(told, PAIR)[0, 0] == pytest.approx(by_hand)
