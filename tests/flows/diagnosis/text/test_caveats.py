"""What a verdict stands on is told beside it, and nothing is proposed that it does not bear."""

from itertools import product

import pytest

from flows.diagnosis.text.caveats import _SIZE_RATIO, next_steps, notes

PICTURES = {"pictures": True, "counts": True, "targets": [], "bins": 32}


def test_where_inputs_hardly_overlap_the_rule_is_said_to_be_unknown(a_report, a_pair, a_line):
    far = {"concept_identifiable": False}
    for types, also in ((["feature"], False), (["feature", "concept"], True)):
        (said,) = notes(a_report([["a"], ["b"]], [a_pair("a", "b", *types, **far)], [a_line((0, 1), 1, feature=1)]))
        assert said.startswith(
            "In 1 pair the inputs hardly overlap: whether labels follow from them alike cannot be known"
        )
        assert (", whatever is said of P(y | x)" in said) == also


def test_of_pictures_it_is_said_what_large_angles_do_and_what_the_named_numbers_are(a_report, a_pair, a_line):
    pair = a_pair("a", "b", "feature", concept_identifiable=False)
    line = a_line((0, 1), 1, {"features": ["xx", "patch 3,0"]}, feature=1)
    said = notes(a_report([["a"], ["b"]], [pair], [line], asked=PICTURES))
    assert "Pictures that are turned far look so" in said[1]
    assert said[2] == (
        "A few numbers stand for each picture: a patch is the light in one of 4 by 4 parts (row, column); xx is how widely "
        "light lies across."
    )
    labels = a_pair("a", "b", "label", concept_identifiable=False)
    assert not any("turned" in note for note in notes(a_report([["a"], ["b"]], [labels], [line], asked=PICTURES)))
    near = notes(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line], asked=PICTURES))
    assert not any("turned" in note for note in near)


def test_a_rule_that_cannot_be_known_to_differ_leads_to_no_advice(a_report, a_pair, a_line):
    for far, proposed in ((1, False), (0, True)):
        line = a_line((0, 1), 1, {"not_identifiable": far}, concept=1)
        steps = next_steps(a_report([["a"], ["b"]], [a_pair("a", "b", "concept")], [line]))
        assert any("ifca" in step for step in steps) == proposed


def test_what_a_minority_of_pairs_has_leads_to_no_advice(a_report, a_pair, a_line):
    groups = [["a", "b", "c"], ["d", "e", "f"]]
    pairs = [a_pair(a, b, "feature") for a, b in product(*groups)]
    steps = next_steps(a_report(groups, pairs, [a_line((0, 1), 9, feature=9, concept=4, label=4)], ranking=["age"]))
    assert steps == [
        "inputs differ: align age at the silos before training, or compare fedavg with conditional and uefl."
    ]


def test_only_features_that_carry_a_shift_are_to_be_aligned(a_report, a_pair, a_line):
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [a_line((0, 1), 1, feature=1)])
    means = {"age": 0.9, "smokes": 0.3, "noise": 0.29}
    report["ranking"] = [{"feature": name, "mean": mean, "largest": 1.0} for name, mean in means.items()]
    assert next_steps(report)[0].startswith("inputs differ: align age and smokes at")


def test_small_silos_and_sizes_are_told(a_report, a_pair, a_line):
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 100]) for name, rows in (("a", 1000), ("b", 100), ("c", 7))]
    said = notes(a_report([["a", "b"], ["c"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest))
    assert said == [
        "Of c nothing is said: it has fewer than 20 training rows.",
        "Silos differ in size too: from 7 to 1,000 training rows.",
    ]


def test_of_small_silos_the_printed_rule_says_something_and_no_note_says_otherwise(a_report, a_pair, a_line):
    rest = [{"client": name} | a_pair(name, "label", rows=[19, 19]) for name in ("a", "b")]
    pairs, lines = [a_pair("a", "b", "label", rows=[19, 19])], [a_line((0, 1), 1, label=1)]
    (said,) = notes(a_report([["a"], ["b"]], pairs, lines, rest=rest, verdict="paper"))
    assert "nothing is said" not in said


def test_of_sizes_that_lie_within_the_noise_nothing_is_said(a_report, a_pair, a_line):
    """From 50 to 1,000 rows, each with noise of a deviation of 5, or of 100."""
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 100]) for name, rows in (("a", 1000), ("b", 50))]
    for noise, told in ((5.0, True), (100.0, False)):
        report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest)
        report["noise"], report["asked"]["rows_noise"] = {"epsilon": 4.0, "delta": 1e-5, "budget": 8.0}, noise
        assert any("Silos differ in size" in note for note in notes(report)) == told


def test_pairs_of_large_silos_of_which_nothing_is_said_are_counted(a_report, a_pair, a_line):
    pairs = [a_pair("a", "b", undetermined=True, why="apart"), a_pair("a", "c"), a_pair("b", "c")]
    (said,) = notes(a_report([["a", "b", "c"]], pairs, [a_line((0, 0), 3)]))
    assert said == (
        "Of 1 pair nothing is said: no label has 10 different rows in both silos, and nothing else was seen to differ."
    )


def test_what_was_asked_for_other_than_by_default_is_told(a_report, a_pair, a_line):
    def said(**also):
        (note,) = notes(a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], **also))
        return note

    assert "epsilon 4, delta 1e-05" in said(noise={"epsilon": 4.0, "delta": 1e-5, "budget": 8.0})
    assert "no counts" in said(verdict="moments")
    assert "ignores how many rows there are" in said(verdict="paper")
    asked = {"pictures": False, "counts": True, "targets": [0.5, 1.25], "bins": 32}
    assert said(asked=asked) == "Targets are numbers: 3 groups of them, cut at 0.5 and 1.25, stand for labels."


def test_a_difference_that_is_negligible_on_the_printed_scale_is_explained(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"grades": {"feature": "negligible"}}, feature=1)
    (said,) = notes(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line]))
    assert said.startswith("Negligible on that scale is not nothing")


def test_of_a_second_look_it_is_said_who_told_all_who_models_alone_and_who_nothing(a_report, a_pair, a_line):
    look = {
        "silos": ["a", "b", "c", "d"],
        "told": {"models": ["a", "b", "c"], "foreseen": ["a", "b"]},
        "of_groups": False,
        "pairs": 3,
        "explained": 1,
        "silent": {"c": "what c told differs.", "d": "what d told differs."},
        "bytes": {"up": 3000, "up_of_a_client": 1000},
    }
    groups, pair = [["a"], ["b"]], a_pair("a", "b", "feature")
    said = notes(a_report(groups, [pair], [a_line((0, 1), 1, feature=1)], second_look=look))
    assert said[-5:] == [
        "a and b told models of their labels, and what these expect of their rows.",
        "c told models of labels, and nothing more.",
        "Silos sent 3,000 bytes for it.",
        "d took no part in it: what d told differs.",
        "c took no further part: what c told differs.",
    ]


@pytest.mark.parametrize(("turned", "standardised"), [(0, False), (2, False), (3, True), (4, True)])
def test_to_standardise_is_proposed_where_a_gain_and_an_offset_undo_more_than_half_of_the_pairs(
    turned, standardised, a_report, a_pair, a_line
):
    line = a_line((0, 1), 4, {"transform": turned}, feature=4)
    (step,) = next_steps(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line], ranking=["age"]))
    assert ("let each silo standardise age before training" in step) == standardised
    assert ("align age at the silos before training" in step) != standardised


@pytest.mark.parametrize(("large", "said"), [(_SIZE_RATIO * 100 - 1, False), (_SIZE_RATIO * 100, True)])
def test_sizes_are_said_to_differ_from_their_least_factor_on(large, said, a_report, a_pair, a_line):
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 900]) for name, rows in (("a", 100), ("b", large))]
    lines = notes(a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest))
    assert any("differ in size" in line for line in lines) == said
