"""The table has a row for each two groups, or for each silo against the rest."""

from flows.diagnosis.build_report import shown_types
from flows.diagnosis.text.findings_page import overview


def test_a_row_is_two_groups_with_all_that_differs(a_report, a_pair, a_line):
    line = a_line((0, 1), 9, {"features": ["a", "b", "c", "d"]}, feature=9, concept=4)
    report = a_report([["x", "y", "z"], ["u", "v", "w"]], [a_pair("x", "u", "feature")], [a_line((0, 0), 3), line])
    (row,) = overview(report)["rows"]
    assert row == {
        "first": "x, y, z",
        "second": "u, v, w",
        "differ": [("inputs", "significant"), ("rule (4 of 9)", "significant")],
        "features": ["a", "b", "c"],
    }


def test_silos_of_one_group_stand_against_the_rest(a_report, a_pair, a_line):
    rest = [
        {"client": "a"} | a_pair("a", "", "label", features={}),
        {"client": "b"} | a_pair("b", "", undetermined=True, why="rows"),
        {"client": "c"} | a_pair("c", ""),
    ]
    found = overview(a_report([["a", "b", "c"]], [a_pair("a", "b")], [a_line((0, 0), 3)], rest=rest))
    assert [(row["first"], row["second"]) for row in found["rows"]] == [(name, "the rest") for name in "abc"]
    assert [row["differ"] for row in found["rows"]] == [
        [("labels", "significant")],
        [("too few rows", "-")],
        [("nothing", "-")],
    ]


def test_without_a_strength_the_scale_is_not_explained(a_report, a_pair, a_line):
    assert overview(a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)]))["scale"] == ""
    differ = a_report([["a"], ["b"]], [a_pair("a", "b", "label")], [a_line((0, 1), 1, label=1)])
    assert overview(differ)["scale"].startswith("Strength is")


def test_very_many_rows_are_cut_and_counted(a_report, a_pair, a_line):
    clients = [f"c{at}" for at in range(50)]
    found = overview(a_report([clients], [a_pair("c0", "c1")], [a_line((0, 0), 1225)]))
    assert (len(found["rows"]), found["more"]) == (30, "… and 20 rows more")


def test_a_rule_that_is_not_known_to_differ_is_in_no_cell_of_table_or_picture(a_pair):
    for types, near, shown in (
        (["feature", "concept"], True, ["feature", "concept"]),
        (["feature", "concept"], False, ["feature"]),
        (["concept"], False, ["concept"]),
        (["feature"], False, ["feature"]),
    ):
        assert shown_types(a_pair("a", "b", *types, concept_identifiable=near)) == shown
