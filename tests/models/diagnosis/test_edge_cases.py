"""What a verdict says at the edges: nothing varies, something lacks, little is there, or two clients are one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from models.diagnosis import guarded_tests, wald_tests
from models.diagnosis.client_summaries.client_summary import LEAST_ROWS
from models.diagnosis.diagnose_pairs import diagnose_pairs
from models.diagnosis.merged_tables import build_pairs
from publications.synthetic_pairs.generators import Bump, Logistic, Normals, drawn

NONE, FEATURE, LABEL, CONCEPT = (
    [False, False, False],
    [True, False, False],
    [False, True, False],
    [False, False, True],
)
LOOKS = {
    "guarded": (guarded_tests.count_evidence, LEAST_ROWS),
    "moments": (wald_tests.moment_evidence, wald_tests.LEAST_WALD_ROWS),
}
few = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def two(first, second, seed=1, rows=600, noise=True):
    def more(rng, count):
        return rng.normal(size=(count, 1))

    return drawn(first, second, np.random.default_rng(seed), (rows, rows), more if noise else None)


def evidence(told, first=0, second=1):
    return guarded_tests.count_evidence(build_pairs(told.summaries, told.layout, np.array([first]), np.array([second])))


def test_a_feature_that_is_the_same_constant_on_both_sides_is_one_bin_and_accepted(tell):
    (x, y), (other, label) = two(Normals(), Normals())
    x[:, 1] = other[:, 1] = 0.7
    told = tell([(x, y), (other, label)])
    found = evidence(told)
    assert found.chances["bins"][0, 1] == found.chances["bins_in_classes"][0, 1] == 1
    assert found.effects["bins"][0, 1] == found.effects["interaction"][0, 1] == 0
    assert told.types() == NONE


def test_a_feature_of_two_constants_is_named(tell):
    (x, y), (other, label) = two(Normals(), Normals())
    x[:, 1], other[:, 1] = 0.7, -0.7
    told = tell([(x, y), (other, label)])
    assert told.types() == FEATURE
    assert told.between().parts[0].argmax() == 1
    assert told.between().overlap[0] == 0


def test_a_client_all_of_whose_features_are_constant_is_compared_all_the_same(tell):
    """Its rows are one different row, and so it tells nothing; with a number that varies it does."""
    (x, y), there = two(Normals(), Normals())
    assert tell([(np.zeros_like(x), y), there]).between().verdicts.undetermined.tolist() == [True]
    x[:, 0] = 0.0
    assert FEATURE[0] in tell([(x, y), there]).types()


def test_a_class_of_many_copies_of_few_rows_is_no_shift_of_labels(tell):
    """It may not be told, and how many rows it has is not known of that."""
    (x, y), there = two(Normals(), Normals())
    x[y == 0] = x[y == 0][np.arange((y == 0).sum()) % 3]
    told = tell([(x, y), there])
    assert np.isnan(told.summaries.labels[0]).tolist() == [True, False]
    assert not told.between().labels[0]
    gone = x[y == 1], y[y == 1]
    assert tell([gone, there]).between().labels[0], "of a class without rows it is known"


def test_alike_clients_of_which_one_may_not_tell_a_rare_class_do_not_differ_in_labels(tell):
    """About ten rows in 300: what is not told of is known to be there by the number of all rows."""
    wrong, silent = 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        told = tell([(rng.normal(size=(300, 1)), (rng.random(300) < 0.033).astype(int)) for _ in range(2)])
        wrong += any(told.types())
        silent += np.isnan(told.summaries.labels[:, 1]).sum() == 1
    assert silent > 10
    assert wrong <= 1


def test_a_class_that_one_side_lacks_is_a_shift_of_labels(tell):
    (x, y), (other, label) = two(Normals(), Normals())
    third, rest = np.random.default_rng(1).normal(size=(300, 2)), np.full(300, 2)
    told = tell([(np.r_[x, third], np.r_[y, rest]), (other, label)], classes=3)
    assert told.types()[1]
    assert told.types()[2] is False
    assert told.between().labels[0]


def test_without_a_class_of_ten_rows_on_both_sides_only_margins_are_compared_and_it_is_said(tell):
    x, other = np.random.default_rng(2).normal(size=(2, 300, 2))
    told = tell([(x, np.zeros(300, int)), (other, np.ones(300, int))])
    found = told.between().verdicts
    assert found.types[0].tolist() == LABEL
    assert found.margins_only.tolist() == [True]
    moved = tell([(x, np.zeros(300, int)), (other + 1, np.ones(300, int))]).between().verdicts
    assert (moved.types[0].tolist(), moved.margins_only.tolist()) == (LABEL, [True])


def of_many_classes(seed, moved, classes=20, each=6):
    """As many rows of each class at every client."""
    y = np.repeat(np.arange(classes), each)
    return np.random.default_rng(seed).normal(size=(len(y), 2)) + moved, y


@pytest.mark.parametrize("verdict", ["guarded", "moments"])
def test_inputs_that_moved_are_named_where_no_class_is_told_by_both_and_labels_are_alike(verdict, tell):
    few_each = {"guarded": {"classes": 20, "each": 6}, "moments": {"classes": 2, "each": 60}}[verdict]
    look, least = LOOKS[verdict]
    ends = {"low": np.full(2, -6.0), "high": np.full(2, 6.0), "classes": few_each["classes"]}
    told = tell([of_many_classes(seed, moved, **few_each) for seed, moved in enumerate((0.0, 4.0, 0.0))], **ends)
    found = told.between(collect_evidence=look, min_rows=least)
    assert found.verdicts.types[0].tolist() == FEATURE
    assert found.verdicts.margins_only.tolist() == [True]
    assert found.chance[0] < 1e-20
    again = told.between(0, 2, collect_evidence=look, min_rows=least)
    assert (again.verdicts.types[0].tolist(), again.verdicts.undetermined.tolist()) == (NONE, [True])


@pytest.mark.parametrize("verdict", ["guarded", "moments"])
def test_alike_clients_that_tell_of_different_classes_do_not_seem_to_differ_in_their_inputs(verdict, tell):
    """Of classes that lie apart, one tells this and the other that: copies of a few rows are not told of."""
    look, least = LOOKS[verdict]
    rng, y = np.random.default_rng(0), np.repeat([0, 1], 200)
    x = rng.normal(size=(400, 2)) * 0.3 + 4 * y[:, None] - 2
    clients = []
    for silent in (0, 1):
        mine = x.copy()
        mine[y == silent] = mine[y == silent][np.arange(200) % 5]
        clients.append((mine, y))
    found = tell(clients).between(collect_evidence=look, min_rows=least)
    assert not found.labels[0]
    assert (found.verdicts.types[0].tolist(), found.verdicts.undetermined.tolist()) == (NONE, [True])


def test_where_no_class_is_compared_inputs_are_only_if_both_clients_tell_of_nearly_all_their_rows(tell):
    """Classes lie apart: one client has the second class alone, the other half of its rows in it, which are copies."""
    rng = np.random.default_rng(0)
    low, high = (rng.normal(size=(200, 2)) * 0.3 + at for at in (-2, 2))
    half = (np.concatenate([low, high[np.arange(200) % 5]]), np.repeat([0, 1], 200))
    told = tell([half, (high, np.ones(200, int)), (low[:150], np.zeros(150, int))])
    for first, second, compared in ((0, 1, False), (1, 0, False), (1, 2, True)):
        found = evidence(told, first, second)
        assert not found.tested.any()
        assert found.bins.any() == compared
        assert (found.chances["bins"] < 1).all() == compared


@pytest.mark.parametrize("rows", [30, 60, 99])
def test_moments_of_fewer_than_a_hundred_rows_say_nothing_of_inputs(rows, tell):
    look, least = LOOKS["moments"]
    told = tell([of_many_classes(seed, moved, 1, rows) for seed, moved in enumerate((0.0, 4.0))], classes=1)
    assert told.between(collect_evidence=look, min_rows=least).verdicts.undetermined.tolist() == [True]


def test_a_class_of_nine_rows_is_in_no_conditional_test(tell):
    (x, y), (other, label) = two(Normals(), Normals())
    nine, many = (
        np.full((9, 2), 3.5) + np.arange(9)[:, None] / 100,
        np.full((200, 2), -3.5) + np.arange(200)[:, None] / 1000,
    )
    told = tell(
        [(np.r_[x, nine], np.r_[y, np.full(9, 2)]), (np.r_[other, many], np.r_[label, np.full(200, 2)])], classes=3
    )
    pairs = build_pairs(told.summaries, told.layout, np.array([0]), np.array([1]))
    assert guarded_tests.comparable_classes(pairs.counts)[0].tolist() == [[True, True, False]] * 2
    assert told.types()[1:] == [True, False]


@pytest.mark.parametrize("count", [1, 2, 9, 10, 19])
def test_of_fewer_than_twenty_rows_the_verdict_is_undetermined_and_never_none(count, tell):
    (x, y), there = two(Normals(), Normals())
    for pair in ((0, 1), (1, 0)):
        found = tell([(x[:count], y[:count]), there]).between(*pair).verdicts
        assert found.undetermined.tolist() == [True]
        assert found.types[0].tolist() == NONE
    far = tell([(x[:count] + 9, 1 - y[:count]), there]).between().verdicts
    assert (far.undetermined.tolist(), far.types[0].tolist()) == ([True], NONE)


def test_of_twenty_rows_and_more_something_is_said(tell):
    (x, y), there = two(Normals(), Normals())
    far = (x[:40] + 5, y[:40])
    assert tell([far, there]).between().verdicts.undetermined.tolist() == [False]
    assert tell([far, there]).types() == FEATURE


def test_a_client_whose_values_are_missing_more_often_is_named_by_that_feature(tell):
    (x, y), (other, label) = two(Normals(), Normals())
    rng = np.random.default_rng(3)
    for values, share in ((x, 0.1), (other, 0.5)):
        values[:, 1][rng.random(600) < share] = np.nan
    told = tell([(x, y), (other, label)], missing=(False, True))
    assert told.types() == FEATURE
    assert told.between().parts[0].argmax() == 1
    assert told.between().parts[0, 0] < 0.1


@pytest.mark.parametrize("classes", [[0, 1], [1]])
def test_a_feature_that_one_client_never_has_is_named(classes, tell):
    (x, y), (other, label) = two(Normals(), Normals())
    x[np.isin(y, classes), 1] = np.nan
    told = tell([(x, y), (other, label)], missing=(False, True))
    found = told.between()
    assert found.verdicts.types[0, 0] or found.verdicts.types[0, 2]
    assert found.parts[0].argmax() == 1
    if len(classes) == 2:
        assert told.types() == FEATURE
        assert found.overlap[0] == 0
        assert tell([(x, y), (x, y)], missing=(False, True)).types() == NONE


def test_values_that_are_missing_as_often_on_both_sides_are_no_shift(tell):
    (x, y), (other, label) = two(Normals(), Normals())
    rng = np.random.default_rng(4)
    for values in (x, other):
        values[:, 1][rng.random(600) < 0.4] = np.nan
    assert tell([(x, y), (other, label)], missing=(False, True)).types() == NONE


def test_a_category_that_nobody_agreed_on_is_other_and_is_seen_as_such(tell):
    rng = np.random.default_rng(5)
    y = np.arange(600) % 2
    x, other = (np.column_stack([rng.normal(size=600), rng.integers(1, 4, 600)]) for _ in range(2))
    kinds = {"categories": (None, (1.0, 2.0, 3.0))}
    same = x.copy()
    same[:, 1][rng.random(600) < 0.4] = 17
    told = tell([(x, y), (other, y), (same, y)], **kinds)
    assert told.summaries.counts[2, 1, 3, :2].sum() == (same[:, 1] == 17).sum()
    assert told.types(0, 1) == NONE
    assert told.types(0, 2) == FEATURE
    assert told.between(0, 2).parts[0].argmax() == 1


@pytest.mark.parametrize(("rows", "alone"), [((5, 4), False), ((5, 5), True), ((9, 0), False), ((0, 10), True)])
def test_a_category_of_ten_rows_of_both_clients_together_is_compared_alone_and_a_rarer_one_with_other_values(
    rows, alone, tell
):
    clients = []
    for count in rows:
        category = np.repeat([1.0, 2.0, 9.0], [count, 60, 20])
        clients.append((np.column_stack([category, np.arange(len(category)) / 100]), np.arange(len(category)) % 2))
    told = tell(clients, categories=((1.0, 2.0), None))
    pairs = build_pairs(told.summaries, told.layout, np.array([0]), np.array([1]))
    cells = pairs.counts[0, 0, :, :3].sum(-1)
    expected = [[count, 60, 20] if alone else [0, 60, 20 + count] for count in rows]
    assert cells.tolist() == expected


def test_targets_of_a_regression_are_compared_by_their_groups(tell):
    rng = np.random.default_rng(6)
    x, other = rng.normal(size=(2, 800, 2))
    targets = {"targets": (-0.8, -0.25, 0.25, 0.8), "classes": 5}

    def of(rows, slope, offset=0.0):
        return rows, slope * rows[:, 0] + offset + 0.3 * rng.normal(size=len(rows))

    told = tell([of(x, 1.0), of(other, 1.0), of(other, -1.0), of(other[other[:, 0] > -0.3], 1.0)], **targets)
    assert told.types(0, 1) == NONE
    assert told.types(0, 2) == CONCEPT
    assert told.types(0, 3)[2] is False
    assert any(told.types(0, 3))


LAWS = {
    "none": (Normals(), Normals()),
    "feature": (Logistic(), Logistic(mean=1.0)),
    "label": (Normals(), Normals(positive=0.75)),
    "concept": (Normals(), Normals(means=(1.0, -1.0))),
    "both": (Normals(), Normals(positive=0.75, means=(0.5, 2.5))),
    "bump": (Bump(), Bump(mean=1.0)),
}


@pytest.mark.parametrize("law", LAWS)
def test_between_a_client_and_itself_every_statistic_is_zero(law, tell):
    here = two(*LAWS[law], seed=7)[1]
    here[0][:, 1][::7] = np.nan
    told = tell([here, here], missing=(False, True))
    found = evidence(told)
    for name, effects in found.effects.items():
        assert not effects.any(), name
        np.testing.assert_allclose(found.chances[name], 1, atol=1e-9, err_msg=name)
    between = told.between()
    assert between.verdicts.types[0].tolist() == NONE
    assert not between.verdicts.undetermined.any()
    assert between.chance[0] == 1
    assert between.overlap[0] == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("seed", range(3))
def test_a_verdict_is_the_same_whoever_comes_first(seed, law, tell):
    told = tell(two(*LAWS[law], seed=seed, rows=300))
    here, there = told.between(0, 1), told.between(1, 0)
    assert here.verdicts.types.tolist() == there.verdicts.types.tolist()
    assert here.verdicts.transform.tolist() == there.verdicts.transform.tolist()
    for name in ("chance", "parts", "overlap"):
        np.testing.assert_allclose(getattr(here, name), getattr(there, name), rtol=1e-6, atol=1e-12)
    for name, effects in evidence(told).effects.items():
        np.testing.assert_allclose(effects, evidence(told, 1, 0).effects[name], rtol=1e-5, atol=1e-9, err_msg=name)


def same(here, there, order=slice(None)):
    """Findings of pairs, but for the order of features."""
    for name in ("types", "undetermined", "transform", "margins_only"):
        np.testing.assert_array_equal(getattr(here.verdicts, name), getattr(there.verdicts, name))
    np.testing.assert_allclose(here.chance, there.chance, rtol=1e-6, atol=1e-300)
    np.testing.assert_allclose(here.parts[:, order], there.parts, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(here.overlap, there.overlap, rtol=1e-9)


MIXED = {"categories": (None, None, (0.0, 1.0, 2.0)), "missing": (False, True, False)}


def mixed(law, seed, rows=400):
    """Two clients with a number that matters, one with missing values, and a category that says something of the class."""
    clients = []
    for at, (x, y) in enumerate(two(*LAWS[law], seed=seed, rows=rows)):
        rng = np.random.default_rng([seed, at])
        x[:, 1][rng.random(rows) < 0.2] = np.nan
        clients.append((np.column_stack([x, (y + rng.integers(0, 2, rows)).astype(float)]), y))
    return clients


@few
@given(st.sampled_from(sorted(LAWS)), st.integers(0, 50), st.permutations(range(3)))
def test_the_order_of_features_does_not_matter(tell, law, seed, order):
    clients = mixed(law, seed)
    moved = [(x[:, list(order)], y) for x, y in clients]
    kinds = {name: tuple(of[at] for at in order) for name, of in MIXED.items()}
    same(tell(clients, **MIXED).between(), tell(moved, **kinds).between(), list(order))


@few
@given(st.sampled_from(sorted(LAWS)), st.integers(0, 50))
def test_the_order_of_classes_does_not_matter(tell, law, seed):
    clients = mixed(law, seed)
    same(tell(clients, **MIXED).between(), tell([(x, 1 - y) for x, y in clients], **MIXED).between())


@pytest.mark.slow
@few
@given(st.sampled_from(sorted(LAWS)), st.integers(0, 50), st.permutations([0.0, 1.0, 2.0]))
def test_the_order_of_categories_does_not_matter(tell, law, seed, order):
    clients = mixed(law, seed)
    kinds = {**MIXED, "categories": (None, None, tuple(order))}
    same(tell(clients, **MIXED).between(), tell(clients, **kinds).between())


@pytest.mark.parametrize("order", [(0.0, 1.0, 2.0, 3.0), (2.0, 0.0, 3.0, 1.0)])
@pytest.mark.parametrize("seed", range(3))
def test_categories_have_no_offset_that_could_be_undone(seed, order, tell):
    """Each is the next one, in one order of two: as numbers they would be a sensor that was set anew."""
    rng = np.random.default_rng(seed)
    category = rng.integers(0, 3, 1500)
    y = (rng.random(1500) < np.array([0.1, 0.2, 0.9])[category]).astype(int)
    x, other = (np.column_stack([rng.normal(size=1500), category + float(more)]) for more in (0, 1))
    found = tell([(x, y), (other, y)], categories=(None, order)).between().verdicts
    assert found.types[0].tolist() == [True, False, True]
    assert not found.transform[0]


@few
@given(st.sampled_from(sorted(LAWS)), st.integers(0, 50), st.sampled_from([2.0**-7, 2.0**9, 1 / 3, 1000.0]))
def test_the_scale_of_a_feature_does_not_matter(tell, law, seed, scale):
    """Its bounds are in the same unit."""
    clients = mixed(law, seed)
    unit = np.array([scale, 1.0, 1.0])
    ends = {"low": -4 * unit, "high": 4 * unit}
    same(tell(clients, **MIXED).between(), tell([(x * unit, y) for x, y in clients], **ends, **MIXED).between())


@pytest.mark.slow
@few
@given(st.integers(0, 50), st.permutations(range(5)))
def test_the_order_of_clients_does_not_matter(tell, seed, order):
    """Of all pairs together, whose false discoveries are held down together."""
    pool = [*mixed("concept", seed), *mixed("feature", seed + 60), mixed("label", seed + 120)[1]]
    places = np.argsort(order)
    told, moved = tell(pool, **MIXED), tell([pool[at] for at in order], **MIXED)
    first, second = np.triu_indices(5, 1)
    here = diagnose_pairs(told.summaries, told.layout, first, second)
    there = diagnose_pairs(moved.summaries, moved.layout, places[first], places[second])
    same(here, there)


def test_rows_under_ten_of_a_class_tell_no_more_than_their_number(tell):
    """Other values of nine rows leave all that the server knows as it is."""
    (x, y), there = two(Normals(), Normals())
    nine = np.random.default_rng(8).normal(size=(2, LEAST_ROWS - 1, 2))
    both = [tell([(np.r_[x, own], np.r_[y, np.full(9, 2)]), there], classes=3) for own in nine]
    for name in ("rows", "labels", "counts", "moments"):
        here, other = (getattr(told.summaries, name) for told in both)
        np.testing.assert_array_equal(here, other)
    assert replace(both[0].layout, bins=8).cells == 9


@pytest.mark.parametrize("slope", [1.0, -2.0])
@pytest.mark.parametrize("also", ["nothing else", "inputs too"])
def test_targets_that_are_all_too_high_by_an_amount_follow_another_rule_and_their_inputs_are_not_to_blame(
    slope, also, tell
):
    """y = slope · x + an amount: P(X) is equal, P(Y) and P(Y | X) are not, P(X | Y) neither; unless inputs moved as well."""
    rng = np.random.default_rng(4)

    def client(amount, moved=0.0):
        x = rng.normal(size=(800, 2)) + moved
        return x, slope * x[:, 0] + rng.normal(0, 0.5, 800) + amount

    high = client(abs(slope), moved=1.0 if also == "inputs too" else 0.0)
    clients = [client(0.0), client(0.0), high]
    y = np.concatenate([target for _, target in clients])
    cuts = tuple((y.mean() + y.std() * norm.ppf([0.2, 0.4, 0.6, 0.8])).tolist())
    told = tell(clients, classes=5, targets=cuts)
    assert told.types(0, 1) == NONE
    if also == "inputs too":
        assert told.types(0, 2)[0]
    else:
        assert told.types(0, 2) == [False, True, True]
