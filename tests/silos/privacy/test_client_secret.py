"""A client's secret is made once, is nobody else's to read, and all that follows from it is its own."""

import hashlib
import hmac
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from silos.errors import UserError
from silos.privacy.differencing import MOST_TOKEN
from silos.privacy.secret import Secret

KEY = bytes(range(32))
secret, other = Secret(KEY), Secret(KEY[::-1])


def test_it_is_32_bytes_for_the_owners_eyes_and_stays_the_same(tmp_path):
    before = os.umask(0)
    try:
        made = Secret.open(tmp_path / "secret")
    finally:
        os.umask(before)
    status = (tmp_path / "secret").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o600, 32)
    assert Secret.open(tmp_path / "secret") == made
    assert Secret.open(tmp_path / "other") != made


def test_a_damaged_one_is_named_and_left_as_it_is(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    with pytest.raises(UserError, match=r"/secret, a client's secret, has 5 bytes instead of 32. Restore"):
        Secret.open(path)
    assert path.read_bytes() == b"short"


def test_a_generator_is_philox_with_the_hmac_of_its_names_for_a_key():
    key = hmac.new(KEY, json.dumps(["noise", "v1", "counts"]).encode(), hashlib.sha256).digest()[:16]
    expected = np.random.Generator(np.random.Philox(key=np.frombuffer(key, "<u8")))
    np.testing.assert_array_equal(secret.generator("v1", "counts").normal(size=99), expected.normal(size=99))


def test_generators_of_other_names_or_another_secret_have_nothing_in_common():
    names = [
        ("v1", "q", "a"),
        ("v1", "q", "b"),
        ("v1", "qa", ""),
        ("v1q", "a"),
        ("v1", "q"),
        ("q", "v1", "a"),
        ("", "v1", "q", "a"),
    ]
    draws = np.array([made.generator(*name).normal(size=20_000) for made in (secret, other) for name in names])
    assert np.abs(np.corrcoef(draws) - np.eye(len(draws))).max() < 4.5 / np.sqrt(20_000)


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(0, 30), st.integers(1, 2)), elements=st.sampled_from([0, 1, 2.5]))
)
def test_rows_have_one_hash_exactly_where_their_numbers_are_the_same(x):
    hashes = secret.row_hashes(x, "oak")
    assert (hashes.dtype, hashes.shape) == (np.uint64, (len(x),))
    np.testing.assert_array_equal(hashes[:, None] == hashes, (x[:, None] == x).all(-1))


def test_rows_are_the_same_however_their_numbers_are_stored():
    x = np.random.default_rng(0).integers(0, 200, (3000, 2, 2))
    hashes = secret.row_hashes(x, "oak")
    for stored in (x.astype(np.uint8), x.astype(np.float32), x.astype(np.float64), np.asfortranarray(x), x[:1700]):
        np.testing.assert_array_equal(secret.row_hashes(stored, "oak"), hashes[: len(stored)])
    missing = np.array([[np.nan, 0.0], [-np.nan, -0.0], [np.float32("nan"), 0.0]])
    assert len(np.unique(secret.row_hashes(missing, "oak"))) == 1


def test_a_hash_says_nothing_to_who_has_not_the_secret_and_depends_on_the_label():
    x = np.arange(500.0)[:, None]
    several = [secret.row_hashes(x, "oak"), other.row_hashes(x, "oak"), secret.row_hashes(x, "yew")]
    assert len(np.unique(several)) == 1500


def test_it_prints_no_byte_of_itself(tmp_path):
    made = Secret.open(Path(tmp_path / "secret"))
    key = (tmp_path / "secret").read_bytes()
    for text in (repr(made), str(made), made.seal(b"x")):
        assert repr(key)[2:-1] not in text
        assert key.hex() not in text


def test_values_have_equal_hashes_if_they_are_equal_and_else_others_up_to_the_largest_token():
    x = np.random.default_rng(0).normal(size=(5000, 2)).round(3)
    found = secret.value_hashes(x)
    assert found.dtype == np.uint32
    assert found.max() <= MOST_TOKEN
    values, index = np.unique(x, return_inverse=True)
    assert len(np.unique(found)) == len(values)
    assert all(len(np.unique(found.ravel()[index.ravel() == at])) == 1 for at in range(0, len(values), 50))
    missing = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert len(np.unique(secret.value_hashes(missing[:, None]))) == 1
    assert len(np.unique(secret.value_hashes(np.array([[0.0], [-0.0]])))) == 1
    assert not (other.value_hashes(x) == found).all(1).any()
