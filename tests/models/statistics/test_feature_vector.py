"""Statistics of one client: equal to numpy and SciPy, of fixed length, the same in any order of rows, and never NaN."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from models.statistics.feature_vector import (
    KINDS,
    StatisticError,
    check,
    compute,
    length,
    make,
    too_few_rows,
)

ALL = tuple(make({"kind": kind}) for kind in KINDS)
NUMERIC = tuple(s for s in ALL if s.kind not in ("class_frequencies", "class_means"))  # those that a regression has too
FEATURES, CLASSES = 6, 4
one_by_one = pytest.mark.parametrize("statistic", ALL, ids=lambda s: s.kind)


def drawn(rows: int, seed: int = 0, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    """Skewed, correlated rows that need no luck to have full rank."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(2.0, size=(rows, FEATURES)) @ rng.normal(size=(FEATURES, FEATURES)) + 3
    y = rng.integers(0, classes, rows) if classes else x @ rng.normal(size=FEATURES) + rng.normal(size=rows)
    return torch.from_numpy(x), torch.from_numpy(y)


def vector(kind: str, x: torch.Tensor, y: torch.Tensor, classes: int, **options: object) -> np.ndarray:
    return compute([make({"kind": kind, **options})], x, y, classes).vector.numpy()


def test_moments_are_those_of_numpy_and_scipy():
    x, y = drawn(50)
    rows, labels = x.numpy(), y.numpy()
    covariance = np.cov(rows.T)
    expected = {
        "mean": rows.mean(0),
        "variance": rows.var(0, ddof=1),
        "covariance": covariance[np.triu_indices(FEATURES)],
        "skewness": stats.skew(rows),
        "kurtosis": stats.kurtosis(rows),
        "class_frequencies": np.bincount(labels, minlength=CLASSES) / 50,
        "label_mean": np.bincount(labels, minlength=CLASSES) / 50,
        "class_means": np.concatenate([rows[labels == c].mean(0) for c in range(CLASSES)]),
    }
    for kind, wanted in expected.items():
        np.testing.assert_allclose(vector(kind, x, y, CLASSES), wanted, rtol=1e-10, atol=1e-10, err_msg=kind)


@pytest.mark.parametrize("classes", [0, 2])
def test_of_a_number_or_of_two_classes_the_target_is_one_column(classes):
    x, y = drawn(50, classes=classes)
    rows, target = x.numpy(), y.double().numpy()
    joint = np.cov(np.column_stack([rows, target]).T)
    np.testing.assert_allclose(vector("covariance_xy", x, y, classes), joint[-1, :-1], rtol=1e-10)
    np.testing.assert_allclose(vector("label_mean", x, y, classes), [target.mean()], rtol=1e-10)
    fitted = np.linalg.lstsq(np.column_stack([rows, np.ones(50)]), target, rcond=None)[0]
    np.testing.assert_allclose(vector("least_squares", x, y, classes), fitted, rtol=1e-9)


def test_of_more_classes_the_target_is_a_column_a_class():
    x, y = drawn(50)
    rows, hot = x.numpy(), np.eye(CLASSES)[y.numpy()]
    joint = np.cov(np.column_stack([rows, hot]).T)[FEATURES:, :FEATURES]
    np.testing.assert_allclose(vector("covariance_xy", x, y, CLASSES), joint.ravel(), rtol=1e-9, atol=1e-12)
    fitted = np.linalg.lstsq(np.column_stack([rows, np.ones(50)]), hot, rcond=None)[0]
    np.testing.assert_allclose(vector("least_squares", x, y, CLASSES), fitted.T.ravel(), rtol=1e-8, atol=1e-10)


def test_with_fewer_rows_than_coefficients_least_squares_is_the_smallest_solution():
    x, y = drawn(4, classes=0)
    design = np.column_stack([x.numpy(), np.ones(4)])
    found = compute([make({"kind": "least_squares"})], x, y, 0)
    np.testing.assert_allclose(found.vector.numpy(), np.linalg.pinv(design) @ y.numpy(), rtol=1e-8)
    np.testing.assert_allclose(design @ found.vector.numpy(), y.numpy(), rtol=1e-8)
    assert found.ok == (False,)
    enough, exactly = (compute([make({"kind": "least_squares"})], *drawn(n, classes=0), 0) for n in (8, 7))
    assert (enough.ok, exactly.ok) == ((True,), (False,))


@one_by_one
@given(seed=st.integers(0, 2**31), rows=st.integers(0, 40))
def test_the_order_of_rows_is_irrelevant(statistic, seed, rows):
    x, y = drawn(rows, seed % 7)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    one, other = compute([statistic], x, y, CLASSES), compute([statistic], x[order], y[order], CLASSES)
    assert torch.equal(one.vector, other.vector)
    assert (one.ok, one.gap, one.agreement) == (other.ok, other.gap, other.agreement)


@one_by_one
def test_the_length_is_the_contract_whatever_the_rows(statistic):
    for rows, classes in itertools.product((0, 1, 2, 3, 5, 40), (1, 2, CLASSES)):
        found = compute([statistic], *drawn(rows, classes=classes), classes)
        assert found.vector.shape == (length([statistic], FEATURES, classes),)
        assert found.vector.dtype == torch.float64
        assert torch.isfinite(found.vector).all()


@one_by_one
def test_fewer_rows_than_needed_are_flagged_and_named(statistic):
    needed = statistic.rows_needed(FEATURES, CLASSES)
    for rows in range(needed):
        assert compute([statistic], *drawn(rows), CLASSES).ok == (False,)
        said = too_few_rows([statistic], rows, FEATURES, CLASSES)
        assert (
            said == f"has {rows} training row{'s' * (rows != 1)}, expected {needed} for the statistic {statistic.kind}"
        )
    assert compute([statistic], *drawn(needed), CLASSES).ok == (True,)
    assert too_few_rows([statistic], needed, FEATURES, CLASSES) is None


def test_one_row_has_no_spread():
    for kind in ("variance", "covariance", "covariance_xy", "skewness", "kurtosis", "loadings", "fingerprint"):
        assert not vector(kind, *drawn(1), CLASSES).any(), kind


def test_several_are_laid_end_to_end():
    x, y = drawn(30)
    parts = [
        make({"kind": "mean"}),
        make({"kind": "loadings", "components": 2, "sign": "ones"}),
        make({"kind": "class_frequencies"}),
    ]
    together = compute(parts, x, y, CLASSES)
    assert torch.equal(together.vector, torch.cat([compute([p], x, y, CLASSES).vector for p in parts]))
    assert len(together.vector) == length(parts, FEATURES, CLASSES) == FEATURES + 2 * (FEATURES + CLASSES) + CLASSES
    assert together.ok == (True, True, True)
    assert (together.gap[0], together.gap[2]) == (None, None)


@pytest.mark.parametrize("constant", [0.1, -3e7, 0.0])
def test_a_constant_feature_has_no_shape_and_divides_nothing(constant):
    x, y = drawn(30)
    x[:, 2] = constant
    for kind in ("variance", "skewness", "kurtosis"):
        assert vector(kind, x, y, CLASSES)[2] == 0
    assert not vector("covariance_xy", x, y, CLASSES).reshape(CLASSES, FEATURES)[:, 2].any()
    assert np.isfinite(compute(ALL, x, y, CLASSES).vector).all()


@pytest.mark.parametrize("classes", [0, 2, CLASSES])
def test_a_constant_label_goes_with_nothing(classes):
    x, y = drawn(30, classes=classes)
    y[:] = 1.7 if classes == 0 else 1
    assert not vector("covariance_xy", x, y, classes).any()
    assert torch.isfinite(compute(ALL if classes else NUMERIC, x, y, classes).vector).all()


def test_a_class_without_rows_has_a_mean_of_zeros():
    x, y = drawn(30)
    y[y == 2] = 1
    means = vector("class_means", x, y, CLASSES).reshape(CLASSES, FEATURES)
    assert not means[2].any()
    assert means[[0, 1, 3]].all()


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_class_outside_the_agreed_list_is_refused(label):
    x, y = drawn(9)
    y[4] = label
    with pytest.raises(StatisticError, match=f"got class {label}, expected one of 4 classes, 0 to 3"):
        compute([make({"kind": "mean"})], x, y, CLASSES)


def test_labels_must_be_codes_where_there_are_classes():
    x, y = drawn(9, classes=0)
    with pytest.raises(StatisticError, match=r"labels: got torch\.float64 numbers, expected the codes of 4 classes"):
        compute([make({"kind": "mean"})], x, y, CLASSES)


@pytest.mark.parametrize("kind", ["class_frequencies", "class_means"])
def test_a_regression_has_no_classes(kind):
    with pytest.raises(StatisticError, match=f"{kind}: got a regression, expected classes"):
        compute([make({"kind": kind})], *drawn(9, classes=0), 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_refused(value):
    x, y = drawn(9)
    x[3, 1] = value
    with pytest.raises(StatisticError, match="training rows: got NaN or infinity, expected finite numbers"):
        compute([make({"kind": "mean"})], x, y, CLASSES)


def test_a_result_too_large_for_float32_is_refused_with_the_statistics_name():
    x, y = drawn(9)
    with pytest.raises(StatisticError, match="the statistic variance: got NaN, infinity or a number too large for"):
        compute([make({"kind": "mean"}), make({"kind": "variance"})], x * 1e30, y, CLASSES)


@pytest.mark.parametrize("shape", [(1,), (FEATURES + 1,), (FEATURES, 1), ()])
def test_statistics_of_another_length_are_refused(shape):
    with pytest.raises(StatisticError, match="expected the agreed 6 in the last axis"):
        check(torch.zeros(shape), [make({"kind": "mean"})], FEATURES, CLASSES)


def test_statistics_that_hold_nan_are_refused_by_name():
    both = [make({"kind": "mean"}), make({"kind": "class_frequencies"})]
    vectors = torch.zeros(3, FEATURES + CLASSES)
    check(vectors, both, FEATURES, CLASSES)
    vectors[1, -1] = torch.nan
    with pytest.raises(StatisticError, match="statistic class_frequencies: got NaN"):
        check(vectors, both, FEATURES, CLASSES)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "loading"}, "statistic: got 'loading', expected a known kind. Did you mean loadings"),
        ({}, "statistic: got None, expected a known kind"),
        ({"kind": "mean", "log": True}, "mean: got the option 'log', expected no options"),
        ({"kind": "fingerprint", "rows": 3}, "fingerprint: got the option 'rows', expected one of values, log"),
        (
            {"kind": "fingerprint", "values": 3.5},
            "fingerprint: values: got 3.5, expected a whole number",
        ),
        ({"kind": "fingerprint", "log": 1}, "expected true or false"),
        ({"kind": "fingerprint", "values": 0}, "values: got 0, expected 1 to 10,000"),
        ({"kind": "loadings", "components": 0}, "components: got 0, expected 1 to 10,000"),
        ({"kind": "loadings", "sign": "up"}, "sign: got 'up', expected free, ones, largest or data"),
    ],
)
def test_a_statistic_that_cannot_be_made_is_explained(spec, said):
    with pytest.raises(ValueError, match=said):
        make(spec)
