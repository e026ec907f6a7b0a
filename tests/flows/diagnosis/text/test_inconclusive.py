"""A silo of which nothing can be said is said on the first screen with the reason, and in the note of each of its pairs."""

import numpy as np
import pytest

from flows.diagnose import compare_with_version, run_diagnosis
from flows.diagnosis.text.caveats import notes
from flows.diagnosis.text.findings_page import sentences_of_versions
from tasks.execution.task_runner import PlainRunner

FEATURES = [
    {"name": name, "kind": "categorical", "categories": [0, 1]} for name in ("smokes", "drives", "reads", "cooks")
]
FEW = "fewer than 10 different training rows of any label, too few to report"


def answers(seed, questions, count=200):
    """Rows of yes and no, to so many of four questions; the others are no."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, (count, 4)) * (np.arange(4) < questions)
    return x, rng.integers(0, 2, count)


def test_a_silo_whose_rows_are_too_much_alike_is_said_to_be_so(world):
    own = world()
    before = own.write({"a": answers(0, 4), "b": answers(1, 4), "narrow": answers(2, 2)}, features=FEATURES)
    own.allow_cells_of_one_row()  # of sixteen different rows a cell has eight
    _, found = run_diagnosis(own.open(), PlainRunner())
    assert found["sentences"] == [
        "No difference was seen between the 2 silos that could be compared; narrow could not be compared."
    ]
    assert f"narrow was not compared: {FEW}." in found["notes"]
    notes = {(pair["first"], pair["second"]): pair["note"] for pair in found["pairs"]}
    said = f"Not compared: narrow has {FEW}."
    assert notes == {("a", "b"): None, ("a", "narrow"): said, ("b", "narrow"): said}
    (rest,) = [line["note"] for line in found["rest"] if line["client"] == "narrow"]
    assert rest == said
    _, then = compare_with_version(own.open(), PlainRunner(), before)
    assert f"narrow: not compared; a silo has {FEW}." in then["sentences"]


def test_where_all_are_so_the_first_sentence_says_it_and_not_that_rows_are_few(world):
    own = world()
    own.write({name: answers(seed, 2) for seed, name in enumerate("abc")}, features=FEATURES)
    _, found = run_diagnosis(own.open(), PlainRunner())
    assert found["sentences"] == [f"No silos could be compared: in 3 pairs a silo has {FEW}."]
    assert found["notes"] == []


def test_silos_that_share_no_label_of_ten_rows_are_said_to_share_none(world):
    rng = np.random.default_rng(0)
    own = world()
    own.write({name: (rng.normal(size=(25, 2)), np.arange(25) % 5) for name in "ab"})
    _, found = run_diagnosis(own.open(), PlainRunner())
    why = "no label has 10 different rows in both silos, and no other difference was seen"
    assert found["sentences"] == [f"No silos could be compared: in 1 pair {why}."]
    assert found["pairs"][0]["note"] == f"Not compared: {why.replace('both silos', 'a and b')}."


@pytest.mark.parametrize(
    ("also", "rows"),
    [
        ({}, "10 rows or more"),
        ({"verdict": "moments"}, "100 rows or more"),
        ({"noise": {"epsilon": 1.0, "delta": 1e-5}}, "more rows than the noise hides"),
    ],
    ids=["guarded", "moments", "noise"],
)
def test_what_a_shared_label_would_need_is_said_by_the_verdict_that_was_asked_for(also, rows, a_report, a_pair, a_line):
    one = a_pair("a", "b", "label", margins_only=True)
    report = a_report([["a"], ["b"]], [one], [a_line((0, 1), 1, label=1)], **also)
    said = f"1 pair of silos has no label with {rows} at both: only inputs and label frequencies were compared."
    assert said in notes(report)
    of_targets = report | {"query": report["query"] | {"targets": [0.5]}}
    assert any(
        f"no group of targets with {rows} at both: only inputs and targets" in note for note in notes(of_targets)
    )
    moved = report | {"pairs": [one | {"client": "a"}], "against": "v1", "came": [], "left": []}
    assert f"; no label has {rows} in both versions, so only" in sentences_of_versions(moved)[1]


def test_of_very_many_silos_that_came_three_are_named_and_the_others_counted(a_report):
    names = [f"s{at:02d}" for at in range(22)]
    report = a_report([[]], [], [], against="v1", came=names, left=names[:20])
    said = sentences_of_versions(report)
    assert "s00, s01, s02 and 19 more: new since v1." in said
    assert f"{', '.join(names[:19])} and s19: gone since v1." in said
