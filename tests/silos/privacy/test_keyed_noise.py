"""Normal numbers from a key: their law, and that another key, place or call gives others."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from silos.privacy.keyed_noise import _CHUNK, KeyedNormals

KEY = bytes(range(32))


def test_their_law_is_normal_also_in_the_tails():
    drawn = KeyedNormals(KEY).draw(2_000_000).astype(np.float64)
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    for deviations in (2, 3, 4):
        expected = 2 * stats.norm.sf(deviations) * len(drawn)
        assert abs((np.abs(drawn) > deviations).sum() - expected) < 4.5 * np.sqrt(expected)
    for lag in (1, 2, _CHUNK):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 4 / np.sqrt(len(drawn))


def test_they_are_box_and_mullers_transform_of_the_key_stream():
    bits = np.frombuffer(Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(80)), "<u4")
    radius = np.sqrt(-2 * np.log((bits[:10].astype(np.float64) + 0.5) / 2**32))
    angle = 2 * np.pi * bits[10:].astype(np.float64) / 2**32
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(KeyedNormals(KEY).draw(20), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 7, 2 * _CHUNK + 3])
def test_the_same_key_gives_the_same_numbers_and_later_calls_others(count):
    first, again = KeyedNormals(KEY), KeyedNormals(KEY)
    one, two = first.draw(count), first.draw(count)
    assert one.dtype == np.float32
    assert len(one) == count
    assert np.array_equal(one, again.draw(count))
    assert np.array_equal(two, again.draw(count))
    assert count < 2 or not np.array_equal(one, two)


def test_another_key_gives_unrelated_numbers():
    one, other = KeyedNormals(KEY).draw(100_000), KeyedNormals(bytes(32)).draw(100_000)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.015


def test_all_numbers_are_finite_where_the_key_stream_is_extreme():
    class Stream:
        def update(self, zeros):
            return bytes(len(zeros) // 2) + b"\xff" * (len(zeros) // 2)

    for order in (slice(None), slice(None, None, -1)):
        drawn = KeyedNormals(KEY)
        drawn._stream = type("Turned", (), {"update": lambda _, zeros, order=order: Stream().update(zeros)[order]})()
        numbers = drawn.draw(1000)
        assert np.isfinite(numbers).all()
        assert np.abs(numbers).max() < 6.8
