"""Each client is compared with itself, the earlier version first, whatever the order in which clients answer."""

from dataclasses import fields

import numpy as np
import pytest

from models.diagnosis.fomichev_distances import Readings
from tasks.diagnosis.compare_silos import compare_versions

FEATURES = [
    {"name": "a", "low": -4, "high": 4, "missing": {"fill": 0}},
    {"name": "b", "low": -4, "high": 4, "missing": {"fill": 0}},
]
READINGS = Readings(grid="federation")


def rows(seed, count, moved=0.0, share=0.5):
    rng = np.random.default_rng(seed)
    y = (np.arange(count) < share * count).astype(int)
    return rng.normal(size=(count, 2)) + moved + y[:, None], y


@pytest.fixture
def compared(asked, silos_of):
    """Compares two versions of silos, each of them client to (x, y)."""

    def compare(before, after, verdict="guarded"):
        then, now = (asked(silos_of(version, features=FEATURES), verdict=verdict) for version in (before, after))
        messages = [one.answers.messages for one in (then, now)]
        return compare_versions.fn(*messages, now.question, verdict, READINGS, print)

    return compare


def test_the_earlier_version_is_the_first_of_each_pair_in_all_that_is_found(compared):
    gone = rows(3, 90)
    gone[0][:, 1] = np.nan
    found = compared(
        {"a": rows(0, 300), "b": rows(1, 120), "c": gone},
        {"a": rows(2, 200, moved=1.0, share=0.2), "b": rows(1, 120), "c": rows(4, 60)},
    )
    assert found.pairs.rows.tolist() == [[300, 200], [120, 120], [90, 60]]
    assert found.names == ("a then", "b then", "c then", "a now", "b now", "c now")
    assert found.missing.to_dict(found.names, ("a", "b"))["absent"] == {"b": ["c then"]}
    (of_a, *_) = [close for close in found.pair_details if close.first == 0]
    assert of_a.second == 3
    assert of_a.counts.sum((1, 2)).tolist() == [300, 200]


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["guarded", "moments", "paper"])
def test_clients_that_told_of_one_version_are_left_out_and_the_others_are_found_as_if_compared_alone(verdict, compared):
    """The first to come and the first to leave are in the way of places; false discoveries are of the pairs together."""
    before = {"b": rows(1, 120), "c": rows(2, 300), "e": rows(3, 90), "a": rows(0, 60)}
    after = {"e": rows(4, 150, moved=1.5), "d": rows(5, 80), "c": rows(6, 250, share=0.2), "b": rows(1, 120)}
    found = compared(before, after, verdict)
    assert found.clients == ("b", "c", "e")
    alone = [compared({c: before[c]}, {c: after[c]}, verdict) for c in found.clients]
    for name in ("rows", "chance", "labels", "moved", "parts", "inputs", "overlap", "tells"):
        values = np.concatenate([getattr(one.pairs, name) for one in alone])
        np.testing.assert_array_equal(getattr(found.pairs, name), values, name)
    for name in (field.name for field in fields(found.effect_sizes)):
        values = np.concatenate([getattr(one.effect_sizes, name) for one in alone])
        np.testing.assert_array_equal(getattr(found.effect_sizes, name), values, name)
