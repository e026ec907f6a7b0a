"""No cell of a report stands for one to nine rows, or units, of a class: read by an attacker, and counted by hand."""

from itertools import pairwise

import numpy as np
import pytest

from flows.diagnosis.query_clients import collect_answers
from models.diagnosis.client_summaries.rank_correlations import PairQuery
from models.diagnosis.fomichev_distances import Readings
from silos.client_store import ClientStore
from silos.cohort import Silos, Stack
from silos.data_params import DataParams
from silos.storage.partition_store import write
from tasks.diagnosis.compare_feature_pairs import report_feature_pairs
from tasks.diagnosis.compare_silos import compare_silos
from tasks.diagnosis.report_summary import join_summaries, open_ledger
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import PlainRunner

NUMBERS = [{"name": name, "low": -4, "high": 4, "missing": {"fill": 0}} for name in ("a", "b")]
FEATURES = [
    *NUMBERS,
    {"name": "ward", "kind": "categorical", "categories": [1, 2, 3, 4]},
    {"name": "sex", "kind": "categorical", "categories": [0, 1], "missing": {"fill": 0}},
    {"name": "visits", "low": 0, "high": 9},
]


def clinical(seed, sizes, missing=0.03, copies=0):
    """Numbers, categories, one of them rare in a class, and a number of few values, with missing values and copies."""
    rng, y = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    numbers = rng.normal(size=(len(y), 2)) + y[:, None] / 2
    ward = rng.choice([1, 2, 3, 4], len(y), p=[0.5, 0.3, 0.15, 0.05])
    sex = (rng.random(len(y)) < np.where(y == 0, 0.5, 0.03)).astype(float)
    x = np.column_stack([numbers, ward, sex, rng.poisson(1, len(y)).clip(0, 9)]).astype(np.float32)
    for column in (0, 1, 3):
        x[rng.random(len(y)) < missing, column] = np.nan
    again = rng.integers(0, len(y), copies)
    return np.concatenate([x, x[again]]), np.concatenate([y, y[again]])


def cell_of(x):
    """The cell of each value by hand, of 32 bins and at most 4 categories: 33 cells, the last of missing values."""
    numbers = np.floor((x[:, :2] + 4) / 0.25).clip(0, 31)
    visits = np.floor(x[:, 4] / 9 * 32).clip(0, 31)
    cells = np.column_stack([numbers, x[:, 2] - 1, x[:, 3], visits])
    return np.where(np.isnan(x), 32, cells).astype(int)


def few(number):
    return 0 < number < 10


def different(x, y, rows, units=None):
    if units is not None:
        return min(len(np.unique(units[rows])), different(x, y, rows))
    return len(np.unique(np.nan_to_num(x[rows], nan=99), axis=0)) if rows.any() else 0


@pytest.mark.parametrize("seed", range(12))
def test_no_cell_of_a_report_has_one_to_nine_different_rows_or_units(seed, silos_of, asked):
    sizes = [(210, 90), (60, 30, 12, 6), (14, 11), (700, 300, 5)][seed % 4]
    x, y = clinical(seed, sizes, missing=(0.0, 0.03, 0.2)[seed % 3], copies=20)
    units = np.random.default_rng(seed).integers(0, len(y) // 2, len(y)) if seed % 2 else None
    own = (x, y) if units is None else (x, y, units)
    found = asked(silos_of({"a": own}, features=FEATURES))
    (told,) = found.answers.messages
    counts, counted_in = told.counts[0].numpy(), told.counted_in[0].numpy()
    cells, labels, moments = cell_of(x), told.labels[0].numpy(), told.moments[0].numpy()
    named = np.where(np.isnan(labels[y]), len(sizes), y)  # the column of each row
    pooled_is_told = counts[:, :, -1].any()
    for feature in range(x.shape[1]):
        of_rows = counted_in[feature][cells[:, feature]]
        for column in range(len(sizes) + 1):
            if not counts[feature, :, column].any():
                continue
            assert column < len(sizes) or pooled_is_told
            for cell in range(33):
                rows = (named == column) & (of_rows == cell)
                if units is None:
                    assert counts[feature, cell, column] == rows.sum()
                assert not few(different(x, y, rows, units)), (feature, column, cell)
            present = moments[feature, column, 0]
            if column < len(sizes) and np.isfinite(present):
                missing = (named == column) & np.isnan(x[:, feature])
                assert labels[column] - present == 0 or not few(different(x, y, missing, units)), "by subtraction"
    for feature in (2, 3, 4):  # four moments and the rows are as good as counts of five values
        values = np.unique(x[:, feature][~np.isnan(x[:, feature])])
        for column in np.flatnonzero(np.isfinite(moments[feature, :, 1])).tolist():
            of_values = [different(x, y, (named == column) & (x[:, feature] == v), units) for v in values]
            assert not any(map(few, of_values))


@pytest.mark.parametrize("seed", range(4))
def test_a_report_is_the_one_without_least_cells_with_cells_merged(seed, silos_of, asked):
    x, y = clinical(seed, (210, 90), missing=0.0)
    silos = silos_of({"a": (x, y), "b": clinical(seed + 9, (140, 60))}, features=FEATURES)
    merged, whole = (asked(silos, least_cell=least).answers.messages[0] for least in (None, 1))
    np.testing.assert_array_equal(whole.counted_in, np.broadcast_to(np.arange(33), whole.counted_in.shape))
    by_hand = np.zeros(whole.counts.shape)
    for client, feature, cell in np.ndindex(*whole.counts.shape[:3]):
        by_hand[client, feature, merged.counted_in[client, feature, cell]] += whole.counts[
            client, feature, cell
        ].numpy()
    np.testing.assert_array_equal(merged.counts, by_hand)
    np.testing.assert_array_equal(merged.labels, whole.labels)
    np.testing.assert_array_equal(merged.moments[0, :2], whole.moments[0, :2])  # numbers without a missing value
    assert join_summaries([whole]).counted_in is None


def read_by_an_attacker(told, x, columns=2):
    """Who knows a patient's value of one column reads the class: from cells in which the patient is alone."""
    read = {}
    for feature in range(columns):
        bins = told.counts[0, feature].numpy()
        at = np.floor((x[:, feature] + 4) / 8 * 300).clip(0, 299).astype(int)
        for row in np.flatnonzero(bins[at].sum(-1) == 1).tolist():
            read[row] = int(bins[at[row]].argmax())
    return read


@pytest.mark.parametrize("label", range(3))
def test_the_class_of_a_patient_whose_value_is_known_is_not_read_from_300_bins_whatever_column_is_the_label(
    label, silos_of, asked
):
    """Each column of the patients is the label in turn, so that who knows one value of a patient reads the others."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y = (rng.normal(size=(300, 3)) + x[:, :1] > 0).astype(int)[:, label]
    silos = silos_of({"a": (x, y)}, features=[{"name": name, "low": -4, "high": 4} for name in "ab"])
    before, after = (asked(silos, least_cell=least, bins=300).answers.messages[0] for least in (1, None))
    read = read_by_an_attacker(before, x)
    assert len(read) > 36
    assert all(y[row] == value for row, value in read.items())
    assert read_by_an_attacker(after, x) == {}


def test_where_bins_are_merged_shows_the_class_of_no_row(silos_of, asked):
    """Whether the tenth row of a class is in a bin shows its class, unless ten rows of all classes are between two cuts."""
    x = np.random.default_rng(5).normal(size=(300, 2)).astype(np.float32)
    silos = [
        silos_of({"a": (x, y)}, features=[{"name": name, "low": -4, "high": 4} for name in "ab"])
        for y in np.random.default_rng(6).integers(0, 2, (12, 300))
    ]
    told = [asked(each, bins=300).answers.messages[0].counted_in[0, 0].numpy() for each in silos]
    cuts = sorted({cut for bins in told for cut in np.unique(bins[:300]).tolist()})
    at = np.floor((x[:, 0] + 4) / 8 * 300).clip(0, 299)
    between = [int(((at > one) & (at <= other)).sum()) for one, other in pairwise(cuts)]
    assert len(cuts) > 5
    assert not any(map(few, between))


@pytest.mark.parametrize("most_pairs", [5000, 0])
@pytest.mark.parametrize("verdict", ["guarded", "moments", "paper"])
def test_silos_that_merged_cells_are_compared_by_every_verdict(verdict, most_pairs, silos_of, asked, monkeypatch):
    """One silo is older, and one has so few rows that it counts most features in one cell."""
    monkeypatch.setattr("tasks.diagnosis.compare_silos.MOST_PAIRS", most_pairs)
    silos = {name: clinical(seed, (280, 120)) for seed, name in enumerate("abcd")}
    silos["d"][0][:, 0] += 1
    silos["e"] = clinical(9, (14, 12))
    found = asked(silos_of(silos, features=FEATURES), verdict=verdict)
    compared = compare_silos.fn(found.answers.messages, found.question, verdict, Readings(), lambda _: None)
    types = compared.pairs.verdicts.types
    if most_pairs and verdict != "paper":
        pairs = list(zip(compared.pairs.first.tolist(), compared.pairs.second.tolist(), strict=True))
        assert [types[pairs.index((at, 3)), 0] for at in range(3)] == [True] * 3
    assert compared.of_groups == (not most_pairs and verdict != "moments")
    if verdict != "moments":
        assert compared.missing.merged[4].any()
        assert not compared.missing.merged[:4, :2].any()


@pytest.mark.parametrize(("kind", "least"), [("digits", 1), ("npz", 10)])
def test_a_sweep_of_public_data_without_a_store_may_have_cells_of_one_row(kind, least, silos_of, tmp_path):
    if kind == "npz":
        silos = silos_of({"a": clinical(0, (30, 30))}, features=FEATURES)
    else:
        data = DataParams.model_validate(
            {
                "name": "digits",
                "seed": 0,
                "source": {"kind": "digits"},
                "scheme": [{"kind": "equal", "clients": 9}],
                "split": {"validation": 0.0, "test": 0.0},
            }
        )
        write(tmp_path / "data" / "digits", data, tmp_path)
        silos = Silos.open(tmp_path / "data" / "digits", "digits")
    client = silos.clients[0]
    rows = load_rows(silos, Stack((client,), 1), "train", "cpu")
    folder = tmp_path / "private" / "swept" / ".partitions" / "0123"
    _, local = open_ledger(silos, ClientStore(str(folder)), client, rows.x[0], rows.y[0])
    assert local.least_cell == least


def test_correlations_and_far_values_show_no_cell_of_few_rows(silos_of, asked, tmp_path):
    x, y = clinical(1, (210, 90), missing=0.0)
    x[0, 0] = 1e6
    silos = silos_of({"a": (x, y)}, features=FEATURES)
    shown = {}
    for least in (None, 1):
        keeps = f"least {least}/own"
        query = asked(silos, keeps, least_cell=least).question
        question = PairQuery(query, tuple(range(5)))
        store = ClientStore(str(tmp_path / "private" / keeps))
        ((message,), _) = collect_answers(PlainRunner(), report_feature_pairs, silos, private=store, question=question)
        shown[least] = message
    pair = [(one, other) for one in range(5) for other in range(one + 1, 5)].index((2, 4))
    assert np.isnan(shown[None].values[0, pair]).all(), "ward and visits have cells of few rows"
    assert np.isfinite(shown[1].values[0, pair]).any()
    np.testing.assert_array_equal(shown[None].values[0, 0], shown[1].values[0, 0])
    assert (int(shown[None].far.sum()), int(shown[1].far.sum())) == (0, 1)
