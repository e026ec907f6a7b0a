"""What a client tells: against numpy's own statistics, with missing values, and of discrete features."""

import numpy as np
import pytest

from models.diagnosis.fomichev_distances import statistics_from_rows


@pytest.mark.parametrize("seed", range(5))
def test_moments_and_ranges_are_numpys_of_each_class_and_of_all_rows(seed):
    rng = np.random.default_rng(seed)
    clients = [(1e3 + rng.normal(size=(rows, 3)) ** 3, rng.integers(0, 2, rows)) for rows in (40, 25)]
    told = statistics_from_rows(clients, 2)
    for client, (x, y) in enumerate(clients):
        np.testing.assert_allclose(told.mean[client], x.mean(0), rtol=1e-12)
        np.testing.assert_allclose(told.sd[client], x.std(0, ddof=1), rtol=1e-12)
        np.testing.assert_array_equal(told.lowest[client], x.min(0))
        np.testing.assert_array_equal(told.highest[client], x.max(0))
        np.testing.assert_array_equal(told.class_counts[client], np.bincount(y, minlength=2))
        for name in (0, 1):
            np.testing.assert_allclose(told.class_mean[client, :, name], x[y == name].mean(0), rtol=1e-12)
            np.testing.assert_allclose(told.class_sd[client, :, name], x[y == name].std(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(told.prior[1], np.bincount(clients[1][1]) / 25)


def test_values_that_are_not_finite_are_left_out_of_their_feature_and_class():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), np.arange(30) % 2
    holed = x.copy()
    holed[[0, 3, 4], 0] = [np.nan, np.inf, -np.inf]
    kept = np.delete(np.arange(30), [0, 3, 4])
    told, whole = statistics_from_rows([(holed, y)], 2), statistics_from_rows([(x, y)], 2)
    rest = statistics_from_rows([(x[kept, :1], y[kept])], 2)
    for name in ("mean", "sd", "lowest", "highest", "present", "class_mean", "class_sd"):
        np.testing.assert_array_equal(getattr(told, name)[:, 1], getattr(whole, name)[:, 1])
        np.testing.assert_allclose(getattr(told, name)[:, 0], getattr(rest, name)[:, 0])
    np.testing.assert_array_equal(told.class_counts, [[15, 15]])


def test_a_class_without_rows_has_no_mean_and_of_one_row_no_deviation():
    told = statistics_from_rows([(np.array([[1.0], [2.0], [5.0]]), np.array([0, 0, 1]))], 3)
    np.testing.assert_array_equal(told.class_mean, [[[1.5, 5.0, np.nan]]])
    np.testing.assert_allclose(told.class_sd, [[[np.sqrt(0.5), np.nan, np.nan]]])


def test_a_discrete_feature_ranges_over_the_codes_of_the_schema_whatever_a_client_has_seen():
    told = statistics_from_rows([(np.array([[2.0, 2.0], [3.0, 3.0]]), np.array([0, 0]))], 1, np.array([5, 0]))
    np.testing.assert_array_equal(told.lowest, [[1, 2]])
    np.testing.assert_array_equal(told.highest, [[5, 3]])
