"""Steps that make clients differ: the noise, the names and the counts are those asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from silos.dataset import Rows
from silos.errors import UserError

EQUAL = {"kind": "equal", "clients": 6}


def images(n: int, dtype: str = "uint8", **columns: np.ndarray) -> Rows:
    x = np.random.default_rng(0).integers(0, 256, (n, 4, 4)).astype(dtype)
    return Rows(x=x, y=np.arange(n) % 3, classes=["0", "1", "2"], **columns)


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


@settings(deadline=None)
@given(
    sd=st.floats(0, 300),
    mean=st.floats(-300, 300),
    clip=st.booleans(),
    dtype=st.sampled_from(["uint8", "float32"]),
    seed=st.integers(0, 99),
)
def test_noise_has_the_mean_and_is_cut_off_only_where_it_is_clipped(make, sd, mean, clip, dtype, seed):
    """Against the same draws without a mean, of numbers, which nothing rounds."""
    rows = images(30, dtype)
    plain = Rows(x=rows.x.astype(np.float32), y=rows.y, classes=rows.classes)
    step = {"kind": "noise", "sd": sd}
    noisy = make(rows, EQUAL, step | {"mean": mean, "clip": clip}, test=0.3, seed=seed).clients
    for one, other in zip(noisy, make(plain, EQUAL, step, test=0.3, seed=seed).clients, strict=True):
        wanted = other.x + mean
        if dtype == "float32":
            np.testing.assert_allclose(one.x, wanted, atol=1e-3)
        elif clip:
            assert (np.abs(one.x - wanted.clip(0, 255)) <= 0.501).all()
        else:
            np.testing.assert_allclose(one.x, wanted / 255, atol=1e-5)
        assert one.x.dtype == ("uint8" if clip and dtype == "uint8" else "float32")
        assert one.domain == f"noise{sd:g}{f'{mean:+g}' if mean else ''}"


def test_pixels_without_clipping_and_noise_are_the_numbers_that_clients_train_on(make):
    x = np.arange(256, dtype=np.uint8).reshape(16, 4, 4)
    rows = Rows(x=x, y=np.arange(16) % 3, classes=["0", "1", "2"])
    deal = {"kind": "equal", "clients": 2}
    split = {"test": 0.25, "test_rows": "common"}
    for step in ({"sd": 0, "clip": False}, {"sd": 0, "clip": False, "common_rows": True}):
        made, plain = make(rows, deal, {"kind": "noise", **step}, **split), make(rows, deal, **split)
        for one, other in zip([*made.clients, made.common], [*plain.clients, plain.common], strict=True):
            assert one.x.dtype == np.float32
            np.testing.assert_array_equal(one.x, np.divide(other.x, np.float32(255), dtype=np.float32))


@pytest.mark.parametrize("clip", [True, False])
def test_common_rows_are_noisy_where_that_is_asked_for_and_clean_elsewhere(make, clip):
    x = np.full((900, 5, 5), 100, np.uint8)
    rows = Rows(x=x, y=np.arange(900) % 3, classes=["0", "1", "2"])
    scale = 1 if clip else 255
    split = {"test": 0.4, "validation": 0.1, "test_rows": "common", "validation_rows": "common"}
    for asked in (True, False):
        step = {"kind": "noise", "sd": 20, "mean": 10, "clip": clip, "common_rows": asked}
        made = make(rows, EQUAL, step, **split)
        assert {client.domain for client in made.clients} == {"noise20+10"}
        for split_name in ("test", "validation"):
            error = made.common.x[made.common.split == split_name].astype(float) * scale - 100
            assert error.mean() == pytest.approx(10 * asked, abs=1.5)
            assert error.std() == pytest.approx(20 * asked, abs=1.0)


def test_common_rows_have_noise_of_their_own_also_beside_a_client_of_their_name(make):
    client = np.repeat(["common", "rows", "common rows"], 20)
    rows = Rows(x=np.zeros((60, 9), np.float32), y=np.zeros(60, np.int64), classes=["0"], client=client)
    step = {"kind": "noise", "sd": 1, "common_rows": True}
    made = make(rows, {"kind": "column", "column": "client"}, step, test=0.5, test_rows="common")
    values = np.concatenate([one.x.ravel() for one in (*made.clients, made.common)])
    assert len(np.unique(values)) == len(values)


def test_noise_leaves_missing_values_of_common_rows_alone(make):
    missing = np.arange(80).reshape(40, 2) % 3 == 0
    rows = Rows(x=np.zeros((40, 2), np.float32), y=np.zeros(40, np.int64), classes=["0"], missing=missing)
    step = {"kind": "noise", "sd": 1, "mean": 5, "common_rows": True}
    made = make(rows, EQUAL, step, test=0.5, test_rows="common")
    for one in (*made.clients, made.common):
        np.testing.assert_array_equal(one.x == 0, one.missing)


def test_noise_on_pixels_that_are_255ths_by_then_is_refused_and_on_a_table_it_is_not(make):
    """Its sd is of 255: of numbers from 0 to 1 it would leave nothing but noise."""
    first, second = {"kind": "noise", "sd": 20, "clip": False}, {"kind": "noise", "sd": 10, "clip": False}
    pixels = Rows(np.full((12, 4, 4), 128, np.uint8), np.arange(12) % 2, ["0", "1"])
    with pytest.raises(
        UserError,
        match=r"data\.scheme\[2\] \(`noise`\): got this step after noise with clip: false, expected it before",
    ):
        make(pixels, EQUAL, first, second)
    assert make(pixels, EQUAL, first | {"clip": True}, second).clients[0].x.dtype == np.float32
    table = Rows(np.zeros((12, 4), np.float32), np.arange(12) % 2, ["0", "1"])
    assert make(table, EQUAL, first, second).clients[0].x.std() > 5


def test_noisy_common_rows_that_are_not_there_or_would_have_several_laws_are_a_sentence(make):
    step = {"kind": "noise", "sd": [1, 2], "common_rows": True}
    with pytest.raises(ValidationError, match="Value error, sd: got 2 values with common_rows, expected one, since"):
        make(images(12), EQUAL, step, test=0.5, test_rows="common")
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`noise`\): common_rows: got no common rows, expected"):
        make(images(12), EQUAL, step | {"sd": 1}, test=0.5)


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
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`permute_labels`\): clusters: got 3, expected fewer"):
        make(numbered(12, 2), EQUAL, {"kind": "permute_labels", "clusters": 3})
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`permute_labels`\): got a source of 1 class, expected"):
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
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`merge_labels`\): got a different label map for each"):
        make(numbered(12), EQUAL, {"kind": "merge_labels", "into": into}, test=0.2, test_rows="common")


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "merge_labels", "into": {"pet": ["cat"]}},
        {"kind": "imbalance", "classes": ["cat"], "ratio": 2},
    ],
)
def test_a_class_that_does_not_exist_is_named(numbered, make, step):
    with pytest.raises(UserError, match="got the class 'cat', expected one of 0, 1, 2"):
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
    notes = tuple(note for note in made.notes if not note.startswith("no training row has the class"))
    assert notes == ((f"The scheme leaves out {lost} rows of the source.",) if lost else ())


def test_small_clients_lose_no_more_than_the_ratio_on_average(numbered, make):
    rows = numbered(6000, 2)
    made = make(rows, {"kind": "equal", "clients": 1500}, {"kind": "imbalance", "classes": ["1"], "ratio": 5})
    rare = sum(int((client.y == 1).sum()) for client in made.clients)
    assert rare == pytest.approx(3000 / 5, abs=100)
    assert all(len(client.y) for client in made.clients)


def test_more_permutations_than_clients_is_a_sentence(numbered, make):
    with pytest.raises(UserError, match=r"data\.scheme\[1\] \(`permute_labels`\): got 10000000 clusters for 6"):
        make(numbered(12, 10), EQUAL, {"kind": "permute_labels", "clusters": 10**7})
