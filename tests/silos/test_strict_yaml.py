"""What is read as YAML, and what is refused with its line; hostile files: tests/flows/core/config/test_params_schema.py."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from silos import strict_yaml
from silos.strict_yaml import MAX_DEPTH, MAX_NUMBER_LENGTH, MAX_VALUES, NotYamlError, load


def test_aliases_and_merged_sections_are_what_they_name():
    text = "a: {b: &b {<<: &c {x: 1, y: 2}, x: 3}}\nd: {<<: *b, z: [*c]}\n"
    assert load(text) == {"a": {"b": {"x": 3, "y": 2}}, "d": {"x": 3, "y": 2, "z": [{"x": 1, "y": 2}]}}


def test_an_anchored_key_is_a_word_and_what_it_names_stays_a_number():
    assert load("a: &a 3\n? *a\n: 4\n") == {"a": 3, "3": 4}


@pytest.mark.slow
def test_the_bounds_are_the_last_that_is_read():
    assert load("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert load(f"[{'1, ' * (MAX_VALUES - 1)}]") == [1] * (MAX_VALUES - 1)
    assert float(load("9" * MAX_NUMBER_LENGTH)) == pytest.approx(1e100)
    for text in (
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        f"[{'1, ' * MAX_VALUES}]",
        "9" * (MAX_NUMBER_LENGTH + 1),
    ):
        with pytest.raises(NotYamlError):
            load(text)


@pytest.mark.parametrize("bytes_", [b"a: 1\nb: \xff\n", b"a: 1\nb: \x00"])
def test_bytes_that_are_no_text_are_told_with_their_line(bytes_):
    with pytest.raises(NotYamlError, match=r"^line 2, column 4: "):
        load(bytes_)


def test_what_people_write_is_read_as_before():
    text = "a: [1, -0x1F, 1_000, 0.5, 1.5e+3, .inf, yes, ~, null, text, '1', \"2\"]\nb: {c: }\n"
    assert load(text) == yaml.safe_load(text)
    assert load("") is None
    assert strict_yaml.load("1e-3") == "1e-3"


@settings(max_examples=300)
@example((Path(__file__).parents[2] / "params.yaml").read_text(encoding="utf-8"))
@given(st.text(st.sampled_from("ab1 .:-,?!&*|>#%@'\"[]{}~\n\t\\<é"), max_size=40))
def test_what_the_parser_in_python_reads_libyaml_reads_alike(text):
    try:
        expected = yaml.load(text, strict_yaml._Strict)
    except yaml.YAMLError:
        return
    assert load(text) == expected


def test_numbers_of_yaml_1_1_alone_are_words():
    assert load("[010, -0_7, 1:30, 1:30.5, '8', 08, 0, 0.5, 0x1F]") == [
        *("010", "-0_7", "1:30", "1:30.5", "8", "08"),
        *(0, 0.5, 31),
    ]
