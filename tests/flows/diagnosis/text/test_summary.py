"""Somebody without statistics reads what was found, and nothing that was not."""

from itertools import product

import pytest

from flows.diagnosis.text.summary import sentences

LEFT, RIGHT = ["c00", "c01", "c02"], ["c03", "c04", "c05"]


def test_one_silo_differs_and_several_differ(a_report, a_pair, a_line):
    alone = a_report([["c00"], ["c01"]], [a_pair("c00", "c01", "label")], [a_line((0, 1), 1, label=1)])
    assert sentences(alone) == [
        "c00 differs from c01 in how often each label occurs, P(y) (significant); their inputs and rules from input to "
        "label agree."
    ]
    pairs = [a_pair(a, b, "feature") for a, b in product(LEFT, RIGHT)]
    several = a_report([LEFT, RIGHT], pairs, [a_line((0, 1), 9, {"features": ["xx", "xy"]}, feature=9)])
    assert sentences(several) == [
        "The 6 silos fall into 2 groups that are alike inside; 9 of 9 pairs differ.",
        "c00, c01 and c02 differ from c03, c04 and c05 in their inputs, P(x) (significant); most in xx and xy; their label "
        "shares and rules from input to label agree.",
    ]


def test_a_silo_that_differs_from_all_others_together_alone_is_said_to(a_report, a_pair, a_line):
    def report(*types, **also):
        rest = [{"client": name} | a_pair(name, "", *(types if name == "b" else ()), **also) for name in "abc"]
        pairs = [a_pair(a, b) for a, b in ("ab", "ac", "bc")]
        return a_report([["a", "b", "c"]], pairs, [a_line((0, 0), 3)], rest=rest)

    assert sentences(report()) == ["No difference was found between the 3 silos."]
    assert sentences(report("feature", undetermined=True, why="rows")) == sentences(report())
    assert sentences(report("feature", features={"dose": 0.5, "age": 0.4})) == [
        "No difference was found between any two of the 3 silos.",
        "b differs from all others together in their inputs, P(x) (significant); most in dose and age.",
        "All others together have more rows than any one of them, and show smaller differences.",
    ]
    of_groups = {**report("feature"), "pairs_of": "groups", "pairs": []}
    assert sentences(of_groups)[0] == "No groups that differ were found among the 3 silos."


def test_what_only_some_pairs_have_is_said_of_some_pairs(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "feature", *["concept"] * (b == "c03")) for a, b in product(LEFT, RIGHT)]
    said = sentences(a_report([LEFT, RIGHT], pairs, [a_line((0, 1), 9, feature=9, concept=4)]))[-1]
    assert "in their inputs, P(x) (significant); in 4 of 9 pairs also in which label an input has, P(y | x)" in said
    assert said.endswith("; their label shares agree.")


def test_what_as_many_pairs_have_as_by_chance_is_not_said(a_report, a_pair, a_line):
    """Of 100 pairs 5 are what false discoveries are held at."""
    pairs = [a_pair("c00", "c03", "feature"), a_pair("c01", "c03", "feature")]
    for count, is_said in ((5, False), (6, True)):
        said = sentences(a_report([LEFT, RIGHT], pairs, [a_line((0, 1), 100, feature=100, label=count)]))[-1]
        assert (f"in {count} of 100 pairs also" in said) == is_said
        assert ("their label shares and rules from input to label agree" in said) != is_said


def test_groups_of_which_no_type_has_most_pairs_are_said_to_differ_in_some(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "feature") for a, b in product(LEFT, RIGHT)]
    said = sentences(a_report([LEFT, RIGHT], pairs, [a_line((0, 1), 9, feature=4, label=3)]))[-1]
    assert said == (
        "c00, c01 and c02 and c03, c04 and c05 differ in some pairs only: 4 of 9 in their inputs, P(x) (significant) and "
        "3 of 9 in how often each label occurs, P(y) (significant)."
    )


def test_groups_that_only_pairs_of_which_nothing_is_said_keep_apart_are_not_said_to_differ(a_report, a_pair, a_line):
    """Pairs that are unclear count as different where silos are grouped."""
    pairs = [a_pair("c00", "c01", "feature"), a_pair("c00", "c03")]
    for odd, verdict in (
        (0, "none of 1 pair that could be compared differs"),
        (1, "1 of 30 pairs that could be compared differs"),
    ):
        line = a_line((0, 1), 90, {"undetermined": 60 if odd else 89, "none": 30 - odd if odd else 1}, feature=odd)
        said = sentences(a_report([LEFT, RIGHT], pairs, [a_line((0, 0), 3, feature=1), line]))
        assert said[1] == f"Between c00, c01 and c02 and c03, c04 and c05, {verdict}."


@pytest.mark.parametrize("unknown", ["not_identifiable", "margins_only"])
def test_rules_are_not_said_to_agree_where_they_could_not_be_compared(a_report, a_pair, a_line, unknown):
    line = a_line((0, 1), 1, {unknown: 1}, feature=1)
    (said,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line]))
    assert said.endswith("; their label shares agree.")


def test_label_shares_and_inputs_that_moved_under_a_shift_of_another_type_are_not_said_to_agree(
    a_report, a_pair, a_line
):
    for name, margin, rest in (
        ("feature", "labels_differ", "rules from input to label"),
        ("label", "inputs_differ", "rules from input to label"),
    ):
        line = a_line((0, 1), 1, {margin: 1}, **{name: 1})
        (said,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", name)], [line]))
        assert said.endswith(f"; their {rest} agree.")


def test_nothing_is_said_of_inputs_where_no_class_is_told_by_both(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"margins_only": 1}, label=1)
    (said,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "label")], [line]))
    assert said == "a differs from b in how often each label occurs, P(y) (significant)."


def test_groups_of_many_silos_are_numbered_and_their_silos_listed(a_report, a_pair, a_line):
    groups = [[f"c{at:02d}" for at in range(10)], ["d0", "d1", "d2", "d3"]]
    pairs = [a_pair(a, b, "concept") for a, b in product(*groups)]
    said = sentences(a_report(groups, pairs, [a_line((0, 1), 40, concept=40)]))
    assert said[1] == "Group 1 is c00, c01, c02 and 7 more; group 2 is d0, d1, d2 and d3."
    assert said[2].startswith("Group 1 differs from group 2 in which label an input has, P(y | x)")


def test_very_many_groups_are_summed_up(a_report, a_pair, a_line):
    names = [f"c{at}" for at in range(6)]
    places = [(a, b) for a in range(6) for b in range(a)]
    pairs = [a_pair(names[a], names[b], "label", *["feature"] * (a == 5)) for a, b in places]
    lines = [a_line((b, a), 1, label=1) for a, b in places]
    said = sentences(a_report([[name] for name in names], pairs, lines, ranking=["age"]))
    assert said[1:] == [
        "5 of 15 pairs of silos differ in their inputs, P(x) (significant).",
        "15 of 15 pairs of silos differ in how often each label occurs, P(y) (significant).",
        "Most of it is in age.",
    ]


def test_silos_that_are_alike_and_too_small_ones_are_not_mixed_up(a_report, a_pair, a_line):
    small = {"undetermined": True, "why": "rows", "rows": [100, 5]}
    pairs = [a_pair("a", "b"), a_pair("a", "c", **small), a_pair("b", "c", **small)]
    lines = [a_line((0, 0), 1), a_line((0, 1), 2, {"undetermined": 2, "none": 0})]
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 100]) for name, rows in (("a", 100), ("b", 100), ("c", 5))]
    assert sentences(a_report([["a", "b"], ["c"]], pairs, lines, rest=rest)) == [
        "No difference was found between the 2 silos that could be compared; of c nothing can be said."
    ]
    nobody = a_report([["a"], ["b"]], [a_pair("a", "b", undetermined=True, why="rows")], [])
    assert sentences(nobody) == ["Nothing can be said: no two silos have 20 training rows or more each."]
    assert sentences(a_report([["a"]], [], [])) == ["There is one silo, and nothing to compare it with."]


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ([], "No difference was found between the 2 silos that could be compared"),
        (["label"], "The 2 silos that could be compared fall into 2 groups that are alike inside; 1 of 1 pair differs"),
    ],
)
def test_silos_that_are_compared_with_nobody_are_not_counted_and_are_named(a_report, a_pair, a_line, types, says):
    """For whatever reason: their rows are many."""
    unclear = {"undetermined": True, "why": "untold"}
    pairs = [a_pair("a", "b", *types), a_pair("a", "c", **unclear), a_pair("b", "c", **unclear)]
    lines = [a_line((0, 1), 1, **dict.fromkeys(types, 1)), a_line((0, 2), 1, {"undetermined": 1, "none": 0})]
    said = sentences(a_report([["a"], ["b"], ["c"]], pairs, lines))
    assert said[0] == f"{says}; of c nothing can be said."


def test_silos_that_tell_nothing_are_not_counted_and_one_that_is_left_is_not_called_the_only_silo(
    a_report, a_pair, a_line
):
    silent = {"silent": {"c": "client c has told enough"}}
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], **silent)
    assert sentences(report) == ["No difference was found between the 2 silos that could be compared."]
    alone = "a alone tells anything, and there is nothing to compare it with."
    assert sentences(a_report([["a"]], [], [], **silent)) == [alone]


def test_single_pairs_of_silos_that_are_otherwise_alike_are_named(a_report, a_pair, a_line):
    pairs = [a_pair("a", "b", "feature", features={"age": 0.5}), a_pair("a", "c"), a_pair("b", "c")]
    said = sentences(a_report([["a", "b", "c"]], pairs, [a_line((0, 0), 3, feature=1)]))
    assert said == [
        "The 3 silos are much alike: 1 of 3 pairs differs, and no group of silos stands apart.",
        "a differs from b in their inputs, P(x) (significant); most in age.",
    ]


def test_pairs_within_a_group_that_differ_after_all_are_counted(a_report, a_pair, a_line):
    pairs = [a_pair("c00", "c01", "label"), a_pair("c00", "c03", "label")]
    lines = [a_line((0, 0), 3, {"none": 2}, label=1), a_line((0, 1), 9, label=9)]
    assert sentences(a_report([LEFT, RIGHT], pairs, lines))[-1] == "Within c00, c01 and c02, 1 of 3 pairs differs."


def test_a_regression_has_targets_and_no_labels(a_report, a_pair, a_line):
    asked = {"pictures": False, "counts": True, "targets": [0.0, 1.0], "bins": 32}
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "label")], [a_line((0, 1), 1, label=1)], asked=asked)
    (said,) = sentences(report)
    assert "in how large their targets are, P(y)" in said
    assert "rules from input to target agree" in said
    assert "label" not in said


def test_a_shift_that_a_gain_undoes_is_said_to_be_one(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"transform": 1}, feature=1)
    (said,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature", transform=True)], [line]))
    assert "a gain and an offset undo it" in said
