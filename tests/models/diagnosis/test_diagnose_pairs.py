"""All pairs together: false discoveries are held down as by hand, each client is held against the rest of all rows."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.cluster import hierarchy

from models.diagnosis import diagnose_pairs as room
from models.diagnosis.diagnose_pairs import (
    DISCOVERIES,
    append_rest,
    diagnose_pairs,
    find_differences,
    group_clients,
    rule_features,
)
from models.diagnosis.guarded_tests import count_evidence
from models.diagnosis.merged_tables import all_pairs, build_pairs

few = settings(max_examples=40)


def normal(seed, rows=300, moved=0.0, swapped=False):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    x = rng.normal(size=(rows, 2)) + moved
    x[:, 0] += 2 * (1 - y if swapped else y)
    return x, y


@few
@given(st.lists(st.floats(0, 1) | st.floats(0, 0.01), min_size=1, max_size=40))
def test_discoveries_are_benjaminis_and_hochbergs_by_hand(chances):
    """The largest k whose k-th smallest chance is at most k/m of the share; that many are discoveries."""
    order = sorted(chances)
    most = max((k for k in range(1, len(order) + 1) if order[k - 1] <= DISCOVERIES * k / len(order)), default=0)
    found = find_differences(np.array(chances))
    edge = [abs(chance - DISCOVERIES * k / len(order)) < 1e-12 for k, chance in enumerate(order, 1)]
    if not any(edge):
        assert found.tolist() == [most > 0 and chance <= order[most - 1] for chance in chances]


def test_of_no_pairs_there_are_no_discoveries():
    assert find_differences(np.zeros(0)).shape == (0,)


def test_a_pair_that_is_no_discovery_has_no_verdict(tell, monkeypatch):
    """Beside it alone it would have one."""
    told = tell([normal(0), normal(1, moved=0.7)])
    assert told.between().verdicts.types.any()
    monkeypatch.setattr(room, "find_differences", lambda chances: np.zeros(len(chances), bool))
    assert not told.between().verdicts.types.any()


def test_false_alarms_among_many_pairs_that_are_alike_are_few(tell):
    told = tell([normal(seed, 200) for seed in range(30)])
    found = diagnose_pairs(told.summaries, told.layout, *all_pairs(30))
    assert found.verdicts.types.any(-1).mean() <= 0.01


def test_what_inputs_differ_by_is_kept_of_every_pair_and_carries_the_shift_of_those_whose_rule_is_the_same(tell):
    told = tell([normal(seed, moved=seed % 2, swapped=seed == 3) for seed in range(4)])
    found = diagnose_pairs(told.summaries, told.layout, *all_pairs(4))
    effects = count_evidence(build_pairs(told.summaries, told.layout, *all_pairs(4))).effects
    np.testing.assert_array_equal(found.inputs, np.minimum(effects["at_mean"], effects["bins"]))
    rules = found.verdicts.types[:, 2]
    assert 0 < rules.sum() < len(rules)
    np.testing.assert_array_equal(found.parts[~rules], found.inputs[~rules])
    odds, both = effects["interaction"], rules & found.verdicts.types[:, 0]
    assert both.any()
    np.testing.assert_array_equal(found.parts[rules & ~both], odds[rules & ~both])
    np.testing.assert_array_equal(found.parts[both], np.maximum(odds, found.inputs)[both])


def test_a_rule_is_named_by_a_feature_whose_inputs_moved_at_most_as_much_as_by_the_best_of_the_others(tell):
    (x, y), other = normal(0, 1000), normal(1, 1000)
    x[:, 0] += 1.5 - 4 * (y - 0.5)  # moved, and of another rule
    x[:, 1] += 0.8 * (y - 0.5)  # of another rule
    told = tell([(x, y), other, normal(2, 1000, moved=1.0)])
    found, limited = diagnose_pairs(told.summaries, told.layout, *all_pairs(3)), 0
    for inputs, odds, rules in zip(found.inputs, found.odds, found.rules, strict=True):
        others = [effect for moved, effect in zip(inputs, odds, strict=True) if moved < 0.1 <= effect]
        expected = [
            min(effect, max(others)) if moved >= 0.1 and others else effect
            for moved, effect in zip(inputs, odds, strict=True)
        ]
        assert rules.tolist() == expected
        limited += expected != odds.tolist()
    assert limited


@pytest.mark.parametrize("seed", range(3))
def test_the_chance_of_a_pair_is_twice_the_least_of_labels_and_of_each_feature_times_their_number(seed, tell):
    """Bonferroni's correction: one hypothesis of labels and one of each feature, within classes where one is compared."""
    rng, margins = np.random.default_rng(seed), normal(seed + 20, 60)
    extra = [np.column_stack([x, rng.normal(size=(len(x), 3))]) for x in (normal(seed)[0], margins[0])]
    told = tell(
        [
            (extra[0], normal(seed)[1]),
            (extra[0] + [0.15, 0, 0.1, 0, 0], normal(seed + 10)[1]),
            (extra[1] + 0.7, np.full(60, 2)),  # of this class no other has a row
        ],
        classes=3,
    )
    found = diagnose_pairs(told.summaries, told.layout, *all_pairs(3))
    by_test = count_evidence(build_pairs(told.summaries, told.layout, *all_pairs(3)))
    assert by_test.tested.tolist() == [True, False, False]
    for pair, name in enumerate(("bins_in_classes", "bins", "bins")):
        least = min(by_test.chances["labels"][pair], 5 * by_test.chances[name][pair].min())
        np.testing.assert_allclose(found.chance[pair], min(1.0, 2 * least), rtol=1e-9)
    assert 5 * by_test.chances["bins_in_classes"][0].min() < min(0.5, by_test.chances["labels"][0])


def test_pairs_looked_at_a_few_at_a_time_are_found_alike(tell, monkeypatch):
    reported = tell([normal(seed, moved=seed % 3 / 2, swapped=seed == 4) for seed in range(7)])
    whole, heard = diagnose_pairs(reported.summaries, reported.layout, *all_pairs(7)), []
    monkeypatch.setattr(room, "_BATCH_BYTES", 8 * reported.summaries.counts[0].size * 2 * 4)
    parts = diagnose_pairs(reported.summaries, reported.layout, *all_pairs(7), report_progress=heard.append)
    assert heard == [4, 8, 12, 16, 20, 21]
    np.testing.assert_array_equal(whole.verdicts.types, parts.verdicts.types)
    for name in ("rows", "chance", "labels", "parts", "overlap"):
        np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-6)


def test_a_batch_in_parts_is_found_as_whole_by_the_same_number_of_sweeps(tell, monkeypatch):
    reported = tell([normal(seed, moved=seed % 3 / 2, swapped=seed == 4) for seed in range(7)])
    of_part = []
    for part_bytes in (2**24, 16 * reported.summaries.counts[0].size):
        monkeypatch.setattr(room, "_PART_BYTES", part_bytes)
        sweeps = []

        def count(pairs, least_sweeps, sweeps=sweeps):
            evidence = count_evidence(pairs, least_sweeps)
            sweeps.append(int(evidence.sweeps.max()))
            return evidence

        of_part.append(
            (diagnose_pairs(reported.summaries, reported.layout, *all_pairs(7), collect_evidence=count), sweeps)
        )
    (whole, [needed]), (parts, fitted) = of_part
    assert min(sweeps for sweeps in fitted if sweeps) < max(fitted) == needed, "some parts are fitted once more"
    for name in ("chance", "labels", "parts", "inputs", "odds", "rules", "overlap"):
        np.testing.assert_allclose(getattr(whole, name), getattr(parts, name), rtol=1e-12, atol=1e-14)


def test_the_rest_of_a_client_is_all_other_clients_rows(tell):
    own = [normal(seed, moved=seed / 5) for seed in range(4)]
    rest = append_rest(tell(own).summaries)
    for at in range(4):
        others = [own[other] for other in range(4) if other != at]
        whole = tell([tuple(np.concatenate(part) for part in zip(*others, strict=True))]).summaries
        for name in ("rows", "labels", "counts"):
            np.testing.assert_array_equal(getattr(rest, name)[4 + at], getattr(whole, name)[0])
        np.testing.assert_allclose(rest.moments[4 + at, :, :2], whole.moments[0, :, :2], rtol=1e-8)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_clients_are_grouped_too(count):
    first, second = all_pairs(count)
    assert group_clients(first, second, np.zeros(len(first), bool), count) == ([list(range(count))] if count else [])
    assert group_clients(first, second, np.ones(len(first), bool), count) == [[at] for at in range(count)]


@few
@given(st.integers(2, 9), st.data())
def test_groups_are_those_of_average_linkage_and_hold_every_client_once(count, data):
    first, second = all_pairs(count)
    differ = np.array(data.draw(st.lists(st.booleans(), min_size=len(first), max_size=len(first))))
    groups = group_clients(first, second, differ, count)
    assert sorted(place for group in groups for place in group) == list(range(count))
    cut = hierarchy.fcluster(hierarchy.average(differ.astype(float)), 0.5, "distance")
    for group in groups:
        assert len({cut[place] for place in group}) == 1
    assert len(groups) == len(set(cut.tolist()))


def test_what_carries_a_shift_is_the_feature_that_moved_and_the_overlap_is_of_the_worst(tell):
    x, y = normal(0)
    other, label = normal(1)
    other[:, 1] += 9
    found = tell([(x, y), (other, label)]).between()
    assert found.parts[0].argmax() == 1
    assert found.overlap[0] < 0.05
    assert found.rows.tolist() == [[300, 300]]


def test_a_rule_is_named_by_a_feature_only_if_its_effect_exceeds_that_of_chance_over_all_features():
    """Chi-square of 1 degree of freedom at .05 over four features is 6.24; φ² times 150 is the excess over its mean."""
    least = np.sqrt((stats.chi2.isf(0.05 / 4, 1) - 1) / 150)
    rows = np.array([[300, 300]])
    for largest, named in ((1.01 * least, [2]), (0.99 * least, [])):
        assert rule_features(SimpleNamespace(rules=np.array([[0.0, 0.05, largest, 0.0]]), rows=rows), 0) == named
    close = SimpleNamespace(rules=np.array([[0.3, 0.29, 0.31, 0.0]]), rows=rows)
    assert rule_features(close, 0) == [2, 0, 1]
    far = SimpleNamespace(rules=np.array([[0.3, 0.1, 0.6, 0.0]]), rows=rows)
    assert rule_features(far, 0) == [2]
