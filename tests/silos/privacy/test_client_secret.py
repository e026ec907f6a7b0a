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

from silos.errors import UserError
from silos.privacy.secret import Secret
from silos.raw_cells import MOST_TOKEN, hash_numbers, join_cells

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


def test_it_prints_no_byte_of_itself(tmp_path):
    made = Secret.open(Path(tmp_path / "secret"))
    key = (tmp_path / "secret").read_bytes()
    for text in (repr(made), str(made), made.seal(b"x")):
        assert repr(key)[2:-1] not in text
        assert key.hex() not in text


def test_cells_have_equal_hashes_if_they_are_equal_and_other_ones_under_another_secret():
    cells = hash_numbers(np.random.default_rng(0).normal(size=(5000, 2)).round(3))
    cells[:7] = 0
    found = secret.cell_hashes(cells)
    assert found.dtype == np.uint32
    assert found.max() <= MOST_TOKEN
    assert not found[:7].any(), "an empty cell stays empty"
    assert len(np.unique(np.stack([cells.ravel(), found.ravel()]), axis=1).T) == len(np.unique(cells))
    assert len(np.unique(found)) == len(np.unique(cells))
    assert not (other.cell_hashes(cells) == found)[7:].any()


@given(st.lists(st.sampled_from([0, 1, 2.5, -3, float("nan")]), max_size=30), st.integers(1, 2))
def test_rows_have_one_hash_exactly_where_their_numbers_are_the_same(numbers, width):
    x = np.array(numbers[: len(numbers) // width * width]).reshape(-1, width)
    hashes = join_cells(hash_numbers(x))
    np.testing.assert_array_equal(
        hashes[:, None] == hashes, (np.nan_to_num(x, nan=9)[:, None] == np.nan_to_num(x, nan=9)).all(-1)
    )
    np.testing.assert_array_equal(join_cells(hash_numbers(-0.0 + x.astype(np.float32))), hashes)
