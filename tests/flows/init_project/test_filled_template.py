"""Values are put into params.yaml as text, which keeps its comments."""

import pytest

from flows.init_project import create_project
from flows.init_project.create_project import replace_values
from silos import strict_yaml

TEXT = """# all
a:
  b: 1                 # of b
                       # and more
  c:
    d: {x: 1}          # of d
e:
  b: 2
"""


def test_a_value_is_changed_where_its_key_is_and_keeps_its_comment():
    assert replace_values(TEXT, {"a.b": "10", "e.b": "20"}) == TEXT.replace("b: 1 ", "b: 10").replace("b: 2", "b: 20")


def test_a_value_that_is_longer_than_its_place_moves_the_comment():
    assert "    d: [1, 2, 3, 4, 5, 6] # of d\n" in replace_values(TEXT, {"a.c.d": "[1, 2, 3, 4, 5, 6]"})


def test_a_value_of_several_lines_takes_the_place_of_the_block():
    assert replace_values(TEXT, {"a.c": "  c:\n    - 1\n"}) == TEXT.replace("    d: {x: 1}          # of d", "    - 1")


def test_a_key_that_is_not_there_is_a_mistake_of_ours():
    with pytest.raises(KeyError, match=r"a\.x"):
        replace_values(TEXT, {"a.x": "1"})


def test_of_the_template_nothing_else_is_changed():
    changed = strict_yaml.load(
        replace_values(create_project.template_text(), {"training.rounds": "7", "data.name": "mine"})
    )
    held = strict_yaml.load(create_project.template_text())
    held["training"]["rounds"], held["data"]["name"] = 7, "mine"
    assert changed == held
