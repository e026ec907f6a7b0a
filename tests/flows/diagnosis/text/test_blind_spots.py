"""Where nothing is found it is said what could not have been."""

from flows.diagnosis.text.caveats import notes, notes_of_versions

FEW = (
    "Fewer than 500 training rows of a silo show large differences alone: where none is found, small ones may be there."
)


def test_small_differences_may_be_there_where_nothing_is_found_in_few_rows(a_report, a_pair, a_line):
    few = {"rows": [499, 5000]}
    for pair, verdict, said in (
        (a_pair("a", "b", **few), "guarded", True),
        (a_pair("a", "b", rows=[500, 5000]), "guarded", False),
        (a_pair("a", "b", "feature", **few), "guarded", False),
        (a_pair("a", "b", **few), "paper", False),
    ):
        report = a_report([["a", "b"]], [pair], [a_line((0, 0), 1)], verdict=verdict)
        assert (FEW in notes(report)) == said


def test_silos_of_few_rows_that_are_in_one_group_are_known_where_groups_are_compared(a_report, a_pair, a_line):
    """One group has no pair, and two have more rows than any silo."""
    for groups, said in (([["a", "b"]], True), ([["a"], ["b"]], False)):
        rest = [{"client": name} | a_pair(name, "", rows=[60, 6000]) for name in "ab"]
        assert (FEW in notes(a_report(groups, [], [], pairs_of="groups", rest=rest))) == said


def test_against_a_version_too(a_report, a_pair):
    pairs = [{"client": "a"} | a_pair("", "", rows=[30, 40])]
    assert FEW in notes_of_versions(a_report([["a"]], pairs, [], against="HEAD~1"))


def test_features_without_values_or_untold_are_named_with_their_silos(a_report, a_pair, a_line):
    gaps = {
        "absent": {f"x{at}": ["a"] for at in range(5)},
        "untold": {"dose": ["a", "b"]},
        "crowded": ["age"],
    }
    report = a_report([["a", "b"]], [a_pair("a", "b")], [a_line((0, 0), 1)], gaps=gaps)
    assert notes(report) == [
        "x0 has no value in any row that a told of.",
        "x1 has no value in any row that a told of.",
        "x2 has no value in any row that a told of.",
        "So it is with 2 more features; report.json names them.",
        "Of dose a and b told no value, since fewer than ten different rows of a label have one: its values are not "
        "compared there.",
        "Nearly all values of age lie in one or two of 32 bins, as where a few are far out, and nothing is seen within "
        "these: under data.features declare low and high that hold most, or the kind categorical where there are few "
        "different ones.",
    ]
    report["asked"] |= {"targets": [0.0]}
    assert "since fewer than ten different rows of a group of targets have one" in notes(report)[4]
