"""Figures that a text quotes are those of the records, or it is refused."""

import shutil
import statistics
from pathlib import Path

import pytest
import yaml

from models.privacy_accounting import rho
from publications.render.template_values import Figures, bold, render
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
MEASURED = {
    **{"ratio": 2.5, "ratio_by_turn": [2.25, 2.75], "seconds": {"plain 1": 0.125, "ours": 0.0675}},
    **{"share": 0.72, "pairs": 499500, "change": -0.25},
}
DRAWS = {
    **PAGE,
    "cells": {"fed-avg": {"about": "one"}, "b": {"about": "two"}, "c": {"about": "three"}},
    "paired": [{"first": "b", "second": "fed-avg"}, {"first": "c", "second": "fed-avg"}],
    "seeds_are": "data",
}
DRAWN = {
    "hard": {"fed-avg": [0.5, 0.51, 0.52], "b": [0.7, 0.705, 0.72], "c": [0.5, 0.6, 0.4]},
    "easy": {"fed-avg": [0.9, 0.9, 0.93], "b": [0.9, 0.91, 0.92], "c": [0.9, 0.89, 0.93]},
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
            sweep.results.keep(("1", "cpu", cell), sweep.key(seed, None), record)
    pair = {"difference": -0.012, "low": -0.02, "high": 0.004}
    sweep.results.keep(*sweep.place_of_pair(sweep.page.paired[0]), pair)
    sweep.results.keep(*sweep.place_of_ensemble("b"), {"numbers": {"nll": 0.25}})
    return lambda text, short=False: render(text, **Figures(sweep, short).functions())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ figure('fed-avg') }}, so", "0.625 ± 0.125, so"),
        ("{{ figure('b') }} and {{ mean('b') }}", "13.2 ± 1.0 and 13.2"),
        ("{{ each('fed-avg') }}", "0.500, 0.750, 0.625"),
        ("{{ figure('fed-avg', decimals=1) }} {{ mean('fed-avg', decimals=4) }}", "0.6 ± 0.1 0.6250"),
        ("{{ published('fed-avg') }} {{ published('fed-avg', 'loss') }} {{ floor('b') }}", "0.968 2.00 3.57"),
        (
            "{{ figure('fed-avg', 'loss') }} {{ mean('fed-avg', 'loss') }} {{ each('b', 'loss', 0) }}",
            "6.25 ± 1.25 6.25 122, 142, 132",
        ),
        ("{{ difference('b', 'fed-avg') }}", "−1.2 points (−2.0 to +0.4)"),
        ("{{ difference('b', 'b') }}{{ published('b') | default }}{{ floor('fed-avg') | bracketed | default }}", ""),
        ("{{ ensemble('b', 'nll') }}", "0.250"),
        ("{{ class_accuracy('b', '5') }} {{ least_class_accuracy('b') }}", "0.250 0.250"),
        ("{{ mean('[fb]*') }}", "6.94"),
        ("{{ table('2').figure('fed-avg') }}", "0.625 ± 0.125"),
    ],
)
def test_a_quote_is_what_the_records_say(quotes, text, said):
    assert quotes(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ best() }} {{ table('easy').best() }}", "b b"),
        ("{{ above('fed-avg') }} {{ table('easy').above('fed-avg') }}", "b none"),
        ("{{ spread('c') }}", "0.100"),
        ("{{ change('fed-avg', 'easy') }}", "−40.0 points (−42.5 to −37.5)"),
    ],
)
def test_a_table_whose_seeds_draw_the_data_is_compared_with_another(text, said, tmp_path, monkeypatch):
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    page = {"tables": {**dict.fromkeys(DRAWN, DRAWS), "fixed": PAGE}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(page))
    monkeypatch.chdir(tmp_path)
    sweep = Sweep("tiny.yaml", "hard", "cpu")
    for table, cells in DRAWN.items():
        for cell, values in cells.items():
            for seed, value in enumerate(values):
                record = {"value": value, "accuracy": value, "data_version": f"{seed}"}
                sweep.results.keep((table, "cpu", cell), sweep.key(seed, None), record)
    assert render(text, **Figures(sweep).functions()) == said
    with pytest.raises(UserError, match=r"change\(\) needs seeds that draw the data, here and in table fixed"):
        render("{{ change('fed-avg', 'fixed') }}", **Figures(sweep).functions())


def test_tables_of_docs_leave_the_zero_before_the_point_away_and_units_to_the_heading(quotes):
    assert (
        quotes("{{ figure('fed-avg') }} {{ difference('b', 'fed-avg') }}", short=True)
        == ".625 ± .125 −1.2, −2.0 to +0.4"
    )


@pytest.mark.parametrize(
    "call",
    [
        "figure('never')",
        "published('b')",
        "difference('fed-avg', 'b')",
        "mean('b', 'nothing')",
        "difference('b', 'fed-avg', classes=true)",
    ],
)
def test_a_figure_that_is_not_recorded_is_refused_with_its_place(quotes, call):
    with pytest.raises(UserError, match=r"^tiny, table 1, scale cpu: .*\w\.$"):
        quotes(f"{{{{ {call} }}}}")
    assert quotes(f"{{{{ {call} | default('none') }}}}") == "none"


def test_a_cell_that_is_not_there_is_refused_even_where_it_may_be_missing(quotes):
    with pytest.raises(UserError, match="there is no cell 'c'"):
        quotes("{{ figure('c') | default }}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ right('far-rotation', 'guarded') }}", "113 of 135"),
        ("{{ count('far-rotation', 'guarded') }} {{ count('far-rotation', 'guarded', 'feature+concept') }}", "113 21"),
        ("{{ count('far-rotation', 'guarded', 'concept') }}", "0"),
        ("{{ balanced_accuracy('single types', 'guarded') }}", "0.936, 0.915 to 0.951"),
        (
            "{{ balanced_accuracy('single types', 'guarded', interval=false) }}, "
            "{{ false_alarms('single types', 'guarded') }}",
            "0.936, 0 of 315",
        ),
        ("{{ table('3').ranked('φ = 0.3, 500 rows and more', 'all') }}", "456 of 480"),
    ],
)
def test_trials_are_quoted_by_judge_and_by_what_was_said(monkeypatch, text, said):
    monkeypatch.chdir(CHECKOUT)
    assert render(text, **Figures(Sweep("shift-types", "images", "cpu")).functions()) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ right('far-rotation', 'nobody') }}", "of the cell far-rotation nothing is recorded of the judge 'nobody'"),
        (
            "{{ balanced_accuracy('single types', 'moments') }}",
            "of the confusion 'single types' nothing is recorded under 'moments'",
        ),
        ("{{ balanced_accuracy('near', 'guarded') | default }}", "there is no confusion 'near'"),
    ],
)
def test_trials_that_are_not_there_are_not_quoted(monkeypatch, text, said):
    monkeypatch.chdir(CHECKOUT)
    with pytest.raises(UserError, match=said):
        render(text, **Figures(Sweep("shift-types", "images", "cpu")).functions())


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{{ W2.ratio | number }} ({{ W2.ratio_by_turn | map('number', 1) | join(', ') }})", "2.50 (2.2, 2.8)"),
        ("{{ W2.seconds['plain 1'] | number }} s, {{ (1000 * W2.seconds.ours) | number }} ms", "0.125 s, 67.5 ms"),
        ("{{ (100 * W2.share) | number(0) }} %, {{ W2.pairs | number }}", "72 %, 499,500"),
        ("{{ W2.change | number }}{{ W2.seconds['plain 2'] | number | default }}", "−0.250"),
    ],
)
def test_a_number_has_three_digits_or_the_decimals_that_are_given(text, filled):
    assert render(text, W2=MEASURED) == filled


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ W9.ratio }}", "'W9' is undefined."),
        ("{{ W2.ratios | number }}", "'dict object' has no attribute 'ratios'."),
        ("{{ (100 * W2.ratios) | number }}", "'dict object' has no attribute 'ratios'."),
        (
            "{{ W2.ratio_by_turn | number }}",
            "number: got [2.25, 2.75], expected a number. Use map('number') for a list.",
        ),
        ("{{ W2.ratio", "line 1 of the template: unexpected end of template, expected 'end of print statement'."),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(text, error):
    with pytest.raises(UserError) as refused:
        render(text, W2=MEASURED)
    assert str(refused.value) == error


def test_a_template_does_not_reach_the_rest_of_the_program():
    with pytest.raises(UserError, match="unsafe"):
        render("{{ W2.__class__ }}", W2=MEASURED)


def test_several_best_numbers_of_a_column_are_bold():
    table = "| | up | down |\n|---|---|---|\n| a | 1,000 | −2 |\n| b | 1,000 \\| 3 | .5 |\n| c | | −1 |"
    assert bold(table, highest=["up"], lowest=["down"]).splitlines()[2:] == [
        "| a | **1,000** | **−2** |",
        "| b | **1,000 \\| 3** | .5 |",
        "| c |  | −1 |",
    ]


def test_a_spread_that_three_decimals_hide_is_shown_with_one_digit(quotes, monkeypatch):
    monkeypatch.setattr(Sweep, "values", lambda *_: [0.9691, 0.9695, 0.9693])
    spread = statistics.stdev([0.9691, 0.9695, 0.9693])
    assert quotes("{{ figure('b') }}") == f"0.969 ± {spread:.4f}"


def test_the_epsilon_with_tuning_is_that_of_all_runs_of_the_grid(tmp_path, monkeypatch):
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    tune = {"training.optimiser.learning_rate": [0.1, 0.3, 1.0, 3.0], "training.rounds": [10, 30]}
    cells = {
        "noise": {"about": "one", "tune": tune, "set": ["training.privacy.epsilon=2"]},
        "none": {"about": "two", "tune": tune},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"tables": {"1": {**PAGE, "cells": cells, "paired": []}}}))
    monkeypatch.chdir(tmp_path)
    sweep = Sweep("tiny.yaml", "1", "cpu")

    total = sweep.with_tuning("noise")
    assert rho(total, 1e-5) == pytest.approx(8 * rho(2.0, 1e-5), rel=1e-6)
    assert sweep.with_tuning("none") is None
    figures = Figures(sweep).functions()
    assert render("{{ with_tuning('noise') }}{{ with_tuning('none') | default }}", **figures) == f"{total:.2f}"
