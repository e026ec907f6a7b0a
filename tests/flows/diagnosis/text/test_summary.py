"""The sentences of a diagnosis: what differs, between which silos, and by how much."""

from itertools import product

import pytest

from flows.diagnosis.text.next_steps import next_steps
from flows.diagnosis.text.summary import sentences

LEFT, RIGHT = ["c00", "c01", "c02"], ["c03", "c04", "c05"]

OLDER = {
    "what": "mean",
    "name": "age",
    "first": 70.0,
    "second": 60.0,
    "difference": 10.0,
    "low": 9.0,
    "high": 11.0,
    "deviations": 0.8,
}
TENTH = OLDER | {
    "name": "crp",
    "first": 0.6,
    "second": 6.0,
    "difference": -5.4,
    "low": -6.0,
    "high": -5.0,
    "factor": 0.1,
}
RARER = {
    "what": "label",
    "name": "ill",
    "first": 0.09,
    "second": 0.23,
    "difference": -0.14,
    "low": -0.17,
    "high": -0.1,
}


def of_feature(*changes):
    return {"changes": {"feature": list(changes)}}


def test_two_silos_differ_in_labels_by_points(a_report, a_pair, a_line):
    report = a_report(
        [["c00"], ["c01"]],
        [a_pair("c00", "c01", "label")],
        [a_line((0, 1), 1, {"changes": {"label": [RARER]}}, label=1)],
    )
    assert sentences(report) == [
        'c00 differs from c01: 9 % of rows are "ill" against 23 % (−14 points, 95 % interval −17 to −10).'
    ]


def test_one_odd_silo_of_many_is_named_and_labels_have_the_name_of_their_column(a_report, a_pair, a_line):
    many = ["Aachen", "Bonn", "Essen", "Trier"]
    pairs = [a_pair(name, "Cologne", "label") for name in many]
    line = a_line((0, 1), 4, {"changes": {"label": [RARER]}}, label=4)
    report = a_report([many, ["Cologne"]], pairs, [line], label="sepsis")
    headline, found = sentences(report)
    assert headline == "The 5 silos form 2 groups; 4 of 4 pairs of silos differ."
    assert found == (
        'Cologne differs from the other 4 silos: sepsis is "ill" in 23 % of rows against 9 % (+14 points, 95 % interval '
        "+10 to +17)."
    )
    assert next_steps(report)[0] == (
        "Check at Cologne why sepsis differs: other cases, or another way of recording them."
    )


def test_another_rule_that_no_feature_explains_is_described_by_labels(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"changes": {"concept": [RARER]}}, concept=1)
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "concept")], [line])
    assert sentences(report) == [
        'a differs from b: labels follow from the inputs by another rule; 9 % of rows are "ill" against 23 % (−14 points, '
        "95 % interval −17 to −10), and no difference of inputs was seen."
    ]
    assert next_steps(report)[0] == "Check that each silo codes the label alike, with the same threshold."


def test_a_silo_of_every_differing_pair_in_one_group_is_described_against_all_others(a_report, a_pair, a_line):
    names = ["a", "b", "c", "d", "e"]
    rule = {"what": "rule", "name": "ward=eye", "value": "ill", "difference": 0.15, "low": 0.1, "high": 0.2}
    cell = rule | {"first": 0.4, "second": 0.25, "cell": "1"}
    rest = [{"client": name, "features": {}} | a_pair(name, "") for name in names]
    rest[2] |= {"types": ["concept"], "changes": {"concept": [cell]}}
    pairs = [a_pair("a", "c", "concept"), a_pair("c", "d", "feature"), a_pair("a", "b")]
    report = a_report([names], pairs, [a_line((0, 0), 10, concept=1, feature=1)], rest=rest)
    assert sentences(report) == [
        "The 5 silos form one group: 2 of 3 pairs of silos differ.",
        "c differs from all others together: labels follow from the inputs by another rule (where ward=eye, the label is "
        '"ill" in 40 % of rows against 25 %).',
    ]
    assert next_steps(report)[0] == "Check that each silo codes the label alike, beginning with c."
    rest[2]["changes"] = {"concept": [cell | {"cell": "0"}, rule | {"name": "age"}]}
    assert sentences(report)[1].endswith(
        '(where not ward=eye, the label is "ill" in 40 % of rows against 25 %, or the effect of age differs).'
    )
    assert len(sentences(a_report([names], [*pairs, a_pair("a", "e", "label")], [a_line((0, 0), 10)], rest=rest))) == 4


def test_groups_differ_in_a_mean_by_units_and_deviations(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "feature") for a, b in product(LEFT, RIGHT)]
    line = a_line((0, 1), 9, {"features": ["age"], **of_feature(OLDER)}, feature=9)
    assert sentences(a_report([LEFT, RIGHT], pairs, [line])) == [
        "The 6 silos form 2 groups; 9 of 9 pairs of silos differ.",
        "c00, c01 and c02 differ from c03, c04 and c05: age is higher by 10 (0.8 standard deviations, 95 % interval 9 to "
        "11).",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (TENTH, "crp is about a tenth as large (mean 0.6 against 6), as if it had another unit"),
        (TENTH | {"factor": 18.2}, "crp is about 18 times as large (mean 0.6 against 6), as if it had another unit"),
        (TENTH | {"factor": 1 / 18}, "crp is about 1/18 as large (mean 0.6 against 6), as if it had another unit"),
        (OLDER | {"what": "spread"}, "age varies more (standard deviation 70 against 60)"),
        (
            RARER | {"what": "missing", "name": "dose"},
            "dose is missing in 9 % of rows against 23 % (−14 points, 95 % interval −17 to −10)",
        ),
        (
            RARER | {"what": "category", "name": "ward=eye", "value": "1"},
            "ward=eye in 9 % of rows against 23 % (−14 points, 95 % interval −17 to −10)",
        ),
        (
            {key: value for key, value in OLDER.items() if key not in ("low", "high")},
            "age is higher by 10 (0.8 standard deviations)",
        ),
        (
            OLDER | {"difference": -10.0, "low": -11.0, "high": -9.0},
            "age is lower by 10 (0.8 standard deviations, 95 % interval 9 to 11)",
        ),
    ],
)
def test_each_kind_of_change_of_an_input_has_its_clause(change, said, a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"features": [change["name"]], **of_feature(change)}, feature=1)
    assert sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line])) == [f"a differs from b: {said}."]


def test_of_the_columns_of_one_category_one_is_named(a_report, a_pair, a_line):
    wards = [RARER | {"what": "category", "name": f"ward={ward}", "value": "1"} for ward in ("eye", "heart")]
    line = a_line((0, 1), 1, {"features": ["ward=eye", "ward=heart"], **of_feature(*wards)}, feature=1)
    (said,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line]))
    assert "ward=eye" in said
    assert "ward=heart" not in said


def test_another_rule_is_described_at_equal_inputs(a_report, a_pair, a_line):
    more = {"what": "rule", "name": "age", "value": "ill", "difference": 0.12, "low": 0.1, "high": 0.14}
    both_ways = more | {"difference": 0.01, "low": -0.01, "high": 0.03}
    for change, said in (
        (more, 'at equal age, label "ill" is more frequent by 12 points'),
        (both_ways, 'label "ill" depends on age in another way'),
    ):
        line = a_line((0, 1), 1, {"features": ["age"], "changes": {"concept": [change]}}, concept=1)
        (found,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "concept")], [line]))
        assert found == f"a differs from b: labels follow from the inputs by another rule ({said})."


def test_features_without_a_clear_change_and_projections_of_pictures_are_only_named(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"features": ["age", "bp"], **of_feature()}, feature=1)
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line])
    assert sentences(report) == ["a differs from b: inputs differ, most in age and bp."]
    line = a_line((0, 1), 1, {"features": ["age"], **of_feature(OLDER)}, feature=1)
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line])
    report["query"] |= {"pictures": True}
    assert sentences(report) == ["a differs from b: inputs differ, most in age."]


def test_a_silo_that_differs_from_all_others_comes_first_and_is_described_against_the_largest_group(
    a_report, a_pair, a_line
):
    """Groups: three silos alike, one that differs from them only, and one that differs from all."""
    groups = [["a", "b", "c"], ["near"], ["far"]]
    lines = [
        a_line((0, 1), 3, {"features": ["age"], **of_feature(OLDER)}, feature=3),
        a_line((0, 2), 3, {"features": ["crp"], **of_feature(TENTH)}, feature=3),
        a_line((1, 2), 1, {"none": 0}, feature=1),
    ]
    pairs = [a_pair(a, b, "feature") for a, b in product(groups[0], ("near", "far"))]
    said = sentences(a_report(groups, [*pairs, a_pair("near", "far")], [*lines[:2], a_line((1, 2), 1)]))
    assert [line.partition(" ")[0] for line in said[1:]] == ["near", "far"]
    assert said[2].startswith("far differs from a, b and c: crp is about 10 times as large (mean 6 against 0.6)")
    said = sentences(a_report(groups, [*pairs, a_pair("near", "far", "feature")], lines))
    assert said[1] == (
        "near differs from all other silos: compared with a, b and c, age is lower by 10 (0.8 standard deviations, 95 % "
        "interval 9 to 11)."
    )


def test_of_three_silos_that_all_differ_those_with_most_differences_are_described_against_the_third(
    a_report, a_pair, a_line
):
    """Only b has another rule, and only c has other inputs."""
    depends = {"what": "rule", "name": "lab", "value": "ill", "difference": 0.01, "low": -0.01, "high": 0.03}
    either = [depends, depends | {"name": "ward=eye"}, depends | {"name": "ward=ear"}]
    lines = [
        a_line((0, 1), 1, {"changes": {"concept": either}}, concept=1),
        a_line((0, 2), 1, {"features": ["age"], **of_feature(OLDER)}, feature=1),
        a_line((1, 2), 1, feature=1, concept=1),
    ]
    pairs = [a_pair("a", "b", "concept"), a_pair("a", "c", "feature"), a_pair("b", "c", "feature", "concept")]
    assert sentences(a_report([["a"], ["b"], ["c"]], pairs, lines))[1:] == [
        "b differs from all other silos: compared with a, labels follow from the inputs by another rule (label "
        '"ill" depends on lab or ward=eye in another way).',
        "c differs from all other silos: compared with a, age is lower by 10 (0.8 standard deviations, 95 % interval 9 to "
        "11).",
    ]


def test_there_are_at_most_eight_findings(a_report, a_pair, a_line):
    groups = [[f"{letter}{at}" for at in range(4)] for letter in "abcdef"]
    apart = [a_line((0, other), 16, feature=16) for other in range(1, 6)]
    inside = [a_line((group, group), 6, {"none": 5}, label=1) for group in range(6)]
    pairs = [a_pair("a0", name, "feature") for name in ("b0", "c0")]
    said = sentences(a_report(groups, pairs, [*apart, *inside]))
    assert len(said) == 8
    assert said[-1] == "Within 6 groups, pairs of silos differ as well."


def test_no_difference_of_two_silos_but_of_one_from_all_others_together(a_report, a_pair, a_line):
    def report(*types, **also):
        rest = [{"client": name} | a_pair(name, "", *(types if name == "b" else ()), **also) for name in "abc"]
        pairs = [a_pair(a, b) for a, b in ("ab", "ac", "bc")]
        return a_report([["a", "b", "c"]], pairs, [a_line((0, 0), 3)], rest=rest)

    assert sentences(report()) == ["No difference was seen between the 3 silos."]
    assert sentences(report("feature", undetermined=True, why="rows")) == sentences(report())
    assert sentences(report("feature", features={"dose": 0.5, "age": 0.4})) == [
        "No difference was seen between any two of the 3 silos.",
        "b differs from all others together: inputs differ, most in dose and age.",
        "All others together have more rows than any one of them, and show smaller differences.",
    ]
    of_groups = {**report("feature"), "pairs_of": "groups", "pairs": []}
    assert sentences(of_groups)[0] == "No groups that differ were seen among the 3 silos."


def test_a_type_that_only_some_pairs_have_is_named_with_their_number(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "feature", *["concept"] * (b == "c03")) for a, b in product(LEFT, RIGHT)]
    said = sentences(a_report([LEFT, RIGHT], pairs, [a_line((0, 1), 9, feature=9, concept=4)]))[-1]
    assert said.endswith(": inputs differ; in 4 of 9 pairs of silos labels follow from the inputs by another rule.")


def test_a_type_that_no_more_pairs_have_than_by_chance_is_not_named(a_report, a_pair, a_line):
    """Of 100 pairs 5 are the false discoveries that are allowed."""
    pairs = [a_pair("c00", "c03", "feature"), a_pair("c01", "c03", "feature")]
    for count, is_named in ((5, False), (6, True)):
        said = sentences(a_report([LEFT, RIGHT], pairs, [a_line((0, 1), 100, feature=100, label=count)]))[-1]
        assert (f"in {count} of 100 pairs of silos label frequencies differ" in said) == is_named


def test_groups_without_a_type_in_most_pairs_differ_in_some(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "feature") for a, b in product(LEFT, RIGHT)]
    said = sentences(a_report([LEFT, RIGHT], pairs, [a_line((0, 1), 9, feature=4, label=3)]))[-1]
    assert said == (
        "c00, c01 and c02 and c03, c04 and c05 differ in some pairs of silos only: inputs differ in 4 of 9 pairs and label "
        "frequencies differ in 3 of 9 pairs."
    )


def test_groups_that_only_undetermined_pairs_separate_are_one_group(a_report, a_pair, a_line):
    """Undetermined pairs count as different when silos are grouped."""
    pairs = [a_pair("c00", "c01", "feature"), a_pair("c00", "c03"), a_pair("c04", "c05")]
    pairs.append(a_pair("c00", "c04", undetermined=True, why="apart"))
    inside = a_line((0, 0), 3, {"none": 2}, feature=1)
    said = sentences(a_report([LEFT, RIGHT], pairs, [inside, a_line((0, 1), 90, {"undetermined": 89, "none": 1})]))
    assert said == [
        "The 6 silos form one group: 1 of 3 pairs of silos differs.",
        "c00 differs from c01: inputs differ.",
    ]


def test_pairs_within_a_group_are_counted_as_the_headline_counts_them(a_report, a_pair, a_line):
    """Of 200 pairs within the groups, 50 were not compared; 4 of 150 differ, about as many as by chance."""
    pairs = [a_pair(a, b, "feature") for a, b in product(LEFT, RIGHT)] + [a_pair("c00", "c01", "label")]
    inside = a_line((0, 0), 200, {"undetermined": 50, "none": 146}, label=4)
    said = sentences(a_report([LEFT, RIGHT], pairs, [inside, a_line((0, 1), 9, feature=9)]))
    assert said[-1] == "Within c00, c01 and c02, 4 of 150 pairs of silos differ."


def test_a_group_of_which_pairs_differ_is_not_said_to_show_none(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "feature") for a, b in product(LEFT, RIGHT)] + [a_pair("c00", "c01", "label")]
    lines = [a_line((0, 0), 3, {"none": 2}, label=1), a_line((1, 1), 3), a_line((0, 1), 9, feature=9)]
    said = sentences(a_report([LEFT, RIGHT], pairs, lines, inside=[{"alike": False}, {"alike": False}]))
    assert said[0].endswith("Silos within c03, c04 and c05 differ as well, too little for any two of them to show it.")


def test_no_sentence_claims_that_anything_agrees(a_report, a_pair, a_line):
    for types in (["feature"], ["label"], ["concept"], []):
        line = a_line((0, 1), 1, **dict.fromkeys(types, 1))
        said = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", *types)], [line]))
        assert not any("agree" in sentence or "P(" in sentence for sentence in said)


def test_groups_of_many_silos_are_numbered_and_their_silos_listed(a_report, a_pair, a_line):
    groups = [[f"c{at:02d}" for at in range(10)], ["d0", "d1", "d2", "d3"]]
    pairs = [a_pair(a, b, "concept") for a, b in product(*groups)]
    said = sentences(a_report(groups, pairs, [a_line((0, 1), 40, concept=40)]))
    assert said[1] == "Group 1 is c00, c01, c02 and 7 more; group 2 is d0, d1, d2 and d3."
    assert said[2] == "Group 2 differs from group 1: labels follow from the inputs by another rule."


def test_very_many_groups_are_summarised_by_type(a_report, a_pair, a_line):
    names = [f"c{at}" for at in range(6)]
    places = [(a, b) for a in range(6) for b in range(a)]
    pairs = [a_pair(names[a], names[b], "label", *["feature"] * (a == 5)) for a, b in places]
    lines = [a_line((b, a), 1, label=1) for a, b in places]
    said = sentences(a_report([[name] for name in names], pairs, lines, ranking=["age"]))
    assert said[1:] == [
        "In 5 of 15 pairs of silos inputs differ, most in age, all of them between c5 and the others.",
        "In 15 of 15 pairs of silos label frequencies differ.",
    ]


def test_where_all_silos_differ_each_input_is_named_with_its_silo_and_a_constant_only_once(a_report, a_pair, a_line):
    """As of five branches: one spells a category otherwise, one has older clients, one has a default in a column."""
    names, places = [f"c{at}" for at in range(5)], [(a, b) for a in range(5) for b in range(a)]
    odd = {"deductible": 0, "channel=web": 1, "age": 2}
    effects = [{name: 1.0 for name, silo in odd.items() if silo in place} | {"other": 0.1} for place in places]
    pairs = [
        a_pair(names[a], names[b], "feature", features=found) for (a, b), found in zip(places, effects, strict=True)
    ]
    web = {"what": "category", "name": "channel=web", "value": "1", "first": 0.0, "second": 0.35, "difference": -0.35}
    rest = [{"client": name, "changes": {"feature": [web]}} | a_pair(name, "", "feature") for name in names]
    faults = [{"what": "constant", "names": ["deductible"], "silos": ["c0"], "values": [500.0]}]
    report = a_report(
        [[name] for name in names],
        pairs,
        [a_line((b, a), 1, feature=1) for a, b in places],
        ranking=["channel=web", "deductible"],
        rest=rest,
        data_faults=faults,
    )
    assert sentences(report)[2:] == [
        "In 10 of 10 pairs of silos inputs differ, most in channel=web and deductible.",
        "In 4 of 10 pairs of silos channel differs, all of them between c1 and the others; against all of them together, "
        "channel=web in 0 % of rows against 35 % (−35 points).",
        "In 4 of 10 pairs of silos age differs, all of them between c2 and the others.",
    ]
    assert next_steps(report)[:3] == [
        "Check at c0 why deductible has one value, such as a default.",
        "Check at c1 why channel differs: other cases (case mix), or another way of measuring.",
        "Check at c2 why age differs: other cases (case mix), or another way of measuring.",
    ]


def five_silos(a_report, a_pair, a_line, odd, faults):
    """Five silos that all differ in `all`, the leading input, and in columns in which one silo or two stand out."""
    names, places = [f"c{at}" for at in range(5)], [(a, b) for a in range(5) for b in range(a)]
    effects = [
        {name: 1.0 - at / 10 for at, (name, silos) in enumerate(odd.items()) if len(silos & {*place}) == 1}
        | {"all": 0.1}
        for place in places
    ]
    pairs = [
        a_pair(names[a], names[b], "feature", features=found) for (a, b), found in zip(places, effects, strict=True)
    ]
    lines = [a_line((b, a), 1, feature=1) for a, b in places]
    return a_report([[name] for name in names], pairs, lines, ranking=["all", *odd], data_faults=faults)


def test_a_fault_at_one_silo_hides_no_difference_at_another_and_none_of_an_earlier_silo_is_lost(
    a_report, a_pair, a_line
):
    empty = [{"what": "empty", "names": ["dose"], "silos": [silo]} for silo in ("c0", "c3")]
    dose = [
        any(
            "silos dose differs" in said
            for said in sentences(five_silos(a_report, a_pair, a_line, {"dose": {at}}, empty))
        )
        for at in (0, 1, 3)
    ]
    assert dose == [False, True, False]
    steps = next_steps(five_silos(a_report, a_pair, a_line, {"dose": {1}}, empty))
    assert "Check at c1 why dose differs: other cases (case mix), or another way of measuring." in steps


def test_a_leading_input_beyond_the_sentences_is_checked_with_the_inputs_of_all(a_report, a_pair, a_line):
    report = five_silos(a_report, a_pair, a_line, {name: {at} for at, name in enumerate("abcd")}, [])
    report["ranking_of_inputs"] = [record for record in report["ranking_of_inputs"] if record["feature"] in "dall"]
    assert sum("silos" in said and " differs, " in said for said in sentences(report)) == 3
    assert any("why" in step and "d differ" in step for step in next_steps(report)), next_steps(report)


def test_small_silos_are_named_and_not_counted(a_report, a_pair, a_line):
    small = {"undetermined": True, "why": "rows", "rows": [100, 5]}
    pairs = [a_pair("a", "b"), a_pair("a", "c", **small), a_pair("b", "c", **small)]
    lines = [a_line((0, 0), 1), a_line((0, 1), 2, {"undetermined": 2, "none": 0})]
    rest = [{"client": name} | a_pair(name, "", rows=[rows, 100]) for name, rows in (("a", 100), ("b", 100), ("c", 5))]
    assert sentences(a_report([["a", "b"], ["c"]], pairs, lines, rest=rest)) == [
        "No difference was seen between the 2 silos that could be compared; c could not be compared."
    ]
    none = a_report([["a"], ["b"]], [a_pair("a", "b", undetermined=True, why="rows")], [])
    assert sentences(none) == ["No silos could be compared: no two have 20 training rows or more."]
    assert sentences(a_report([["a"]], [], [])) == ["There is one silo, so there is nothing to compare it with."]


@pytest.mark.parametrize(
    ("types", "says"),
    [
        ([], "No difference was seen between the 2 silos that could be compared"),
        (["label"], "The 2 silos that could be compared form 2 groups; 1 of 1 pair of silos differs"),
    ],
)
def test_silos_without_any_determined_pair_are_named_and_not_counted(a_report, a_pair, a_line, types, says):
    unclear = {"undetermined": True, "why": "unreported"}
    pairs = [a_pair("a", "b", *types), a_pair("a", "c", **unclear), a_pair("b", "c", **unclear)]
    lines = [a_line((0, 1), 1, **dict.fromkeys(types, 1)), a_line((0, 2), 1, {"undetermined": 1, "none": 0})]
    said = sentences(a_report([["a"], ["b"], ["c"]], pairs, lines))
    assert said[0] == f"{says}; c could not be compared."


def test_silos_that_refused_are_not_counted(a_report, a_pair, a_line):
    refused = {"refused": {"c": "client c has reported enough"}}
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], **refused)
    assert sentences(report) == ["No difference was seen between the 2 silos that could be compared."]
    alone = "Only a reported, so there is nothing to compare it with."
    assert sentences(a_report([["a"]], [], [], **refused)) == [alone]


def test_single_pairs_of_similar_silos_are_named(a_report, a_pair, a_line):
    pairs = [a_pair("a", "b", "feature", features={"age": 0.5}), a_pair("a", "c"), a_pair("b", "c")]
    said = sentences(a_report([["a", "b", "c"]], pairs, [a_line((0, 0), 3, feature=1)]))
    assert said == [
        "The 3 silos form one group: 1 of 3 pairs of silos differs.",
        "a differs from b: inputs differ, most in age.",
    ]


def test_a_few_pairs_within_a_group_that_differ_are_named_with_a_step(a_report, a_pair, a_line):
    pairs = [a_pair("c00", "c01", "concept"), *(a_pair(a, b, "label") for a, b in product(LEFT, RIGHT))]
    lines = [a_line((0, 0), 3, {"none": 2}, label=1), a_line((0, 1), 9, label=9)]
    report = a_report([LEFT, RIGHT], pairs, lines)
    assert sentences(report)[-1] == (
        "Within a group, c00 differs from c01: labels follow from the inputs by another rule."
    )
    assert next_steps(report)[0] == "Check that each silo codes the label alike."


def test_a_regression_has_targets_and_no_labels(a_report, a_pair, a_line):
    query = {"pictures": False, "counts": True, "targets": [0.0, 1.0], "bins": 32}
    line = a_line((0, 1), 1, {"changes": {"label": [RARER | {"name": "below 0"}]}}, label=1)
    (said,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "label")], [line], query=query))
    assert "a target below 0 in 9 % of rows" in said
    assert "label" not in said


QUERY_OF_TARGETS = {"pictures": False, "counts": True, "targets": [0.0, 1.0], "bins": 32}
HIGHER = OLDER | {"what": "target", "name": "the target", "first": 56.0, "second": 31.0, "difference": 25.0}
HIGHER |= {"low": 23.0, "high": 27.0}


def test_a_regression_has_no_threshold_and_no_label_if_another_rule_may_explain_its_targets(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"changes": {"label": [HIGHER]}}, label=1)
    pair = a_pair("a", "b", "label", label_or_concept=True)
    report = a_report([["a"], ["b"]], [pair], [line], query=QUERY_OF_TARGETS)
    assert sentences(report) == [
        "a differs from b: the target is higher by 25 (mean 56 against 31, 95 % interval 23 to 27) (or targets follow from "
        "the inputs by another rule)."
    ]
    assert "threshold" not in " ".join(next_steps(report))


def test_features_that_act_together_on_a_target_act_on_no_label(a_report, a_pair, a_line):
    pair = a_pair("a", "b", "concept", interactions=[{"features": ["age", "crp"]}])
    report = a_report([["a", "b"]], [pair], [], query=QUERY_OF_TARGETS)
    assert "how age and crp act together on the target differs" in sentences(report)[-1]


def test_the_amount_of_targets_is_said_with_the_rule_if_targets_differ_in_a_few_pairs_only(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "concept") for a, b in product(LEFT, RIGHT)]
    pairs[0]["types"] = pairs[1]["types"] = ["label", "concept"]
    line = a_line((0, 1), 9, {"changes": {"label": [HIGHER], "concept": [HIGHER]}}, label=2, concept=9)
    said = sentences(a_report([LEFT, RIGHT], pairs, [line], query=QUERY_OF_TARGETS))
    assert "another rule; the target is higher by 25 (mean 56 against 31, 95 % interval 23 to 27)" in said[-1]


def test_silos_of_one_group_whose_targets_differ_by_unlike_amounts_have_each_its_own(a_report, a_pair, a_line):
    pairs = [a_pair(a, b, "label", "concept") for a, b in product(["Gent", "Lille"], RIGHT)]
    amounts = [HIGHER | {"silo": "Gent", "factor": 1.8}, HIGHER | {"silo": "Lille"}]
    line = a_line((0, 1), 6, {"changes": {"label": [HIGHER], "concept": [HIGHER]}}, label=6, concept=6)
    line["target_amounts"] = [[], amounts]
    report = a_report([RIGHT, ["Gent", "Lille"]], pairs, [line], query=QUERY_OF_TARGETS, label="rent")
    assert sentences(report)[-1].startswith(
        "Gent and Lille differ from c03, c04 and c05: rent is 1.8 times as large at Gent (mean 56 against 31) and rent is "
        "higher by 25 at Lille (mean 56 against 31); no difference of inputs was seen"
    )
    line["groups"], line["target_amounts"] = [1, 0], [amounts, []]
    assert "1.8 times as large at Gent" in sentences(report)[-1]
    line["changes"] = {"label": [], "concept": [RARER]}  # opposite amounts, of which the mean is none
    assert "1.8 times as large at Gent" in sentences(report)[-1]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (1.0, 0.4, "dose has a value in no row against 60 % of rows"),
        (0.0, 1.0, "dose has a value in 100 % of rows against no row"),
    ],
)
def test_a_column_without_values_at_one_silo_is_said_to_have_none(first, second, said, a_report, a_pair, a_line):
    gone = RARER | {"what": "missing", "name": "dose", "first": first, "second": second}
    line = a_line((0, 1), 1, of_feature(gone), feature=1)
    assert sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line])) == [f"a differs from b: {said}."]


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ({"first": 0.0, "second": 3.0}, "dose is −5.5 in all rows, against values that vary"),
        ({"first": 3.0, "second": 0.0}, "dose varies, against −5.5 in all rows"),
    ],
)
def test_a_constant_is_said_with_its_sign_on_either_side(sides, said, a_report, a_pair, a_line):
    constant = {"what": "constant", "name": "dose", "difference": 1.0, "value": "-5.5", **sides}
    line = a_line((0, 1), 1, of_feature(constant), feature=1)
    assert sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line])) == [f"a differs from b: {said}."]


def test_a_column_without_values_at_a_silo_is_a_fault_and_its_inputs_are_not_checked_again(a_report, a_pair, a_line):
    gone = RARER | {"what": "missing", "name": "dose", "first": 1.0, "second": 0.4}
    line = a_line((0, 1), 1, of_feature(gone) | {"input_features": ["dose"]}, feature=1)
    faults = [{"what": "empty", "names": ["dose"], "silos": ["a"]}]
    report = a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line], data_faults=faults)
    assert sentences(report)[0] == "dose has no value at a."
    assert next_steps(report)[0] == "Fill dose in at a, or leave the column out at all silos."
    assert not any("why dose differs" in step for step in next_steps(report))


def test_a_shift_that_a_factor_and_an_offset_undo_is_named_as_one(a_report, a_pair, a_line):
    line = a_line((0, 1), 1, {"transform": 1}, feature=1)
    (said,) = sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature", transform=True)], [line]))
    assert "one factor and one offset undo the difference" in said


def test_a_loss_that_was_not_estimated_is_left_out_whichever_silo_comes_first(a_report, a_pair, a_line):
    unknown = {"shared_model_loss": None, "effect_on_prediction": None, "together": [], "interactions": []}
    pairs = [a_pair("a", "b"), a_pair("a", "far", "feature", **unknown), a_pair("b", "far", "feature", **unknown)]
    lines = [a_line((0, 0), 1), a_line((0, 1), 2, of_feature(OLDER), feature=2)]
    for groups in ([["a", "b"], ["far"]], [["far"], ["a", "b"]]):
        said = sentences(a_report(groups, pairs, lines))
        assert "accuracy" not in said[-1]
        assert said[-1].startswith("far differs from a and b: age is ")


def test_features_are_named_with_the_inputs_and_not_with_the_labels(a_report, a_pair):
    pair = a_pair("c00", "c01", "feature", "label", features={"age": 0.8})
    report = a_report([["c00", "c01", "c02"]], [pair], [])
    assert sentences(report)[-1] == "c00 differs from c01: inputs differ, most in age; label frequencies differ."


def test_large_and_small_numbers_are_written_without_powers_of_ten(a_report, a_pair, a_line):
    gone = RARER | {"what": "missing", "name": "dose", "first": 0.0, "second": 0.996, "difference": -0.996, "low": -1.0}
    much = OLDER | {"name": "cost", "difference": 12345.0, "low": 12000.0, "high": 13000.0, "deviations": 12.3}
    line = a_line((0, 1), 1, of_feature(gone | {"high": -0.99}, much), feature=1)
    assert sentences(a_report([["a"], ["b"]], [a_pair("a", "b", "feature")], [line])) == [
        "a differs from b: dose is missing in 0 % of rows against 100 % (−100 points, 95 % interval −100 to −99) and cost "
        "is higher by 12345 (12 standard deviations)."
    ]


def test_silos_that_no_compared_pair_places_are_named_and_groups_are_the_least_number(a_report, a_pair, a_line):
    groups = [["a", "b"], ["far"], ["lost"], ["other"]]
    apart = [a_pair("a", "far", "feature"), a_pair("b", "far", "feature")]
    unknown = [a_pair(name, "lost", undetermined=True, why="constant") for name in ("a", "b")]
    pairs = [*apart, *unknown, a_pair("a", "b"), a_pair("far", "lost", "label"), a_pair("a", "other")]
    lines = [a_line((0, 0), 1), a_line((0, 1), 2, of_feature(OLDER), feature=2), a_line((0, 3), 1)]
    lines += [a_line((0, 2), 2, {"undetermined": 2, "none": 0}), a_line((1, 2), 1, label=1)]
    said = sentences(a_report(groups, pairs, lines))
    assert said[0].startswith("The 5 silos form at least 2 groups; 3 of 5 pairs of silos differ.")
    assert said[1] == "Too few pairs could be compared to say to which group lost belongs."
    assert not any("Too few" in line for line in sentences(a_report(groups[:2], apart, lines[:2])))
