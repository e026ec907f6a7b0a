"""Each silo beside itself in an earlier version: what moved, who may not answer, and what cannot be compared."""

import re

import numpy as np
import pytest

from flows.diagnose import compare_with_version, run_diagnosis
from models.diagnosis import diagnose_pairs
from silos.errors import UserError
from silos.privacy import secret
from silos.privacy.ledger import Ledger
from tasks.diagnosis import compare_silos
from tasks.diagnosis import compare_silos as pace
from tasks.execution.task_runner import PlainRunner

NAMED = [{"name": "heart", "low": -5, "high": 5}, {"name": "lung", "low": -5, "high": 5}]


def rows(seed, count=400, classes=2):
    """Two normal features, of which the first says what the class is."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    x = rng.normal(size=(count, 2))
    x[:, 0] += 2 * y - 1
    return x, y


def three():
    return {name: rows(seed) for seed, name in enumerate(("east", "north", "west"))}


def against(opened, revision, *overrides):
    return compare_with_version(opened.open(*overrides), PlainRunner(), revision)[1]


def of(found, client):
    (pair,) = [pair for pair in found["pairs"] if pair["client"] == client]
    return pair


def test_a_silo_whose_inputs_moved_is_named_with_the_feature_and_the_others_are_not(world):
    """Bounds are not agreed on here, so that both questions are asked of both versions."""
    own, there = world(), three()
    before = own.write(there)
    x, y = there["north"]
    own.write({**there, "north": (x + np.array([0.0, 1.5]), y)})
    found = against(own, before)
    assert [pair["client"] for pair in found["pairs"] if pair["types"]] == ["north"]
    assert of(found, "north")["types"] == ["feature"]
    assert next(iter(of(found, "north")["features"])) == "x1"
    assert found["sentences"][0] == f"1 of 3 silos changed since {before}."
    (change,) = of(found, "north")["changes"]["feature"]
    assert change["difference"] == pytest.approx(1.5, abs=0.2)  # now, less before
    assert found["sentences"][1].startswith("north: x1 is higher by 1.")
    assert len(found["sentences"]) == 2


@pytest.mark.parametrize(
    ("change", "types"),
    [
        (lambda x, y: (x, 1 - y), ["concept"]),
        (lambda x, y: (x[np.r_[0:100, 1:400:2]], y[np.r_[0:100, 1:400:2]]), ["label"]),
    ],
    ids=["labels change their names", "one label is half as frequent"],
)
def test_what_moved_is_named_by_its_type(change, types, world):
    own, there = world(), three()
    before = own.write(there, features=NAMED)
    own.write({**there, "north": change(*there["north"])}, features=NAMED)
    found = against(own, before)
    assert {pair["client"]: pair["types"] for pair in found["pairs"]} == {"east": [], "north": types, "west": []}


def test_by_the_printed_rule_a_silo_of_few_rows_that_moved_is_counted_among_those_that_could_be_compared(world):
    """It knows no number of rows: what `guarded` says of too few, of sensors and of margins is not said beside its types."""
    own, (x, y) = world(), rows(1)
    few, turned = (rows(2, 14)[0], np.repeat([0, 1], [12, 2])), (rows(3, 14)[0] + 9, np.repeat([0, 1], [2, 12]))
    gone, set_anew = rows(4), (rows(5)[0] * 0.5 + 2, rows(5)[1])
    before = own.write({"big": (x, y), "few": few, "gone": gone, "sensor": rows(5)}, features=NAMED)
    lost = gone[1] == 0
    after = {"big": rows(6), "few": turned, "gone": (gone[0][lost] + 3, gone[1][lost]), "sensor": set_anew}
    own.write(after, features=NAMED)
    found = against(own, before, "diagnose.verdict=paper")
    assert "label" in of(found, "few")["types"]
    moved = sum(bool(pair["types"]) for pair in found["pairs"])
    assert found["sentences"][0] == f"{moved} of 4 silos changed since {before}."
    assert [line.split(":")[0] for line in found["sentences"][1:]] == [
        p["client"] for p in found["pairs"] if p["types"]
    ]
    for pair in found["pairs"]:
        assert not any(pair[name] for name in ("undetermined", "transform", "margins_only"))
        assert pair["note"] is None


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_between_a_version_and_itself_there_is_no_difference(task, world):
    own = world()
    version = own.write({name: (x, y + (task == "regression") * x[:, 0]) for name, (x, y) in three().items()}, task)
    found = against(own, version)
    assert len(found["pairs"]) == 3
    for pair in found["pairs"]:
        assert pair["types"] == []
        assert pair["chance"] == 1.0
        assert pair["overlap"] == pytest.approx(1.0)
        assert not pair["undetermined"]
    assert found["sentences"] == [f"No change was seen in 3 silos since {version}."]
    assert found["since"] == found["data_version"]


def test_targets_that_moved_are_seen_in_their_groups(world):
    own = world()
    there = {name: (x, x[:, 0]) for name, (x, _) in three().items()}
    before = own.write(there, "regression")
    x, y = there["west"]
    own.write({**there, "west": (x, y + 3)}, "regression")
    found = against(own, before)
    assert [pair["client"] for pair in found["pairs"] if pair["types"]] == ["west"]


def test_a_question_that_a_silos_budget_has_no_room_for_is_refused_in_epsilon_and_at_what_it_names_it_answers(world):
    own, there = world(), three()
    version = own.write(there, features=NAMED)
    against(own, version, "diagnose.noise={epsilon: 7, budget: 8}")
    with pytest.raises(
        UserError, match=r"costs epsilon 4, .* budget of 8 at delta 1e-05, of which 7 is spent"
    ) as refused:
        against(own, version, "diagnose.noise={epsilon: 4, budget: 8}")
    named = re.search(r"lower epsilon to (\S+) or less", str(refused.value))
    assert against(own, version, f"diagnose.noise={{epsilon: {named[1]}, budget: 8}}")["refused"] == {}


@pytest.mark.parametrize("changed", [1, 9])
def test_without_noise_a_silo_of_which_few_rows_changed_is_silent_and_the_others_are_heard(changed, world):
    own, there = world(), three()
    before = own.write(there, features=NAMED)
    x, y = (part.copy() for part in there["north"])
    x[:changed] += 3
    other, label = there["west"]
    own.write({**there, "north": (x, y), "west": (other + np.array([2.0, 0.0]), label)}, features=NAMED)
    found = against(own, before)
    assert [pair["client"] for pair in found["pairs"]] == ["east", "west"]
    assert of(found, "west")["types"] != []
    assert set(found["refused"]) == {"north"}
    assert "client north" in found["refused"]["north"]
    assert "report with noise" in found["refused"]["north"]
    assert any(line.startswith("north did not report: ") for line in found["sentences"])
    assert not any("client north: " in line for line in found["sentences"])
    noisy = against(own, before, "diagnose.noise={epsilon: 4}")
    assert [pair["client"] for pair in noisy["pairs"]] == ["east", "north", "west"]
    assert noisy["refused"] == {}


def test_where_no_silo_may_answer_the_reason_of_one_is_the_error(world):
    own, there = world(), three()
    before = own.write(there, features=NAMED)
    own.write({name: (x + np.eye(400, 1), y) for name, (x, y) in there.items()}, features=NAMED)
    with pytest.raises(
        UserError, match=r"no silo may answer\. Client east: its rows and those of .*report with noise.*2 more silos"
    ):
        against(own, before)


def test_under_noise_every_silo_pays_for_both_versions_whether_its_rows_changed_or_not(world):
    """Equal bytes, or a budget that is spent at one silo only, would tell which silo's rows changed."""
    own, there = world(), three()
    before = own.write(there, features=NAMED)
    own.write({**there, "north": rows(99)}, features=NAMED)
    with pytest.raises(UserError, match=r"privacy budget of 4 .*\(and 2 more silos likewise\)"):
        against(own, before, "diagnose.noise={epsilon: 4, budget: 4}")
    private = str(own.folder / "private" / "own")
    assert [len(Ledger(private, client).entries()) for client in there] == [1, 1, 1], "for the version of then"
    found = against(own, before, "diagnose.noise={epsilon: 4}")
    assert found["refused"] == {}
    assert [len(Ledger(private, client).entries()) for client in there] == [2, 2, 2]
    assert against(own, before, "diagnose.noise={epsilon: 4}")["pairs"] == found["pairs"]
    assert [len(Ledger(private, client).entries()) for client in there] == [2, 2, 2]


def test_silos_that_came_and_went_are_said_and_not_compared(world):
    own, there = world(), three()
    before = own.write({name: there[name] for name in ("east", "north")}, features=NAMED)
    own.write({name: there[name] for name in ("north", "west")}, features=NAMED)
    found = against(own, before)
    assert (found["clients"], found["came"], found["left"]) == (["north"], ["west"], ["east"])
    assert f"west: new since {before}." in found["sentences"]
    assert f"east: gone since {before}." in found["sentences"]
    own.write({"west": there["west"]}, features=NAMED)
    with pytest.raises(UserError, match=rf"--against: got {before}, which has no silo of data/own"):
        against(own, before)


def test_of_fewer_than_twenty_rows_nothing_is_said_then_or_now(world):
    own, there = world(), three()
    before = own.write({**there, "north": rows(7, 19)}, features=NAMED)
    own.write(there, features=NAMED)
    found = against(own, before)
    assert of(found, "north")["undetermined"]
    assert of(found, "north")["types"] == []
    assert "north: not compared; a silo has fewer than 20 training rows." in found["sentences"]
    assert of(found, "north")["rows"] == [19, 400]


RENAMED = [{**NAMED[0], "name": "liver"}, NAMED[1]]
WIDER = [{**NAMED[0], "high": 6}, NAMED[1]]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("changed", "features", "says"),
    [
        (lambda x, y: (x, y), RENAMED, r"feature 'liver' is new, feature 'heart' is gone"),
        (lambda x, y: (x, y), WIDER, r"high of feature 'heart' was 5\.0 and is 6\.0"),
        (lambda x, y: (x, y), [NAMED[0], {"name": "lung"}], r"of feature 'lung' was -?5\.0 and is not given"),
        (lambda x, y: (x[:, ::-1], y), NAMED[::-1], r"the features are in another order"),
        (lambda x, y: (x[:, [0, 1, 1]], y), [*NAMED, {"name": "skin"}], r"a row's shape was 2 and is 3"),
        (lambda x, y: (x, np.where(np.arange(len(y)) < 50, 2, y)), NAMED, r"label '2' is new"),
    ],
)
def test_another_schema_is_an_error_that_names_what_differs(changed, features, says, world):
    own = world()
    before = own.write(three(), features=NAMED)
    own.write({name: changed(*there) for name, there in three().items()}, features=features)
    with pytest.raises(
        UserError, match=rf"--against: got {before}, in which .* another schema \(.*{says}.*\), expected"
    ):
        against(own, before)


def test_an_unknown_version_is_a_sentence(world):
    own = world()
    own.write(three(), features=NAMED)
    with pytest.raises(UserError, match=r"version: got 0badcafe, expected a git revision with a data\.dvc or the"):
        against(own, "0badcafe")


def test_a_version_with_other_data_only_is_a_sentence(world):
    own = world()
    before = own.write(three(), features=NAMED)
    with pytest.raises(UserError, match=rf"data\.name is other, and {before} has own only"):
        against(own, before, "data.name=other")


def test_data_are_left_alone_and_what_is_opened_is_gone_afterwards_also_what_a_kill_left(world):
    own = world()
    before = own.write(three(), features=NAMED)
    x, y = three()["north"]
    own.write({**three(), "north": (x + 1, y)}, features=NAMED)
    there = {path: path.stat() for path in (own.folder / "data").rglob("*")}
    first = against(own, before)
    assert list((own.folder / "cache" / "versions").iterdir()) == []
    left = own.folder / "cache" / "versions" / first["since"].removesuffix(".dir") / "own"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text("half of it")
    assert against(own, before)["pairs"] == first["pairs"]
    assert list((own.folder / "cache" / "versions").iterdir()) == []
    assert {path: path.stat() for path in (own.folder / "data").rglob("*")} == there


def test_a_file_of_the_old_version_that_is_damaged_in_dvcs_cache_is_a_sentence(world):
    own = world()
    before = own.write(three(), features=NAMED)
    x, y = three()["north"]
    own.write({**three(), "north": (x + 1, y)}, features=NAMED)
    (old,) = {
        path
        for path in (own.folder / ".dvc" / "cache").rglob("*")
        if path.is_file() and path.read_bytes()[8:9] == b"{" and x.astype(np.float32).tobytes() in path.read_bytes()
    }
    held = old.read_bytes()
    old.chmod(0o644)
    old.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    with pytest.raises(UserError, match=r"differs from data version .*DVC's cache"):
        against(own, before)


def test_a_long_comparison_says_how_far_it_is_and_a_short_one_says_nothing(world, told, monkeypatch):
    own, there = world(), three()
    before = own.write(there, features=NAMED)
    own.write({**there, "north": rows(7)}, features=NAMED)
    against(own, before)
    assert told.said == []
    monkeypatch.setattr(pace, "_INTERVAL", 0.0)
    monkeypatch.setattr(diagnose_pairs, "_BATCH_BYTES", 1)
    against(own, before)
    compared = [f"types of shift: {done} of 3 pairs compared" for done in (1, 2)]
    assert told.said == compared
    run_diagnosis(own.open(), PlainRunner())
    assert told.said == compared * 3, "also of each pair of silos, and of each silo beside the rest"
    told.said.clear()
    monkeypatch.setattr(compare_silos, "MOST_PAIRS", 0)
    run_diagnosis(own.open(), PlainRunner())
    assert told.said[0] == "differences: 2 of 3 pairs compared"


def test_of_very_many_silos_the_groups_are_found_under_noise_too(world, monkeypatch):
    """Of other secrets, with other noise, one in some tens has a silo that seems to differ."""
    drawn = np.random.default_rng(0)
    monkeypatch.setattr(secret.secrets, "token_bytes", drawn.bytes)
    own = world()
    sizes = {"a": 500, "b": 4000, "c": 900, "d": 500, "e": 4000, "f": 900}
    moved = {"d", "e", "f"}
    own.write(
        {name: (rows(at, n)[0] + (name in moved), rows(at, n)[1]) for at, (name, n) in enumerate(sizes.items())},
        features=NAMED,
    )
    monkeypatch.setattr(compare_silos, "MOST_PAIRS", 0)
    _, found = run_diagnosis(own.open("diagnose.noise={epsilon: 2}"), PlainRunner())
    assert found["pairs_of"] == "groups"
    assert found["groups"] == [["a", "b", "c"], ["d", "e", "f"]]
    assert found["pairs"][0]["types"] == ["feature"]


def test_noise_without_bounds_names_the_feature_to_declare(world):
    own = world()
    own.write(three())
    with pytest.raises(
        UserError, match=r"data\.features: got no low and high of 'x0', expected both with diagnose\.noise"
    ):
        run_diagnosis(own.open("diagnose.noise={epsilon: 2}"), PlainRunner())
