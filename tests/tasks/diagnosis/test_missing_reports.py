"""What answers cannot show is found in them: features without a value, features not told of, bins that hold nearly all."""

import numpy as np
import pytest

from models.diagnosis.client_summaries.client_summary import Layout, concatenate_summaries, summarize
from tasks.diagnosis.compare_silos import missing_reports

NAMES = ("age", "dose", "kind")
CLIENTS = ("north", "south")


def layout(bins=32):
    low, high = np.full(3, -4.0), np.full(3, 4.0)
    return Layout(NAMES, (None, None, (0.0, 1.0)), low, high, bins, 2, missing=(False, True, True))


def rows(seed, count=200):
    draw = np.random.default_rng(seed)
    return np.column_stack([draw.normal(size=(count, 2)), draw.integers(0, 2, count)]), np.arange(count) % 2


def told(*clients, of):
    return concatenate_summaries([summarize(x, y, np.arange(len(y)), of) for x, y in clients])


@pytest.mark.parametrize("there", [0, 9, 18, 40])
def test_a_feature_is_absent_or_untold_by_how_many_rows_have_a_value(there):
    (x, y), other = rows(0), rows(1)
    x[there:, 1] = np.nan
    found = missing_reports(told((x, y), other, of=layout()), layout()).to_dict(CLIENTS, NAMES)
    assert found["absent"] == ({"dose": ["north"]} if there == 0 else {})
    assert found["withheld"] == ({"dose": ["north"]} if there in (9, 18) else {})
    assert found["crowded"] == []


@pytest.mark.parametrize("there", [0, 5, 12])
def test_a_feature_with_few_values_in_one_class_and_none_in_the_other_is_not_absent(there):
    """Of the class with few nothing is told, and what is told of the other is that all are missing."""
    (x, y), other = rows(0), rows(1)
    x[:, 1:] = np.nan
    x[np.flatnonzero(y == 0)[:there], 1:] = 1.0
    found = missing_reports(told((x, y), other, of=layout()), layout()).to_dict(CLIENTS, NAMES)
    assert found["absent"] == ({"dose": ["north"], "kind": ["north"]} if there == 0 else {})
    assert found["withheld"] == ({"dose": ["north"], "kind": ["north"]} if there == 5 else {})


def test_one_far_value_that_makes_all_others_one_bin_is_seen_in_the_bin_and_a_constant_is_not():
    (x, y), other = rows(0), rows(1)
    x[:, 1] = other[0][:, 1] = 3.0
    x[0, 0] = 1e6
    wide = layout()
    wide.low[0], wide.high[0] = -1e5, 1e5
    assert missing_reports(told((x, y), other, of=wide), wide).to_dict(CLIENTS, NAMES)["crowded"] == ["age"]


def test_of_moments_alone_it_is_known_which_features_are_not_told():
    (x, y), other = rows(0), rows(1)
    x[:, 1] = np.nan
    answers = told((x, y), other, of=layout())
    bare = type(answers)(answers.rows, answers.labels, answers.counts[..., :0, :], answers.moments)
    found = missing_reports(bare, layout()).to_dict(CLIENTS, NAMES)
    assert found == {"absent": {}, "withheld": {"dose": ["north"]}, "merged": {}, "crowded": []}


def test_under_noise_nothing_is_found():
    answers = told(rows(0), rows(1), of=layout())
    noisy = type(answers)(
        answers.rows, answers.labels, answers.counts * 0, answers.moments, np.ones(answers.counts.shape)
    )
    assert missing_reports(noisy, layout()).to_dict(CLIENTS, NAMES) == {
        "absent": {},
        "withheld": {},
        "merged": {},
        "crowded": [],
    }
