"""Visits are found without the column of persons, and made hospitals and public tables of single rows are not."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

from models.diagnosis.client_summaries.repeated_persons import has_repeated_persons
from publications.synthetic_pairs.clinical_pairs import CLINICAL
from publications.synthetic_pairs.families import FAMILIES, PairRequest


def hospitals(kind, rows, pairs):
    drawn = (FAMILIES["clinical"].draw(PairRequest(kind, (rows, rows)), 57, number) for number in range(pairs))
    return [x for pair in drawn for x, _ in pair.clients]


@pytest.mark.parametrize("rows", [300, 1000, 3000])
def test_eight_visits_of_each_patient_are_found(rows):
    assert all(has_repeated_persons(x) for x in hospitals("alike, visits", rows, 5))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [300, 1000, 3000])
def test_no_other_made_hospital_seems_to_have_visits(rows):
    assert not any(
        has_repeated_persons(x) for kind in CLINICAL if "visits" not in kind for x in hospitals(kind, rows, 5)
    )


@pytest.mark.parametrize("load", [load_breast_cancer, load_diabetes, load_iris, load_wine])
def test_a_public_table_of_single_rows_has_no_repeated_persons(load):
    assert not has_repeated_persons(load().data)


def test_two_visits_of_each_person_are_found_and_age_groups_that_differ_in_ward_are_not():
    rng = np.random.default_rng(0)
    age, ward = np.round(rng.normal(60, 14, 500)), rng.integers(1, 5, 500)
    sex, lab = rng.integers(0, 2, 500), rng.normal(size=1000)
    static = np.repeat(np.stack([age, ward, sex], 1), 2, 0)
    assert has_repeated_persons(np.column_stack([static, lab]))
    older = np.round(rng.normal(60, 14, 1000))
    by_age = np.clip((older - 30) // 15, 0, 4)
    assert not has_repeated_persons(np.column_stack([older, by_age, rng.integers(0, 2, 1000), lab]))


def test_missing_values_few_rows_and_pictures_are_no_repeated_persons():
    x = hospitals("alike, visits", 300, 1)[0]
    assert not has_repeated_persons(x[:40])
    assert not has_repeated_persons(np.full((100, 3), np.nan))
    assert not has_repeated_persons(np.zeros((100, 8, 8)))
    x[::9, 2] = np.nan
    assert has_repeated_persons(x)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("few", [(2,), (3, 2), (4,)], ids=["week and holiday", "device, brand and sector", "price"])
def test_what_one_column_determines_is_no_person(few, seed):
    rng = np.random.default_rng(seed)
    code = rng.integers(0, 52, 500)
    facts = [rng.integers(0, values, 52)[code] for values in few]
    assert not has_repeated_persons(np.column_stack([code, *facts, rng.normal(size=500)]))


@pytest.mark.parametrize("persons", [40, 60, 100])
def test_sixty_visits_of_each_person_are_found(persons):
    rng = np.random.default_rng(persons)
    age, ward, sex = np.round(rng.normal(60, 14, persons)), rng.integers(1, 5, persons), rng.integers(0, 2, persons)
    static = np.repeat(np.stack([age, ward, sex], 1), 60, 0)
    assert has_repeated_persons(np.column_stack([static, rng.normal(size=60 * persons)]))


@pytest.mark.parametrize("rounded", ["to five years in a ward", "to five years in two wards", "to a year in a ward"])
@pytest.mark.parametrize("rows", [1000, 3000])
def test_ages_that_are_rounded_at_some_wards_only_are_no_persons(rounded, rows):
    for seed in range(3):
        rng = np.random.default_rng([seed, rows])
        age, ward, sex = rng.normal(60, 14, rows), rng.integers(1, 5, rows), rng.integers(0, 2, rows)
        at = ward <= (2 if "two" in rounded else 1)
        coarse = 5 * np.round(age / 5) if "five" in rounded else np.round(age)
        x = np.column_stack([np.where(at, coarse, np.round(age, 1)), ward, sex, rng.normal(size=rows)])
        assert not has_repeated_persons(x)
