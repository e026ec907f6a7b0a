"""Wasserstein distances: closed forms, linear programs of SciPy's, repeated and sorted rows, and what a metric is."""

import sys
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist

from models.diagnosis import wasserstein
from models.diagnosis.wasserstein import (
    Measure,
    cost,
    distance,
    feature_distances,
    interpolate,
    interpolate_centres,
    optimal_plan,
    uniform,
)

pytestmark = pytest.mark.slow

few = settings(max_examples=40, deadline=None)  # POT is imported in the first
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 7)
widths = st.integers(1, 3)


def weighted(random: np.random.Generator, points: int, features: int) -> Measure:
    """Whole numbers, so that several points may be equal."""
    return Measure(random.integers(-3, 4, (points, features)).astype(float), random.dirichlet(np.ones(points)))


def covariance(random: np.random.Generator, features: int, rank: int) -> np.ndarray:
    root = random.standard_normal((features, rank))
    return root @ root.T


def by_program(first: Measure, second: Measure) -> float:
    """The definition, as SciPy solves it."""
    costs = cdist(first.points, second.points, "sqeuclidean")
    n, m = costs.shape
    from_first, to_second = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    ends = np.r_[first.weights, second.weights]
    return float(np.sqrt(max(0.0, linprog(costs.ravel(), A_eq=np.r_[from_first, to_second], b_eq=ends).fun)))


@few
@given(sizes, sizes, widths, seeds)
def test_the_distance_is_the_least_cost_of_all_plans(n, m, features, seed):
    random = np.random.default_rng(seed)
    first, second = weighted(random, n, features), weighted(random, m, features)
    assert distance(first, second) == pytest.approx(by_program(first, second), abs=1e-6)


@few
@given(sizes, widths, seeds)
def test_the_distance_of_as_many_rows_is_that_of_the_best_pairs(n, features, seed):
    a, b = np.random.default_rng(seed).standard_normal((2, n, features))
    costs = cdist(a, b, "sqeuclidean")
    best = np.sqrt(costs[linear_sum_assignment(costs)].mean())
    assert distance(uniform(a), uniform(b)) == pytest.approx(best, rel=1e-9)


@given(st.integers(1, 30), st.integers(1, 30), seeds)
def test_along_one_feature_it_is_that_of_rows_repeated_to_equal_numbers_and_sorted(n, m, seed):
    random = np.random.default_rng(seed)
    a, b = random.integers(-9, 9, n).astype(float), random.standard_normal(m)
    repeated = np.sort(np.repeat(a, m)) - np.sort(np.repeat(b, n))
    assert distance(uniform(a[:, None]), uniform(b[:, None])) == pytest.approx(np.sqrt((repeated**2).mean()), rel=1e-9)


@few
@given(sizes, sizes, sizes, widths, seeds)
def test_it_is_a_metric_and_the_order_of_points_does_not_matter(n, m, k, features, seed):
    random = np.random.default_rng(seed)
    a, b, c = (weighted(random, points, features) for points in (n, m, k))
    order = random.permutation(n)
    assert distance(a, a) == 0
    assert distance(a, Measure(a.points[order], a.weights[order])) == pytest.approx(0, abs=1e-6)
    assert distance(a, b) == pytest.approx(distance(b, a), abs=1e-6)
    assert distance(Measure(a.points[order], a.weights[order]), b) == pytest.approx(distance(a, b), abs=1e-6)
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-6


@few
@given(sizes, sizes, widths, st.floats(0, 1), seeds)
def test_what_lies_between_is_on_a_shortest_curve(n, m, features, share, seed):
    random = np.random.default_rng(seed)
    first, second = weighted(random, n, features), weighted(random, m, features)
    plan = optimal_plan(first, second)
    middle, apart = interpolate(plan, first, second, share), cost(plan, first, second)
    assert len(middle.points) <= n + m - 1
    assert middle.weights.sum() == pytest.approx(1)
    assert distance(first, middle) == pytest.approx(share * apart, abs=1e-6)
    assert distance(middle, second) == pytest.approx((1 - share) * apart, abs=1e-6)


@few
@given(sizes, sizes, widths, seeds)
def test_centres_go_towards_the_mean_of_where_their_mass_is_carried(n, m, features, seed):
    random = np.random.default_rng(seed)
    first, second = weighted(random, n, features), weighted(random, m, features)
    plan = optimal_plan(first, second)
    found = interpolate_centres(plan, first, second, 0.25)
    for i in range(n):
        moves = plan.start == i
        centre = np.average(second.points[plan.end[moves]], axis=0, weights=plan.mass[moves])
        np.testing.assert_allclose(found.points[i], 0.75 * first.points[i] + 0.25 * centre, atol=1e-8)
    assert (found.weights == first.weights).all()


def normal_distance(
    means: np.ndarray, covariances: np.ndarray, other_means: np.ndarray, other_covariances: np.ndarray
) -> np.ndarray:
    """Return the distance of normals, (...); means: (..., features), covariances: (..., features, features).

    Its square is ‖m - m'‖² + tr(Σ + Σ' - 2 (Σ^½ Σ' Σ^½)^½). The trace is the least ‖S - S'U‖² over orthogonal U, where
    S Sᵀ = Σ and S' S'ᵀ = Σ' (Bhatia, Jain and Lim 2019). So no large numbers are subtracted, and equal normals are at
    about 0.
    """
    root, other_root = root_of(covariances), root_of(other_covariances)
    left, _, right = np.linalg.svd(np.swapaxes(other_root, -2, -1) @ root)
    spread = np.linalg.norm(root - other_root @ (left @ right), axis=(-2, -1))
    return np.hypot(np.linalg.norm(means - other_means, axis=-1), spread)


def root_of(covariances: np.ndarray) -> np.ndarray:
    """Return S with S Sᵀ = Σ, also for a singular Σ."""
    values, vectors = np.linalg.eigh(covariances)
    rounding = np.finfo(np.float64).eps * values.shape[-1] * values[..., -1:]
    return vectors * np.sqrt(np.where(values > rounding, values, 0.0))[..., None, :]


@given(st.integers(1, 5), seeds)
def test_normal_laws_are_as_far_apart_as_the_formula_of_matrix_roots_says(features, seed):
    random = np.random.default_rng(seed)
    means = random.standard_normal((2, features))
    one, other = (covariance(random, features, features + 2) for _ in range(2))
    root = sqrtm(one)
    squared = ((means[0] - means[1]) ** 2).sum() + np.trace(one + other - 2 * sqrtm(root @ other @ root)).real
    assert normal_distance(means[0], one, means[1], other) == pytest.approx(np.sqrt(squared), rel=1e-5)


@given(st.integers(1, 4), st.integers(1, 6), seeds)
def test_normal_laws_are_at_no_distance_from_themselves_of_any_rank(rank, features, seed):
    random = np.random.default_rng(seed)
    mean, spread = random.standard_normal(features), covariance(random, features, rank)
    assert normal_distance(mean, spread, mean, spread) < 1e-12 * max(1.0, np.trace(spread))


def test_many_normal_laws_at_once_are_each_alone():
    random = np.random.default_rng(0)
    means, others = random.standard_normal((2, 5, 3))
    spreads, other_spreads = np.array([[covariance(random, 3, 3) for _ in range(5)] for _ in range(2)])
    found = normal_distance(means, spreads, others, other_spreads)
    alone = [normal_distance(*law) for law in zip(means, spreads, others, other_spreads, strict=True)]
    np.testing.assert_allclose(found, alone, rtol=1e-12)


def test_of_independent_features_the_diagonal_form_is_that_of_covariances_and_joins_those_of_features():
    random = np.random.default_rng(0)
    means, others = random.standard_normal((2, 4, 3))
    sds, other_sds = random.uniform(0, 2, (2, 4, 3))
    each = feature_distances(means, sds, others, other_sds)
    full = normal_distance(means, sds[..., None] ** 2 * np.eye(3), others, other_sds[..., None] ** 2 * np.eye(3))
    assert each.shape == (4, 3)
    np.testing.assert_allclose(np.sqrt((each**2).sum(-1)), full, rtol=1e-9)


@few
@given(st.integers(2, 30), st.integers(2, 30), widths, seeds)
def test_no_rows_are_nearer_than_normal_laws_of_their_moments_nor_these_than_independent_ones(n, m, features, seed):
    random = np.random.default_rng(seed)
    a, b = random.exponential(size=(n, features)), random.standard_normal((m, features)) ** 3
    normal = normal_distance(*(moment for rows in (a, b) for moment in (rows.mean(0), moments_of(rows))))
    diagonal = np.linalg.norm(feature_distances(a.mean(0), a.std(0), b.mean(0), b.std(0)))
    assert diagonal <= normal + 1e-9
    assert normal <= distance(uniform(a), uniform(b)) + 1e-9


@pytest.mark.parametrize("features", [1, 4])
def test_rows_that_a_positive_matrix_stretches_are_as_far_as_normal_laws_of_their_moments(features):
    """Brenier: such a map is optimal whatever the rows."""
    random = np.random.default_rng(0)
    a = random.exponential(size=(60, features))
    b = a @ covariance(random, features, features + 1) + 3
    normal = normal_distance(a.mean(0), moments_of(a), b.mean(0), moments_of(b))
    assert distance(uniform(a), uniform(b)) == pytest.approx(normal, rel=1e-9)


def moments_of(rows: np.ndarray) -> np.ndarray:
    away = rows - rows.mean(0)
    return away.T @ away / len(rows)


def test_pot_that_is_missing_is_told_with_the_command_that_installs_it_and_one_feature_does_without(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    rows = np.arange(6.0).reshape(3, 2)
    with pytest.raises(
        ModuleNotFoundError, match=r"`pip install -c constraints\.txt -e '\.\[transport\]'` in the checkout"
    ):
        distance(uniform(rows), uniform(rows))
    assert distance(uniform(rows[:, :1]), uniform(rows[:, :1] + 2)) == 2


@pytest.mark.filterwarnings("ignore:numItermax reached")
def test_a_plan_that_is_not_optimal_is_not_answered(monkeypatch):
    monkeypatch.setattr(wasserstein, "_STEPS", 1)
    a, b = np.random.default_rng(0).standard_normal((2, 50, 2))
    with pytest.raises(RuntimeError, match="no optimal plan of 50 to 50 points"):
        distance(uniform(a), uniform(b))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (np.zeros((0, 2)), r"rows of shape \(0, 2\)"),
        (np.zeros(3), r"rows of shape \(3,\)"),
        (np.array([[0.0, np.nan]]), "NaN or infinite"),
    ],
)
def test_rows_that_have_no_distance_are_refused(rows, said):
    with pytest.raises(ValueError, match=said):
        uniform(rows)


@pytest.mark.parametrize(("features", "others"), permutations((1, 2)))
def test_points_of_other_features_are_refused(features, others):
    with pytest.raises(ValueError, match=f"points of {features} features and of {others}"):
        distance(uniform(np.zeros((3, features))), uniform(np.zeros((3, others))))
