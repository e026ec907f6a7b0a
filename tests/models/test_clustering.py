"""Overlaps of the rows that clients are right on: against a double loop, and their bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN

from models import clustering
from models.clustering import cluster_by_density, count_both_correct, elbow, overlaps

KINDS = ("dot", "equal", "jaccard")
cases = st.tuples(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32 - 1))


def drawn(case):
    """right (clients, rows) bool, some clients right nowhere or everywhere; and its bits."""
    clients, rows, seed = case
    rng = np.random.default_rng(seed)
    right = rng.random((clients, rows)) < rng.choice([0, 0.3, 0.8, 1], size=(clients, 1))
    return right, np.packbits(right, axis=1)


def by_hand(first, second, kind):
    rows, both = len(first), sum(bool(a and b) for a, b in zip(first, second, strict=True))
    if kind == "dot":
        return both / rows
    if kind == "equal":
        return sum(a == b for a, b in zip(first, second, strict=True)) / rows
    either = sum(bool(a or b) for a, b in zip(first, second, strict=True))
    return both / either if either else 0.0


@pytest.mark.parametrize("kind", KINDS)
@given(cases)
def test_all_three_are_those_of_a_double_loop(kind, case):
    right, bits = drawn(case)
    table = overlaps(bits, right.shape[1], kind)
    expected = [[by_hand(one, other, kind) for other in right] for one in right]
    np.testing.assert_allclose(table, expected, atol=1e-12)
    assert (table == table.T).all()


@given(cases)
def test_they_keep_to_their_bounds(case):
    right, bits = drawn(case)
    rows, share = right.shape[1], right.mean(1)
    dot, equal, jaccard = (overlaps(bits, rows, kind) for kind in KINDS)
    np.testing.assert_allclose(np.diag(dot), share)
    assert (np.diag(equal) == 1).all()
    assert (np.diag(jaccard) == (share > 0)).all()
    assert (dot <= np.minimum.outer(share, share) + 1e-12).all()
    assert (dot >= np.add.outer(share, share) - 1 - 1e-12).all()
    np.testing.assert_allclose(equal, [[(one == other).mean() for other in right] for one in right])


def test_those_who_are_right_nowhere_and_everywhere():
    bits = np.packbits(np.array([[0] * 9, [0] * 9, [1] * 9, [1] * 9], bool), axis=1)
    assert [overlaps(bits, 9, kind)[0, 1] for kind in KINDS] == [0, 1, 0]
    assert [overlaps(bits, 9, kind)[2, 3] for kind in KINDS] == [1, 1, 1]


def test_rows_are_counted_in_pieces(monkeypatch):
    right, bits = drawn((4, 333, 1))
    whole = count_both_correct(bits)
    monkeypatch.setattr(clustering, "_CHUNK_BYTES", 1)
    assert (count_both_correct(bits) == whole).all()
    assert (count_both_correct(bits[:2], bits[1:]) == whole[:2, 1:]).all()
    assert (whole == right.astype(int) @ right.T.astype(int)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_of_some_to_others_is_part_of_the_table(kind):
    _, bits = drawn((5, 70, 3))
    assert (overlaps(bits[:2], 70, kind, bits[2:]) == overlaps(bits, 70, kind)[:2, 2:]).all()


@pytest.mark.parametrize("kind", ["jaccard", "equal", "dot"])
def test_of_nobody_the_table_is_empty(kind):
    assert overlaps(np.zeros((0, 2), np.uint8), 9, kind).shape == (0, 0)


def test_without_rows_there_is_no_overlap():
    with pytest.raises(ValueError, match="correctness: got no rows, expected at least one"):
        overlaps(np.zeros((2, 0), np.uint8), 0, "dot")


@given(cases)
def test_equal_overlaps_are_equal_to_the_last_bit(case):
    """As a threshold sees them: 82 of 100 equal bits are 0.82, and pairs that are as alike have no gap between them."""
    right, bits = drawn(case)
    rows, tables = right.shape[1], [overlaps(bits, right.shape[1], kind) for kind in KINDS]
    for i, one in enumerate(right.astype(bool)):
        for j, other in enumerate(right.astype(bool)):
            both, either = int((one & other).sum()), int((one | other).sum())
            counted = (both / rows, int((one == other).sum()) / rows, both / either if either else 0.0)
            assert dict(zip(KINDS, counted, strict=True)) == dict(
                zip(("dot", "equal", "jaccard"), (t[i, j] for t in tables), strict=True)
            )


@given(st.integers(1, 25), st.sampled_from([0.5, 1.0, 1.7]), st.integers(0, 2**32 - 1))
def test_density_clusters_are_those_of_dbscan_with_each_lone_point_a_cluster(points, scale, seed):
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(points, 3)) + 4 * rng.integers(0, 3, (points, 1))
    found = cluster_by_density(drawn, scale)
    if points == 1:
        assert found == [[0]]
        return
    apart = np.linalg.norm(drawn[:, None] - drawn[None], axis=2) + np.diag(np.full(points, np.inf))
    radius = scale * elbow(apart.min(1)) * (1 + 1e-12)
    labels = DBSCAN(eps=radius, min_samples=2).fit_predict(drawn)
    expected = [np.flatnonzero(labels == label).tolist() for label in set(labels) - {-1}]
    assert found == sorted([*expected, *([index] for index in np.flatnonzero(labels == -1).tolist())])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 1.1, 1.2, 5], 1.2),
        ([5, 1.2, 1, 1.1], 1.2),
        ([2, 2], 2),
        ([1, 2, 3], 1),
        ([7], 7),
        ([0.1, 0.12, 0.15, 1.1, 1.2, 1.25, 2.6], 1.25),  # the last elbow, not the one farthest below the line
        ([0.0, 0.9, 1.0, 1.1], 1.1),  # above the line all the way
        ([0.2, 0.2, 0.25, 0.25, 0.6, 0.6, 1.0], 0.25),  # at 0.6 it falls by no more than the mean step
    ],
)
def test_the_elbow_is_the_first_that_kneedle_finds_from_the_largest_value_on(values, expected):
    assert elbow(np.array(values)) == expected
