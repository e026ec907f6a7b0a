"""Which settings a method is tried with, and which choices stand at an edge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.core.search_space import BEYOND, Axis, Grid, as_yaml, insert_value
from silos import strict_yaml

RATES = Axis(values=(0.1, 0.3, 1.0))
KINDS = [[{"kind": "mean"}], [{"kind": "loadings", "norm": 4}]]


def test_a_grid_is_every_combination():
    grid = Grid({"rate": RATES, "method.ditto.personal_weight": Axis(values=(1, 2))})
    assert len(grid.points()) == 6
    assert grid.settings((0.3, 2)) == ["rate=0.3", "method.ditto.personal_weight=2"]


def test_beyond_an_edge_an_axis_goes_on_by_the_same_factor():
    assert RATES.beyond(0.1) == [0.033, 0.011]
    assert Axis(values=(0.5, 1.0)).beyond(1.0) == [2, 4]
    assert RATES.beyond(0.3) == []
    assert Axis(values=(2, 4, 8)).beyond(8) == [16, 32]
    assert all(isinstance(value, int) for value in Axis(values=(2, 4, 8)).beyond(8))


def test_an_axis_ends_where_its_option_does():
    assert Axis(values=(0.25, 0.5), most=1).beyond(0.5) == [1]
    assert Axis(values=(0.5, 1.0), most=1).beyond(1.0) == []
    assert Axis(values=(0.1, 0.2), least=0.05).beyond(0.1) == [0.05]


@pytest.mark.parametrize("values", [KINDS, [True, False], ["single", "complete"], [0.5], [0, 1]])
def test_what_has_no_order_or_no_factor_has_no_edge(values):
    axis = Axis(values=tuple(values))
    assert axis.beyond(values[0]) == axis.beyond(values[-1]) == []
    assert Grid({"key": axis}).at_edge((values[0],), [(value,) for value in values]) == []


def test_only_the_axis_at_whose_edge_the_best_stands_is_widened():
    grid = Grid({"rate": RATES, "weight": Axis(values=(1.0, 10.0, 100.0))})
    assert grid.beyond((1.0, 10.0)) == [(3.3, 10.0), (11.0, 10.0)]
    assert grid.beyond((0.3, 10.0)) == []
    assert len(grid.beyond((0.1, 100.0))) == 2 * BEYOND


def test_a_choice_is_at_an_edge_until_something_beyond_it_was_tried():
    grid = Grid({"rate": RATES})
    assert grid.at_edge((1.0,), grid.points()) == ["rate"]
    wider = grid.points() + grid.beyond((1.0,))
    assert grid.at_edge((1.0,), wider) == []
    assert grid.at_edge((3.3,), wider) == []
    assert grid.at_edge((11.0,), wider) == ["rate"]


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=5, unique=True))
def test_beyond_is_outside_of_all_that_was_tried(values):
    axis = Axis(values=tuple(values))
    assert all(value < min(values) for value in axis.beyond(min(values)) if axis.beyond(min(values)))
    assert all(value > max(values) for value in axis.beyond(max(values)))


WORDS = st.sampled_from(["single", "yes", "a: b", "1e-05", "null", "", "a, b", "[", "it's", '"'])
NUMBERS = st.floats(1e-12, 1e12) | st.integers()


@given(NUMBERS | WORDS | st.booleans() | st.lists(st.dictionaries(WORDS, NUMBERS | WORDS)))
def test_a_value_is_read_as_what_it_is(value):
    assert strict_yaml.load(insert_value("a.b", value).partition("=")[2].encode()) == value


def test_a_value_stands_once():
    assert (
        insert_value("optimiser={kind: adam, learning_rate: {}}", 1e-5)
        == "optimiser={kind: adam, learning_rate: 0.00001}"
    )
    assert as_yaml("single") == "single"
    for setting in ("a={}{}", "a=1"):
        with pytest.raises(ValueError, match=r"': expected \{\} once, instead of the value"):
            insert_value(setting, 1)
    with pytest.raises(ValidationError, match="twice"):
        Axis(values=(1, 2, 1))
