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
