"""Values of params.yaml change in place; every other character stays."""

import difflib
from pathlib import Path

import pytest

from flows.experiments.advice.apply_advice import with_overrides
from silos import strict_yaml
from silos.errors import UserError

TEXT = (Path(__file__).parents[4] / "params.yaml").read_text(encoding="utf-8")

CASES = {
    "a scalar in a flow mapping": ["training.optimiser.learning_rate=0.17"],
    "a new option in a flow mapping": ["method.fedprox.other=2"],
    "a section without options": ["method.cfl.mean_share=0.4"],
    "a new section": ["method.finetune.epochs=5"],
    "a list": ["comparison.methods=[ditto, fedavg]"],
    "a list of sections": ["method.conditional.statistics=[{kind: loadings}]"],
    "null": ["evaluation.stop_at=0.9"],
    "several": ["method.ditto.personal_weight=0.1", "training.rounds=20", "method.finetune.epochs=1"],
    "the end of the file": ["tracking.personal_models=true"],
    "a section at the top": ['other.key="text: with a colon"'],
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_changes_for_each_value(name):
    overrides = CASES[name]
    changed = with_overrides(TEXT, overrides)
    expected = strict_yaml.load(TEXT)
    for override in overrides:
        key, _, value = override.partition("=")
        *sections, last = key.split(".")
        node = expected
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = strict_yaml.load(value)
    assert strict_yaml.load(changed) == expected
    lines = [line for line in difflib.ndiff(TEXT.splitlines(), changed.splitlines()) if line[:2] in ("- ", "+ ")]
    assert sum(line.startswith("+ ") for line in lines) == len(overrides)
    comments = [line.partition("#")[2] for line in changed.splitlines()]
    assert [c for c in comments if c] == [
        line.partition("#")[2] for line in TEXT.splitlines() if line.partition("#")[2]
    ]


@pytest.mark.parametrize(
    ("text", "override", "expected"),
    [
        ("a:\n  b: 1\nc: 2\n", "a.b=3", "a:\n  b: 3\nc: 2\n"),
        ("a:\n  b:\n    - 1\n    - 2   # two\nc: 2\n", "a.b=[3]", "a:\n  b:\n    [3]   # two\nc: 2\n"),
        ("a:\nc: 2\n", "a.b=3", 'a: {"b": 3}\nc: 2\n'),
        ("a: {}  # none\n", "a.b.c=3", 'a: {b: {"c": 3}}  # none\n'),
        ("a: 1", "b.c=x", 'a: 1\nb: {"c": "x"}'),
    ],
)
def test_forms(text, override, expected):
    assert with_overrides(text, [override]) == expected


def test_a_value_inside_a_list_is_refused():
    with pytest.raises(UserError, match=r"data\.scheme\.0\.clients: got a form .* Set it to 3 by hand"):
        with_overrides(TEXT, ["data.scheme.0.clients=3"])


@pytest.mark.parametrize(
    "text", ["a: &b {c: 1}\nd:\n  <<: *b\n", "d: {c: &c 1}\ne: *c\n"], ids=["merged section", "anchor"]
)
def test_a_form_that_would_leave_no_yaml_is_refused(text):
    with pytest.raises(UserError, match=r"d\.c: got a form .* Set it to 3 by hand"):
        with_overrides(text, ["d.c=3"])
