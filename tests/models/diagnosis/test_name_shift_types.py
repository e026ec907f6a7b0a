"""The guarded verdict on pairs whose shift is known; shares are those of the project's reference measurements."""

import numpy as np
import pytest
from scipy.stats import binomtest

from models.diagnosis import guarded_tests, wald_tests
from models.diagnosis.client_summaries.client_summary import Layout, concatenate_summaries, summarize
from models.diagnosis.diagnose_pairs import Alignment
from models.diagnosis.merged_tables import build_pairs
from models.diagnosis.name_shift_types import classify_pairs
from publications.synthetic_pairs.fixed_pairs import ONE_FEATURE

LAYOUT = Layout(("x",), (None,), np.array([-3.0]), np.array([3.0]), 32, 2)
PAIRS = 60


def named(clients, layout=LAYOUT, look=guarded_tests.count_evidence, lossy=False):
    """The types of each two clients that follow each other, as text."""
    told = concatenate_summaries([summarize(x, y, np.arange(len(y)), layout) for x, y in clients])
    first = np.arange(0, len(clients), 2)
    pairs = build_pairs(told, layout, first, first + 1)
    found = classify_pairs(look(pairs), pairs.rows, Alignment(pairs, lossy))
    texts = ["+".join(np.array(guarded_tests.TYPES)[types]) or "none" for types in found.types]
    return ["undetermined" if unknown else text for text, unknown in zip(texts, found.undetermined, strict=True)]


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("none", 0.985),
        ("feature", 0.955),
        ("label", 0.99),
        ("concept", 0.975),
        ("label+feature", 0.995),
        ("label+concept", 0.985),
        ("feature+concept", 0.99),
    ],
)
def test_the_truth_table_of_one_feature_holds(kind, share):
    clients = [
        c for seed in range(PAIRS) for c in ONE_FEATURE[kind].draw(np.random.default_rng([2207, seed]), (500, 500))
    ]
    truth = {"none"} if kind == "none" else set(kind.split("+"))
    right = sum(set(text.split("+")) == truth for text in named(clients))
    assert binomtest(right, PAIRS, share, alternative="less").pvalue > 1e-3


def test_moments_see_less_and_raise_no_false_alarm():
    normals = [c for s in range(PAIRS) for c in ONE_FEATURE["label"].draw(np.random.default_rng([5, s]), (500, 500))]
    assert named(normals, look=wald_tests.moment_evidence).count("label") >= 0.9 * PAIRS
    nothing = [c for s in range(PAIRS) for c in ONE_FEATURE["none"].draw(np.random.default_rng([6, s]), (500, 500))]
    assert named(nothing, look=wald_tests.moment_evidence).count("none") >= 0.9 * PAIRS


def rows(random, count, classes=3, shift=0.0, scale=1.0, shares=None):
    y = random.choice(classes, count, p=shares)
    return (random.normal(size=(count, 1)) + 2.0 * y[:, None]) * scale + shift, y


def test_a_gain_and_an_offset_are_a_feature_shift_and_renamed_classes_are_not():
    random = np.random.default_rng(3)
    layout = Layout(("x",), (None,), np.array([-5.0]), np.array([15.0]), 32, 3)
    plain, turned_up = rows(random, 3000), rows(random, 3000, shift=1.0, scale=2.0)
    assert named([plain, turned_up], layout) == ["feature"]
    x, y = rows(random, 3000)
    assert "concept" in named([plain, (x, np.array([1, 0, 2])[y])], layout)[0]


def test_label_shift_is_named_where_one_client_lacks_a_class_that_the_other_has():
    random = np.random.default_rng(4)
    layout = Layout(("x",), (None,), np.array([-3.0]), np.array([8.0]), 32, 3)
    assert named([rows(random, 600), rows(random, 600, shares=[0.5, 0.5, 0.0])], layout) == ["label"]


def test_of_few_rows_nothing_is_said():
    random = np.random.default_rng(5)
    assert named([rows(random, 15, 2), rows(random, 500, 2, shift=9.0)]) == ["undetermined"]
