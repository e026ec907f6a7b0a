"""Pages of published tables: every one that there is can be run, and what is wrong with one is said."""

from functools import cache
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from flows.methods.method_settings import method_of
from flows.project.project import Project
from publications.noise_floor import covariance_floor, least_squares_floor
from publications.published_tables import PAPERS, Table, Trial, names, table_of, tables
from publications.sweep import Sweep
from silos.errors import UserError
from silos.sources.source_params import Synthetic
from silos.sources.synthetic import coefficients

CHECKOUT = Path(__file__).parents[2]
EVERY = [
    (paper, str(table), scale)
    for paper in names()
    for table, written in tables(paper).items()
    for scale in written["scales"]
    if "family" not in written
]
TINY = {
    "title": "t",
    "source": "s",
    "known_errors": "none",
    "cells": {"a": {"about": "w", "method": "fedavg"}, "b": {"about": "w", "method": "pooled"}},
    "scales": {"cpu": {"seeds": [0]}},
}

TRIALS = {
    **{name: TINY[name] for name in ("title", "source", "known_errors", "scales")},
    "family": "one_feature",
    "cells": {"a": {"about": "w", "trial": {"row": "label", "rows": [50, 50], "pairs": 3}}},
}

read_once = cache(table_of)


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "table", "scale"), EVERY)
def test_every_cell_of_every_table_is_a_project_that_can_be_run(paper, table, scale):
    """All choices of a grid are opened for the first cell that has the grid, and one choice for the others."""
    found, opened = read_once(paper, table, scale), set()
    for cell in found.cells:
        grid = found.grid_of(cell, scale)
        choices = [tuple(grid.settings(point)) for point in grid.points()] if grid else [()]
        if (found.method_of(cell), *choices) in opened:
            choices = choices[-1:]
        opened.add((found.method_of(cell), *choices))
        for choice in choices:
            params = Project.open(found.settings(cell, scale, choice, 7), CHECKOUT).params
            assert found.judged or method_of(params, found.method_of(cell))
            assert (params.data.seed == 7) == (found.seeds_are == "data")


@pytest.mark.parametrize(
    "metric", ["accuracy/mean@", "accuracy/mean@0", "accuracy/mean@end", "accuracy/mean@unresting"]
)
def test_after_an_at_stands_the_number_of_a_round(metric):
    about = {"title": "t", "source": "s", "known_errors": "none", "method": "fedavg", "scales": {"cpu": {"seeds": [0]}}}
    table = {**about, "cells": {"one": {"about": "w"}}}
    assert Table.model_validate({**table, "also": {"accuracy/mean@3": "third", "accuracy/mean@last": "at the end"}})
    assert Table.model_validate({**table, "measure": {"metric": "accuracy/mean@unrest"}})
    for bad in ({"also": {metric: "t"}}, {"measure": {"metric": metric}}):
        with pytest.raises(ValidationError, match="after @ stands the number of a round"):
            Table.model_validate({**table, **bad})


@pytest.mark.parametrize(("paper", "table", "scale"), EVERY)
def test_a_table_of_other_tables_runs_has_their_cells(paper, table, scale):
    found = read_once(paper, table, scale)
    if found.runs_of:
        owner = read_once(paper, found.runs_of, scale)
        assert found.cells.keys() <= owner.cells.keys()
        assert owner.by_class or not found.by_class  # so that its records count by class
        assert owner.also or not found.also  # and hold the other metrics
        for cell in found.cells:
            assert owner.settings(cell, scale, (), 0) == found.settings(cell, scale, (), 0)


@pytest.mark.slow
def test_paired_cells_have_the_same_data():
    for paper, table, scale in EVERY:
        found = read_once(paper, table, scale)
        pairs = [(p.first, p.second) for p in found.paired] + [(c[0], other) for c in found.contests for other in c]
        cells = {cell for pair in pairs for cell in pair}
        data = {cell: Project.open(found.settings(cell, scale, (), 0), CHECKOUT).params.data for cell in cells}
        for first, second in pairs:
            assert data[first] == data[second], (table, first, second)


@pytest.mark.parametrize(("table", "clusters", "draws"), [("2", 3, 5), ("3", 8, 2)])
def test_every_draw_has_a_floor_of_its_own_and_recorded_runs_are_near_it(table, clusters, draws, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    sweep = Sweep("conditioning", table, "cpu")
    source = Synthetic(kind="synthetic", task="linear", clusters=clusters)
    for name, constant in (("linear-bilinear", False), ("linear-bilinear-constant", True)):
        floors = sweep.floors(name)
        assert floors == [covariance_floor(coefficients(source, seed), 100, 0.1, constant) for seed in range(draws)]
        for value, floor in zip(sweep.values(name), floors, strict=True):
            assert 0.995 * floor < value < 1.1 * floor  # it is a mean over all rows that could be drawn
    assert sweep.floors("linear-bilinear-least-squares") == [least_squares_floor(10, 100, 0.1)]


def test_a_floor_is_of_synthetic_data_only(tmp_path, monkeypatch):
    cells = {"a": {"about": "w", "method": "fedavg", "floor": "covariance"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"tables": {"one": {**TINY, "cells": cells}}}))
    (tmp_path / "params.yaml").write_bytes((CHECKOUT / "params.yaml").read_bytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="a floor of covariance is of synthetic data with the task linear"):
        Sweep("mine.yaml", "one", "cpu").floors("a")


def test_lists_in_lists_are_one_list_of_settings():
    found = Table.model_validate({**TINY, "base": [["a=1", ["b=2"]], "c=3"]})
    assert found.base == ("a=1", "b=2", "c=3")


def test_a_grid_is_for_all_cells_or_for_those_that_it_names():
    grids = {"cpu": {"seeds": [0], "grid": [1, 2]}, "paper": {"seeds": [0], "grid": {"a": [3]}}}
    found = Table.model_validate({**TINY, "grid": "x={k: {}}", "scales": grids})
    assert [_choices(found, c, "cpu") for c in "ab"] == [[["x={k: 1}"], ["x={k: 2}"]]] * 2
    assert [_choices(found, c, "paper") for c in "ab"] == [[["x={k: 3}"]], []]


def _choices(table, cell, scale):
    grid = table.grid_of(cell, scale)
    return [grid.settings(point) for point in grid.points()] if grid else []


def test_cells_may_be_tuned_by_settings_of_their_own_if_they_are_equally_many():
    rates, weights = {"rate": [0.1, 0.2, 0.4, 0.8]}, {"rate": [0.1, 0.2], "weight": [1, 10]}
    a, b = TINY["cells"].values()
    found = Table.model_validate({**TINY, "cells": {"a": {**a, "tune": rates}, "b": {**b, "tune": weights}}})
    assert len(_choices(found, "a", "cpu")) == len(_choices(found, "b", "cpu")) == 4
    assert _choices(found, "b", "cpu")[1] == ["rate=0.1", "weight=10"]
    assert found.beyond("b", "cpu", (0.2, 10)) == [(0.4, 10), (0.8, 10), (0.2, 100), (0.2, 1000)]
    for other in ({}, {"rate": [0.1]}):
        with pytest.raises(ValidationError, match="the cell b is tuned by 1 settings, and others by 4"):
            Table.model_validate({**TINY, "cells": {"a": {**a, "tune": rates}, "b": {**b, "tune": other}}})
    with pytest.raises(ValidationError, match="drop one of them"):
        Table.model_validate({**TINY, "grid": "x={}", "cells": {"a": {**a, "tune": rates}}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paired": [{"first": "a", "second": "z"}]}, "there is no cell 'z'; there are a, b"),
        ({"by_class": {"o": {"z": 0.5}}}, "there is no cell 'z'"),
        ({"cells": {"a": {"about": "w"}}}, "the cell a names no method"),
        ({"scales": {"cpu": {"seeds": [0], "grid": [0.1]}}}, "add `grid`"),
        ({"seeds_are": "weather"}, "seeds_are"),
        ({"scales": {"cpu": {"seeds": [0, 1], "tune_seed": 1}}}, "tune_seed: got 1, expected none of `seeds`"),
        ({"scales": {"cpu": {"seeds": [-1]}}}, "greater than or equal to 0"),
        ({"scales": {"cpu": {"seeds": [0, 0]}}}, "named twice"),
        ({"seeds_are": "data", "paired": [{"first": "a", "second": "b", "classes": ["1"]}]}, "same rows in every seed"),
        ({"seeds_are": "data", "contests": [["a", "b"]], "measure": {"rounds_to": 0.9}}, "rounds_to counts rounds"),
        ({"paired": [{"first": "a", "second": "b"}], "measure": {"rounds_to": 0.9}}, "rounds_to counts rounds"),
        ({"contests": [["a", "b"]], "measure": {"metric": "loss/mean"}}, "expected a metric of which more is better"),
    ],
)
def test_what_is_wrong_with_a_page_is_said(change, message, tmp_path):
    page = tmp_path / "mine.yaml"
    page.write_text(yaml.safe_dump({"tables": {"1": {**TINY, **change}}}))
    with pytest.raises(UserError, match="table 1") as error:
        table_of(str(page), "1", "cpu")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"family": "twins"},
            "there is no family 'twins' of pairs; there are traps, one_feature, six_features, random",
        ),
        ({"row": "lable"}, "the cell a: one_feature has no row 'lable'; there are none, feature, label, concept, "),
        ({"family": None}, "the cell a is a trial, and the table does not say on which pairs: add `family`"),
        ({"trial": None}, "the cell a has no trial, and all cells of a family are trials: add `trial`"),
        ({"family": None, "second_look": True}, "a second look is at trials, and the table has no family of pairs"),
        (
            {"epsilon": 1.0, "second_look": True},
            "the cell a has noise, of which there is no second look: drop `epsilon`",
        ),
        ({"pairs": 0}, "cells.a.trial.pairs: Input should be greater than 0"),
        ({"confusions": {"all": {"cells": ["a", "z"]}}}, "there is no cell 'z'; there are a"),
    ],
)
def test_what_is_wrong_with_a_page_of_trials_is_said(change, message, tmp_path):
    cell = TRIALS["cells"]["a"]
    trial = {**cell["trial"], **{key: value for key, value in change.items() if key in Trial.model_fields}}
    cells = {"a": {**cell, "trial": change.get("trial", trial)}}
    page = {
        **TRIALS,
        "cells": cells,
        **{key: value for key, value in change.items() if key in ("family", "confusions", "second_look")},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"tables": {"1": page}}))
    with pytest.raises(UserError) as error:
        table_of(str(tmp_path / "mine.yaml"), "1", "cpu")
    assert message in str(error.value)


SILOS = {
    **{name: TINY[name] for name in ("title", "source", "known_errors", "scales")},
    "cells": {"a": {"about": "w", "silos": {"truth": "none", "pairs": "within"}}},
}


@pytest.mark.parametrize(
    ("page", "cell", "message"),
    [
        (
            {},
            {"silos": {"truth": "labels", "pairs": "within"}},
            "'labels' is no name of types: it is feature, label, concept",
        ),
        ({}, {"silos": {"truth": "label+feature", "pairs": "within"}}, "'label+feature' is no name of types"),
        ({}, {"silos": {"truth": "label", "pairs": "every"}}, "Input should be 'across' or 'within'"),
        ({}, {"method": "fedavg"}, "the cell b has no silos, and a has: add `silos`, or give it another table"),
        ({"family": "one_feature"}, None, "the cell a has no trial, and all cells of a family are trials"),
        (
            {"family": "one_feature"},
            TRIALS["cells"]["a"] | {"silos": {"truth": "label", "pairs": "within"}},
            "the cell a diagnoses silos, and the table draws pairs: drop `silos`, or `family`",
        ),
    ],
)
def test_what_is_wrong_with_a_page_of_silos_is_said(page, cell, message, tmp_path):
    cells = {"a" if "family" in page else "b": {"about": "w", **cell}} if cell else {}
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"tables": {"1": {**SILOS, **page, "cells": SILOS["cells"] | cells}}})
    )
    with pytest.raises(UserError) as error:
        table_of(str(tmp_path / "mine.yaml"), "1", "cpu")
    assert message in str(error.value)


def test_a_published_count_is_of_no_more_pairs_than_there_were():
    for table in tables("shift-types"):
        for name, cell in read_once("shift-types", table, "cpu").cells.items():
            for counts in cell.said.values():
                assert sum(counts.values()) <= cell.of, (table, name)


def test_a_table_a_scale_and_a_paper_that_are_not_there_are_told():
    assert PAPERS.is_dir()
    with pytest.raises(UserError, match="--table takes 2NN"):
        table_of("mcmahan", "9", "cpu")
    with pytest.raises(UserError, match="there are cpu, paper"):
        table_of("mcmahan", "2NN", "moon")
    with pytest.raises(UserError, match="there are conditioning, fed-focal, mcmahan"):
        table_of("nobody", "1", "cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tables:\n  1: !!python/name:os.system\n",
            r"mine\.yaml is not valid YAML: line 2, column 6: got the tag !!python/",
        ),
        ("tables: [1,\n", r"mine\.yaml is not valid YAML: line 2, column 1: "),
        ("tables: 0b_\n", r"mine\.yaml is not valid YAML: line 1, column 9: got 0b_, expected a whole number"),
        ("- a\n", r"mine\.yaml holds no tables; "),
        ("tables: 5\n", r"mine\.yaml holds no tables; "),
        ("table: {}\n", r"mine\.yaml holds no tables; "),
        ("", r"mine\.yaml holds no tables; "),
    ],
)
def test_a_page_that_is_no_yaml_or_holds_no_tables_is_told_with_its_file(text, message, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        table_of(str(tmp_path / "mine.yaml"), "1", "cpu")


@pytest.mark.slow
def test_cells_that_share_runs_have_settings_of_one_hash():
    checked = 0
    for paper, table, scale in EVERY:
        found = read_once(paper, table, scale)
        sharing = {cell: one.shared for cell, one in found.cells.items() if one.shared is not None}
        sweep = Sweep(paper, table, scale) if sharing else None
        for cell, there in sharing.items():
            assert sweep.stated(cell)["settings"] == Sweep(paper, there.table, scale).stated(there.cell)["settings"]
            checked += 1
    assert checked > 10
