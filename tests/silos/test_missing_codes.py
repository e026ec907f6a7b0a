"""Numbers that stand for missing values are found beside real ones, and real values are not taken for them."""

import numpy as np
import pytest

from silos.missing_codes import find_missing_code


def found(x):
    values, rows = np.unique(x, return_counts=True)
    index = find_missing_code(values, rows)
    return None if index is None else values[index]


def draws(kind, rng):
    return {
        "prices": np.round(np.exp(rng.normal(5, 1.2, 370)), 2),
        "ages": np.clip(np.round(rng.normal(60, 14, 370)), 18, 99),
        "counts": rng.poisson(4, 370).astype(float) * 3,
        "temperatures": np.round(rng.normal(4, 6, 370)),
        "differences": rng.normal(0, 300, 370),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        *(("prices", -999), ("prices", -1), ("prices", 99999), ("ages", -9), ("ages", 999), ("ages", -88)),
        *(("counts", -1), ("temperatures", -99), ("temperatures", 999), ("differences", -9999)),
    ],
)
def test_a_code_in_three_of_a_hundred_rows_is_found_beside_real_values(kind, code):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x = draws(kind, rng)
        x[rng.choice(len(x), 40 if kind == "counts" else 11, replace=False)] = code
        assert found(x) == code


@pytest.mark.parametrize("kind", ["prices", "ages", "counts", "temperatures", "differences"])
def test_real_values_are_no_code(kind):
    for seed in range(40):
        assert found(draws(kind, np.random.default_rng(seed))) is None


@pytest.mark.parametrize(("mean", "deviation"), [(12, 5), (6, 2.5), (4, 6)])
def test_a_sure_code_of_one_digit_has_more_rows_than_rounded_measurements_have_there(mean, deviation):
    sure = 0
    for seed in range(300):
        x = np.round(np.random.default_rng(seed).normal(mean, deviation, 300))
        sure += find_missing_code(*np.unique(x, return_counts=True), sure=True) is not None
    assert sure == 0
    x = np.append(np.abs(x) + 5, np.full(12, -9.0))
    assert find_missing_code(*np.unique(x, return_counts=True), sure=True) == 0


def test_categories_single_values_and_most_rows_are_no_code():
    x = np.arange(370.0)
    assert found(np.append(x, [-999.0, -999.0])) is None
    assert found(np.append(x, np.full(400, -999.0))) is None
    assert found(np.repeat([-1.0, 0.0, 1.0, 9.0], 50)) is None
    assert found(np.full(3, 5.0)) is None
    assert found(np.zeros(0)) is None
