"""Steps that move pixels: the angles are those asked for, and a client's order of pixels is one for all of its rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from silos.dataset import Rows
from silos.errors import UserError
from silos.partitioners.perturbations import rotate

EQUAL = {"kind": "equal", "clients": 6}


def images(n: int, **columns: np.ndarray) -> Rows:
    x = np.random.default_rng(0).integers(0, 256, (n, 4, 4)).astype(np.uint8)
    return Rows(x=x, y=np.arange(n) % 3, classes=["0", "1", "2"], **columns)


def all_different(
    n: int, height: int, width: int, channels: int = 0, dtype: str = "uint8", **columns: np.ndarray
) -> Rows:
    """Images of which no two pixels of one are alike, so that an order of pixels can be read off one row."""
    size = height * width * max(channels, 1)
    shape = (n, height, width, channels) if channels else (n, height, width)
    x = np.stack([np.random.default_rng(row).permutation(size) for row in range(n)]).reshape(shape).astype(dtype)
    return Rows(x=x, y=np.arange(n) % 3, classes=["0", "1", "2"], **columns)


def order_of(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Where each pixel of a row came from, found value by value."""
    before, after = (row.reshape(row.shape[0] * row.shape[1], -1)[:, 0].tolist() for row in (before, after))
    return np.array([before.index(value) for value in after])


# --- rotation ---


@settings(deadline=None)
@given(
    clients=st.integers(1, 9),
    angles=st.lists(st.floats(-360, 360), min_size=1, max_size=9),
    centre=st.sampled_from(["middle", "opencv"]),
)
def test_contiguous_blocks_of_clients_are_turned_by_one_angle_each(make, clients, angles, centre):
    angles = angles[:clients]
    deal = {"kind": "equal", "clients": clients}
    plain = make(images(20), deal, test=0.3).clients
    turned = make(images(20), deal, {"kind": "rotation", "angles": angles, "centre": centre}, test=0.3).clients
    block = [i * len(angles) // clients for i in range(clients)]
    assert max(block.count(b) for b in block) - min(block.count(b) for b in block) <= 1
    of_client = [angles[b] for b in block]
    for before, after, angle in zip(plain, turned, of_client, strict=True):
        np.testing.assert_array_equal(after.x, rotate(before.x, angle, centre))
        np.testing.assert_array_equal(after.y, before.y)
        np.testing.assert_array_equal(after.split, before.split)
        assert after.domain == f"rot{angle + 0.0:g}"


def test_the_default_angles_make_three_domains_of_three_clients(make):
    made = make(images(45), {"kind": "equal", "clients": 9}, {"kind": "rotation", "angles": [0, -50, 120]})
    assert [c.domain for c in made.clients] == ["rot0"] * 3 + ["rot-50"] * 3 + ["rot120"] * 3


def test_rotation_joins_its_name_to_a_domain_of_the_source(make):
    rows = images(2, client=np.array(["a", "b"]), domain=np.array(["photo", "sketch"]))
    turned = make(rows, {"kind": "column", "column": "client"}, {"kind": "rotation", "angles": [22.5, -0.0]})
    assert [c.domain for c in turned.clients] == ["photo-rot22.5", "sketch-rot0"]


def test_rotation_of_what_is_no_image_is_a_sentence(numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`rotation`\): got rows of shape \(1,\), expected"):
        make(numbered(6), EQUAL, {"kind": "rotation", "angles": [1]})


def test_more_angles_than_clients_is_a_sentence(make):
    with pytest.raises(UserError, match="3 angles for 2 clients"):
        make(images(4), {"kind": "equal", "clients": 2}, {"kind": "rotation", "angles": [0, 1, 2]})


# --- permuted pixels ---


@settings(deadline=None)
@given(
    clients=st.integers(1, 7),
    clusters=st.integers(1, 7) | st.none(),
    channels=st.sampled_from([0, 1, 3]),
    dtype=st.sampled_from(["uint8", "float32"]),
    seed=st.integers(0, 999),
)
def test_every_row_of_a_client_has_the_order_of_pixels_of_its_domain(make, clients, clusters, channels, dtype, seed):
    clusters = clusters and min(clusters, clients)
    rows, deal = all_different(40, 5, 4, channels, dtype), {"kind": "equal", "clients": clients}
    split = {"validation": 0.2, "test": 0.3, "seed": seed}
    plain = make(rows, deal, **split).clients
    moved = make(rows, deal, {"kind": "permute_pixels", "clusters": clusters}, **split).clients
    orders = {}
    for at, (before, after) in enumerate(zip(plain, moved, strict=True)):
        assert after.domain == f"pixels{at * (clusters or clients) // clients}"
        np.testing.assert_array_equal(after.y, before.y)
        np.testing.assert_array_equal(after.split, before.split)
        assert (after.x.dtype, after.x.shape) == (before.x.dtype, before.x.shape)
        for old, new in zip(before.x, after.x, strict=True):  # training, validation and test rows
            order = orders.setdefault(after.domain, order_of(old, new))
            wanted = np.stack([old[pixel // 4, pixel % 4] for pixel in order])  # a pixel's channels stay together
            np.testing.assert_array_equal(new.reshape(wanted.shape), wanted)
    assert all(sorted(order) == list(range(20)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == len(orders) == (clusters or clients)


def test_permuted_pixels_are_drawn_anew_for_another_seed_and_hang_on_nothing_else(make):
    def orders(clients: int, seed: int) -> list[tuple[int, ...]]:
        rows, deal = all_different(30, 4, 4), {"kind": "equal", "clients": clients}
        plain = make(rows, deal, seed=seed).clients
        moved = make(rows, deal, {"kind": "permute_pixels"}, seed=seed).clients
        return [tuple(order_of(a.x[0], b.x[0])) for a, b in zip(plain, moved, strict=True)]

    assert orders(3, 0) == orders(6, 0)[:3]
    assert not set(orders(6, 0)) & set(orders(6, 1))


def test_permuted_pixels_of_a_domain_join_its_name_and_leave_common_rows(make):
    rows = all_different(40, 4, 4, domain=np.repeat(["ink", "pen"], 20))
    steps = [{"kind": "equal", "clients": 8, "within": "domain"}, {"kind": "permute_pixels", "clusters": 2}]
    steps[1]["within"] = "domain"
    split = {"test": 0.2, "test_rows": "common"}
    made, plain = make(rows, *steps, **split), make(rows, steps[0], **split)
    domains = [client.domain for client in made.clients]
    assert domains == [f"{ink}-pixels{block}" for ink in ("ink", "pen") for block in (0, 0, 1, 1)]
    np.testing.assert_array_equal(made.common.x, plain.common.x)


def test_all_orders_of_a_few_pixels_are_found_and_no_more(make):
    rows, deal = all_different(24, 1, 3), {"kind": "equal", "clients": 7}
    made = make(rows, deal, {"kind": "permute_pixels", "clusters": 6})
    plain = make(rows, deal)
    orders = {tuple(order_of(a.x[0], b.x[0])) for a, b in zip(plain.clients, made.clients, strict=True)}
    assert len(orders) == 6
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`permute_pixels`\): clusters: got 7, expected fewer"):
        make(rows, deal, {"kind": "permute_pixels"})


def test_what_has_no_pixels_to_permute_is_a_sentence(numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`permute_pixels`\): got rows of shape \(1,\)"):
        make(numbered(6), EQUAL, {"kind": "permute_pixels"})
    with pytest.raises(UserError, match="10000000 clusters for 6 clients"):
        make(images(12), EQUAL, {"kind": "permute_pixels", "clusters": 10**7})
    with pytest.raises(ValidationError, match="Value error, within: got it without clusters, expected both"):
        make(images(12), EQUAL, {"kind": "permute_pixels", "within": "domain"})
