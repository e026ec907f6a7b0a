"""Figures that a text quotes are those of the records, or it is refused."""

import shutil
import statistics
from pathlib import Path

import pytest
import yaml

from publications.render.template_values import MissingError, Quotes
from publications.sweep import Sweep
from silos.errors import UserError

CHECKOUT = Path(__file__).parents[3]
PAGE = {
    **{"title": "t", "source": "s", "known_errors": "none", "method": "fedavg"},
    "cells": {
        "fed-avg": {"about": "one", "published": 0.9675, "beside": {"loss": 2}},
        "b": {"about": "two", "floor": 3.57},
        "never": {"about": "not run"},
    },
    "paired": [{"first": "b", "second": "fed-avg"}],
    "scales": {"cpu": {"seeds": [0, 1, 2]}},
}
VALUES = {"fed-avg": [0.5, 0.75, 0.625], "b": [12.25, 14.25, 13.25]}


@pytest.fixture
def quotes(tmp_path, monkeypatch):
    """Of a table with two cells recorded and one not."""
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"tables": {"1": PAGE, "2": {**PAGE, "runs_of": "1"}}}))
    monkeypatch.chdir(tmp_path)
    sweep = Sweep("tiny.yaml", "1", "cpu")
    for cell, values in VALUES.items():
        for seed, value in enumerate(values):
            by_class = {"5": [seed, 4], "6": [4, 4]}
            record = {"value": value, "accuracy": value, "also": {"loss": 10 * value}, "by_class": by_class}
            sweep.results.keep(("1", "cpu", cell), sweep.asked(seed, None), record)
    pair = {"difference": -0.012, "low": -0.02, "high": 0.004}
    sweep.results.keep(*sweep.place_of_pair(sweep.page.paired[0]), pair)
    sweep.results.keep(*sweep.place_of_ensemble("b"), {"numbers": {"nll": 0.25}})
    return lambda text, short=False: Quotes(sweep, short).fill(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{fed-avg}, so", "0.625 ± 0.125, so"),
        ("{b} and {b: mean}", "13.2 ± 1.0 and 13.2"),
        ("{fed-avg: each}", "0.500, 0.750, 0.625"),
        ("{fed-avg .1} {fed-avg: mean .4}", "0.6 ± 0.1 0.6250"),
        ("{fed-avg: published} {fed-avg: published loss} {b: floor}", "0.968 2.00 3.57"),
        ("{fed-avg: loss} {fed-avg: mean loss} {b: each loss .0}", "6.25 ± 1.25 6.25 122, 142, 132"),
        ("{b - fed-avg}", "−1.2 points (−2.0 to +0.4)"),
        ("{b - b}{b: published?} ({fed-avg: floor?})", ""),
        ("{b: ensemble nll}", "0.250"),
        ("{b: class 5} {b: least class}", "0.250 0.250"),
        ("{fed-avg, b: mean}", "6.94"),
        ("{2/fed-avg}", "0.625 ± 0.125"),
    ],
)
def test_a_quote_is_what_the_records_say(quotes, text, said):
    assert quotes(text) == said


def test_tables_of_docs_leave_the_zero_before_the_point_away_and_units_to_the_heading(quotes):
    assert quotes("{fed-avg} {b - fed-avg}", short=True) == ".625 ± .125 −1.2, −2.0 to +0.4"


@pytest.mark.parametrize(
    "text", ["{never}", "{b: published}", "{fed-avg - b}", "{b: nothing}", "{b - fed-avg: classes}"]
)
def test_a_figure_that_is_not_recorded_is_refused_with_its_place(quotes, text):
    with pytest.raises(MissingError, match=r"^tiny, table 1, scale cpu: "):
        quotes(text)


def test_a_cell_that_is_not_there_is_refused_even_where_it_may_be_missing(quotes):
    with pytest.raises(UserError, match="there is no cell 'c'"):
        quotes("{c?}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{far-rotation: guarded}", "113 of 135"),
        ("{far-rotation: right guarded} {far-rotation: guarded says feature+concept}", "113 21"),
        ("{far-rotation: guarded says concept}", "0"),
        ("{single types: guarded}", "0.919, 0.897 to 0.936"),
        ("{single types: mean guarded} {single types: alarms guarded}", "0.919 0 of 315"),
        ("{3/φ = 0.3, 500 rows and more: ranked all}", "451 of 480"),
    ],
)
def test_trials_are_quoted_by_judge_and_by_what_was_said(monkeypatch, text, said):
    monkeypatch.chdir(CHECKOUT)
    assert Quotes(Sweep("shift-types", "images", "cpu")).fill(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{far-rotation: nobody}", "of 'far-rotation' nothing is recorded under 'nobody'"),
        ("{single types: moments}", "of 'single types' nothing is recorded under 'moments'"),
        ("{near: guarded?}", "there is no cell 'near', and no title of several"),
    ],
)
def test_trials_that_are_not_there_are_not_quoted(monkeypatch, text, said):
    monkeypatch.chdir(CHECKOUT)
    with pytest.raises(UserError, match=said):
        Quotes(Sweep("shift-types", "images", "cpu")).fill(text)


def test_a_spread_that_three_decimals_hide_is_shown_with_one_digit(quotes, monkeypatch):
    monkeypatch.setattr(Sweep, "values", lambda *_: [0.9691, 0.9695, 0.9693])
    spread = statistics.stdev([0.9691, 0.9695, 0.9693])
    assert quotes("{b}") == f"0.969 ± {spread:.4f}"
