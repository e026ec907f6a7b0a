"""Synthetic clients have the laws of the paper, and a change of their number leaves the laws alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from silos.errors import UserError
from silos.sources.source_params import Synthetic
from silos.sources.synthetic import coefficients, synthetic


def source(task: str = "linear", **keys: object) -> Synthetic:
    return Synthetic.model_validate({"kind": "synthetic", "task": task, "clients_per_cluster": 4, **keys})


def test_columns_tell_cluster_client_and_split():
    rows = synthetic(source(clusters=2, rows=3, test_rows=2, features=5), 0)
    assert rows.x.shape == (40, 5)
    assert rows.x.dtype == np.float32
    assert rows.client.tolist()[:11] == ["c00"] * 5 + ["c01"] * 5 + ["c02"]
    assert rows.domain.tolist() == ["cluster0"] * 20 + ["cluster1"] * 20
    assert rows.split.tolist()[:6] == ["train", "train", "train", "test", "test", "train"]
    assert synthetic(source(test_rows=0), 0).split is None


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), noise=st.sampled_from([0.0, 0.1, 2.0]))
def test_linear_targets_are_the_cluster_law_with_gaussian_noise(seed, noise):
    given = source(clusters=3, rows=60, noise=noise)
    rows = synthetic(given, seed)
    assert (rows.task, rows.classes, rows.y.dtype) == ("regression", [], np.float32)
    error = np.concatenate(
        [
            rows.y[rows.domain == f"cluster{k}"] - rows.x[rows.domain == f"cluster{k}"].astype(float) @ theta
            for k, theta in enumerate(coefficients(given, seed))
        ]
    )
    assert np.abs(error).max() < 6 * noise + 1e-4
    if noise:
        assert error.std() == pytest.approx(noise, rel=0.1)


def test_noise_does_not_depend_on_the_features():
    given = source(clusters=1, clients_per_cluster=200, rows=30, noise=3.0, features=4)
    rows = synthetic(given, 5)
    (theta,) = coefficients(given, 5)
    error = rows.y - rows.x.astype(float) @ theta
    assert stats.kstest(error / 3, "norm").pvalue > 1e-3
    firsts = np.stack([rows.x[rows.client == name].ravel()[:30] for name in np.unique(rows.client)])
    errors = np.stack([error[rows.client == name][:30] for name in np.unique(rows.client)])
    assert abs(np.corrcoef(firsts.ravel(), errors.ravel())[0, 1]) < 0.06  # of 6,000 pairs, sd 0.013


def test_logistic_targets_are_the_sign_and_nothing_else():
    given = source("logistic", clusters=2)
    rows = synthetic(given, 3)
    assert rows.classes == ["0", "1"]
    assert rows.y.dtype == np.int64
    for k, theta in enumerate(coefficients(given, 3)):
        mine = rows.domain == f"cluster{k}"
        np.testing.assert_array_equal(rows.y[mine], rows.x[mine].astype(float) @ theta > 0)
    with pytest.raises(ValidationError, match="Value error, noise: got a value for the logistic task, expected it"):
        source("logistic", noise=0.2)


def test_features_are_standard_normal_and_coefficients_uniform():
    rows = synthetic(source(clusters=3, rows=500), 1)
    assert stats.kstest(rows.x.ravel(), "norm").pvalue > 1e-3
    thetas = np.concatenate([coefficients(source(clusters=8, features=10), seed).ravel() for seed in range(30)])
    assert stats.kstest(thetas, stats.uniform(-10, 20).cdf).pvalue > 1e-3


def test_one_model_for_three_clusters_has_the_published_error():
    """The global rmse of 14.8, sd 1.85 over draws of theta (conditional-statistics paper, K = 3)."""
    found = []
    for seed in range(60):
        thetas = coefficients(source(clusters=3, features=10), seed)
        found.append(np.sqrt(((thetas - thetas.mean(0)) ** 2).sum(1).mean()))
    assert np.mean(found) == pytest.approx(14.8, abs=4 * 1.85 / np.sqrt(60))


def test_more_rows_clients_or_clusters_leave_the_others_alone():
    few = synthetic(source(clusters=2, rows=5, test_rows=2), 4)
    more = synthetic(source(clusters=3, clients_per_cluster=6, rows=9, test_rows=7, noise=0.1), 4)
    np.testing.assert_array_equal(coefficients(source(clusters=2), 4), coefficients(source(clusters=3, rows=9), 4)[:2])
    for old, new in (("c00", "c00"), ("c03", "c03"), ("c04", "c06"), ("c07", "c09")):
        for split, count in (("train", 5), ("test", 2)):
            before = (few.client == old) & (few.split == split)
            after = (more.client == new) & (more.split == split)
            np.testing.assert_array_equal(few.x[before], more.x[after][:count])
            np.testing.assert_array_equal(few.y[before], more.y[after][:count])
    assert not np.array_equal(coefficients(source(), 4), coefficients(source(), 5))


def test_rows_that_no_memory_holds_are_told_before_any_is_drawn():
    with pytest.raises(
        UserError, match=r"data\.source: got 3 clusters \* 4 clients \* \(1,000,000,000 \+ 1,000,000,000\) rows \*"
    ):
        synthetic(source(rows=10**9, test_rows=10**9, features=10**7), 0)
