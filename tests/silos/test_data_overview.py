"""The figures of the overview have the closed forms that their definitions say."""

import json
import warnings

import numpy as np
import pytest

from silos import data_overview
from silos.data_overview import opened_clients, overview
from silos.storage.manifest import read_manifest
from silos.storage.partition_store import write

NO_SPLIT = {"validation": 0, "test": 0}


@pytest.fixture
def show(tmp_path, params):
    def build(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        own = params(
            source={"kind": "npz", "path": "own.npz"},
            scheme=[{"kind": "column", "column": "client"}],
            split=NO_SPLIT,
        )
        folder = tmp_path / "data" / "small"
        return overview(write(folder, own, tmp_path), folder)

    return build


def test_an_overview_is_json_and_counts_every_row(tmp_path, params):
    manifest = write(tmp_path / "data", params(), tmp_path)
    shown = json.loads(json.dumps(overview(manifest, tmp_path / "data"), allow_nan=False))
    assert sum(sum(client["rows"].values()) for client in shown["clients"]) == 1797
    assert all(sum(client["label_shares"].values()) == pytest.approx(1) for client in shown["clients"])
    assert shown["label_spread"] < 0.1
    assert shown["feature_spread"] < 0.1


def test_pixels_are_in_0_to_1(show):
    shown = show(x=np.array([[[0]], [[255]]], np.uint8), y=np.array([0, 1]), client=np.array(["a", "a"]))
    assert shown["clients"][0]["mean"] == 0.5
    assert shown["clients"][0]["standard_deviation"] == 0.5


@pytest.mark.parametrize(
    ("x", "mixed"), [(np.zeros((2, 3)), True), (np.zeros((2, 1)), False), (np.zeros((2, 2, 2)), False)]
)
def test_a_table_of_several_columns_mixes_units(x, mixed, show):
    assert show(x=x, y=np.array([0, 1]), client=np.array(["a", "a"]))["mixed_units"] == mixed


def test_clients_with_a_class_each_have_the_largest_label_spread(show):
    shown = show(x=np.zeros((4, 1)), y=np.arange(4), client=np.arange(4))
    assert shown["label_spread"] == 0.75  # 1 - 1/clients
    assert shown["feature_spread"] == 0.0


def test_feature_spread_is_the_distance_of_means_in_standard_deviations(show):
    # clients at 0 and 6, rows 1 away from them: means 3 from the common one, deviation 1
    shown = show(x=np.array([-1.0, 1, 5, 7]), y=np.array([0, 1, 0, 1]), client=np.array([0, 0, 1, 1]))
    assert shown["feature_spread"] == pytest.approx(3)
    assert shown["label_spread"] == 0


def test_feature_spread_has_no_value_where_rows_do_not_vary_within_clients(show):
    shown = show(x=np.array([0.0, 0, 5, 5]), y=np.array([0, 1, 0, 1]), client=np.array([0, 0, 1, 1]))
    assert shown["feature_spread"] is None


def test_roles_common_rows_and_rows_left_out_are_shown(tmp_path, params):
    scheme = [
        {"kind": "equal", "clients": 4},
        {"kind": "imbalance", "classes": [0], "ratio": 5},
        {"kind": "fresh", "per_domain": 1},
    ]
    own = params(scheme=scheme, split={"validation": 0.1, "test": 0.2, "test_rows": "common"})
    shown = overview(write(tmp_path / "data", own, tmp_path), tmp_path / "data")
    assert [client["role"] for client in shown["clients"]] == ["federated"] * 3 + ["fresh"]
    assert shown["common"] == {"test": 359}
    assert sum(shown["rows"].values()) + 359 + shown["left_out"] == 1797


def test_target_spread_is_the_distance_of_mean_targets_in_standard_deviations(tmp_path, params):
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 1)), y=np.array([-1.0, 1, 5, 7]), client=np.array([0, 0, 1, 1]))
    source = {"kind": "npz", "path": "own.npz", "task": "regression"}
    own = params(source=source, scheme=[{"kind": "column", "column": "client"}], split=NO_SPLIT)
    shown = overview(write(tmp_path / "data", own, tmp_path), tmp_path / "data")
    assert shown["target_spread"] == pytest.approx(3)
    assert [c["target"] for c in shown["clients"]] == [
        {"mean": 0.0, "standard_deviation": 1.0},
        {"mean": 6.0, "standard_deviation": 1.0},
    ]


def test_targets_that_are_numbers_have_no_label_shares(tmp_path, params):
    source = {"kind": "synthetic", "task": "linear", "clusters": 2, "clients_per_cluster": 2, "rows": 20}
    own = params(source=source, scheme=[{"kind": "column", "column": "client"}])
    shown = json.loads(json.dumps(overview(write(tmp_path / "data", own, tmp_path), tmp_path / "data")))
    assert shown["label_spread"] is None
    assert shown["clients"][0]["label_shares"] == {}
    assert shown["feature_spread"] < 0.5


@pytest.mark.parametrize("most", [1e25, 3e38])
def test_numbers_near_the_largest_are_shown_without_a_warning(tmp_path, params, most):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "own.npz",
        x=rng.uniform(-most, most, (40, 3)),
        y=most * np.tile([-1, 1], 20),
        client=np.arange(40) % 2,
    )
    source = {"kind": "npz", "path": "own.npz", "task": "regression"}
    own = params(source=source, scheme=[{"kind": "column", "column": "client"}], split=NO_SPLIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = overview(write(tmp_path / "data", own, tmp_path), tmp_path / "data")
    assert [c["target"]["mean"] for c in shown["clients"]] == pytest.approx([-most, most])
    assert np.isfinite([c["standard_deviation"] for c in shown["clients"]]).all()


def test_of_very_many_clients_some_are_opened_evenly_and_all_counted(natural, monkeypatch):
    folder = natural({f"h{i}": 10 + i for i in range(30)})
    everything = overview(read_manifest(folder), folder)
    monkeypatch.setattr(data_overview, "MAX_OPENED", 4)
    manifest = read_manifest(folder)
    assert [entry.name for entry in opened_clients(manifest)] == ["h0", "h10", "h19", "h29"]
    shown = json.loads(json.dumps(overview(manifest, folder), allow_nan=False))
    assert [client["name"] for client in shown["clients"]] == ["h0", "h10", "h19", "h29"]
    assert shown["clients"][1] == everything["clients"][10]
    assert (shown["count"], shown["rows"], shown["sizes"]) == (30, everything["rows"], everything["sizes"])
    assert sum(shown["rows"].values()) == sum(range(10, 40))
    assert shown["sizes"]["train"] == {"least": 7, "median": 17.0, "most": 27}
    (law,) = shown["laws"]
    assert (law["clients"], law["rows"]) == (30, shown["rows"])


def test_laws_are_counted_over_all_clients_and_their_labels_over_their_own(tmp_path, params):
    x, y = np.zeros((12, 1)), np.array([0, 0, 1, 1] + [1] * 8)
    domain, client = np.repeat(["north", "south"], [4, 8]), np.repeat(["a", "b", "c"], 4)
    np.savez(tmp_path / "own.npz", x=x, y=y, domain=domain, client=client)
    own = params(
        source={"kind": "npz", "path": "own.npz"}, scheme=[{"kind": "column", "column": "client"}], split=NO_SPLIT
    )
    shown = overview(write(tmp_path / "data", own, tmp_path), tmp_path / "data")
    told = [(law["domain"], law["clients"], law["rows"]["train"], law["label_shares"]) for law in shown["laws"]]
    assert told == [("north", 1, 4, {"0": 0.5, "1": 0.5}), ("south", 2, 8, {"0": 0.0, "1": 1.0})]
