"""Noise on counts: how far one row moves them, and the noise itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from models.diagnosis.client_summaries.gaussian_mechanism import add_noise, counts_sensitivity


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**32))
def test_no_row_moves_what_is_told_by_more_than_its_sensitivity(features, classes, seed):
    generator = np.random.default_rng(seed)
    x = generator.choice([0.0, 1.0, generator.random()], (12, features))
    y = generator.integers(0, classes, 12)
    without = int(generator.integers(12))
    kept = np.arange(12) != without
    moved = joint_counts(x, y) - joint_counts(x[kept], y[kept])
    assert np.linalg.norm(moved) == pytest.approx(counts_sensitivity(features))


@pytest.mark.parametrize("spread", [0.3, 2.9, 11.0])
def test_noise_is_a_normal_of_its_sigma_about_the_truth_rounded(spread):
    noise = (add_noise(np.full((5, 8, 500), 40), spread, np.random.default_rng(0)) - 40).ravel()
    assert noise.dtype == np.int64
    assert abs(noise.mean()) < 4.5 * noise.std() / math.sqrt(noise.size)
    for cell in (-1, 0, 1, 2):  # the share of each whole number is its interval's
        share = float(stats.norm(0, spread).cdf(cell + 0.5) - stats.norm(0, spread).cdf(cell - 0.5))
        assert abs((noise == cell).mean() - share) < 4.5 * math.sqrt(share * (1 - share) / noise.size)


def test_noise_of_one_cell_says_nothing_of_anothers():
    told = add_noise(np.zeros((4, 20_000)), 10.0, np.random.default_rng(0))
    assert np.abs(np.corrcoef(told) - np.eye(4)).max() < 4.5 / math.sqrt(20_000)


def test_noise_without_a_deviation_is_refused():
    with pytest.raises(ValueError, match=r"sigma: got 0\.0, expected a number above 0"):
        add_noise(np.zeros(2), 0.0, np.random.default_rng(0))


def joint_counts(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(features, 8 bins, 4 classes) of values in [0, 1], counted one by one."""
    counts = np.zeros((x.shape[1], 8, 4))
    for row, label in zip(x, y, strict=True):
        for feature, value in enumerate(row):
            counts[feature, min(int(value * 8), 7), label] += 1
    return counts
