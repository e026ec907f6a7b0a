"""What silos with units tell: nothing of fewer than ten patients, however many visits they have."""

import numpy as np
import pytest

from flows.diagnosis.query_clients import collect_answers, dependent_rows
from models.diagnosis.client_summaries.client_summary import Summaries
from models.diagnosis.client_summaries.model_predictions import Design
from silos.client_store import ClientStore
from silos.cohort import Stack
from silos.privacy.ledger import Ledger
from silos.privacy.owner_file import make_store
from tasks.diagnosis.report_predictions import report_models, report_predictions, second_half
from tasks.diagnosis.report_summary import LocalSummary, whole_units
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import PlainRunner

BOUNDED = [{"name": "a", "low": -4, "high": 4}, {"name": "b", "low": -4, "high": 4}]


def visits(seed, patients, times=8):
    """Rows of so many patients of each class."""
    rng, y = np.random.default_rng(seed), np.repeat(np.arange(len(patients)), patients)
    unit = np.repeat(np.arange(len(y)), times)
    return rng.normal(size=(len(unit), 2)) + y[unit, None] / 2, y[unit], unit


def opened(silos, client):
    rows = load_rows(silos, Stack((client,), 1), "train", "cpu")
    return LocalSummary(silos, client, rows.x[0], rows.y[0])


def test_a_class_needs_ten_patients(silos_of, asked):
    told = asked(silos_of({"a": visits(1, (10, 9, 30)), "b": visits(2, (30, 40, 50))}, features=BOUNDED))
    (message,) = told.answers.messages
    first, second = (message.clients.index(client) for client in "ab")
    labels = message.labels.numpy()
    assert np.isnan(labels[first]).tolist() == [False, True, False]
    assert not np.isnan(labels[second]).any()
    assert message.counts.numpy()[first, :, :, 1].sum() == 0


def test_a_silo_counts_in_no_more_bins_than_it_has_patients(silos_of, asked):
    silos = silos_of({"a": visits(1, (30, 30)), "b": visits(2, (60, 60))}, features=BOUNDED)
    refusals = asked(silos, bins=100).answers.refusals
    assert set(refusals) == {"a"}
    assert "diagnose.bins: got 100, expected 60 or less: the client has 60 training units" in refusals["a"]


def test_rows_count_as_what_they_are_worth(silos_of, asked):
    told = asked(silos_of({"a": visits(1, (60, 60)), "b": visits(2, (60, 60))}, features=BOUNDED))
    (message,) = told.answers.messages
    assert (message.rows == 120).all()  # the label is a patient's
    assert message.counts.numpy().sum((2, 3)).tolist() == [[120.0, 120.0]] * 2


def test_a_patient_with_a_rare_number_of_visits_does_not_show(silos_of, asked):
    """Its weight of 1/13 in a bin would show a visit there."""
    rng = np.random.default_rng(3)
    unit = np.concatenate([np.repeat(np.arange(1, 120), 8), np.repeat(0, 13)])
    own = rng.normal(size=(len(unit), 2)), rng.integers(0, 2, len(unit)), unit
    told = asked(silos_of({"a": own, "b": visits(2, (60, 60))}, features=BOUNDED))
    (message,) = told.answers.messages
    for part in (message.counts, message.labels, message.moments[..., 0]):
        assert np.array_equal(part.numpy(), np.rint(part.numpy()), equal_nan=True)
    assert message.counts.numpy().sum(2)[..., :2] == pytest.approx(np.repeat(message.labels.numpy()[:, None], 2, 1))
    assert message.labels.numpy().sum(1) == pytest.approx(message.rows.numpy())
    assert message.moments.numpy()[:, :, :2, 0] == pytest.approx(np.repeat(message.labels.numpy()[:, None], 2, 1))


def test_a_rare_class_in_no_cell_keeps_its_share(silos_of, asked):
    """Its patients would merge the cells of the others, so it is counted in none; its share is still the one that it has."""
    silos = silos_of({"a": visits(1, (12, 150, 150), 1), "b": visits(2, (150, 150, 150), 1)}, features=BOUNDED)
    (message,) = asked(silos).answers.messages
    own = message.clients.index("a")
    assert message.counts.numpy()[own, :, :, 0].sum() == 0
    assert message.labels.numpy()[own].tolist() == [12.0, 150.0, 150.0]
    assert message.moments.numpy()[own, :, :3, 0].tolist() == [[12.0, 150.0, 150.0]] * 2


def test_a_sum_of_weights_that_rounding_made_smaller_shows_no_missing_value():
    """A class in no cell: 12.5 patients are 13 of all, and their weights add up to a little less in another order."""
    counts = np.zeros((1, 1, 3, 3))
    counts[0, 0, :, 1] = [6.0, 6.25, 0.0]
    moments = np.zeros((1, 1, 3, 5))
    moments[0, 0, :2, 0] = [12.5 - 2e-15, 12.25]
    whole = whole_units(Summaries(np.array([25.0]), np.array([[12.5, 12.25]]), counts, moments))
    assert whole.labels.tolist() == [[13.0, 12.0]]
    assert whole.moments[0, 0, :2, 0].tolist() == [13.0, 12.0]


def test_under_noise_a_patient_counts_as_one_row(silos_of, asked):
    silos = silos_of({"a": visits(1, (300, 300)), "b": visits(2, (300, 300))}, features=BOUNDED)
    noise = {"epsilon": 8.0, "delta": 1e-5}
    told = asked(silos, noise=noise)
    (message,) = told.answers.messages
    assert message.counts.sum((2, 3)).numpy() == pytest.approx(np.full((2, 2), 600), abs=60)
    assert dependent_rows(silos, [told.answers]) == {"unit": "who", "repeats": [], "persons": []}


def test_patients_stay_in_one_half_and_a_second_look_is_answered(silos_of, asked, tmp_path):
    silos = silos_of({"a": visits(1, (60, 50)), "b": visits(2, (40, 70))}, features=BOUNDED)
    query = asked(silos).question
    local = opened(silos, "a")
    second = second_half(Ledger(str(tmp_path / "halves"), "a"), local, query)
    assert 0 < second.mean() < 1
    assert all(len(np.unique(second[local.unit == unit])) == 1 for unit in local.unit)
    make_store(tmp_path / "looked")
    private, design = ClientStore(str(tmp_path / "looked")), Design(query, np.zeros(2), np.ones(2))
    models, silent = collect_answers(PlainRunner(), report_models, silos, private=private, design=design)
    weights = {c: own for m in models for c, own in zip(m.clients, m.weights.numpy(), strict=True)}
    sent = {"private": private, "design": design, "models": dict.fromkeys(weights, weights)}
    foreseen, more = collect_answers(PlainRunner(), report_predictions, silos, **sent)
    assert (set(weights), silent, more) == ({"a", "b"}, {}, {})
    for message in foreseen:
        for counts in message.counts.values():
            assert np.maximum(counts.numpy(), 0).sum((-2, -1)) == pytest.approx(np.full((2, 2), 110), abs=30)


def test_the_version_of_rows_depends_on_their_units(silos_of):
    x, y, unit = visits(1, (20, 20))
    versions = {opened(silos_of({"a": own}), "a").version for own in ((x, y), (x, y, unit), (x, y, unit // 2))}
    assert len(versions) == 3


def test_silos_with_copies_are_named_unless_units_explain_them(silos_of, asked):
    x, y, unit = visits(1, (40, 40), times=1)
    twice, y_twice, unit_twice = (np.repeat(part, 2, 0) for part in (x, y, unit))
    copied = silos_of({"a": (twice, y_twice), "b": (x + 0.1, y)}, features=BOUNDED)
    assert dependent_rows(copied, [asked(copied).answers]) == {"unit": None, "repeats": ["a"], "persons": []}
    by_unit = silos_of({"a": (twice, y_twice, unit_twice), "b": (x + 0.1, y, unit)}, features=BOUNDED)
    assert dependent_rows(by_unit, [asked(by_unit).answers]) == {"unit": "who", "repeats": [], "persons": []}
