"""A page of published tables with cells of several methods, pairs of them, and seeds that draw the data."""

import json
import re
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

QUICK = ["training.epochs=1", "evaluation={every: 100, report: last}"]
ABOUT = {"title": "t", "source": "made for this test", "known_errors": "none"}
DIGITS = {
    **ABOUT,
    "base": [QUICK, "training.rounds=2", "data.scheme=[{kind: equal, clients: 3}]"],
    "method": "fedavg",
    "cells": {
        "shared": {"about": "one model", "published": 0.9},
        "alone": {"about": "three models", "method": "local_only"},
    },
    "grid": "training.optimiser.learning_rate={}",
    "choose_on": "validation",
    "paired": [{"first": "alone", "second": "shared"}, {"first": "alone", "second": "shared", "classes": [3, 8]}],
    "contests": [["alone", "shared"]],
    "by_class": {3: {"shared": 0.5}, 8: {}},
    "scales": {"cpu": {"seeds": [0, 1], "grid": {"shared": [0.001, 0.3]}}},
}
LATE = {
    **DIGITS,
    "base": [*DIGITS["base"], "evaluation.every=1", "clients.join={c02: 2}"],
    "cells": {"late": {"about": "one client comes later"}},
    "measure": {"metric": "clients/answered@1"},
    "also": {"clients/answered@2": "with it", "clients/answered@9": "never"},
    **{"paired": [], "contests": [], "by_class": {}, "scales": {"cpu": {"seeds": [0]}}},
}
LINES = {
    **ABOUT,
    "base": [QUICK, "training.rounds=2", "data.split={validation: 0.2, test: 0.2, test_rows: common}"],
    "scales": {"cpu": {"seeds": [0, 1]}},
    "also": {"accuracy/own_law": "own law"},
    "curves": {
        "over": "rows dealt to all, %",
        "at": [0, 50, 100],
        "first_seed": [50],
        "place": "data.scheme=[{kind: balanced, clients: 3, percent: {}}]",
        "contests": [["alone", "shared"]],
        "lines": {
            "shared": {
                "about": "one model",
                "method": "fedavg",
                "published": {0: 0.4, 100: 0.9},
                "beside": {"accuracy/own_law": {0: 0.3}},
            },
            "alone": {"about": "three models", "method": "local_only", "at": [0, 50]},
        },
    },
}
OTHER_TEST = {**LINES, "runs_of": "figure-1", "measure": {"metric": "accuracy/own_law"}, "also": {}}
LAWS = {
    **ABOUT,
    "base": [
        QUICK,
        "data.name=synthetic",
        "data.source={kind: synthetic, task: linear, clusters: 3, clients_per_cluster: 3, rows: 30, test_rows: 20}",
        "data.scheme=[{kind: column, column: client}, {kind: fresh, per_domain: 1}, "
        "{kind: hold_out, domains: [cluster2]}]",
        "data.split={validation: 0, test: 0}",
        "model={kind: mlp, hidden: []}",
        "training={rounds: 30, epochs: 1, batch: 100, objective: {kind: squared_error}, "
        "optimiser: {kind: sgd, learning_rate: 0.2}}",
    ],
    "cells": {
        "global": {"about": "w", "method": "fedavg"},
        "cluster": {"about": "w", "method": "cluster_oracle", "floor": 0.1},
    },
    "seeds_are": "data",
    "paired": [{"first": "cluster", "second": "global"}],
    "scales": {"cpu": {"seeds": [3, 4]}},
}


@pytest.fixture(scope="module")
def folder(partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = partitioned[0].copy(tmp_path_factory.mktemp("end_to_end") / "reproduce", server)
    other = {**DIGITS, "runs_of": "digits", "paired": [], "contests": [], "by_class": {1: {}}}
    page = {"tables": {"digits": DIGITS, "laws": LAWS, "late": LATE, "other": other}}
    page["tables"] |= {"figure-1": LINES, "figure-2": OTHER_TEST}
    page |= {
        "verdicts": {"digits": "One model has {{ figure('shared') }}: {{ difference('alone', 'shared') }}."},
        "absent": {"table 9": "Lost."},
    }
    (found.path / "tiny.yaml").write_text(yaml.safe_dump(page, sort_keys=False))
    return found


@pytest.fixture(scope="module")
def digits(folder: Any) -> dict[str, Any]:
    found: dict[str, Any] = folder.type("reproduce", "tiny.yaml", "--table", "digits", "--json").json
    return found


def records(folder: Any, table: str) -> Any:
    return json.loads((folder.path / "docs" / "results" / "tiny.json").read_text())[table]


def test_cells_of_several_methods_are_paired_on_the_same_rows(folder, digits):
    shared, alone = digits["rows"]
    assert (shared["method"], alone["method"]) == ("fedavg", "local_only")
    whole, some, contest = digits["paired"]
    assert whole["difference"] == pytest.approx(alone["ours"] - shared["ours"])
    assert whole["low"] < whole["difference"] < whole["high"]
    assert some["classes"] == ["3", "8"]
    assert some["sentence"].endswith("on 3, 8")
    assert {contest["first"], contest["second"]} == {"shared", "alone"}
    assert contest["difference"] >= 0
    assert records(folder, "digits")["paired"]["cpu"][0] == whole


def test_the_grid_is_decided_on_validation_rows(folder, digits):
    assert digits["rows"][0]["choice"].endswith("=0.3")
    tried = [record for record in records(folder, "digits")["cpu"]["shared"] if record["seed"] == 0]
    assert [record["choice"][-5:] for record in tried] == ["0.001", "e=0.3"]
    assert tried[1]["validation"] > tried[0]["validation"]


def test_counts_by_class_add_up_to_the_accuracy_over_rows(folder, digits):
    assert digits["by_class"]["3"]["shared"]["published"] == 0.5
    for record in records(folder, "digits")["cpu"]["alone"]:
        right, rows = map(sum, zip(*record["by_class"].values(), strict=True))
        assert rows == sum(r for _, r in record["by_class"].values()) > 400
        assert right / rows == pytest.approx(record["accuracy"], abs=0.01)  # clients differ by one row


def test_a_record_names_code_commit_processor_versions_and_date_and_counts_as_todays(folder, digits):
    kept = [*records(folder, "digits")["cpu"]["alone"], *records(folder, "digits")["paired"]["cpu"]]
    for record in kept:
        assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?|none", record["commit"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
        assert record["versions"].keys() == {"torch", "numpy", "scipy", "python"}
        assert record["processor"]
    answer = folder.type("reproduce", "tiny.yaml", "--stale", "--json").json
    assert (answer["stale"], answer["unknown"]) == (0, 0)
    assert answer["tables"][0]["command"] == "siloflow reproduce tiny.yaml --table digits --scale cpu"
    refused = folder.type("reproduce", "tiny.yaml", "--stale", "--estimate", code=2)
    assert "--stale: got an option of one table, expected none" in refused.err


def test_the_list_quotes_what_is_recorded_and_says_what_is_not_there(folder, digits):
    (paper,) = folder.type("reproduce", "tiny.yaml", "--json").json["papers"]
    listed = {entry["name"]: entry for entry in paper["tables"]}
    assert listed["digits"]["scales"] == [{"scale": "cpu", "runs": 5, "of": 5, "seeds": 2, "state": "recorded"}]
    shared, contest = digits["rows"][0], digits["paired"][0]
    assert listed["digits"]["verdict"].startswith(f"One model has {shared['ours']:.3f} ± ")
    assert f": {100 * contest['difference']:+.1f} points (".replace("-", "−") in listed["digits"]["verdict"]
    assert listed["digits"]["command"] == "siloflow reproduce tiny.yaml --table digits"
    assert listed["other"]["scales"][0]["state"] == "recorded"  # its runs are those of digits
    said = folder.type("reproduce", "tiny.yaml").out
    assert "--table digits  cpu recorded\n    One model has" in said
    assert "--figure 1      cpu " in said
    assert "table 9         not here\n    Lost." in said


def test_a_table_of_other_tables_runs_runs_nothing(folder, digits):
    before = records(folder, "digits")
    answer = folder.type("reproduce", "tiny.yaml", "--table", "other", "--json")
    assert answer.json["by_class"]["1"]["alone"]["ours"] > 0
    assert "seed0" not in answer.err
    assert records(folder, "digits") == before
    assert "other" not in json.loads((folder.path / "docs" / "results" / "tiny.json").read_text())


def test_a_number_may_be_that_of_an_earlier_round(folder):
    found = folder.type("reproduce", "tiny.yaml", "--table", "late", "--json").json
    assert found["rows"][0]["values"] == [2]  # the third joined in round 2
    shown = {name: of["late"]["ours"] for name, of in found["also"].items()}
    assert shown == {"with it": 3, "never": None}


def test_sentences_outlive_the_runs(folder, digits, tmp_path):
    other = folder.copy(tmp_path / "elsewhere", folder.server)
    for result in (other.path / "runs").glob("reproduce-*/*/outcomes.json"):
        result.unlink()
    again = other.type("reproduce", "tiny.yaml", "--table", "digits", "--json").json
    assert again["paired"] == digits["paired"]


def test_seeds_may_draw_the_data(folder):
    found = folder.type("reproduce", "tiny.yaml", "--table", "laws", "--json").json
    whole, cluster = found["rows"]
    assert cluster["ours"] < 0.5 * whole["ours"]
    assert (cluster["quantity"], cluster["published"], cluster["floor"]) == ("rmse", None, 0.1)
    assert cluster["fresh"] < whole["fresh"]
    assert (cluster["unseen"], whole["unseen"] > 0) == (None, True)
    kept = records(folder, "laws")["cpu"]["global"]
    assert len({record["data_version"] for record in kept}) == 2
    assert [record["seed"] for record in kept] == [3, 4]
    assert [record["parameters"] for record in kept] == [11, 11]
    assert [record["steps"] for record in kept] == [30, 30]
    assert all(record["bytes"]["up"] > 0 and record["seconds_per_round"] > 0 for record in kept)
    (pair,) = found["paired"]
    assert pair["sentence"].startswith("cluster − global −")
    squares = [
        c["rmse"] ** 2 - g["rmse"] ** 2 for c, g in zip(records(folder, "laws")["cpu"]["cluster"], kept, strict=True)
    ]
    assert pair["difference"] == pytest.approx(sum(squares) / 2)


def test_a_figure_is_lines_whose_points_are_cells(folder):
    found = folder.type("reproduce", "tiny.yaml", "--figure", "1", "--json").json
    rows = {row["cell"]: row for row in found["rows"]}
    assert list(rows) == ["shared-0", "shared-50", "shared-100", "alone-0", "alone-50"]
    assert [len(row["values"]) for row in rows.values()] == [2, 1, 2, 2, 1]
    assert [row["published"] for row in rows.values()] == [0.4, None, 0.9, None, None]
    assert [{pair["first"], pair["second"]} for pair in found["paired"]] == [
        {"shared-0", "alone-0"},
        {"shared-50", "alone-50"},
    ]
    (picture,) = found["figures"]
    assert (folder.path / picture).read_bytes()[:4] == b"\x89PNG"

    other = folder.type("reproduce", "tiny.yaml", "--figure", "2", "--json")
    assert "seed0" not in other.err  # the same runs
    by_law = {row["cell"]: row for row in other.json["rows"]}
    assert by_law["shared-0"]["published"] == 0.3
    for cell, row in by_law.items():
        assert row["ours"] == pytest.approx(found["also"]["own law"][cell]["ours"])
    assert by_law["alone-0"]["ours"] > 2 * rows["alone-0"]["ours"]  # each knows a third of the digits
    assert by_law["shared-100"]["ours"] == pytest.approx(rows["shared-100"]["ours"], abs=0.03)
    (first,) = other.json["paired"]  # the other pair has one seed, and this measure no rows to pair
    assert {first["first"], first["second"]} == {"shared-0", "alone-0"}
    shown = by_law[first["first"]]["ours"] - by_law[first["second"]]["ours"]
    assert first["difference"] == pytest.approx(shown)
    mistaken = folder.type("reproduce", "tiny.yaml", "--figure", "1", "--table", "2", code=2)
    assert "give one of them" in mistaken.err
