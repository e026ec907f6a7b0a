"""What was not compared and why, what may be missed, and what to do next."""

from itertools import product

import pytest

from flows.diagnosis.text.caveats import _SIZE_RATIO, notes, notes_of_versions
from flows.diagnosis.text.findings_page import overview
from flows.diagnosis.text.next_steps import next_steps, unit_steps
from flows.diagnosis.text.summary import sentences

UNIT = {"what": "mean", "name": "crp", "first": 6.0, "second": 0.6, "difference": 5.4, "factor": 10.0}


def limits(report):
    """All notes but that on what may be missed."""
    return [note for note in notes(report) if "may be missed" not in note]


def missed(report):
    return [note for note in notes(report) if "may be missed" in note]


PICTURES = {"pictures": True, "counts": True, "targets": [], "bins": 32}


def test_where_inputs_hardly_overlap_the_rule_is_said_to_be_unknown(a_report, a_pair, a_line):
    far = {"concept_identifiable": False}
    for types in (["feature"], ["feature", "concept"]):
        line = a_line((0, 1), 1, {"rule_unknown": len(types) - 1}, **dict.fromkeys(types, 1))
        report = a_report([["a"], ["b"]], [a_pair("a", "b", *types, **far)], [line])
        assert limits(report) == [
            "In 1 pair of silos the inputs hardly overlap: the data cannot show whether labels follow from them by the same "
            "rule."
        ]
        assert sentences(report) == ["a differs from b: inputs differ."]
        assert overview(report)["rows"][0]["differ"] == [("inputs", "significant")]
        assert not any("ifca" in step for step in next_steps(report))


def test_of_pictures_it_is_said_what_large_angles_do_and_what_the_named_numbers_are(a_report, a_pair, a_line):
    pair = a_pair("a", "b", "feature", concept_identifiable=False)
    line = a_line((0, 1), 1, {"features": ["xx", "patch 3,0"]}, feature=1)
    said = limits(a_report([["a"], ["b"]], [pair], [line], query=PICTURES))
    assert said[1].startswith("Pictures that are turned far have this effect")
    assert said[2] == (
        "Each picture is described by a few numbers: a patch is the light in one of 4 by 4 parts (row, column); xx is how "
        "wide the light lies across."
    )
    labels = a_pair("a", "b", "label", concept_identifiable=False)
    assert not any("turned" in note for note in limits(a_report([["a"], ["b"]], [labels], [line], query=PICTURES)))
    near = limits(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line], query=PICTURES))
    assert not any("turned" in note for note in near)


def test_a_rule_that_cannot_be_known_to_differ_leads_to_no_advice(a_report, a_pair, a_line):
    for far, proposed in ((1, False), (0, True)):
        line = a_line((0, 1), 1, {"not_identifiable": far}, concept=1)
        steps = next_steps(a_report([["a"], ["b"]], [a_pair("a", "b", "concept")], [line]))
        assert any("ifca" in step for step in steps) == proposed


def test_what_a_minority_of_pairs_has_leads_to_no_advice(a_report, a_pair, a_line):
    groups = [["a", "b", "c"], ["d", "e", "f"]]
    pairs = [a_pair(a, b, "feature") for a, b in product(*groups)]
    steps = next_steps(
        a_report(groups, pairs, [a_line((0, 1), 9, {"features": ["age"]}, feature=9, concept=4, label=4)])
    )
    assert steps == [
        "Check at a, b and c and d, e and f why age differs: other cases (case mix), or another way of measuring.",
        "If the differences are real, judge methods by each silo's test rows: `siloflow compare fedavg ifca conditional "
        "uefl`",
    ]


def test_all_types_lead_to_one_command_after_checks_that_name_the_silos_that_differ(a_report, a_pair, a_line):
    groups, ward = [["a"], ["b"], ["c"]], {"features": ["ward=eye", "ward=ear"]}
    lines = [
        a_line((0, 1), 1, concept=1),
        a_line((0, 2), 1, ward, feature=1),
        a_line((1, 2), 1, ward, feature=1, concept=1),
    ]
    pairs = [a_pair("a", "b", "concept"), a_pair("a", "c", "feature"), a_pair("b", "c", "feature", "concept")]
    report = a_report(groups, pairs, lines, ranking=["ward=eye", "ward=ear"])
    assert next_steps(report) == [
        "Check at c why ward differs: other cases (case mix), or another way of measuring.",
        "Check that each silo codes the label alike, beginning with b.",
        "If the differences are real, silos need models of their own or of their group: `siloflow compare fedavg "
        "conditional uefl ifca cfl ditto`",
    ]


def test_where_nothing_differs_one_model_is_proposed_but_not_where_nothing_could_be_compared(a_report, a_pair, a_line):
    line = a_line((0, 0), 1)
    alike = a_report([["a", "b"]], [a_pair("a", "b")], [line])
    assert next_steps(alike) == ["One model for all silos is a good start: `siloflow compare fedavg`"]
    unclear = [a_pair("a", "b", undetermined=True, why="rows")]
    assert next_steps(a_report([["a", "b"]], unclear, [line])) == []
    assert next_steps(alike | {"rest": [{"client": "a"} | a_pair("a", "", "label")]})[0] == (
        "Check at a why the label differs: other cases, or another way of recording them."
    )
    assert next_steps(alike | {"inside": [{"alike": False}]}) == []


def test_a_class_in_no_cell_is_said_to_be_compared_by_its_share(a_report, a_pair, a_line):
    entry = {"what": "class in cells", "why": "few rows", "names": [1], "silos": ["a", "b"]}
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], not_compared=[entry])
    assert limits(report) == [
        'Label "ill" was compared at a and b by its share alone: with its few rows, cells would merge those of other labels '
        "(least_cell in owner.yaml)."
    ]


def test_silos_with_one_cell_of_a_feature_in_common_are_named(a_report, a_pair, a_line):
    one_cell = {"what": "feature", "why": "one cell in common", "names": ["age"]}
    entries = [one_cell | {"silos": ["a", "b"]}, one_cell | {"silos": ["a", "b", "c"], "names": ["crp"]}]
    why = "compared by its mean at most: the two have one cell in common (least_cell in owner.yaml)."
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], not_compared=entries)
    assert limits(report) == [f"Between a and b age was {why}", f"In some pairs of a, b and c crp was {why}"]
    assert limits(report | {"not_compared": entries * 3})[-1] == (
        "The same holds for 3 more features, which report.json names."
    )


def test_rows_of_a_rare_class_are_said_to_be_too_few_to_be_counted(a_report, a_pair, a_line):
    entry = {"what": "class", "why": "fewer than 10 different rows", "names": [1], "silos": ["a"]}
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], not_compared=[entry])
    assert limits(report) == [
        'Label "ill" was not compared at a: fewer than 10 different rows, too few to report their counts.'
    ]


def test_a_second_look_is_proposed_for_pairs_of_silos_and_not_of_groups(a_report, a_pair, a_line):
    pairs = [a_pair("a", "b", "feature", "concept", second_look_recommended=True)]
    report = a_report([["a"], ["b"]], pairs, [a_line((0, 1), 1, feature=1, concept=1)])
    assert "second_look=true" in next_steps(report)[-2]
    assert not any("second_look" in step for step in next_steps(report | {"pairs_of": "groups"}))


def test_only_features_that_the_sentences_name_are_to_be_checked(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"features": ["age", "smokes"]}, feature=1)
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line], ranking=["dose", "age", "smokes"])
    assert sentences(report) == ["a differs from b: inputs differ, most in age and smokes."]
    assert next_steps(report)[0].startswith("Check at a and b why age and smokes differ: ")
    report["between"][0]["input_features"] = []
    assert next_steps(report)[0].startswith("Check at a and b why inputs differ: ")


def test_small_silos_and_sizes_are_told(a_report, a_pair, a_line):
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 100]) for name, rows in (("a", 1000), ("b", 100), ("c", 7))]
    said = limits(a_report([["a", "b"], ["c"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest))
    assert said == [
        "c was not compared: fewer than 20 training rows.",
        "Silos differ in size: from 7 to 1,000 training rows.",
    ]


def test_of_small_silos_the_printed_rule_says_something_and_no_note_says_otherwise(a_report, a_pair, a_line):
    rest = [{"client": name} | a_pair(name, "label", rows=[19, 19]) for name in ("a", "b")]
    pairs, lines = [a_pair("a", "b", "label", rows=[19, 19])], [a_line((0, 1), 1, label=1)]
    (said,) = limits(a_report([["a"], ["b"]], pairs, lines, rest=rest, verdict="paper"))
    assert "not compared" not in said


def test_of_sizes_that_lie_within_the_noise_nothing_is_said(a_report, a_pair, a_line):
    """From 50 to 1,000 rows, each with noise of a deviation of 5, or of 100."""
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 100]) for name, rows in (("a", 1000), ("b", 50))]
    for noise, told in ((5.0, True), (100.0, False)):
        report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest)
        report["noise"], report["query"]["rows_noise"] = {"epsilon": 4.0, "delta": 1e-5, "budget": 8.0}, noise
        assert any("Silos differ in size" in note for note in limits(report)) == told


def test_pairs_of_large_silos_of_which_nothing_is_said_are_counted(a_report, a_pair, a_line):
    pairs = [a_pair("a", "b", undetermined=True, why="apart"), a_pair("a", "c"), a_pair("b", "c")]
    (said,) = limits(a_report([["a", "b", "c"]], pairs, [a_line((0, 0), 3)]))
    assert said == (
        "1 pair of silos could not be compared: no label has 10 different rows in both silos, and no other difference was "
        "seen."
    )


def test_what_was_asked_for_other_than_by_default_is_told(a_report, a_pair, a_line):
    def said(**also):
        (note,) = limits(a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], **also))
        return note

    assert "epsilon 4, delta 1e-05" in said(noise={"epsilon": 4.0, "delta": 1e-5, "budget": 8.0})
    assert "no counts" in said(verdict="moments")
    assert "ignores the number of rows" in said(verdict="paper")
    asked = {"pictures": False, "counts": True, "targets": [0.5, 1.25], "bins": 32}
    assert (
        said(query=asked) == "Targets are numbers, so 3 groups of targets, cut at 0.5 and 1.25, are compared as labels."
    )


def test_of_a_second_look_it_is_said_who_told_all_who_models_alone_and_who_nothing(a_report, a_pair, a_line):
    look = {
        "silos": ["a", "b", "c", "d"],
        "reported": {"models": ["a", "b", "c"], "predictions": ["a", "b"]},
        "of_groups": False,
        "pairs": 3,
        "explained": 1,
        "refused": {"c": "what c told differs.", "d": "what d told differs."},
        "bytes": {"up": 3000, "up_of_a_client": 1000},
    }
    groups, pair = [["a"], ["b"]], a_pair("a", "b", "feature")
    said = limits(a_report(groups, [pair], [a_line((0, 1), 1, feature=1)], second_look=look))
    assert said[-5:] == [
        "a and b sent models of their labels, and predicted counts of their rows.",
        "c sent models of their labels only.",
        "All silos together sent 3,000 bytes for it.",
        "d took no part in the second look: what d told differs.",
        "c took no further part: what c told differs.",
    ]


@pytest.mark.parametrize(("turned", "standardised"), [(0, False), (2, False), (3, True), (4, True)])
def test_to_standardise_is_proposed_where_a_gain_and_an_offset_undo_more_than_half_of_the_pairs(
    turned, standardised, a_report, a_pair, a_line
):
    line = a_line((0, 1), 4, {"transform": turned, "features": ["age"]}, feature=4)
    step, _ = next_steps(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line]))
    assert ("Let each silo standardise age before training" in step) == standardised
    assert ("Check at a and b why age differs" in step) != standardised


@pytest.mark.parametrize(("large", "said"), [(_SIZE_RATIO * 100 - 1, False), (_SIZE_RATIO * 100, True)])
def test_sizes_are_said_to_differ_from_their_least_factor_on(large, said, a_report, a_pair, a_line):
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 900]) for name, rows in (("a", 100), ("b", large))]
    lines = limits(a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest))
    assert any("differ in size" in line for line in lines) == said


@pytest.mark.parametrize(("rows", "points", "deviations"), [((500, 5000), 8, 0.16), ((100, 100), 24, 0.48)])
def test_what_may_be_missed_is_stated_for_the_two_smallest_silos(rows, points, deviations, a_report, a_pair, a_line):
    """An effect of 80 % power at level 0.01: (2.576 + 0.842) / sqrt(n m / (n + m)) deviations."""
    sizes = "100" if rows[0] == rows[1] else f"{rows[0]} and {rows[1]:,}"
    rest = [
        {"client": name} | a_pair(name, "", rows=[size, 9000]) for name, size in zip("abc", (*rows, 9000), strict=True)
    ]
    report = a_report([["a", "b", "c"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest)
    assert missed(report) == [
        f"At silos of {sizes} training rows, differences of less than {points} points in how often a label "
        f"occurs or {deviations} standard deviations in a mean may be missed. So may another coding of labels in a part of "
        "the rows."
    ]
    assert missed(report | {"verdict": "paper"}) == []


def test_a_change_since_a_version_may_be_missed_too(a_report, a_pair):
    pairs = [{"client": "a"} | a_pair("", "", rows=[30, 40])]
    (said,) = notes_of_versions(a_report([["a"]], pairs, [], against="HEAD~1"))
    assert said.startswith("At silos of 30 and 40 training rows")


def test_another_unit_is_to_be_checked_at_the_silo_that_differs_from_most(a_report, a_pair, a_line):
    groups, changes = [["a", "b"], ["c"], ["d"]], {"features": ["crp"], "changes": {"feature": [UNIT]}}
    lines = [a_line((0, 1), 2, changes, feature=2), a_line((1, 2), 1, changes, feature=1), a_line((0, 2), 2)]
    pairs = [a_pair("a", "c", "feature"), a_pair("b", "c", "feature"), a_pair("c", "d", "feature")]
    assert next_steps(a_report(groups, pairs, lines, ranking=["crp"])) == [
        "Check the unit of crp at c, convert it there if it is another one, and diagnose again."
    ]
    older = {"what": "mean", "name": "age", "first": 70.0, "second": 60.0, "difference": 10.0}
    lines[0]["changes"] = {"feature": [UNIT, older]}
    two = a_report([["a", "b"], ["c"]], pairs[:2], lines[:1])
    assert next_steps(two)[0].startswith("Check the unit of crp at c, ")
    assert next_steps(two)[1].startswith("Check at c why age differs: ")


def test_features_without_values_or_withheld_are_named_with_their_silos(a_report, a_pair, a_line):
    gaps = {
        "absent": {f"x{at}": ["a"] for at in range(5)},
        "withheld": {"dose": ["a", "b"]},
        "merged": {"ward": ["north", "west"]},
        "crowded": ["age"],
    }
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], gaps=gaps)
    found = limits(report)
    assert found[:3] == [f"x{at} was not compared at a: no reported row has a value." for at in range(3)]
    assert found[3:5] == [
        "The same holds for 2 more features, which report.json names.",
        "dose was not compared at a and b: fewer than 10 different rows of a label have a value.",
    ]
    assert found[5] == (
        "ward was compared at north and west by its mean at most: too few different rows of a label for two cells "
        "(least_cell in owner.yaml)."
    )
    assert found[6].startswith("Differences within age cannot be seen: nearly all values lie in one or two of 32 bins")
    report["query"] |= {"targets": [0.0]}
    assert "fewer than 10 different rows of a group of targets have a value" in notes(report)[5]


def test_repeated_rows_are_named_unless_rows_count_by_unit(a_report, a_pair, a_line):
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], repeats=["b"])
    (said,) = limits(report)
    assert said.startswith("At b a tenth of the rows or more equal other rows")
    assert said.endswith("data.source.unit.")
    (counted,) = limits(report | {"unit": "patient_id"})
    assert counted.startswith("Rows are counted by patient_id")


def test_where_persons_repeat_no_feature_is_suspected_of_another_unit(a_report, a_pair, a_line):
    change = {"what": "mean", "name": "crp", "first": 20.0, "second": 2.0, "difference": 18.0, "factor": 10.0}
    line = a_line((0, 1), 1, {"features": ["crp"], "changes": {"feature": [change]}}, feature=1)
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature", features={"crp": 1.0})], [line], ranking=["crp"])
    assert list(unit_steps(report)) == ["crp"]
    persons = {"what": "persons", "names": [], "silos": ["a", "b"]}
    assert unit_steps(report | {"data_faults": [persons]}) == {}
    assert [step for step in next_steps(report | {"data_faults": [persons]}) if "unit of crp" in step] == []


def another_unit(name="dose", scale=100.0, offset=0.0, unit="", usual="", silos=("b",), means=(3297.06,), mean=32.2):
    about = {"scale": scale, "offset": offset, "unit": unit, "usual_unit": usual, "means": [*means], "usual_mean": mean}
    return {"what": "unit", "names": [name], "silos": [*silos], **about}


@pytest.mark.parametrize(
    ("fault", "said", "how"),
    [
        (
            another_unit(silos=("b", "c"), means=(3297.06, 3410.0)),
            "dose is about 100 times as large at b and c as at most silos (means 3297 and 3410 against 32.2)",
            "divide by 100",
        ),
        (another_unit(scale=0.001), "dose is about 1/1000 as large at b as at most silos", "multiply by 1000"),
        (another_unit(scale=3.04), "dose is about 3 times as large at b as at most silos", "divide by 3"),
        (
            another_unit("temp", 1.8, 32.0, "degrees Fahrenheit", "degrees Celsius", means=(64.4,), mean=18.0),
            "temp at b looks like degrees Fahrenheit where most silos have degrees Celsius (mean 64.4 against 18",
            "subtract 32, and divide by 1.8",
        ),
        (another_unit("temp", 1.0, 273.15, "kelvins", "degrees Celsius"), "temp at b looks like", "subtract 273.15"),
        (
            another_unit("temp", 1 / 1.8, -32 / 1.8, "degrees Celsius", "degrees Fahrenheit"),
            "temp at b looks like",
            "multiply by 1.8, and add 32",
        ),
    ],
)
def test_another_unit_is_said_first_with_how_to_convert_it(fault, said, how, a_report, a_pair, a_line):
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], data_faults=[fault])
    assert sentences(report)[0].startswith(said)
    silos = " and ".join(fault["silos"])
    check = f"Check the unit of {fault['names'][0]} at {silos}, convert it there if it is another one"
    step = f"{check} ({how}), and diagnose again."
    assert next_steps(report) == [step]  # and no word of a good start
    assert unit_steps(report) == {fault["names"][0]: step}


def test_two_units_of_one_feature_are_both_steps_and_the_sentence_of_a_pair_is_none(a_report, a_pair, a_line):
    change = {"what": "mean", "name": "dose", "first": 20.0, "second": 2.0, "difference": 18.0, "factor": 10.0}
    line = a_line((0, 1), 1, {"features": ["dose"], "changes": {"feature": [change]}}, feature=1)
    faults = [another_unit(silos=("a",)), another_unit(silos=("c",), scale=0.1)]
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line], data_faults=faults, ranking=["dose"])
    assert list(unit_steps(report)) == ["dose"]
    (step,) = unit_steps(report).values()
    assert [step.count(part) for part in ("Check the unit of dose", "(divide by 100)", "(multiply by 10)")] == [2, 1, 1]
    assert next_steps(report)[0] == step


def test_persons_at_one_silo_leave_the_steps_of_others(a_report, a_pair, a_line):
    change = {"what": "mean", "name": "crp", "first": 20.0, "second": 2.0, "difference": 18.0, "factor": 10.0}
    line = a_line((0, 1), 2, {"features": ["crp"], "changes": {"feature": [change]}}, feature=2)
    pairs = [a_pair("a", "c", "feature"), a_pair("b", "c", "feature"), a_pair("a", "b")]
    report = a_report([["a", "b"], ["c"]], pairs, [line], ranking=["crp"])
    of_a, of_c = ({"data_faults": [{"what": "persons", "names": [], "silos": [silo]}]} for silo in "ac")
    (name_persons, check, *_) = next_steps(report | of_a)
    assert name_persons.startswith("Name the column of persons")
    assert check == unit_steps(report)["crp"]
    assert check.startswith("Check the unit of crp at c,")
    assert next_steps(report | of_c) == [name_persons]


def test_a_report_of_an_earlier_version_leads_to_no_unit_steps(a_report, a_pair, a_line):
    new = ("input_features", "data_faults", "persons", "ranking_of_inputs")

    def stripped(part):
        if isinstance(part, dict):
            return {key: stripped(value) for key, value in part.items() if key not in new}
        return [stripped(value) for value in part] if isinstance(part, list) else part

    line = a_line((0, 1), 1, {"features": ["crp"], "changes": {"feature": [UNIT]}}, feature=1)
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line], ranking=["crp"])
    assert unit_steps(report)
    assert unit_steps(stripped(report)) == {}


CODES = {
    "what": "values",
    "why": "far from all others, or a code",
    "names": ["crp"],
    "silos": ["b"],
    "rows": {"b": [31, 0]},
}
SPREAD = {"what": "spread", "name": "crp", "first": 306.0, "second": 3.76, "difference": 302.2, "low": 290, "high": 320}


def test_a_code_for_missing_values_is_named_before_other_causes_with_the_line_to_set(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"features": ["crp"], "changes": {"feature": [SPREAD]}}, feature=1)
    pairs, also = [a_pair("a", "b", "feature")], {"not_compared": [CODES]}
    report = a_report([["a"], ["b"]], pairs, [line], label="sepsis", **also)
    assert sentences(report) == [
        "a differs from b: crp varies more (standard deviation 306 against 3.76), with values at b that may be a code for "
        "missing values."
    ]
    assert (
        "31 values of crp at b lie apart, below all others: a code for missing values (to be listed under"
        in notes(report)[1]
    )
    assert next_steps(report) == [
        "Look at the values of crp at b that lie apart, below all others. If they are a code for missing values, list it "
        "under data.source, here and in owner.yaml, as in "
        '`na_values: ["-999"]` with `missing: drop_rows` or a fill, partition and diagnose again; '
        "otherwise correct them."
    ]
    assert "na_values" not in " ".join([*notes(report | {"label": ""}), *next_steps(report | {"label": ""})])


HIGHER = {"what": "mean", "name": "crp", "first": 9.0, "second": 3.0, "difference": 6.0, "deviations": 2.0}


@pytest.mark.parametrize(("silo", "is_checked"), [("c", True), ("a", False)])
def test_a_code_at_one_silo_explains_no_difference_at_another(silo, is_checked, a_report, a_pair, a_line):
    """In a kiln's gain of the airflow, the code 9999 of another kiln hid the step."""
    changes = {"features": ["crp"], "changes": {"feature": [HIGHER]}}
    lines = [a_line((0, 1), 2, changes, feature=2), a_line((1, 1), 1)]
    pairs = [a_pair("a", "b", "feature"), a_pair("a", "c", "feature"), a_pair("b", "c")]
    codes = {**CODES, "silos": [silo], "rows": {silo: [0, 21]}}
    steps = next_steps(a_report([["a"], ["b", "c"]], pairs, lines, label="sepsis", not_compared=[codes]))
    assert steps[0] == (
        f"Look at the values of crp at {silo} that lie apart, above all others. If they are a code for missing values, "
        "list it under data.source, here and in owner.yaml, as in "
        '`na_values: ["9999"]` with `missing: drop_rows` or a fill, partition and diagnose '
        "again; otherwise correct them."
    )
    check = "Check at a why crp differs: other cases (case mix), or another way of measuring."
    assert (check in steps) is is_checked


def test_codes_of_several_features_are_one_line_to_set(a_report, a_pair, a_line):
    above = {**CODES, "names": ["ldh"], "silos": ["a"], "rows": {"a": [0, 9]}}
    report = a_report(
        [["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], label="sepsis", not_compared=[CODES, above]
    )
    assert next_steps(report)[0] == (
        "Look at the values of crp at b that lie apart, below all others; of ldh at a that lie apart, above all others. If "
        "they are a code for missing values, list it under data.source, here and in owner.yaml, as in "
        '`na_values: ["-999", "9999"]` with '
        "`missing: drop_rows` or a fill, partition and diagnose again; otherwise correct them."
    )


def test_one_value_far_from_all_others_is_a_limit_and_leads_to_no_step(a_report, a_pair, a_line):
    report = a_report(
        [["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], not_compared=[CODES | {"rows": {"b": [0, 1]}}]
    )
    assert any("1 value of crp at b lies apart, above all others: a code" in note for note in notes(report))
    assert next_steps(report) == ["One model for all silos is a good start: `siloflow compare fedavg`"]
    for count, leads in ((2, False), (3, True)):
        report["not_compared"] = [CODES | {"rows": {"b": [0, count]}}]
        assert next_steps(report)[0].startswith("Look at the values of crp at b ") == leads


def test_each_step_names_what_its_sentence_names_at_the_silos_that_differ_in_it(a_report, a_pair, a_line):
    """Wind parks: one has another model of turbine, another one more wind, and the ranking has the turbines first."""
    wind = {"what": "mean", "name": "wind", "first": 12.0, "second": 9.0, "difference": 3.0, "low": 2.5, "high": 3.5}
    turbine = {"what": "category", "name": "turbine=E82", "value": "1", "first": 0.9, "second": 0.1, "difference": 0.8}
    names = ["a", "b", "c"]
    lines = [
        a_line(
            (0, 1),
            3,
            {"features": ["turbine=E82"], "changes": {"feature": [turbine | {"difference": -0.8}]}},
            feature=3,
        ),
        a_line((0, 2), 3, {"features": ["wind", "turbine=E82"], "changes": {"feature": [wind]}}, feature=3),
        a_line((1, 2), 1, {"features": ["turbine=E82", "wind"]}, feature=1),
    ]
    pairs = [*(a_pair(name, other, "feature") for name in names for other in ("d", "e")), a_pair("d", "e", "feature")]
    report = a_report([names, ["d"], ["e"]], pairs, lines, ranking=["turbine=E82", "age"])
    assert next_steps(report)[:2] == [
        "Check at d why turbine differs: other cases (case mix), or another way of measuring.",
        "Check at e why wind differs: other cases (case mix), or another way of measuring.",
    ]


def test_the_step_also_names_what_differs_and_has_no_room_in_the_sentence(a_report, a_pair, a_line):
    """Four columns differ clearly, and a fifth one may."""
    names = ["wind", "sun", "rain", "month", "hour"]
    changes = [{"what": "spread", "name": name, "first": 3.0, "second": 9.0, "difference": -6.0} for name in names[:4]]
    ranked = {"input_features": names, "changes": {"feature": changes}}
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [a_line((0, 1), 1, ranked, feature=1)])
    assert "month" not in sentences(report)[0]
    assert next_steps(report)[0].startswith("Check at a and b why wind, sun, rain and month differ: ")


def test_rows_of_units_are_said_to_be_worth_fewer(a_report, a_pair, a_line):
    rest = [{"client": name} | a_pair(name, "", rows=[size, 9000]) for name, size in (("a", 54), ("b", 112))]
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], rest=rest, unit="patient")
    assert missed(report)[0].startswith(
        "At silos of training rows worth 54 and 112 independent ones, differences of less"
    )


def test_the_sentence_on_two_groups_names_the_inputs_that_the_step_names(a_report, a_pair, a_line):
    ranked = {"features": ["of_rule"], "input_features": ["of_inputs"]}
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [a_line((0, 1), 1, ranked, feature=1)])
    assert sentences(report) == ["a differs from b: inputs differ, most in of_inputs."]
    assert "why of_inputs differs" in next_steps(report)[0]


def test_shared_rows_that_would_be_missed_are_said(a_report, a_pair, a_line):
    unseen = [{"what": "shared rows", "why": "features have too few values", "names": [], "silos": []}]
    report = a_report([["a"], ["b"]], [a_pair("a", "b")], [a_line((0, 1), 1)], not_compared=unseen)
    assert (
        "Rows that two silos both hold would mostly be missed: features are counted in too few cells for this many silos. "
        "`siloflow partition` counts them." in notes(report)
    )


def test_pairs_of_which_no_silo_stands_out_are_to_be_checked_at_all_silos(a_report, a_pair, a_line):
    names = [f"c{at:02}" for at in range(8)]
    pairs = [
        a_pair(first, second, *["concept"] * (second == names[at + 1] and at % 2 == 0))
        for at, first in enumerate(names)
        for second in names[at + 1 :]
    ]
    report = a_report([names], pairs, [a_line((0, 0), len(pairs), concept=4)])
    assert next_steps(report)[0] == "Check that each silo codes the label alike."
