"""The rates of verdicts on pairs of hospitals, and a small table of them from draw to print."""

import io
import shutil
from pathlib import Path

import pytest
import yaml
from scipy.stats import binomtest

from flows.core.console.safe_text import PlainConsole
from publications.clinical_rates import HEDGED, _with_hedges, confidently_wrong, is_right, wilson
from publications.compare_with_published import table_of_records
from publications.fill_sweep import fill
from publications.print_tables import reproduce
from publications.published_tables import table_of
from publications.sweep import Sweep
from publications.synthetic_pairs.clinical_pairs import CLINICAL
from silos.errors import UserError

CHECKOUT = Path(__file__).parents[2]
SMALL = {"alike": [200, 200], "prevalence": [200, 200], "unit": [200, 200], "interaction": [200, 200]}


def table(**trials) -> dict:
    cells = {row: {"row": row, "rows": rows, "pairs": 4} for row, rows in SMALL.items()}
    cells["together"] = {"row": "alike", "rows": [200, 100], "pairs": 2, "clients": 5}
    return {
        "title": "t",
        "source": "s",
        "known_errors": "none",
        "family": "clinical",
        "second_look": True,
        "cells": {name: {"about": "w", "trial": trial} for name, trial in (cells | trials).items()},
        "scales": {"cpu": {"seeds": [3, 4]}},
    }


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)

    def of(**trials) -> Sweep:
        Path("tiny.yaml").write_text(yaml.safe_dump({"tables": {"one": table(**trials)}}, sort_keys=False))
        return Sweep("tiny.yaml", "one", "cpu")

    return of


def test_a_hedge_counts_only_for_a_verdict_of_label_shift_alone():
    record = {"said": {"guarded": {"label": 3, "feature": 5}}, "hedged": {"guarded": 4}}
    assert _with_hedges([record]) == {"guarded": {HEDGED: 3, "feature": 5}}


@pytest.mark.slow
def test_a_small_table_counts_pairs_and_federations_and_prints_them(sweep):
    fill(sweep())
    found = table_of_records(sweep())
    (of_size,) = found["by_size"]
    assert of_size["rows"] == 200
    assert of_size["federations"]["of"] == 4
    assert [row["kind"] for row in of_size["kinds"]] == list(SMALL)
    for judge in ("guarded", "second look"):
        rates = of_size["judges"][judge]
        kinds = {row["kind"]: row["judges"][judge] for row in of_size["kinds"]}
        shares = {name: kinds[name]["exact"] / 8 for name in SMALL}
        assert rates["balanced_accuracy"]["share"] == pytest.approx(
            (shares["alike"] + shares["prevalence"] + shares["unit"]) / 3
        )
        assert rates["visible_truths"] == ["none", "feature"]  # 200 rows are few for prevalence
        assert rates["balanced_accuracy_of_visible"]["share"] == pytest.approx((shares["alike"] + shares["unit"]) / 2)
        alarms = sum(count for said, count in kinds["alike"]["said"].items() if said not in ("none", "undetermined"))
        assert (rates["false_alarms"]["right"], rates["false_alarms"]["of"]) == (alarms, 8)
        assert rates["confidently_wrong"]["of"] == 24
        assert rates["confidently_wrong_of_visible"]["of"] == 8
    screen = io.StringIO()
    reproduce(found, PlainConsole(file=screen, width=160))
    for text in ("200 rows", "interaction *", "prevalence *", "balanced accuracy over none, feature", "seeds [3, 4]"):
        assert text in screen.getvalue()


def test_more_than_two_clients_are_alike(sweep):
    with pytest.raises(UserError, match="5 clients"):
        sweep(odd={"row": "age", "rows": [200, 100], "pairs": 2, "clients": 5})


@pytest.mark.parametrize(
    ("kind", "verdict", "right", "wrong"),
    [
        ("alike", "none", True, False),
        ("alike", "label", False, False),  # a false alarm
        ("age", "feature", True, False),
        ("age", "feature+label", True, False),
        ("age", "feature+concept", False, False),
        ("age", "label", False, True),
        ("age", "none", False, False),
        ("age", "undetermined", False, False),
        ("referral", "feature", False, False),
        ("referral", "concept", False, True),
        ("coding practice", "label", False, True),
        ("coding practice", "label+concept", True, False),
        ("coding practice", HEDGED, False, False),
        ("prevalence", HEDGED, True, False),
        ("age", HEDGED, False, True),
        ("unit", "feature+concept", True, False),
    ],
)
def test_a_verdict_is_right_with_types_that_follow_and_wrong_if_it_names_others_alone(kind, verdict, right, wrong):
    assert is_right(CLINICAL[kind], verdict) is right
    assert confidently_wrong(CLINICAL[kind], verdict) is wrong


def test_of_no_alarm_in_many_pairs_the_interval_starts_at_zero():
    found = wilson(0, 240)
    assert (found["share"], found["low"]) == (0, pytest.approx(0, abs=1e-12))
    interval = binomtest(17, 60).proportion_ci(method="wilson")
    assert [wilson(17, 60)[side] for side in ("low", "high")] == pytest.approx([interval.low, interval.high], rel=1e-6)
    assert found["high"] == pytest.approx(1.959964**2 / (240 + 1.959964**2), rel=1e-4)
    assert wilson(0, 0)["share"] is None


def test_the_page_has_every_kind_at_three_sizes_and_federations_and_shows_single_types_together():
    page = table_of("shift-types", "clinical", "cpu")
    trials = {name: cell.trial for name, cell in page.cells.items() if cell.trial}
    for size in (300, 1000, 3000):
        of_size = {name: trial for name, trial in trials.items() if max(trial.rows) == size}
        assert [trial.row for trial in of_size.values() if trial.clients == 2] == list(CLINICAL)
        assert [trial.clients for trial in of_size.values() if trial.clients > 2] == [8]
        assert {trial.pairs for trial in of_size.values()} == {40}
        single = {name: kind for name, kind in CLINICAL.items() if len(kind.truth) < 2 and kind.seen_from}
        for title, most in ((f"{size:,} rows, single types", 5000), (f"{size:,} rows, single types, visible", size)):
            kinds = {trials[name].row for name in page.confusions[title].cells}
            assert kinds == {name for name, kind in single.items() if kind.seen_from <= most}
