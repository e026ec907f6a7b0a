"""Silos that take part in most differences are named with what they differ in, where pairs are too small to form groups."""

from itertools import combinations

import pytest

from flows.diagnosis.text.next_steps import next_steps
from flows.diagnosis.text.summary import sentences

NAMES = [f"c{at:02d}" for at in range(12)]
ODD = ["c09", "c10", "c11"]
RULE = {"what": "rule", "name": "age", "value": "ill", "difference": -0.12, "low": -0.2, "high": -0.05}


@pytest.fixture
def odd_report(a_report, a_pair, a_line):
    """Of 27 pairs of an odd silo and another, 12 differ, and one pair of the others; all form one group."""

    def make(groups=(NAMES,), **also):
        differ = {(one, ODD[(at + step) % 3]) for at, one in enumerate(NAMES[:9]) for step in range(1 + (at < 3))}
        differ |= {("c01", "c02")}
        pairs = [a_pair(one, other, *["label"] * ((one, other) in differ)) for one, other in combinations(NAMES, 2)]
        odd = {"silos": ODD, **a_pair("", "", "concept"), "changes": {"concept": [RULE]}}
        return a_report(groups, pairs, [a_line((0, 0), 66, {"none": 53}, label=13)], odd=odd, **also)

    return make


def test_the_silos_of_most_differences_are_named_with_numbers_that_add_up(odd_report):
    assert sentences(odd_report()) == [
        "Of 66 pairs of silos 13 differ, 12 of them between these 3 silos and the other 9: c09, c10 and c11.",
        "These 3 silos differ from the other 9, all rows taken together: labels follow from the inputs by another rule (at "
        'equal age, label "ill" is less frequent by 12 points).',
    ]


def test_the_steps_name_the_silos_of_most_differences(odd_report):
    assert next_steps(odd_report(label="sepsis"))[0] == (
        "Check that each silo codes sepsis alike, beginning with c09, c10 and c11."
    )


def test_groups_that_most_pairs_separate_are_described_and_not_the_silos_of_most_differences(odd_report, a_line):
    report = odd_report(groups=[NAMES[:9], ODD])
    report["between"] = [a_line((0, 1), 27, label=20)]
    assert sentences(report)[0].startswith("The 12 silos form 2 groups")
    report["between"] = [a_line((0, 1), 27, label=8)]
    assert sentences(report)[0].startswith("Of 66 pairs of silos 13 differ, 12 of them between these 3 silos")


def test_without_a_difference_of_all_rows_the_silos_of_most_differences_are_named_by_type(odd_report):
    report = odd_report()
    report["odd"] |= {"types": []}
    assert sentences(report) == [
        "The 12 silos form one group: 13 of 66 pairs of silos differ.",
        "In 13 of 66 pairs of silos label frequencies differ, 12 of them between c09, c10 and c11 and the others.",
    ]
    assert next_steps(report)[0].startswith("Check at c09, c10 and c11 why the label differs: ")


def test_by_type_a_threshold_is_possible_where_most_pairs_say_so_and_the_amount_is_said(a_report, a_pair, a_line):
    """As of 25 schools, five of which are stricter, that are too small for groups of inputs."""
    grade = {"what": "label", "name": "A", "first": 0.11, "second": 0.29, "difference": -0.18}
    differ = {pair for pair in combinations(NAMES, 2) if (pair[0] in ODD) != (pair[1] in ODD)}
    pairs = [
        a_pair(one, other, *["label"] * ((one, other) in differ), label_or_concept=(one, other) in differ)
        for one, other in combinations(NAMES, 2)
    ]
    odd = {"silos": ODD, **a_pair("", "", "label"), "changes": {"label": [grade]}}
    groups = [NAMES[:2], *([name] for name in NAMES[2:])]
    apart = [a_line((0, at), 2, label=2) for at in range(1, 11)]
    report = a_report(groups, pairs, apart, odd=odd, label="grade")
    assert sentences(report)[-1] == (
        "In 27 of 66 pairs of silos label frequencies differ (or the label is coded with another threshold), all of them "
        'between c09, c10 and c11 and the others; all their rows taken together, grade is "A" in 11 % of rows against 29 % '
        "(−18 points)."
    )
    assert next_steps(report)[0] == (
        "Check that each silo codes grade alike, with the same threshold, beginning with c09, c10 and c11."
    )
    report["pairs"] = [{**pair, "label_or_concept": False} for pair in pairs]
    assert "threshold" not in " ".join(sentences(report) + next_steps(report))


def test_a_fault_at_one_of_several_odd_silos_explains_their_inputs(odd_report, a_pair):
    checked = []
    for silo in ("c10", "c01"):
        report = odd_report(data_faults=[{"what": "constant", "names": ["dose"], "silos": [silo], "values": [1.0]}])
        report["odd"] = {"silos": ODD, **a_pair("", "", "feature", features={"dose": 1.0})}
        checked.append(any("Check at c09, c10 and c11 why dose differs" in step for step in next_steps(report)))
    assert checked == [False, True]


def test_silos_of_few_of_the_differences_are_not_named(a_report, a_pair, a_line):
    differ = {("c00", "c01"), ("c02", "c03"), ("c04", "c05"), ("c06", "c07")}
    pairs = [a_pair(one, other, *["label"] * ((one, other) in differ)) for one, other in combinations(NAMES, 2)]
    said = sentences(a_report([NAMES], pairs, [a_line((0, 0), 66, {"none": 62}, label=4)], odd=None))
    assert said[1:] == ["In 4 of 66 pairs of silos label frequencies differ."]


def test_within_a_group_the_silo_of_most_differences_is_named(a_report, a_pair, a_line):
    apart = ["d0", "d1", "d2", "d3"]
    differ = {("c00", name) for name in NAMES[1:9]}
    pairs = [a_pair(one, other, *["label"] * ((one, other) in differ)) for one, other in combinations(NAMES, 2)]
    pairs += [a_pair(one, other, "feature") for one in NAMES for other in apart]
    lines = [a_line((0, 0), 66, {"none": 58}, label=8), a_line((0, 1), 48, feature=48)]
    said = sentences(a_report([NAMES, apart], pairs, lines))
    assert said[-1] == "Within group 1, 8 of 66 pairs of silos differ, most of them with c00."


def test_most_pairs_are_most_of_those_that_were_compared(a_report, a_pair, a_line):
    """Of 9 pairs of two groups 5 were not compared, and 3 of the other 4 differ."""
    groups = [["a", "b", "c"], ["d", "e", "f"]]
    pairs = [a_pair("a", name, "label") for name in groups[1]] + [a_pair("b", "d")]
    said = sentences(a_report(groups, pairs, [a_line((0, 1), 9, {"undetermined": 5, "none": 1}, label=3)]))
    assert said[1] == "a, b and c differ from d, e and f: label frequencies differ, in 3 of 4 pairs of silos."


@pytest.mark.parametrize(("low", "is_said"), [(0.5, True), (-0.5, False)])
def test_the_larger_loss_of_accuracy_is_said_where_it_is_certain(low, is_said, a_report, a_pair, a_line):
    losses = {"first": {"loss": 3.0, "low": low, "high": 6.0}, "second": {"loss": 1.0, "low": 0.2, "high": 2.0}}
    pair = a_pair("a", "b", "concept", shared_model_loss=losses, effect_on_prediction="seen")
    (said,) = sentences(a_report([["a"], ["b"]], [pair], [a_line((0, 1), 1, concept=1)]))
    assert ("; one model for both would lose about 3 points of accuracy at a (0.5 to 6)" in said) == is_said
    assert ("accuracy" in said) == is_said
    assert "at b" not in said


def test_groups_that_differ_from_all_others_come_before_a_single_silo_that_does_not(a_report, a_pair, a_line):
    groups = [["a", "b", "c", "d"], ["one"], ["e", "f"], ["g"]]
    apart = {(0, 1): 4, (0, 2): 8, (0, 3): 4, (1, 2): 2, (1, 3): 0, (2, 3): 2}
    lines = [a_line(at, max(count, 1), {"none": int(not count)}, feature=count) for at, count in apart.items()]
    pairs = [a_pair("a", other, "feature") for other in ("one", "e", "f", "g")]
    said = sentences(a_report(groups, pairs, lines))
    assert [line.partition(" differ")[0] for line in said if " differ from" in line or " differs from" in line] == [
        "e and f",
        "one",
        "g",
    ]
