"""Normal numbers from a key: their law, and that another key, place or call gives others."""

import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from models.training.keyed_noise import _CHUNK, KeyedNormals

KEY = bytes(range(32))


def drawn_by(normals, count):
    numbers = torch.empty(count)
    normals.fill(numbers)
    return numbers.numpy()


def test_their_law_is_normal_also_in_the_tails():
    drawn = drawn_by(KeyedNormals(KEY), 2_000_000).astype(np.float64)
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    for deviations in (2, 3, 4):
        expected = 2 * stats.norm.sf(deviations) * len(drawn)
        assert abs((np.abs(drawn) > deviations).sum() - expected) < 4.5 * np.sqrt(expected)
    for lag in (1, 2, _CHUNK):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 4 / np.sqrt(len(drawn))


def test_they_are_box_and_mullers_transform_of_the_key_stream():
    stream = Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(120))
    bits = np.frombuffer(stream[:80], "<i8").astype(np.float64)
    radius = np.sqrt(-2 * np.log((np.abs(bits) + 0.5) / 2.0**63))
    angle = np.pi * np.frombuffer(stream[80:], "<i4").astype(np.float64) / 2.0**31
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(drawn_by(KeyedNormals(KEY), 20), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("size", "grid", "farthest"), [(4, 2.0**-7, 8.0), (8, 2.0**-17, 7.0)])
def test_radii_are_closer_together_than_the_grid_that_noise_is_rounded_to_also_far_out(
    size, grid, farthest, monkeypatch
):
    """Else some noisy sums are possible for one sum and impossible for another, whatever epsilon says."""
    for radius in (1.0, 5.5, 6.5, farthest):
        uniform = math.exp(-(radius**2) / 2)
        bits = round(uniform * 2**63)
        words = b"".join((bits + step).to_bytes(8, "little", signed=True) for step in (0, 1)) + bytes(2 * size)
        normals = KeyedNormals(KEY)
        monkeypatch.setattr(normals, "_stream", type("Fixed", (), {"update": lambda *_, words=words: words}))
        (first, second), _ = (part.tolist() for part in normals._pairs(2, size))
        assert first == pytest.approx(radius, rel=1e-3)
        assert abs(first - second) < grid / 1000


@pytest.mark.parametrize("count", [0, 1, 7, 2 * _CHUNK + 3])
def test_the_same_key_gives_the_same_numbers_and_later_calls_others(count):
    first, again = KeyedNormals(KEY), KeyedNormals(KEY)
    one, two = drawn_by(first, count), drawn_by(first, count)
    assert len(one) == count
    assert np.array_equal(one, drawn_by(again, count))
    assert np.array_equal(two, drawn_by(again, count))
    assert count < 2 or not np.array_equal(one, two)


def test_another_key_gives_unrelated_numbers():
    one, other = drawn_by(KeyedNormals(KEY), 100_000), drawn_by(KeyedNormals(bytes(32)), 100_000)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.015


def test_all_numbers_are_finite_where_the_key_stream_is_extreme():
    class Stream:
        def update(self, zeros):
            return bytes(len(zeros) // 2) + b"\xff" * (len(zeros) // 2)

    for order in (slice(None), slice(None, None, -1)):
        drawn = KeyedNormals(KEY)
        drawn._stream = type("Turned", (), {"update": lambda _, zeros, order=order: Stream().update(zeros)[order]})()
        numbers = drawn_by(drawn, 1000)
        assert np.isfinite(numbers).all()
        assert np.abs(numbers).max() < 9.5


def test_float64_numbers_are_normal_and_finer_than_float32():
    numbers = torch.empty(40_001, dtype=torch.float64)
    KeyedNormals(KEY).fill(numbers)
    assert stats.kstest(numbers.numpy(), "norm").pvalue > 1e-3
    assert bool((numbers.float().double() != numbers).any())
