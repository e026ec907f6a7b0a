"""The printed verdict: its grades, what is kept of many features, and all pairs of many clients."""

import numpy as np
import pytest

from models.diagnosis.fomichev_distances import (
    Readings,
    Statistics,
    concept_distance,
    feature_distance,
    label_distance,
    statistics_from_rows,
)
from models.diagnosis.guarded_tests import TYPES
from models.diagnosis.merged_tables import all_pairs
from models.diagnosis.name_shift_types import GRADES, grade_distances, judge_all_pairs, judge_pairs
from publications.synthetic_pairs.generators import Logistic, Normals

PAIR = np.array([[0, 1]])


@pytest.fixture(scope="module")
def told() -> Statistics:
    """Nine clients of four features and three classes; one lacks a class, one a feature, one has a single row."""
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(9):
        y = rng.choice(3, 60, p=rng.dirichlet(np.ones(3)))
        clients.append((rng.normal(size=(3, 4))[y] * 2 + rng.uniform(0.3, 2) * rng.normal(size=(60, 4)), y))
    clients[3] = (clients[3][0], clients[3][1] % 2)
    clients[5][0][:, 0] = np.nan
    clients[7] = (clients[7][0][:1], clients[7][1][:1])
    return statistics_from_rows(clients, 3)


def test_a_bound_belongs_to_the_grade_above_it():
    distances = np.array([0, 0.3499, 0.35, 0.6999, 0.7, 1.0499, 1.05, np.inf])
    assert [GRADES[grade] for grade in grade_distances(distances, Readings().feature_grades)] == [
        name for name in GRADES for _ in range(2)
    ]
    assert [GRADES[grade] for grade in grade_distances(np.array([0.5, 1.0, 1.5, 2.0]), Readings().label_grades)] == [
        "moderate", "significant", "critical", "critical",
    ]  # fmt: skip


def test_what_is_unknown_has_no_grade_and_is_no_shift():
    row = (np.array([[1.0]]), np.array([0]))
    found = judge_pairs(statistics_from_rows([row, (np.array([[5.0], [9.0]]), np.array([0, 0]))], 1), PAIR)
    assert found.grades[0, TYPES.index("feature")] == -1
    assert not found.types.any()
    assert np.isnan(found.features.largest)
    assert found.features.feature == -1


def test_a_distance_that_is_moderate_or_worse_is_a_shift_of_its_type_and_no_other():
    rng = np.random.default_rng(1)
    laws = Normals(), Logistic(), Logistic(sd=2), Normals(0.8), Normals(means=(1, -1))
    told = statistics_from_rows([law(rng, 2000) for law in laws], 2)
    found = judge_pairs(told, np.array([[0, 0], [1, 2], [0, 3], [0, 4]]))
    expected = [[], ["feature"], ["label"], ["concept"]]
    assert [[TYPES[place] for place in np.flatnonzero(types)] for types in found.types] == expected
    np.testing.assert_array_equal(found.types, found.grades >= 1)


def test_over_features_it_keeps_the_largest_which_that_is_and_the_mean_of_what_is_known(told):
    pairs = np.stack(all_pairs(9), -1)
    found = judge_pairs(told, pairs)
    by_feature = feature_distance(told, pairs), concept_distance(told, pairs)
    for kept, distances in zip((found.features, found.concepts), by_feature, strict=True):
        for place, row in enumerate(distances):
            known = row[~np.isnan(row)]
            if len(known):
                assert kept.largest[place] == pytest.approx(known.max())
                assert row[kept.feature[place]] == known.max()
                assert kept.mean[place] == pytest.approx(known.mean())
            else:
                assert np.isnan([kept.largest[place], kept.mean[place]]).all()
                assert kept.feature[place] == -1
    np.testing.assert_array_equal(found.labels, label_distance(told, pairs))
    assert np.isnan(by_feature[0]).any()


def test_the_mean_over_features_dilutes_what_one_feature_says():
    """The largest of them is one feature's; beside nine features that are alike their mean is a tenth of it."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2000, 10)), np.arange(2000) % 2
    other = x.copy()
    other[:, 4] *= 3
    told = statistics_from_rows([(x, y), (other, y)], 2)
    largest, mean = judge_pairs(told, PAIR), judge_pairs(told, PAIR, Readings(aggregate="mean"))
    feature = TYPES.index("feature")
    assert largest.types[0, feature]
    assert not mean.types[0, feature]
    assert largest.features.feature == 4
    assert mean.features.mean == pytest.approx(mean.features.largest / 10)


def test_other_bounds_of_grades_give_other_verdicts():
    told = statistics_from_rows([law(np.random.default_rng(3), 2000) for law in (Normals(), Normals(0.7))], 2)
    assert not judge_pairs(told, PAIR).types.any()
    strict = judge_pairs(told, PAIR, Readings(label_grades=(0.1, 0.2, 0.3)))
    assert strict.grades[0].tolist() == [0, 3, 0]


def test_all_pairs_on_one_grid_are_as_pair_after_pair_on_it(told):
    readings = Readings(grid="federation", points=37)
    every, given = judge_all_pairs(told, readings), judge_pairs(told, np.stack(all_pairs(9), -1), readings)
    np.testing.assert_allclose(every.concepts.largest, given.concepts.largest, atol=1e-12)
    np.testing.assert_allclose(every.concepts.mean, given.concepts.mean, atol=1e-12)
    np.testing.assert_array_equal(every.concepts.feature, given.concepts.feature)
    np.testing.assert_array_equal(every.types, given.types)


def test_all_pairs_on_grids_of_their_own_are_those_pairs(told):
    every, given = judge_all_pairs(told, Readings()), judge_pairs(told, np.stack(all_pairs(9), -1))
    np.testing.assert_array_equal(every.concepts.largest, given.concepts.largest)
    np.testing.assert_array_equal(every.grades, given.grades)
