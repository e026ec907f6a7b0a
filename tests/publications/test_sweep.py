"""What a table tells of recorded runs."""

import shutil
from pathlib import Path

import pytest
import yaml

from publications import compare_with_published
from publications.published_tables import Pair
from publications.sweep import Sweep
from silos.errors import UserError

CHECKOUT = Path(__file__).parents[2]
RUNS = {
    **{"title": "t", "source": "s", "known_errors": "none", "method": "fedavg"},
    "cells": {"a": {"about": "one"}, "b": {"about": "two"}},
    "measure": {"metric": "clients/answered@1"},
    "also": {"accuracy/own_law": "own law"},
    "scales": {"cpu": {"seeds": [0, 1, 2]}},
}
TUNED = {
    **RUNS,
    "measure": {},
    "also": {},
    "choose_on": "validation",
    "cells": {
        "a": {"about": "one", "tune": {"training.optimiser.learning_rate": [0.1, 0.2], "training.batch": [8, 16]}}
    },
}
TABLES = {
    "tuned": TUNED,
    "runs": RUNS,
    "headline": {**RUNS, "runs_of": "runs", "measure": {}},
    "law": {**RUNS, "runs_of": "runs", "measure": {"metric": "accuracy/own_law"}},
}


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    shutil.copy(CHECKOUT / "params.yaml", tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"tables": TABLES}, sort_keys=False))
    monkeypatch.chdir(tmp_path)

    def made(name, laws):
        """With runs of accuracy 0.5, and these numbers of the law for each seed, None where there is none."""
        found = Sweep("tiny.yaml", name, "cpu")
        for cell, numbers in laws.items():
            for seed, law in enumerate(numbers):
                also = {} if law is None else {"accuracy/own_law": law}
                record = {"value": 4, "accuracy": 0.5, "also": also}
                found.results.keep((found.owner, "cpu", cell), found.key(seed, None), record)
        return found

    return made


def test_a_difference_is_of_the_seeds_that_both_cells_have_a_number_of(sweep):
    found = sweep("law", {"a": [0.5, 0.25, 0.75], "b": [None, 0.125, 0.25]})
    assert compare_with_published.difference(found, Pair(first="a", second="b"))["difference"] == 0.3125


@pytest.mark.parametrize("first", [[0.5, None, 0.75], [0.5, None, None]], ids=["one seed", "no seed"])
def test_of_fewer_than_two_seeds_of_both_cells_there_is_no_difference(sweep, first):
    found = sweep("law", {"a": first, "b": [None, 0.125, 0.25]})
    assert compare_with_published.difference(found, Pair(first="a", second="b")) is None


def test_a_difference_of_runs_on_another_machine_is_over_their_seeds(sweep):
    found = sweep("headline", {"a": [0.5] * 3, "b": [0.5] * 3})
    pair = Pair(first="a", second="b")
    for seed, accuracy in enumerate([0.25, 0.3125, 0.375]):
        record = {"value": 4, "accuracy": accuracy, "also": {}}
        found.results.keep((found.owner, "cpu", "b"), found.key(seed, None), record)
    over_seeds = compare_with_published.difference(found, pair)
    assert (over_seeds["difference"], over_seeds["low"]) == (0.1875, pytest.approx(0.1875 - 4.302653 * 0.0625 / 3**0.5))
    assert compare_with_published.difference(found, Pair(first="a", second="b", classes=("1",))) is None
    found.results.keep(*found.place_of_pair(pair), {"difference": 0.25})
    assert compare_with_published.difference(found, pair) == {**found.place_of_pair(pair)[1], "difference": 0.25}


def test_a_table_of_other_runs_shows_its_own_measure_of_them(sweep):
    laws = {"a": [0.5, 0.25, 0.75], "b": [0.5, 0.125, 0.25]}
    assert sweep("runs", laws).values("a") == [4, 4, 4]
    assert sweep("headline", laws).values("a") == [0.5, 0.5, 0.5]
    assert sweep("law", laws).values("b") == [0.5, 0.125, 0.25]


def test_where_the_best_stands_at_an_edge_of_its_grid_it_is_looked_for_beyond_it_once(sweep):
    found = sweep("tuned", {})

    def run(best):
        """All that is missing on the first seed; validation accuracy falls with the distance from this rate and batch."""
        missing = [one for one in found.tries("a") if found.record("a", *one) is None]
        for seed, choice in missing:
            rate, batch = (float(setting.partition("=")[2]) for setting in choice.split("; "))
            far = abs(rate - best[0]) + abs(batch - best[1]) / 100
            found.results.keep(
                (found.owner, "cpu", "a"), found.key(seed, choice), {"value": 0.5, "validation": 1 - far}
            )
        return [choice.replace("training.", "").replace("optimiser.", "") for _, choice in missing]

    assert run((0.4, 12)) == [f"learning_rate={rate}; batch={batch}" for rate in (0.1, 0.2) for batch in (8, 16)]
    assert not found.finished
    beyond = run((0.4, 12))
    assert beyond[:2] == ["learning_rate=0.4; batch=8", "learning_rate=0.8; batch=8"]
    assert beyond[2:] == ["learning_rate=0.2; batch=4", "learning_rate=0.2; batch=2"]
    assert run((0.4, 12)) == []
    assert found.choice("a") == "training.optimiser.learning_rate=0.4; training.batch=8"
    assert found.at_edge("a") == []
    assert found.settings("a", 1, found.choice("a"))[-2:] == found.choice("a").split("; ")
    assert [found.place("a", choice) for _, choice in found.tries("a")] == [f"a-{at}" for at in range(8)]


def test_a_seed_of_tuning_is_none_of_those_that_give_the_numbers(sweep, tmp_path):
    apart = {**TUNED, "scales": {"cpu": {"seeds": [0, 1, 2], "tune_seed": 9}}}
    sweep("tuned", {})
    (tmp_path / "tiny.yaml").write_text(
        yaml.safe_dump({"tables": {"apart": apart, "runs": {**RUNS, "scales": apart["scales"]}}})
    )
    found = Sweep("tiny.yaml", "apart", "cpu")
    assert {seed for seed, _ in found.tries("a")} == {9}
    assert found.count("a") == 4 + 3
    for at, (seed, choice) in enumerate(found.tries("a")):
        score = [0.1, 0.2, 0.4, 0.3][at]
        found.results.keep((found.owner, "cpu", "a"), found.key(seed, choice), {"value": 0.5, "validation": score})
    beyond = found.tries("a")[4:]
    for seed, choice in beyond:
        found.results.keep((found.owner, "cpu", "a"), found.key(seed, choice), {"value": 0.5, "validation": 0.2})
    assert found.wanted("a") == [(seed, found.tries("a")[2][1]) for seed in (0, 1, 2)]
    assert not found.finished
    untuned = Sweep("tiny.yaml", "runs", "cpu")
    assert untuned.tries("b") == [(0, None)]
    assert untuned.count("b") == 3
    assert Sweep("tiny.yaml", "apart", "cpu", [9, 4]).count("a") == len(found.tries("a")) + 1


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([0.9, 0.4, 0.5, 0.4], 1),
        ([None, 0.7, None, 0.2], 3),
        ([None] * 4, 0),
        ([0.9, 0.4, ..., 0.5], 0),  # recorded before losses were
    ],
)
def test_of_equal_settings_that_of_the_least_loss_is_chosen_as_compare_chooses_and_records_without_it_stay(
    losses, chosen, sweep
):
    found = sweep("tuned", {})
    for (seed, choice), loss in zip(found.tries("a"), losses, strict=True):
        record = {"value": 0.5, "validation": 0.75} | ({} if loss is ... else {"validation_loss": loss})
        found.results.keep((found.owner, "cpu", "a"), found.key(seed, choice), record)
    first = [choice for _, choice in found.tries("a")][:4]
    for seed, choice in found.tries("a")[4:]:  # beyond an edge
        found.results.keep((found.owner, "cpu", "a"), found.key(seed, choice), {"value": 0.5, "validation": 0.5})
    assert found.choice("a") == first[chosen]


def test_a_choice_that_is_still_at_an_edge_is_marked(sweep):
    found = sweep("tuned", {})
    for _ in range(2):
        for seed, choice in found.tries("a"):
            rate = float(choice.split("; ")[0].partition("=")[2])
            found.results.keep((found.owner, "cpu", "a"), found.key(seed, choice), {"value": 0.5, "validation": rate})
    assert found.choice("a") == "training.optimiser.learning_rate=0.8; training.batch=8"
    assert found.at_edge("a") == ["training.optimiser.learning_rate"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"cells": {"a": {"about": "one"}}}, "a has other settings than in table tuned, whose runs it"),
        ({"base": ["training.rounds=3"], "cells": TUNED["cells"]}, "a has other settings than in table tuned"),
        ({"cells": {"c": {"about": "one"}}}, "c is no cell of table tuned, whose runs it"),
    ],
)
def test_a_table_of_another_ones_runs_has_its_settings(sweep, other, message, tmp_path):
    sweep("tuned", {})
    page = {"tables": {"tuned": TUNED, "side": {**TUNED, "runs_of": "tuned", **other}}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(page, sort_keys=False))
    with pytest.raises(UserError, match=message):
        Sweep("tiny.yaml", "side", "cpu")


def test_a_cell_may_show_the_runs_of_a_cell_of_another_table_and_pairs_of_such_cells_are_theirs(sweep, tmp_path):
    places = "training.rounds={}"
    curves = {"over": "rounds", "at": [1, 2], "place": places, "lines": {"x": {"about": "a line"}}}
    curves["lines"]["x"]["shared"] = {2: {"table": "owner", "cell": "a"}}
    owner = {**RUNS, "measure": {}, "base": ["training={rounds: 2}", "training.rounds=2.0"]}
    other = {**owner, "cells": {"b": {"about": "two", "shared": {"table": "owner", "cell": "b"}}}, "curves": curves}
    pages = {"owner": owner, "other": other}
    sweep("runs", {})

    def opened(name, tables=pages):
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"tables": tables}, sort_keys=False))
        return Sweep("tiny.yaml", name, "cpu")

    mine, theirs = opened("other"), opened("owner")
    assert mine.home("x-1") == ("other", "x-1")
    assert mine.home("x-2") == ("owner", "a")
    assert mine.folder("x-2", 0, None).path == theirs.folder("a", 0, None).path
    for seed in (0, 1, 2):
        for cell in ("x-2", "b"):
            mine.results.keep(mine.place_of_runs(cell), mine.key(seed, None), {"value": 3, "accuracy": 0.25})
    theirs.results.read_again()
    assert (mine.values("x-2"), theirs.of_seeds("a")) == ([0.25] * 3, [3] * 3)
    pair = Pair(first="x-2", second="b")
    assert mine.place_of_pair(pair) == theirs.place_of_pair(Pair(first="a", second="b"))
    assert mine.place_of_pair(Pair(first="x-1", second="b"))[0][0] == "other"
    curves["lines"]["x"]["shared"] = {1: {"table": "owner", "cell": "a"}}
    with pytest.raises(UserError, match="x-1: shared: got other settings than those of a in table owner"):
        opened("other")
    curves["lines"]["x"]["shared"] = {2: {"table": "owner", "cell": "z"}}
    with pytest.raises(UserError, match="shared: got z, expected a cell of table owner"):
        opened("other")
