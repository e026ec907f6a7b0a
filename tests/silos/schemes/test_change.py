"""Steps that make clients differ: the angle, the noise, the names and the counts are those asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from silos.errors import UserError
from silos.rows import Rows
from silos.schemes.rotation import rotate

EQUAL = {"kind": "equal", "clients": 6}


def images(n: int, dtype: str = "uint8", **columns: np.ndarray) -> Rows:
    x = np.random.default_rng(0).integers(0, 256, (n, 4, 4)).astype(dtype)
    return Rows(x=x, y=np.arange(n) % 3, classes=["0", "1", "2"], **columns)


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


def test_within_domains_two_steps_are_crossed(make):
    steps = [
        {"kind": "equal", "clients": 12},
        {"kind": "rotation", "angles": [0, 90, 180]},
        {"kind": "permute_labels", "clusters": 2, "within": "domain"},
    ]
    domains = [client.domain for client in make(images(24), *steps).clients]
    assert {domain: domains.count(domain) for domain in domains} == {
        f"rot{angle}-perm{cluster}": 2 for angle in (0, 90, 180) for cluster in (0, 1)
    }
    steps[2] = {"kind": "noise", "sd": [1, 2, 3, 4, 5], "within": "domain"}
    with pytest.raises(UserError, match="5 sd for 4 clients of the domain 'rot0'"):
        make(images(24), *steps)


def test_rotation_of_what_is_no_image_is_a_sentence(numbered, make):
    with pytest.raises(UserError, match=r"data.scheme\[1\].*turns images.*\(1,\)"):
        make(numbered(6), EQUAL, {"kind": "rotation", "angles": [1]})


def test_more_angles_than_clients_is_a_sentence(make):
    with pytest.raises(UserError, match="3 angles for 2 clients"):
        make(images(4), {"kind": "equal", "clients": 2}, {"kind": "rotation", "angles": [0, 1, 2]})


# --- noise ---


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_noise_is_gaussian_with_the_sd_of_the_clients_block(make, dtype):
    rows = Rows(x=np.full((600, 5, 5), 128, dtype), y=np.arange(600) % 3, classes=["0", "1", "2"])
    noisy = make(rows, EQUAL, {"kind": "noise", "sd": [0, 5, 10]}, test=0.5).clients
    assert [c.domain for c in noisy] == [f"noise{sd}" for sd in (0, 0, 5, 5, 10, 10)]
    for client, sd in zip(noisy, (0, 0, 5, 5, 10, 10), strict=True):
        assert client.x.dtype == dtype
        error = client.x.astype(float).ravel() - 128
        if sd == 0:
            assert not error.any()
            continue
        if dtype == "float32":
            assert stats.kstest(error / sd, "norm").pvalue > 1e-4
        assert abs(error.mean()) < 4 * sd / np.sqrt(error.size)
        assert error.std() == pytest.approx(np.sqrt(sd**2 + (1 / 12 if dtype == "uint8" else 0)), rel=0.06)
        test = error.reshape(-1, 25)[client.split == "test"]
        assert test.std() == pytest.approx(sd, rel=0.1)  # test rows are of the client's own law


def test_noisy_pixels_stay_pixels_and_clients_have_noise_of_their_own(make):
    rows = Rows(x=np.full((60, 8, 8), 255, np.uint8), y=np.zeros(60, np.int64), classes=["0"])
    noisy = make(rows, EQUAL, {"kind": "noise", "sd": 40}).clients
    assert all(client.x.min() < 200 and client.x.max() == 255 for client in noisy)
    assert (noisy[0].x != noisy[1].x).any()


# --- labels ---


@settings(deadline=None)
@given(classes=st.integers(4, 12), clusters=st.integers(2, 5), seed=st.integers(0, 999))
def test_each_cluster_has_a_permutation_of_its_own_and_the_first_the_identity(numbered, make, classes, clusters, seed):
    rows = numbered(120, classes)
    made = make(rows, EQUAL, {"kind": "permute_labels", "clusters": clusters}, seed=seed, test=0.3)
    found = [{} for _ in range(clusters)]
    for position, client in enumerate(made.clients):
        cluster = position * clusters // 6
        assert client.domain == f"perm{cluster}"
        for old, new in zip(rows.y[client.x[:, 0].astype(int)].tolist(), client.y.tolist(), strict=True):
            assert found[cluster].setdefault(old, new) == new  # in training and test rows
    for cluster, permutation in enumerate(found):
        assert len(set(permutation.values())) == len(permutation)
        assert all((old == new) == (cluster == 0) for old, new in permutation.items())
    assert made.classes == rows.classes


def test_permutations_that_cannot_differ_are_a_sentence(numbered, make):
    with pytest.raises(UserError, match="found no 2 different permutations that move all of 2 classes"):
        make(numbered(12, 2), EQUAL, {"kind": "permute_labels", "clusters": 3})
    with pytest.raises(UserError, match="needs two classes"):
        make(numbered(12, 1), EQUAL, {"kind": "permute_labels", "clusters": 2})


def test_merged_classes_take_the_new_name_at_the_first_old_ones_place(numbered, make):
    made = make(
        numbered(60, 4),
        EQUAL,
        {"kind": "merge_labels", "into": {"odd": [1, 3], "0": [0]}},
        test=0.2,
        test_rows="common",
    )
    assert made.classes == ["0", "odd", "2"]
    names = ["0", "odd", "2", "odd"]
    for rows in (*made.clients, made.common):
        assert [made.classes[code] for code in rows.y] == [names[int(number) % 4] for number in rows.x[:, 0]]


def test_blocks_may_merge_differently(numbered, make):
    into = [{}, {"low": ["0", "1"], "high": ["2"]}]
    made = make(numbered(12), EQUAL, {"kind": "merge_labels", "into": into})
    assert made.classes == ["0", "1", "2", "low", "high"]
    assert [client.domain for client in made.clients] == ["merge0"] * 3 + ["merge1"] * 3
    for client, names in zip(made.clients, [["0", "1", "2"]] * 3 + [["low", "low", "high"]] * 3, strict=True):
        assert [made.classes[code] for code in client.y] == [names[int(number) % 3] for number in client.x[:, 0]]
    with pytest.raises(UserError, match="common rows would have no label of their own"):
        make(numbered(12), EQUAL, {"kind": "merge_labels", "into": into}, test=0.2, test_rows="common")


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "merge_labels", "into": {"pet": ["cat"]}},
        {"kind": "imbalance", "classes": ["cat"], "ratio": 2},
    ],
)
def test_a_class_that_does_not_exist_is_named(numbered, make, step):
    with pytest.raises(UserError, match=r"data.scheme\[1\].*'cat', and there is no such class; there are 0, 1, 2"):
        make(numbered(12), EQUAL, step)


# --- imbalance ---


@settings(deadline=None)
@given(ratio=st.floats(1, 30), n=st.integers(12, 300), seed=st.integers(0, 999))
def test_one_in_ratio_training_rows_of_the_named_classes_stays(numbered, make, ratio, n, seed):
    split = {"validation": 0.1, "test": 0.3, "seed": seed}
    before = make(numbered(n), EQUAL, **split).clients
    made = make(numbered(n), EQUAL, {"kind": "imbalance", "classes": ["1", "2"], "ratio": ratio}, **split)
    for one, other in zip(before, made.clients, strict=True):
        for name in ("validation", "test"):  # left as they are
            np.testing.assert_array_equal(one.x[one.split == name], other.x[other.split == name])
        for label in (0, 1, 2):
            was = int(((one.y == label) & (one.split == "train")).sum())
            now = int(((other.y == label) & (other.split == "train")).sum())
            if label == 0:
                assert now == was
            elif (other.split == "train").sum() > 1:
                assert np.floor(was / ratio) <= now <= np.floor(was / ratio) + 1
    lost = sum(len(c.y) for c in before) - sum(len(c.y) for c in made.clients)
    assert made.left_out == lost
    assert made.notes == ((f"The scheme leaves out {lost} rows of the source.",) if lost else ())


def test_small_clients_lose_no_more_than_the_ratio_on_average(numbered, make):
    rows = numbered(6000, 2)
    made = make(rows, {"kind": "equal", "clients": 1500}, {"kind": "imbalance", "classes": ["1"], "ratio": 5})
    rare = sum(int((client.y == 1).sum()) for client in made.clients)
    assert rare == pytest.approx(3000 / 5, abs=100)
    assert all(len(client.y) for client in made.clients)


def test_more_permutations_than_clients_is_a_sentence(numbered, make):
    with pytest.raises(UserError, match="has 10000000 clusters for 6 clients; give at most one a client"):
        make(numbered(12, 10), EQUAL, {"kind": "permute_labels", "clusters": 10**7})
