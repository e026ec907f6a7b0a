"""What a table tells of recorded runs."""

import shutil
from pathlib import Path

import pytest
import yaml

from flows.papers import table
from flows.papers.published_tables import Pair
from flows.papers.sweep import Sweep

CHECKOUT = Path(__file__).parents[3]
RUNS = {
    **{"title": "t", "source": "s", "known_errors": "none", "method": "fedavg"},
    "cells": {"a": {"about": "one"}, "b": {"about": "two"}},
    "measure": {"metric": "clients/answered@1"},
    "also": {"accuracy/own_law": "own law"},
    "scales": {"cpu": {"seeds": [0, 1, 2]}},
}
TABLES = {
    "runs": RUNS,
    "headline": {**RUNS, "runs_of": "runs", "measure": {}},
    "law": {**RUNS, "runs_of": "runs", "measure": {"metric": "accuracy/own_law"}},
}


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"tables": TABLES}))
    monkeypatch.chdir(tmp_path)

    def made(name, laws):
        """With runs of accuracy 0.5, and these numbers of the law for each seed, None where there is none."""
        found = Sweep("tiny.yaml", name, "cpu")
        for cell, numbers in laws.items():
            for seed, law in enumerate(numbers):
                also = {} if law is None else {"accuracy/own_law": law}
                record = {"value": 4, "accuracy": 0.5, "also": also}
                found.results.keep((found.owner, "cpu", cell), found.asked(seed, None), record)
        return found

    return made


def test_a_difference_is_of_the_seeds_that_both_cells_have_a_number_of(sweep):
    found = sweep("law", {"a": [0.5, None, 0.75], "b": [None, 0.125, 0.25]})
    assert table.difference(found, Pair(first="a", second="b"))["difference"] == 0.5
    apart = sweep("law", {"a": [0.5, None, None], "b": [None, 0.125, 0.25]})
    assert table.difference(apart, Pair(first="a", second="b")) is None


def test_a_table_of_other_runs_shows_its_own_measure_of_them(sweep):
    laws = {"a": [0.5, 0.25, 0.75], "b": [0.5, 0.125, 0.25]}
    assert sweep("runs", laws).values("a") == [4, 4, 4]
    assert sweep("headline", laws).values("a") == [0.5, 0.5, 0.5]
    assert sweep("law", laws).values("b") == [0.5, 0.125, 0.25]
