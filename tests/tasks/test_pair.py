"""Paired sums against the outcomes themselves."""

import numpy as np
import pytest

from flows.pairs import told
from models.paired import ACCURACY, Stratum, difference
from silos.private import PrivateStore
from tasks.evaluate import OUTCOMES
from tasks.pair import own_labels, pair

TEST = 6


@pytest.fixture
def kept(write_silos, tmp_path):
    """Three seeds of two methods whose clients kept random outcomes, padded as in a stack."""
    silos = write_silos({"a": 5, "b": 9, "c": 4}, test=TEST)
    rng, tables, runs = np.random.default_rng(0), {}, {}
    for method in ("first", "second"):
        for seed in range(3):
            right = rng.integers(0, 2, (3, TEST + 3)).astype(np.uint8)
            right[:, TEST:] = 9  # padding must not be read
            store = PrivateStore(str(tmp_path / f"{method}{seed}"))
            refs = store.save(OUTCOMES, ["b", "a", "c"], {"correct": right})
            runs.setdefault(method, []).append((store, refs))
            for at, client in enumerate(["b", "a", "c"]):
                tables.setdefault((method, client), []).append(right[at, :TEST].astype(float))
    return silos, runs, {k: np.array(v) for k, v in tables.items()}


def test_sums_are_those_of_the_differences_row_by_row(kept):
    silos, runs, tables = kept
    found = pair.fn(silos, runs["first"], runs["second"])
    assert [s.client for s in found] == ["a", "b", "c"]
    for sums in found:
        d = tables["first", sums.client] - tables["second", sums.client]
        assert sums.rows == TEST
        assert sums.by_seed == tuple(d.sum(1))
        assert sums.mean_squares == pytest.approx((d.mean(0) ** 2).sum())
        assert sums.squares == (d**2).sum()


def test_a_method_and_itself_do_not_differ(kept):
    silos, runs, _ = kept
    found = pair.fn(silos, runs["first"], runs["first"])
    strata = [Stratum(s.rows, s.by_seed, s.mean_squares, s.squares) for s in found]
    assert (difference(strata).low, difference(strata).high) == (0, 0)


def test_the_mean_difference_is_the_difference_of_mean_accuracies(kept):
    silos, runs, tables = kept
    found = pair.fn(silos, runs["first"], runs["second"])
    means = {m: np.mean([tables[m, c].mean() for c in "abc"]) for m in ("first", "second")}
    strata = [Stratum(s.rows, s.by_seed, s.mean_squares, s.squares) for s in found]
    assert difference(strata).mean == pytest.approx(means["first"] - means["second"])


def test_a_client_without_test_rows_is_left_out(write_silos):
    assert pair.fn(write_silos({"a": 5}, test=0), [], []) == []


def test_on_some_classes_only_their_rows_count(kept):
    silos, runs, tables = kept
    found = pair.fn(silos, runs["first"], runs["second"], ["0", "2"])
    for sums in found:
        chosen = np.isin(own_labels(silos, sums.client), [0, 2])
        d = (tables["first", sums.client] - tables["second", sums.client])[:, chosen]
        assert 0 < sums.rows == chosen.sum() < TEST
        assert sums.by_seed == tuple(d.sum(1))


@pytest.mark.parametrize("classes", [None, ["1"]])
def test_the_method_that_is_right_where_the_other_is_wrong_is_the_better_by_that_share_of_rows(
    classes, write_silos, tmp_path
):
    """In every seed the first is right on all rows but each client's first, the second on none; then the other way round."""
    silos = write_silos({"a": 5, "b": 9}, test=40)
    runs = {}
    for method, right in (("first", [0] + [1] * 39), ("second", [0] * 40)):
        store = PrivateStore(str(tmp_path / method))
        runs[method] = [(store, store.save(OUTCOMES, ["a", "b"], {"correct": np.array([right] * 2, np.uint8)}))] * 2
    for method, other, sign in (("first", "second", 1), ("second", "first", -1)):
        sums = pair.fn(silos, runs[method], runs[other], classes)
        found = difference([Stratum(s.rows, s.by_seed, s.mean_squares, s.squares) for s in sums])
        chosen = [own_labels(silos, c) == 1 if classes else np.ones(40, bool) for c in ("a", "b")]
        share = np.mean([1 - of[0] / of.sum() for of in chosen])
        assert found.mean == pytest.approx(sign * share)
        said = told(method, other, found, ACCURACY)
        assert (said["better"], said["difference"]) == ("first", found.mean)
        assert said["words"].startswith(f"{method} − {other} {'+' if sign > 0 else '−'}")
