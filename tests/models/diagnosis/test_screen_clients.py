"""One pass over all pairs finds what looking at each pair does, and groups of clients of one law come out as they are."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from models.diagnosis import chi_square, screen_clients
from models.diagnosis.client_summaries.client_summary import (
    LEAST_ROWS,
    Layout,
    Summaries,
    concatenate_summaries,
    summarize,
)
from models.diagnosis.diagnose_pairs import append_rest, diagnose_pairs, find_differences, group_clients
from models.diagnosis.guarded_tests import ALPHA
from models.diagnosis.merged_tables import all_pairs, impute_labels
from models.diagnosis.screen_clients import INSIDE, combine_groups, compare_inside, merge_shared_bins, pair_p_values

few = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def slowly(told):
    """Of every pair by the tests of tables: twice the least chance, of labels or of features times their number.

    Features are compared within classes; where no class is told by both, of all rows, if all are told of but a few.
    """
    found = []
    for first, second in zip(*all_pairs(len(told.rows)), strict=True):
        both = [first, second]
        least, compared = 1.0, False
        for feature in range(told.counts.shape[1]):
            table = told.counts[both][:, feature, :, :-1].astype(float)
            tested = chi_square.compare_inputs_in_classes(table * (table.sum(1) >= LEAST_ROWS).all(0))
            compared |= bool(tested[1] > 0)
            least = min(least, float(chi_square.p_value(tested)))
        for feature in range(0 if compared else told.counts.shape[1]):
            whole = told.counts[both][:, feature].sum(-1).astype(float)
            if (whole.sum(-1) >= 0.995 * told.rows[both]).all() and (whole.sum(-1) >= LEAST_ROWS).all():
                least = min(least, float(chi_square.p_value(chi_square.pearson(whole))))
        own = chi_square.p_value(chi_square.pearson(impute_labels(told.labels[None, both], told.rows[None, both])))[0]
        found.append(min(1.0, 2 * min(own, least * told.counts.shape[1])))
    return np.array(found)


def clients(seed, sizes, moved=0.0):
    """Two features, a category and classes 0 to 2 of which some clients have few; odd clients are moved."""
    rng, found = np.random.default_rng(seed), []
    for at, size in enumerate(sizes):
        y = rng.choice(3, size, p=rng.dirichlet([1, 1, 1]))
        x = rng.normal(size=(size, 3)) + y[:, None] * [1, 0, 0] + at % 2 * moved
        x[:, 2] = np.clip(np.round(x[:, 2]), 0, 2)
        found.append((x, y))
    return found


KINDS = {"categories": (None, None, (0.0, 1.0, 2.0)), "classes": 3}


@few
@given(st.integers(0, 99), st.lists(st.integers(5, 200), min_size=2, max_size=6), st.sampled_from([0.0, 0.4, 2.0]))
def test_chances_are_those_of_each_pair_on_the_same_bins(tell, seed, sizes, moved):
    told = tell(clients(seed, sizes, moved), **KINDS)
    shared, _ = merge_shared_bins(told.summaries, told.layout)
    np.testing.assert_allclose(pair_p_values(shared), slowly(shared), rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_pair_with_a_class_to_compare_is_compared_within_it_also_where_a_feature_has_none(seed, tell):
    """Too few values of the second feature are in one class of even clients, and in the other class of odd ones."""
    rng, own = np.random.default_rng(seed), []
    for at in range(5):
        y = np.arange(200) % 2
        x = rng.normal(size=(200, 3)) + 2 * y[:, None] + 0.2 * at
        x[np.flatnonzero(y == at % 2)[5:], 1] = np.nan
        x[:, 2] = np.clip(np.round(x[:, 2]), 0, 2)
        own.append((x, y))
    told = tell(own, **{**KINDS, "classes": 2}, missing=(False, True, False))
    shared, _ = merge_shared_bins(told.summaries, told.layout)
    both = (shared.counts[:, 1].sum(1) >= LEAST_ROWS)[..., :2]
    assert not (both[0] & both[1]).any(), "no class of the second feature is told by both"
    assert (pair_p_values(shared) < 1).any()
    np.testing.assert_allclose(pair_p_values(shared), slowly(shared), rtol=1e-4)


@pytest.mark.slow
def test_sixty_clients_of_six_rows_a_class_fall_into_groups_by_their_inputs(tell):
    """Of no class is there enough to be told, and labels are alike: inputs are all that can be compared."""
    rng, law = np.random.default_rng(4), np.arange(60) % 2
    told = tell([(rng.normal(size=(120, 2)) + 2.0 * moved, np.repeat(np.arange(20), 6)) for moved in law], classes=20)
    shared, _ = merge_shared_bins(told.summaries, told.layout)
    np.testing.assert_allclose(pair_p_values(shared), slowly(shared), rtol=1e-4, atol=1e-12)
    groups = group_clients(*all_pairs(60), find_differences(pair_p_values(shared)), 60)
    assert groups == [np.flatnonzero(law == kind).tolist() for kind in (0, 1)]


def test_the_least_chance_of_all_features_is_found_by_those_that_may_have_it():
    rng = np.random.default_rng(3)
    dof = rng.integers(0, rng.choice([3, 20, 400], 3000)[:, None], (3000, 12))
    statistic = rng.chisquare(np.maximum(dof, 1)) * rng.uniform(0.1, rng.choice([1.0, 3.0, 30.0], 3000)[:, None])
    least = chi_square.p_value((statistic, dof)).min(-1)
    assert (least == 0).any()
    assert (least > 0.5).any()
    np.testing.assert_array_equal(screen_clients._least_p_value(statistic, dof), least)


def test_many_pairs_at_once_or_few_make_no_difference(tell, monkeypatch):
    told = tell(clients(1, [80] * 9, 0.5), **KINDS)
    shared, _ = merge_shared_bins(told.summaries, told.layout)
    whole, heard = pair_p_values(shared), []
    monkeypatch.setattr(screen_clients, "_BATCH_BYTES", 1)
    np.testing.assert_array_equal(pair_p_values(shared, heard.append), whole)
    assert heard == [8, 15, 21, 26, 30, 33, 35, 36]
    assert pair_p_values(shared.take([0])).shape == (0,)


def test_shared_bins_hold_every_row_and_about_as_many_each(tell):
    told = tell(clients(2, [150] * 8), **KINDS)
    shared, layout = merge_shared_bins(told.summaries, told.layout)
    np.testing.assert_array_equal(shared.counts.sum(2), told.summaries.counts.sum(2))
    rows = shared.counts[:, 0].sum((0, 2))[: layout.bins]
    assert (rows > 0).sum() >= 8
    assert rows.max() < 3 * rows[rows > 0].mean()
    np.testing.assert_array_equal(shared.counts[:, 2, :4], told.summaries.counts[:, 2, :4])
    assert layout.joined


def laws(seed):
    """Sixty clients of five laws, dealt at random, and whose law each has."""
    rng = np.random.default_rng(seed)
    law = rng.permutation(np.repeat(np.arange(5), 12))
    found = []
    for kind in law:
        y = (rng.random(300) < (0.85 if kind == 1 else 0.4)).astype(int)
        x = rng.normal(size=(300, 3))
        x[:, 0] += 2 * (1 - y if kind == 2 else y) - 1
        x[:, 1] += 1.5 * (kind == 3)
        x[:, 2] *= 2.2 if kind == 4 else 1
        found.append((x, y))
    return found, law


@pytest.mark.parametrize("seed", range(3))
def test_sixty_clients_of_five_laws_fall_into_their_groups(seed, tell):
    own, law = laws(seed)
    told = tell(own)
    shared, _ = merge_shared_bins(told.summaries, told.layout)
    groups = group_clients(*all_pairs(60), find_differences(pair_p_values(shared)), 60)
    assert sorted(groups) == sorted(np.flatnonzero(law == kind).tolist() for kind in range(5))


def test_a_group_together_is_one_client_with_all_its_rows(tell):
    own, law = laws(5)
    told = tell(own)
    groups = [np.flatnonzero(law == kind).tolist() for kind in range(5)]
    merged = combine_groups(told.summaries, groups)
    whole = tell(
        [tuple(np.concatenate(part) for part in zip(*(own[at] for at in group), strict=True)) for group in groups]
    )
    for name in ("rows", "labels", "counts"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole.summaries, name))
    np.testing.assert_allclose(merged.moments[:, :, :2], whole.summaries.moments[:, :, :2], rtol=1e-8)
    noise = np.random.default_rng(0).random(told.summaries.counts.shape)
    noisy = combine_groups(replace(told.summaries, noise=noise), groups)
    np.testing.assert_allclose(noisy.noise, [noise[group].sum(0) for group in groups])  # variances add up


def test_clients_that_do_not_report_a_class_are_taken_to_have_it_as_often_as_those_that_do():
    """Class 1 has 80 of 300 reporting rows, and class 2 has 40 of 200; the twelve unreported rows are dealt so."""
    labels = np.array([[100.0, 60, 40, np.nan], [80, 20, np.nan, np.nan], [28, np.nan, np.nan, np.nan]])
    empty = np.zeros((3, 1, 0, 5)), np.full((3, 1, 5, 5), np.nan)
    found = combine_groups(Summaries(np.array([200, 100, 40]), labels, *empty), [[0, 1, 2]])
    shares = np.array([80 / 300, 40 / 200])
    np.testing.assert_allclose(found.labels[0, :3], [208, *([80, 40] + 12 * shares / shares.sum())])
    assert np.isnan(found.labels[0, 3])
    assert found.rows.tolist() == [340]


def test_groups_of_one_law_whose_clients_have_about_ten_rows_of_a_class_do_not_differ_in_labels():
    rng, layout = np.random.default_rng(0), Layout(("x",), (None,), np.array([-3.0]), np.array([3.0]), 32, 2)
    parts = []
    for _ in range(60):
        y = (rng.random(300) < 10 / 300).astype(int)  # told of by about half of them
        parts.append(summarize(rng.normal(size=(300, 1)), y, np.arange(300), layout))
    told = concatenate_summaries(parts)
    tellers = ~np.isnan(told.labels[:, 1])
    assert 15 < tellers.sum() < 45
    silent, telling = np.flatnonzero(~tellers).tolist(), np.flatnonzero(tellers).tolist()
    groups = combine_groups(told, [[*silent[:14], *telling[:2]], telling[2:]])
    both = impute_labels(groups.labels[None], groups.rows[None])
    assert chi_square.p_value(chi_square.pearson(both))[0] > 1e-4


def federation(seed, own_rule, silos=110, rows=(60, 300), features=4):
    """Silos of unequal size; of one law, or each with weights of its own for the same inputs."""
    rng = np.random.default_rng(seed)
    centres, found = rng.normal(size=(2, features)), []
    for _ in range(silos):
        count = int(np.exp(rng.uniform(*np.log(rows))))
        x = rng.normal(size=(count, features))
        if own_rule:
            y = (x @ rng.normal(size=features) + rng.logistic(size=count) > 0).astype(int)
        else:
            y = (rng.random(count) < 0.3).astype(int)
            x += centres[y]
        found.append((x, y))
    return found


def grouped(tell, own):
    """Return the groups, the p-values inside them, and the types of each silo against all others together."""
    told = tell(own)
    shared, layout = merge_shared_bins(told.summaries, told.layout)
    silos = len(own)
    groups = group_clients(*all_pairs(silos), find_differences(pair_p_values(shared)), silos)
    rest = diagnose_pairs(append_rest(shared), layout, np.arange(silos), np.arange(silos) + silos)
    return groups, compare_inside(shared, groups), rest.verdicts.types


def alarms(tell, seeds):
    """Count federations of alike silos that are divided, or have a silo or a group inside which something differs."""
    count = 0
    for seed in seeds:
        groups, inside, types = grouped(tell, federation(seed, own_rule=False))
        count += len(groups) > 1 or bool(types.any()) or bool((inside * inside.size < ALPHA).any())
    return count


@pytest.mark.slow
def test_federations_of_alike_silos_raise_no_alarm(tell):
    """Seven of fifty did by an audit, most of them by a silo against the rest, which is very much larger."""
    assert alarms(tell, range(6)) <= 1


@pytest.mark.slow
def test_of_a_hundred_federations_of_alike_silos_ten_raise_an_alarm_at_most(tell):
    """They are 8, mostly of a silo against a far larger one; the aim is 5."""
    assert alarms(tell, range(100)) <= 10


def test_groups_of_silos_with_different_rules_are_not_alike_inside(tell):
    """Pairs of sixty to a hundred rows hardly show it; all together they do."""
    groups, inside, _ = grouped(tell, federation(1, own_rule=True, rows=(60, 100)))
    assert len(groups) < 10
    large = [index for index, group in enumerate(groups) if len(group) > 20]
    assert large
    assert (inside[large, INSIDE.index("inputs_in_classes")] < 1e-6).all()


@pytest.mark.slow
def test_the_test_of_a_group_is_rejected_as_often_as_asked(tell):
    p_values = []
    for seed in range(150):
        rng = np.random.default_rng([3, seed])
        own = [
            (rng.normal(size=(count, 1)), (rng.random(count) < 0.2).astype(int)) for count in rng.integers(60, 160, 20)
        ]
        p_values.append(screen_clients.homogeneity(merge_shared_bins(*tell_parts(tell, own))[0].counts[..., :-1], 0.0))
    assert 0.02 <= (np.array(p_values) < 0.05).mean() <= 0.09
    assert (np.array(p_values) < 0.001).mean() <= 0.02


def tables_with_margins(rows, cells):
    """Yield every table of clients and cells with these margins, and how likely it is if all clients are alike."""
    total = stats.multivariate_hypergeom(cells, rows[0])
    if len(rows) == 1:
        yield np.array([cells]), 1.0
        return
    for first in product(*(range(count + 1) for count in cells)):
        if sum(first) == rows[0]:
            rest = [count - taken for count, taken in zip(cells, first, strict=True)]
            for table, chance in tables_with_margins(rows[1:], rest):
                yield np.vstack([first, table]), chance * float(total.pmf(first))


@pytest.mark.parametrize(("rows", "cells"), [((10, 12, 17), (24, 9, 6)), ((10, 11, 12, 19), (35, 17))])
def test_the_variance_of_a_groups_statistic_is_that_over_all_tables_with_these_margins(rows, cells):
    tables, chances = zip(*tables_with_margins(rows, cells), strict=True)
    expected = np.outer(rows, cells) / sum(rows)
    exact = ((np.array(tables) - expected) ** 2 / expected).sum((1, 2))
    mean = np.average(exact, weights=chances)
    counts = np.zeros((len(rows), 1, len(cells), 2))
    counts[:, 0, :, 0], counts[:, 0, :, 1] = tables[0], tables[-1]
    statistic, freedom, variance, size = (part[0] for part in screen_clients.homogeneity_moments(counts))
    assert sum(chances) == pytest.approx(1)
    assert statistic == pytest.approx(exact[0] + exact[-1])
    assert freedom == 2 * (len(rows) - 1) * (len(cells) - 1)
    assert freedom == pytest.approx(2 * mean * (sum(rows) - 1) / sum(rows))
    assert variance == pytest.approx(2 * np.average((exact - mean) ** 2, weights=chances))
    assert size == pytest.approx(2 * sum(rows) * (1 - 1 / len(rows)))
    # a multiple of chi-square with the mean and variance of the statistic
    scale = variance / freedom / 2
    expected = stats.chi2.sf(statistic / scale, freedom / scale)
    assert screen_clients.homogeneity(counts, 0.0)[0] == pytest.approx(expected)


def test_the_effect_of_two_clients_is_that_of_a_pair():
    counts = np.array([[30.0, 40, 20, 10], [20, 30, 30, 20]])
    effect = chi_square.effect_size(chi_square.pearson(counts), np.array(50.0))
    table = counts[:, None, :, None]
    assert screen_clients.homogeneity(table, 0.999 * effect)[0] < 1
    assert screen_clients.homogeneity(table, 1.001 * effect)[0] == 1


def tell_parts(tell, own):
    told = tell(own)
    return told.summaries, told.layout


def test_only_all_unreported_rows_are_known_of_classes_that_some_clients_do_not_report(tell):
    """Their sum is compared, and a share that differs is found."""
    rng = np.random.default_rng(5)

    def client(share):
        return rng.normal(size=(200, 1)), (rng.random(200) < share).astype(int)

    alike, apart = [client(0.04) for _ in range(30)], [client(share) for share in (0.04, 0.4) * 15]
    for own, differ in ((alike, False), (apart, True)):
        told = tell(own)
        assert np.isnan(told.summaries.labels[:, 1]).any()
        assert (compare_inside(told.summaries, [list(range(30))])[0, 0] < ALPHA) == differ
