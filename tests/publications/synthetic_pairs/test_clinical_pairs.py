"""Every kind of pair of hospitals has the types that it names: measured on many rows of the laws of both."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

from publications.synthetic_pairs.clinical_pairs import CLINICAL, FEATURES, VISITS, Hospital, clinical_pair
from publications.synthetic_pairs.families import FAMILIES, PairRequest

pytestmark = pytest.mark.slow

ROWS = 200_000
AT = {name: place for place, name in enumerate(FEATURES)}
MEASURED = ("unit", "device offset", "device gain")


def laws(name: str) -> tuple[Hospital, Hospital]:
    return CLINICAL[name].hospitals(np.random.default_rng(7), (ROWS, ROWS), CLINICAL[name].three)


@pytest.fixture(scope="module")
def rows():
    """The rows of both laws by kind, drawn once."""
    drawn: dict[str, tuple] = {}

    def of(name: str):
        if name not in drawn:
            drawn[name] = tuple(law.draw(np.random.default_rng([3, at]), ROWS)[:2] for at, law in enumerate(laws(name)))
        return drawn[name]

    return of


def apart(one: np.ndarray, other: np.ndarray, errors: float = 5.0) -> bool:
    """Whether the means of two large samples differ by more than standard errors; NaN is a value."""
    one, other = (np.stack([np.nan_to_num(of, nan=0.0), np.isnan(of)]) for of in (one, other))
    sd = np.sqrt(one.var(-1) / one.shape[-1] + other.var(-1) / other.shape[-1])
    return bool((np.abs(one.mean(-1) - other.mean(-1)) > errors * np.maximum(sd, 1e-12)).any())


def moments(x: np.ndarray) -> np.ndarray:
    """Means, squares and the product of creatinine and urea, by row: (moments, rows)."""
    z = np.log(np.maximum(x, 0.01)).T
    both = (x[:, AT["creatinine"]] - 1.2) * (x[:, AT["urea"]] - 42)
    wards = np.array([[1.0], [2.0], [3.0]]) == x[:, AT["ward"]]
    return np.concatenate([z, (z - np.nanmean(z)) ** 2, both[None], wards])


def differ(one: np.ndarray, other: np.ndarray) -> bool:
    return any(apart(a, b) for a, b in zip(moments(one), moments(other), strict=True))


def residual_moments(law: Hospital, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The outcome less its chance by a law, times features: zero on average if the law holds, (moments, rows)."""
    residual = (y > 0) - expit(law.log_odds(x))
    sign = np.where(x[:, AT["sex"]] == 1, 1.0, -1.0)
    pressure, creatinine = (x[:, AT["systolic"]] - 135) / 18, (x[:, AT["creatinine"]] - 1.2) / 0.3
    ward = x[:, AT["ward"]] == 2
    return residual * np.stack(
        [np.ones(len(y)), creatinine, pressure, x[:, AT["age"]] - 62, ward, sign, sign * pressure]
    )


def follows(law: Hospital, x: np.ndarray, y: np.ndarray) -> bool:
    found = residual_moments(law, x, y)
    return bool((np.abs(found.mean(-1)) < 5 * found.std(-1) / np.sqrt(len(y))).all())


def complete(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    there = ~np.isnan(x).any(-1)
    return x[there], y[there]


ONE_ROW_A_PATIENT = [name for name in CLINICAL if name not in ("alike, visits", "alike, rare class")]


@pytest.mark.parametrize("name", ONE_ROW_A_PATIENT)
def test_what_differs_between_both_laws_is_what_the_truth_says(name, rows):
    kind, (usual, _) = CLINICAL[name], laws(name)
    (x, y), (other, labels) = rows(name)
    if name in MEASURED:
        recorded = other
        ((column, (factor, offset)),) = kind.second["gains"].items()
        other = other.copy()
        other[:, AT[column]] = (other[:, AT[column]] - offset) / factor
        assert differ(x, recorded)
        assert not differ(x, other)
        assert follows(usual, *complete(other, labels))
        return
    within = [differ(x[y == m], other[labels == m]) for m in np.unique(y)]
    assert differ(x, other) == (bool(kind.truth & {"feature", "label"}))
    assert follows(usual, *complete(x, y))
    assert follows(usual, *complete(other, labels)) == (not kind.truth & {"label", "concept"})
    if kind.truth == {"label"}:
        assert apart(np.float64(y > 0), np.float64(labels > 0))
        assert not any(within)
    elif "label" not in kind.truth | kind.also:
        assert not apart(np.float64(y > 0), np.float64(labels > 0))


def test_referral_is_a_selection_by_age_and_class_of_the_usual_hospital(rows):
    """Weighed back by both, rows have the law of the usual hospital."""
    (x, y), (other, labels) = rows("referral")
    law = laws("referral")[1]
    age = np.minimum((other[:, AT["age"]] - 62) / 14, 2.5)
    weights = 1 / (np.array(law.odds)[labels] * np.exp(law.referral * age))
    assert np.average(labels, weights=weights) == pytest.approx(y.mean(), abs=0.006)
    for place, sd in enumerate(x.std(0)):
        assert np.average(other[:, place], weights=weights) == pytest.approx(x[:, place].mean(), abs=0.02 * sd)


@pytest.mark.parametrize("name", CLINICAL)
def test_prevalence_is_that_of_hospitals(name, rows):
    (_, y), (_, labels) = rows(name)
    if name != "alike, rare class":
        assert 0.05 < min((y > 0).mean(), (labels > 0).mean()) < 0.31
        assert max((y > 0).mean(), (labels > 0).mean()) < 0.5
    assert set(np.unique(y)) == ({0, 1, 2} if CLINICAL[name].three else {0, 1})


def test_older_patients_have_the_outcome_more_often(rows):
    (x, y), (other, labels) = rows("age")
    assert abs(other[:, AT["age"]].mean() - x[:, AT["age"]].mean()) == pytest.approx(8, abs=0.3)
    assert 0.03 < labels.mean() - y.mean() < 0.09


def test_an_interaction_is_in_no_feature_alone(rows):
    (x, y), (other, labels) = rows("interaction")
    for place in range(len(FEATURES)):
        edges = np.unique(np.quantile(x[:, place], np.arange(0.1, 1, 0.1)))
        bins, others = (np.searchsorted(edges, of[:, place]) for of in (x, other))
        for at in np.unique(bins):
            assert not apart(np.float64(y[bins == at]), np.float64(labels[others == at]))
    strong = [(of[:, AT["sex"]] == 1) & (of[:, AT["systolic"]] > 150) for of in (x, other)]
    assert abs(y[strong[0]].mean() - labels[strong[1]].mean()) > 0.2


@pytest.mark.parametrize(("number", "classes"), [(0, 2), (1, 3)])
@pytest.mark.parametrize("size", [(300, 60), (1000, 200), (3000, 600)])
def test_a_rare_class_has_fewer_than_ten_rows_in_the_smaller_silo(size, number, classes):
    pairs = [clinical_pair(np.random.default_rng(s), "alike, rare class", size, number) for s in range(200)]
    counts = np.array([(pair.clients[1][1] == classes - 1).sum() for pair in pairs])
    assert all(pair.classes == classes for pair in pairs)
    assert counts.mean() == pytest.approx(4.5, abs=0.8)
    assert (counts < 10).mean() > 0.93


def test_visits_of_a_patient_have_his_outcome_his_age_and_other_laboratory_values():
    pair = clinical_pair(np.random.default_rng(0), "alike, visits", (300, 300), 0)
    assert pair.units is not None
    for (x, y), patient in zip(pair.clients, pair.units, strict=True):
        assert np.bincount(patient).tolist() == [VISITS] * 37 + [4]
        of_one = [np.unique(x[patient == p], axis=0) for p in range(37)]
        assert all(len(np.unique(y[patient == p])) == 1 for p in range(37))
        assert all(len(np.unique(one[:, AT["age"]])) == 1 for one in of_one)
        assert np.mean([len(np.unique(one[:, AT["crp"]])) for one in of_one]) > 6


def test_a_shift_is_in_either_silo_and_a_pair_is_drawn_again_from_its_seed_and_number():
    draw = FAMILIES["clinical"].draw
    ages = []
    for number in range(12):
        pair, again = (draw(PairRequest("age", (1000, 300)), 22, number) for _ in range(2))
        for (x, y), (same, labels) in zip(pair.clients, again.clients, strict=True):
            np.testing.assert_array_equal(x, same)
            np.testing.assert_array_equal(y, labels)
        assert [len(y) for _, y in pair.clients] == [1000, 300]
        ages.append(pair.clients[1][0][:, 0].mean() > pair.clients[0][0][:, 0].mean())
    assert 2 < sum(ages) < 10


def test_a_federation_is_of_alike_hospitals_of_different_sizes():
    federation = FAMILIES["clinical"].draw(PairRequest("alike", (1000, 200), clients=8), 22, 0)
    assert [len(y) for _, y in federation.clients] == [1000, 795, 631, 502, 399, 317, 252, 200]
    assert federation.truth == frozenset()


CODED = {name: kind for name, kind in CLINICAL.items() if kind.truth in ({"concept"}, {"label"}) and kind.seen_from}


@pytest.mark.parametrize("name", [name for name in CODED if not CODED[name].three])
def test_a_shift_is_visible_from_the_rows_that_it_names_to_a_test_that_knows_both_laws(name):
    """Sums of likelihood ratios over rows are normal: their means under both laws are d standard deviations apart."""
    kind = CODED[name]
    prevalence = sum(kind.prevalence) / 2
    usual, other = replace(kind, prevalence=(prevalence, prevalence)).hospitals(np.random.default_rng(0), (1, 1), False)
    x, y, _ = other.draw(np.random.default_rng(1), ROWS)
    population, _, _ = usual.draw(np.random.default_rng(2), ROWS)
    share = expit(usual.log_odds(population)).mean()

    def chance(log_odds: np.ndarray) -> np.ndarray:
        p = expit(log_odds)
        return np.where(y > 0, p, 1 - p)

    none = chance(usual.log_odds(x))
    label = none * np.where(y > 0, y.mean() / share, (1 - y.mean()) / (1 - share))
    if kind.truth == {"label"}:
        moved = brentq(lambda add: expit(usual.log_odds(population) + add).mean() - y.mean(), -9, 9)
        true, false = label, chance(usual.log_odds(x) + moved)
    else:
        p = expit(other.log_odds(x)) * (1 - other.missed)
        p = np.where(x[:, AT["ward"]] == 2, p * (1 - other.noise) + (1 - p) * other.noise, p)
        true, false = np.where(y > 0, p, 1 - p), label
    smaller = 0.2 if "unequal" in name else 1.0
    effective = kind.seen_from * smaller / (1 + smaller)  # rows whose law is known exactly that tell as much
    apart_by = min(2 * r.mean() / r.std() * np.sqrt(effective) for r in (np.log(true / none), np.log(true / false)))
    assert 3.0 < apart_by < 4.5  # 3.3 is right in 95 %
