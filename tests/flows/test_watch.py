"""Which shifts make `watch` train again, how they are named, and who was not checked."""

import io
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli.serving_commands import print_history, print_watch
from flows.compare import make_plan
from flows.core.console.safe_text import PlainConsole
from flows.project.project import Project
from flows.project.run_sets import new_experiment
from flows.results.registry.changed_silos import make_answer
from flows.results.registry.promotion_history import may_pass
from flows.results.registry.shifted_silos import shifted_silos, unchecked_silos, unseen_shifts
from flows.results.registry.watch_text import no_shift_text, shift_text
from flows.watch import (
    _comparison_name,
    _diagnose,
    answer_of,
    methods_to_train,
    shift_event,
    watch,
    why_no_challenger,
    without_second_look,
)
from tasks.tracking.mlflow_logging.model_registry import ModelVersion

AGE = {"name": "age", "what": "mean", "difference": 12.0, "deviations": 0.9}


class Everyone(dict[str, str]):
    """Silos that all changed."""

    def __contains__(self, client: object) -> bool:
        return True


def shifted(diagnosis: dict[str, Any] | None, least: str) -> list[dict[str, Any]]:
    """The silos that shifted by at least a grade, if all of them changed."""
    return shifted_silos(diagnosis, least, Everyone())


def pair(client: str, **grades: str | None) -> dict[str, Any]:
    """A silo's record in a diagnosis against a version: what differs, and by how much."""
    types = ("feature", "label", "concept")
    strength = {"grades": {kind: grades.get(kind, "critical") for kind in types}}
    return {
        "client": client,
        "types": list(grades),
        "strength": strength,
        "features": {"age": 0.5},
        "input_features": {"age": 0.5},
        "concept_identifiable": True,
        "label_or_concept": False,
        "transform": None,
        "changes": {kind: [AGE] for kind in grades if kind == "feature"},
        "rows": [500, 635],
        "undetermined": False,
        "note": None,
    }


def of_new_rows(client: str, undetermined: bool = False, **grades: str | None) -> dict[str, Any]:
    """What a silo reports of its new rows."""
    features = {"age": 0.9} if grades else {}
    about = {"client": client, "types": list(grades), "grades": grades, "features": features}
    return about | {"rows": [135, 500], "worth": [135.0, 500.0], "undetermined": undetermined}


def diagnosed(pairs: list[dict[str, Any]], new: list[dict[str, Any]] | None = None, **also: Any) -> dict[str, Any]:
    """A diagnosis against a version."""
    of_new = {"silos": new or [], "refused": {}, "reason": None, **also.pop("new_rows", {})}
    query = {"targets": [], "pictures": None}
    report = {
        "pairs": pairs,
        "new_rows": of_new,
        "refused": {},
        "verdict": "guarded",
        "noise": None,
        "against": "0badcafe",
        "label": "sepsis",
        "unit": None,
    }
    return {**report, "query": query, "features": ["age", "sbp"], **also}


DIAGNOSIS = diagnosed(
    [
        pair("same"),
        pair("faint", feature="negligible"),
        pair("moved", label="negligible", concept="significant"),
        pair("apart", concept=None),
    ]
)


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        ("negligible", ["faint", "moved", "apart"]),
        ("moderate", ["moved", "apart"]),
        ("significant", ["moved", "apart"]),
        ("critical", ["apart"]),
    ],
)
def test_silos_shift_by_their_strongest_kind_and_one_without_a_grade_counts(least: str, expected: list[str]) -> None:
    found = shifted(DIAGNOSIS, least)
    assert [silo["client"] for silo in found] == expected
    assert all(silo["grade"] == {"faint": "negligible", "moved": "significant"}.get(silo["client"]) for silo in found)


def test_the_text_says_what_differs_and_by_how_much_and_not_a_grade() -> None:
    assert shift_text(shifted(DIAGNOSIS, "negligible")) == (
        "faint: age is higher by 12 (0.9 standard deviations); "
        "moved: label frequencies differ; labels follow from the inputs by another rule; "
        "apart: labels follow from the inputs by another rule"
    )
    assert shifted(None, "negligible") == []
    assert shift_text([{"client": "north", "kinds": {"feature": "moderate"}}]) == "north: feature"


def test_a_silo_that_did_not_change_did_not_shift() -> None:
    changed = {"moved": "changed", "apart": "added"}
    assert [silo["client"] for silo in shifted_silos(DIAGNOSIS, "negligible", changed)] == ["moved", "apart"]


def test_a_champion_that_stays_tells_of_shifts_below_the_grade() -> None:
    weaker = shifted(diagnosed([pair("faint", feature="negligible")]), "negligible")
    assert no_shift_text("negligible", [], {}) == "no silo shifted"
    assert no_shift_text("critical", weaker, {"west": "too few rows"}) == (
        "no silo that could be checked shifted by at least watch.grade=critical, only less: "
        "faint: age is higher by 12 (0.9 standard deviations)"
    )


def test_new_rows_shift_a_silo_of_which_the_whole_version_hardly_moved() -> None:
    pairs = [pair("east"), pair("north", feature="negligible"), pair("west", feature="critical")]
    new = [of_new_rows("east"), of_new_rows("north", feature="significant"), of_new_rows("west", label="moderate")]
    found = shifted(diagnosed(pairs, new), "moderate")
    assert [(silo["client"], silo["rows"], silo["grade"]) for silo in found] == [
        ("north", "new", "significant"),
        ("west", "all", "critical"),
    ]
    assert shift_text(found) == (
        "north: in its 135 new training rows, inputs differ, most in age (+0.9 deviations); "
        "west: age is higher by 12 (0.9 standard deviations)"
    )
    assert shifted(diagnosed([], [of_new_rows("gone", feature="moderate")]), "moderate")[0]["client"] == "gone"


@pytest.mark.parametrize("grade", ["moderate", "critical", None])
def test_whole_versions_and_new_rows_that_shifted_alike_are_said_of_whole_versions(grade: str | None) -> None:
    (found,) = shifted(diagnosed([pair("north", feature=grade)], [of_new_rows("north", label=grade)]), "moderate")
    assert (found["rows"], found["kinds"], found["new_rows"]) == ("all", {"feature": grade}, None)


def test_silos_that_were_not_checked_are_named_with_the_reason() -> None:
    few = pair("few") | {"undetermined": True, "note": "Not compared: few then has fewer than 20 rows."}
    also = {"refused": {"shy": "too few changed.", "half": "a column of few values."}}
    new_rows = {"refused": {"shy": "too few are new.", "west": "too few came."}}
    new = [of_new_rows("half", label="moderate"), *(of_new_rows(name, undetermined=True) for name in ("scant", "few"))]
    changed = dict.fromkeys(("few", "shy", "half", "west", "scant"), "changed") | {"new": "added", "gone": "removed"}
    found = unchecked_silos(diagnosed([few, pair("west"), pair("scant")], new, **also, new_rows=new_rows), changed)
    partly = "only its whole version was checked, not its new rows by themselves: "
    assert found == {
        "new": "it is new, so there is no earlier version of it",
        "few": "few then has fewer than 20 rows.",
        "half": "only its new rows were checked; of the whole version it did not report: a column of few values.",
        "shy": "it did not report: too few changed.",
        "scant": f"{partly}they are too few to decide",
        "west": f"{partly}too few came.",
    }
    assert unchecked_silos(None, {"new": "added"}) == {"new": found["new"]}
    noisy = {"reason": "new rows are not compared by themselves under noise"}
    assert unchecked_silos(diagnosed([pair("west")], new_rows=noisy), {"west": "changed"}) == {
        "west": partly + noisy["reason"]
    }


def test_a_silo_that_did_not_change_needs_no_check() -> None:
    note = {"undetermined": True, "note": "Not compared: no feature varies within a label that both report."}
    pairs = [pair("still") | note, pair("moved", label="moderate")]
    also = {"refused": {"asleep": "it was queried before."}, "new_rows": {"refused": {"still": "none are new."}}}
    assert unchecked_silos(diagnosed(pairs, **also), {"moved": "changed"}) == {}


def test_the_least_shift_that_would_have_been_noticed_is_said_of_whole_versions_and_of_new_rows() -> None:
    many = of_new_rows("east") | {"rows": [400, 500], "worth": [400.0, 500.0]}
    changed = dict.fromkeys(("east", "north"), "changed")
    unchanged = pair("tiny") | {"rows": [30, 30]}
    diagnosis = diagnosed([pair("east"), pair("north"), unchanged], [many, of_new_rows("north")])
    whole, new = unseen_shifts(diagnosis, changed)
    assert whole.startswith(
        "At silos of 500 and 635 training rows, differences of less than 10 points in how often a label"
    )
    assert new == (
        "In 135 new training rows of north, differences of less than 17 points in how often a label occurs or 0.35 standard "
        "deviations in a mean may be missed."
    )
    assert len(unseen_shifts(diagnosed([pair("north")]), changed)) == 1
    assert unseen_shifts(diagnosed([pair("north")], noise={"epsilon": 4}), changed)[0].startswith(
        "How small a shift may be missed is"
    )
    assert unseen_shifts(None, changed) == []


def test_screen_and_history_say_who_was_not_checked_and_what_may_be_missed() -> None:
    unchecked = {"west": "it did not report: too few changed."}
    saw = {
        "changed": {"west": "changed"},
        "shifted": [],
        "unchecked": unchecked,
        "unseen": ["In 135 new rows of north, x."],
    }
    reason = "no silo that could be checked shifted by at least negligible; not checked, or only in part: west"
    decision = {"at": "2026-01-01T00:00:00", "decision": "refused", "version": "2", "champion": "1", "run": "runs/x"}
    decision |= {"against": None, "data_version": "0badcafe", "git_commit": "c", "reason": reason, "watch": saw}

    def shown(printer: Any, answer: dict[str, Any]) -> str:
        out = io.StringIO()
        printer(answer, PlainConsole(file=out, width=200))
        return out.getvalue()

    answer = make_answer("kept", "Version 1 stays the champion.") | saw | {"decision": decision}
    assert "not checked   west: it did not report: too few changed.\n" in shown(print_watch, answer)
    assert "not seen      In 135 new rows of north, x.\n" in shown(print_watch, answer)
    against = {"sentence": "a is better", "older": ["b"]}
    caution = "difference    a is better\ncaution       b: it was trained on other data, and unless"
    assert caution in shown(print_watch, answer | {"decision": decision | {"against": against}})
    assert "caution" not in shown(print_watch, answer | {"decision": decision | {"against": against | {"older": []}}})
    assert shown(print_history, {"decisions": [decision]}).count("not checked, or only in part: west") == 1
    trained = decision | {"reason": "its interval is not above zero"}
    assert shown(print_history, {"decisions": [trained]}).count("not checked, or only in part: west; its interval") == 1
    assert "not checked" not in shown(print_history, {"decisions": [trained | {"watch": {}}]})


@pytest.mark.parametrize(("decided", "champion"), [("promoted", "7"), ("refused", "3"), ("kept", "7")])
def test_a_challenger_that_was_refused_is_not_the_champion(decided: str, champion: str) -> None:
    decision = {
        "decision": decided,
        "version": "7",
        "champion": "3",
        "model": "own",
        "reason": "x",
        "watch": {"changed": {}},
    }
    answer = answer_of(decision)
    assert (answer["champion"], answer["outcome"]) == (champion, decided)
    said = {"promoted": "is the champion", "refused": "is not promoted", "kept": "stays the champion"}
    assert answer["sentence"] == f"version 7 of own {said[decided]}: x."


def test_only_a_reason_that_may_pass_is_tried_again() -> None:
    assert why_no_challenger("watch-1", []) == ("watch-1 has no model that may replace it", False)
    run = {"method": "fedavg", "seed": 0, "error": "the disk is full"}
    assert why_no_challenger("watch-1", [run]) == ("fedavg seed 0 failed: the disk is full", True)
    assert not may_pass({"against": None})
    assert not may_pass({"against": {"sentence": "x"}})
    assert may_pass({"against": {"why_not": "x", "may_pass": True}})


@pytest.fixture
def champion() -> ModelVersion:
    return ModelVersion("7", "r", "", {"method": "fedprox", "data_version": "then"})


def test_the_event_of_a_shift_has_one_id_for_each_silo_of_each_version_of_each_project(champion: ModelVersion) -> None:
    def event(root="/study", data="visits", version="now", since="then", client="north") -> Any:
        project: Any = SimpleNamespace(
            root=Path(root),
            params=SimpleNamespace(data=SimpleNamespace(name=data)),
            silos=SimpleNamespace(version=version),
        )
        (silo,) = shifted(diagnosed([pair(client, feature="moderate", label="negligible")]), "moderate")
        return shift_event(project, replace(champion, tags={"data_version": since}), silo)

    first = event()
    assert event() == first, "a watch that continues after a kill emits the same event"
    others = [{"root": "/copy"}, {"data": "letters"}, {"version": "next"}, {"since": "before"}, {"client": "south"}]
    assert len({first["id"], *(event(**other)["id"] for other in others)}) == 6
    assert first["resource"] == {
        "prefect.resource.id": "siloflow.silo.visits.north",
        "prefect.resource.name": "north",
    }
    assert first["payload"] == {
        **{
            "silo": "north",
            "kind": ["feature", "label"],
            "grade": "moderate",
            "features": ["age"],
            "words": "age is higher by 12 (0.9 standard deviations); label frequencies differ",
            "rows": "all",
        },
        **{"grades": {"feature": "moderate", "label": "negligible"}, "since": "then", "data": "visits"},
        "data_version": "now",
    }


@pytest.mark.parametrize(
    ("settings", "methods"),
    [([], ["fedprox"]), (["watch.methods=[]"], ["fedprox"]), (["watch.methods=[ditto, ifca]"], ["ditto", "ifca"])],
)
def test_the_methods_of_params_are_trained_and_else_that_of_the_champion(
    settings: list[str], methods: list[str], project: Path, champion: ModelVersion
) -> None:
    assert methods_to_train(Project.open(settings, project), champion) == methods


def test_silos_are_compared_with_the_champions_version_unless_all_of_them_are_new(
    project: Path, champion: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def on(project: Project, /, **given: Any) -> dict[str, Any]:
        asked.append((project.overrides, given))
        return {"folder": "there", "against": "then"}

    monkeypatch.setattr("flows.watch.diagnose.on", on)
    opened = Project.open(["diagnose.second_look=true"], project, derived=True)
    clients = opened.silos.federated().clients
    assert _diagnose(opened, champion, dict.fromkeys(clients, "added")) is None
    assert asked == []
    changed = {**dict.fromkeys(clients, "added"), clients[0]: "changed"}
    assert (_diagnose(opened, champion, changed) or {})["folder"] == "there"
    ((overrides, given),) = asked
    assert given == {"against": "then"}
    assert overrides[-1] == "diagnose.second_look=false"


def test_a_watch_goes_on_with_its_own_comparison_and_begins_another_for_another_champion_or_other_params(
    project: Path, champion: ModelVersion
) -> None:
    opened = Project.open(["comparison.seeds=[0]"], project, derived=True)

    def named(methods: list[str], of: ModelVersion = champion) -> tuple[str, bool]:
        return _comparison_name(opened, of, methods)

    base = f"watch-{opened.silos.version[:8]}-champion7"
    assert named(["fedavg"]) == (base, False)
    for methods, name in ((["fedavg"], base), (["ditto"], f"{base}-2"), (["ifca"], f"{base}-3")):
        assert named(methods) == (name, False)
        new_experiment(opened, "compare", asdict(make_plan(opened, methods, None, None)), name)
        assert named(methods) == (name, True)
    assert named(["fedavg"]) == (base, True)
    assert named(["fedavg"], replace(champion, number="8")) == (f"{base[:-1]}8", False)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, (["ifca"], "moderate", "cheaper")),
        ({"methods": ["ditto", "fedbn"]}, (["ditto", "fedbn"], "moderate", "cheaper")),
        ({"grade": "critical"}, (["ifca"], "critical", "cheaper")),
        ({"prefer": "better", "methods": [], "grade": ""}, (["ifca"], "moderate", "better")),
    ],
)
def test_what_a_call_chooses_replaces_that_of_params_and_what_it_leaves_out_is_read_there(
    chosen: dict[str, Any], expected: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    monkeypatch.chdir(project)
    monkeypatch.setattr(
        "flows.results.registry.changed_silos.look", lambda opened: looked.append(opened.params.watch) or {}
    )
    params = ["watch.methods=[ifca]", "watch.grade=moderate", "watch.prefer=cheaper"]
    watch.fn(**chosen, overrides=params)
    assert [(each.methods, each.grade, each.prefer) for each in looked] == [expected]


@pytest.mark.parametrize("asked", ["true", "false"])
def test_versions_are_compared_without_a_second_look(asked: str, project: Path) -> None:
    opened = Project.open([f"diagnose.second_look={asked}"], project)
    assert not without_second_look(opened).params.diagnose.second_look
