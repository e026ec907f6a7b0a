"""A figure's page: what is wrong with it is said."""

import pytest
from pydantic import ValidationError

from publications.curves import Curves
from publications.published_tables import Table

CURVES = {
    "over": "percent",
    "at": [0, 2.5, 100],
    "place": "data.scheme=[{kind: balanced, clients: 9, percent: {}}]",
    "lines": {"a": {"about": "one", "method": "fedavg"}, "b": {"about": "two", "at": [2.5], "place": "data.seed={}"}},
}


def test_every_point_is_a_cell_with_its_place_among_the_settings():
    cells = Curves.model_validate(CURVES).cells()
    assert list(cells) == ["a-0", "a-2.5", "a-100", "b-2.5"]
    assert cells["a-2.5"]["set"] == ["data.scheme=[{kind: balanced, clients: 9, percent: 2.5}]"]
    assert cells["b-2.5"]["set"] == ["data.seed=2.5"]
    assert cells["a-100"]["about"] == "one; percent 100"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"first_seed": [3]}, "first_seed has 3, which is no place of the axis"),
        ({"contests": [["a", "c"]]}, "there is no line 'c'; there are a, b"),
        ({"lines": {"a": {"about": "w", "at": [7]}}}, "the line a has 7, which is no place of the axis"),
        ({"lines": {"a": {"about": "w", "published": {7: 0.5}}}}, "the line a has 7"),
        ({"lines": {"a": {"about": "w", "beside": {"loss/mean": {7: 0.5}}}}}, "the line a has 7"),
        *(({"place": place}, "once, instead of the value") for place in ("a=1", "a={}{}", "a={", "a={:d}")),
        ({"lines": {"a": {"about": "w", "place": "a={b: 1}"}}}, "once, instead of the value"),
        ({"at": [1, 1.0, 2.5]}, "the line a has a place twice"),
        ({"at": []}, "at"),
        ({"lines": {}}, "lines"),
    ],
)
def test_what_is_wrong_with_a_figure_is_said(change, said):
    with pytest.raises(ValidationError, match=said):
        Curves.model_validate({**CURVES, **change})


TABLE = {
    **{"title": "t", "source": "s", "known_errors": "none", "method": "pooled"},
    "scales": {"cpu": {"seeds": [4, 5]}},
}


@pytest.mark.parametrize(("key", "value"), [("cells", 3), ("cells", [1]), ("contests", 3), ("contests", {"a": 1})])
def test_what_is_no_cells_and_no_contests_is_said_beside_a_figure(key, value):
    with pytest.raises(ValidationError) as error:
        Table.model_validate({**TABLE, "curves": CURVES, key: value})
    assert [one["loc"][0] for one in error.value.errors()] == [key]


@pytest.mark.parametrize("key", ["cells", "contests"])
def test_a_figure_stands_beside_a_key_that_has_nothing(key):
    assert len(Table.model_validate({**TABLE, "curves": CURVES, key: None}).cells) == 4


@pytest.mark.parametrize("grid", ["a=1", "a={}{}", "a={b: 1}"])
def test_a_grid_whose_values_have_no_one_place_is_said(grid):
    scales = {"cpu": {"seeds": [4], "grid": [1, 2]}}
    with pytest.raises(ValidationError, match="once, instead of the value"):
        Table.model_validate({**TABLE, "curves": CURVES, "grid": grid, "scales": scales})


def test_cells_of_a_table_may_stand_beside_its_lines_and_only_the_first_seed_where_it_is_asked():
    page = Table.model_validate(
        {
            **TABLE,
            "curves": {**CURVES, "first_seed": [2.5], "contests": [["a", "b"]]},
            "cells": {"all": {"about": "beside"}},
        }
    )
    assert list(page.cells) == ["a-0", "a-2.5", "a-100", "b-2.5", "all"]
    assert [page.seeds_of(cell, [4, 5]) for cell in page.cells] == [[4, 5], [4], [4, 5], [4], [4, 5]]
    assert page.contests == (("a-2.5", "b-2.5"),)
    assert (page.method_of("a-0"), page.method_of("b-2.5")) == ("fedavg", "pooled")
