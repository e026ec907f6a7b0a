"""What is advised follows from proved differences alone."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.advise import ADVICE, advise, check_advisable, folder_name, keep_advice
from flows.experiments.advice.advice_text import described, race_line
from flows.experiments.advice.apply_advice import apply_advice
from flows.experiments.advice.candidates import POOLED, SHARED, candidates
from flows.experiments.advice.choose_method import advised_method, is_better
from flows.experiments.advice.decide_advice import decide
from flows.experiments.advice.exclude_silos import can_leave
from flows.experiments.advice.proof import Cost, Exclusion, Proof, proved_pairs
from flows.experiments.advice.race import Candidate, Leg, Race
from flows.experiments.comparison.client_gains import ALONE
from flows.experiments.comparison.tuner import Score
from flows.orchestration.flow_decorator import IncompleteError
from flows.project.project import Project
from models.metrics.paired_difference import Difference
from models.metrics.task_metrics import TASK_METRICS
from silos import strict_yaml
from silos.errors import UserError
from tasks.tracking.json_io import read_json, write_json

ACCURACY, ERROR = TASK_METRICS["classification"], TASK_METRICS["regression"]
UP, DOWN, EVEN = Difference(0.04, 0.02, 0.06), Difference(-0.04, -0.06, -0.02), Difference(0.01, -0.02, 0.04)
NEAR = Difference(0.003, -0.02, 0.026)  # within the tolerance
NOT_PROVED = "that it is better than training alone, which is simpler, is not certain."
SMALL = Difference(0.004, 0.001, 0.007)  # proved, and within the tolerance


def differences(choice, over_shared, over_alone, shared_over_alone):
    found = {(choice, SHARED): over_shared, (choice, ALONE): over_alone, (SHARED, ALONE): shared_over_alone}
    return {pair: difference for pair, difference in found.items() if difference is not None}


def advised(choice, over_shared=None, over_alone=None, shared_over_alone=EVEN, quantity=ACCURACY):
    found = differences(choice, over_shared, over_alone, shared_over_alone)
    return advised_method(choice, found, quantity, matters=quantity.least_that_matters(None))


@pytest.mark.parametrize(
    ("over_shared", "over_alone", "shared_over_alone", "expected"),
    [
        (UP, UP, UP, "ditto"),
        (UP, UP, EVEN, "ditto"),
        (EVEN, UP, UP, "ditto"),
        (EVEN, EVEN, NEAR, "ditto"),
        (NEAR, UP, UP, SHARED),
        (SMALL, UP, UP, SHARED),  # certain, but smaller than what matters
        (NEAR, NEAR, NEAR, ALONE),
        (UP, NEAR, DOWN, ALONE),
        (DOWN, UP, UP, SHARED),
        (DOWN, DOWN, DOWN, ALONE),
    ],
)
def test_the_simplest_is_advised_that_is_as_good_as_any(over_shared, over_alone, shared_over_alone, expected):
    assert advised("ditto", over_shared, over_alone, shared_over_alone) == expected


def test_a_method_that_is_behind_by_just_what_matters_is_as_good_and_a_simpler_one_is_preferred_to_an_equal_one():
    least = Difference(0.005, -0.02, 0.03)
    assert ACCURACY.least_that_matters(None) == least.mean
    assert advised("ditto", least, least, least) == ALONE
    assert advised("ditto", least, UP, UP) == SHARED
    equal = Difference(0.0, -1.0, 1.0)
    assert advised("ditto", *[equal] * 3, quantity=ERROR) == ALONE
    assert advised("ditto", equal, DOWN, DOWN, quantity=ERROR) == SHARED


def test_references_that_win_the_race():
    assert advised(ALONE, shared_over_alone=NEAR) == ALONE
    assert advised(SHARED, shared_over_alone=NEAR) == ALONE
    assert advised(SHARED, shared_over_alone=EVEN) == SHARED
    assert advised(SHARED, over_alone=UP, shared_over_alone=UP) == SHARED


def test_less_error_is_better():
    assert advised("ditto", DOWN, DOWN, DOWN, ERROR) == "ditto"
    assert advised("ditto", UP, UP, UP, ERROR) == ALONE
    assert advised("ditto", *[Difference(-0.003, -1.0, 1.0)] * 3, quantity=ERROR) == "ditto"  # errors have no tolerance


@pytest.mark.parametrize("found", itertools.product((UP, DOWN, EVEN), repeat=3))
def test_what_is_advised_is_never_proved_to_be_behind(found):
    pairs = dict(zip([("ditto", SHARED), ("ditto", ALONE), (SHARED, ALONE)], found, strict=True))
    best = advised_method("ditto", pairs, ACCURACY, matters=0.005)
    others = [(other, best) for other in ("ditto", SHARED, ALONE) if other != best]
    behind = [pair for pair in others if is_better(*pair, pairs, ACCURACY)]
    circular = found in ((UP, DOWN, UP), (DOWN, UP, DOWN))  # intervals of three pairs may contradict each other
    assert not behind or circular


def test_pooling_is_a_bound():
    assert is_better(POOLED, SHARED, {(POOLED, SHARED): UP}, ACCURACY)
    assert not is_better(POOLED, SHARED, {(POOLED, SHARED): EVEN}, ACCURACY)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (
            {"c03": -0.02, "c07": -0.01},
            "2 of 9 silos lose, none certainly, against training alone; these are c03 and c07.",
        ),
        ({"c03": -0.02}, "1 of 9 silos loses, none certainly, against training alone; it is c03."),
        (
            {"c03": -0.02, "c01": -0.03, "c07": -0.01, "c08": -0.04},
            "4 of 9 silos lose, none certainly, against training alone; c08, c01 and c03 lose most on average.",
        ),
        ({}, "none of 9 silos loses, against training alone."),
    ],
)
def test_silos_that_lose_without_certainty_are_named(losses, said):
    clients = {f"c0{i}": {"difference": 0.05} for i in range(8)} | {"c08": {"difference": None}}
    gains = {"mean": 0.04, "distinguishable": True, "worse": len(losses), "certain_worse": []}
    gains |= {"compared": 9, "untested": []}
    gains["clients"] = clients | {silo: {"difference": loss} for silo, loss in losses.items()}
    comparison = {"table": [], "gains": {"methods": {"ditto": gains}}}
    found = {("ditto", SHARED): UP, ("ditto", ALONE): UP, (SHARED, ALONE): UP}
    assert f"With ditto, {said}" in decide(ACCURACY, "ditto", {}, Proof(found), comparison)["lines"]


@pytest.mark.parametrize(("over_alone", "doubt"), [(UP, False), (EVEN, True)])
def test_the_advice_says_who_loses_and_doubts_as_the_proof_does(over_alone, doubt):
    gains = {"mean": 0.04, "distinguishable": True, "worse": 2, "certain_worse": ["c07"]}
    gains |= {"compared": 9, "untested": ["c08"]}
    gains["clients"] = {"c07": {"difference": -0.02}, "c08": {"difference": -0.01}}
    found = {("ditto", SHARED): UP, ("ditto", ALONE): over_alone, (SHARED, ALONE): UP}
    comparison = {"table": [], "gains": {"methods": {"ditto": gains}}}
    advice = decide(ACCURACY, "ditto", {}, Proof(found), comparison)
    assert advice["advised"] == "ditto"
    losers = "2 of 9 silos lose, c07 certainly (1 of 9 has too few test rows to tell)"
    assert f"With ditto, {losers}, against training alone." in advice["lines"]
    certain = f"It did best on average; {NOT_PROVED}"
    assert (certain in advice["lines"]) == doubt


def test_a_method_that_was_not_proved_is_not_advised():
    """As where FedAvg or training alone diverged in the race, or where a seed of each failed in the proof."""
    assert advised_method("ditto", {}, ACCURACY) == "ditto"
    lines = decide(ACCURACY, "ditto", {}, Proof({}), {"table": []})["lines"]
    assert lines[:2] == [
        "Use ditto.",
        "It did best on validation rows of the race; test rows do not say whether it is better than others.",
    ]
    assert advised_method("ditto", {("ditto", ALONE): UP}, ACCURACY) == "ditto"
    assert advised_method("ditto", {("ditto", SHARED): NEAR}, ACCURACY, matters=0.005) == SHARED


def test_alignment_comes_first_in_the_advice():
    settings = {
        SHARED: ("training.optimiser.learning_rate=0.1", 'clients.align={kind: standardise, features: ["crp", "age"]}')
    }
    found = {(SHARED, ALONE): UP}
    advice = decide(ACCURACY, SHARED, settings, Proof(found), {"table": []})
    assert advice["lines"][0] == (
        "Align first: let each silo standardise crp and age by its own rows. Then FedAvg is enough (learning_rate 0.1)."
    )
    assert advice["lines"][-1].startswith(
        "A new silo can use the model once it standardises crp and age by its own rows;"
    )


@pytest.mark.parametrize(("over", "excluded"), [(UP, True), (EVEN, False), (DOWN, False)])
def test_silos_are_excluded_only_if_fedavg_without_them_is_proved_better_than_what_is_advised(over, excluded):
    proof = Proof({(SHARED, ALONE): DOWN}, Exclusion(["c07", "c08"], {ALONE: over, SHARED: UP}))
    gains = {"worse": 1, "certain_worse": [], "compared": 9, "untested": []}
    comparison = {"table": [], "gains": {"methods": {SHARED: gains, ALONE: gains}}}
    costs = dict.fromkeys((SHARED, ALONE), Cost(1.0, 1.0, 1.0, False))
    rate = {SHARED: ("training.optimiser.learning_rate=0.1",), ALONE: ("training.optimiser.learning_rate=0.3",)}
    advice = decide(ACCURACY, SHARED, rate, proof, comparison, {"c01": 5}, costs)
    of_all_silos = [line for line in advice["lines"] if line.startswith(("Costs of", "With ", "A new silo"))]
    assert len(of_all_silos) == (0 if excluded else 3), "what is known of FedAvg is about all silos"
    assert advice["train_alone"] == (["c07", "c08"] if excluded else [])
    assert advice["advised"] == (SHARED if excluded else ALONE)
    without = {EVEN: "Whether FedAvg without c07 and c08 is better than training alone is not certain:"}
    if not excluded:
        expected = without.get(over, "Training alone is better than FedAvg without c07 and c08:")
        assert any(line.startswith(expected) for line in advice["lines"])
    if excluded:
        assert advice["lines"][:2] == [
            "Train FedAvg (learning_rate 0.1) without c07 and c08, which train alone (learning_rate 0.3): over all silos "
            "this gains +4.0 points, +2.0 to +6.0 over training alone of all.",
            "On validation rows c07 and c08 do worse with FedAvg than alone: check whether units or codes differ there. "
            "c07 and c08 then use their models of local_only, the others that of fedavg; `siloflow compare` scores both on "
            "all silos.",
        ]
        assert "Training alone is better than FedAvg with all silos: +4.0 points, +2.0 to +6.0." in advice["lines"]
        assert advice["settings"][1:] == ['clients.leave={"c01": 5, "c07": 1, "c08": 1}']


def test_no_silo_is_excluded_for_a_gain_smaller_than_what_matters():
    proof = Proof({(SHARED, ALONE): DOWN}, Exclusion(["c07"], {ALONE: SMALL}))
    advice = decide(ACCURACY, SHARED, {}, proof, {"table": []})
    assert (advice["advised"], advice["train_alone"]) == (ALONE, [])
    small = "is certain, but smaller than what matters (0.5 points): "
    assert any(
        line.startswith(f"The difference of FedAvg without c07 to training alone {small}") for line in advice["lines"]
    )


def test_a_certain_gain_that_is_smaller_than_what_matters_is_no_doubt():
    found = {("ditto", SHARED): SMALL, ("ditto", ALONE): UP, (SHARED, ALONE): SMALL}
    advice = decide(ACCURACY, "ditto", {}, Proof(found), {"table": []})
    assert advice["advised"] == SHARED
    assert advice["lines"][1].endswith(
        "that it is better than training alone, which is simpler, is certain, but by less than what matters (0.5 points)."
    )


def test_a_difference_of_just_what_matters_is_said_to_be_better():
    least = Difference(0.005, 0.001, 0.009)
    found = {("ditto", SHARED): least, ("ditto", ALONE): UP, (SHARED, ALONE): UP}
    lines = decide(ACCURACY, "ditto", {}, Proof(found), {"table": []})["lines"]
    assert lines[1] == "ditto is better than FedAvg: +0.5 points, +0.1 to +0.9."


def test_what_matters_is_what_the_comparison_of_the_proof_says():
    found = Proof({("ditto", SHARED): Difference(0.02, 0.01, 0.03), ("ditto", ALONE): UP, (SHARED, ALONE): UP})
    for matters, advised in ((0.02, "ditto"), (0.021, SHARED)):
        comparison = {"table": [], "paired": [{"matters": matters}]}
        assert decide(ACCURACY, "ditto", {}, found, comparison)["advised"] == advised


def test_a_method_with_the_mean_of_the_best_did_best():
    equal = Difference(0.0, -0.02, 0.02)
    found = {("ditto", SHARED): equal, ("ditto", ALONE): EVEN, (SHARED, ALONE): EVEN}
    advice = decide(ACCURACY, "ditto", {}, Proof(found), {"table": []})
    assert (advice["advised"], advice["lines"][1]) == (SHARED, f"It did best on average; {NOT_PROVED}")


@pytest.mark.parametrize(
    ("quantity", "score", "said"), [(ACCURACY, 0.5, "accuracy 0.500"), (ERROR, -0.5, "rmse 0.5000")]
)
def test_the_line_of_a_rung_names_its_leader_and_how_many_train_on(quantity, score, said):
    alive = [Candidate(method, (), 0) for method in (SHARED, "ditto")]
    legs = {each.name: Leg(1, Score(score - index, 0.0), 1.0) for index, each in enumerate(alive)}
    race = Race([1, 3], alive, legs, rung=1)
    line = f"fedavg leads with {said} on validation rows"
    assert race_line(race, quantity) == f"round 1: {line}; 2 settings train on"
    race.rung = 2
    assert race_line(race, quantity) == f"round 3: {line}"
    assert race_line(Race([1, 3], alive, rung=1), quantity) == "round 1: no setting has a score"


def test_an_error_that_falls_is_no_gain_below_zero():
    found = {(POOLED, ALONE): DOWN, (SHARED, ALONE): UP}
    pooled = decide(ERROR, SHARED, {}, Proof(found), {"table": []})["lines"]
    assert any(line.startswith("Training on pooled rows would be better (−0.0400 in rmse,") for line in pooled)
    without = decide(ERROR, SHARED, {}, Proof(found, Exclusion(["c07"], {ALONE: DOWN})), {"table": []})["lines"]
    assert "over all silos this is better than training alone of all (−0.0400 in rmse," in without[0]


def test_silos_that_cannot_leave_in_round_1_are_not_excluded(project):
    def opened(*lines):
        return Project.open([*lines], project, derived=True)

    assert can_leave(opened("clients.leave={c00: 2}"), ["c00", "c05"], 0)
    assert not can_leave(opened("clients.join={c05: 2}"), ["c05"], 0)


def test_test_rows_may_not_end_the_runs_that_race():
    project: Any = SimpleNamespace(params=SimpleNamespace(evaluation=SimpleNamespace(stop_at=0.9)))
    with pytest.raises(UserError, match=r"evaluation.stop_at: got 0.9, expected null"):
        check_advisable(project)


@pytest.mark.parametrize("choice", ["ditto", SHARED, ALONE])
def test_each_pair_of_methods_is_measured_once(choice):
    methods = list(dict.fromkeys((SHARED, ALONE, choice, POOLED)))
    pairs = proved_pairs(choice, methods)
    assert {frozenset(pair) for pair in pairs} == {frozenset(pair) for pair in itertools.combinations(methods, 2)}
    assert len(pairs) == len(methods) * (len(methods) - 1) / 2
    assert all(pair[0] == POOLED for pair in pairs if POOLED in pair)


def test_trees_race_with_options_of_their_own_and_pooled_trees_are_a_bound(project):
    rng = np.random.default_rng(0)
    np.savez(project / "own.npz", x=rng.normal(size=(60, 3)), y=np.arange(60) % 2, client=np.arange(60) % 3)
    source = ["data.name=own", "data.source={kind: npz, path: own.npz}"]
    scheme = "data.scheme=[{kind: column, column: client}]"

    def trees(*overrides):
        opened = Project.open([*source, scheme, *overrides], project, derived=True)
        return [each for each in candidates(opened, 0, ["trees"]) if each.method == "trees"]

    usual = trees()
    assert [each.settings for each in usual[:1]] == [("method.trees.rate=0.1", "method.trees.leaves=31")]
    assert len({each.settings for each in usual}) == len(usual) == 4
    assert not any(setting.startswith("training") for each in usual for setting in each.settings)
    assert not any(each.bound for each in usual)
    assert all(each.bound for each in trees("method.trees.arm=pooled"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"fresh/accuracy/mean": 0.75}, "Silos that took no part in training have accuracy 0.750 with it."),
        ({"model": "personal"}, "A new silo trains on its own rows before it has a model;"),
        ({"model": "global"}, "A new silo can use the model as it is;"),
    ],
)
def test_the_advice_says_what_a_new_silo_has(row, said):
    found = {("ditto", SHARED): UP, ("ditto", ALONE): UP, (SHARED, ALONE): UP}
    table = [{"method": "ditto", "accuracy/mean": 0.8, **row}, {"method": SHARED, "accuracy/mean": 0.7}]
    assert decide(ACCURACY, "ditto", {}, Proof(found), {"table": table})["lines"][-1].startswith(said)


def test_that_nothing_is_better_than_a_constant_is_said_before_the_advice():
    comparison = {"table": [], "baseline": {"sentence": "No method is better than always predicting 0."}}
    advice = decide(ACCURACY, ALONE, {}, Proof({(SHARED, ALONE): NEAR}), comparison)
    assert advice["lines"][0] == comparison["baseline"]["sentence"]
    assert advice["lines"][1] == "So no model is of use yet. Of these, the advice would be:"
    assert advice["lines"][2].startswith("Train alone")
    assert not any("new silo" in line for line in advice["lines"])


@pytest.mark.parametrize(
    ("over_shared", "over_alone", "shared_over_alone", "line"),
    [
        (UP, DOWN, DOWN, "ditto is better than FedAvg: +4.0 points, +2.0 to +6.0."),
        (UP, Difference(-0.01, -0.03, 0.01), DOWN, "Neither FedAvg nor ditto did better on average."),
        (UP, NEAR, NEAR, "Neither FedAvg nor ditto did notably better on average."),
        (
            NEAR,
            EVEN,
            EVEN,
            f"It did nearly best on average; {NOT_PROVED}",
        ),
        (
            DOWN,
            EVEN,
            EVEN,
            f"It did best on average; {NOT_PROVED}",
        ),
    ],
)
def test_best_on_average_is_only_the_method_with_the_greatest_mean(over_shared, over_alone, shared_over_alone, line):
    found = Proof(differences("ditto", over_shared, over_alone, shared_over_alone))
    advice = decide(ACCURACY, "ditto", {}, found, {"table": []})
    assert advice["lines"][1] == line


@pytest.mark.parametrize(
    ("dropped", "proved", "unknown"),
    [
        ({}, [SHARED], False),
        ({"pooled 0": "time"}, [SHARED], True),
        ({"pooled 1": "time", "pooled 0": "diverged"}, [SHARED], True),
        ({"pooled 0": "time"}, [SHARED, POOLED], False),  # another rate of it trained on
        ({"fedavg 1": "time"}, [SHARED], False),
    ],
)
def test_that_nobody_knows_what_pooling_would_gain_is_said_if_its_rounds_take_too_long(dropped, proved, unknown):
    lines = described(
        {
            "lines": ["Use fedavg."],
            "diagnosis": {"sentences": []},
            "race": {"rungs": [9], "legs": {"fedavg 0": [9, [0.5, 0.1], 1.0, ""]}, "dropped": dropped},
            "proved": [{"method": method} for method in proved],
        }
    )
    assert any("What pooling the rows would gain is not known" in line for line in lines) == unknown


def test_settings_are_counted_by_how_far_they_came():
    leg = [9, [0.5, 0.1], 1.0, ""]
    short = [3, [0.5, 0.1], 1.0, ""]
    race = {"rungs": [1, 3, 9], "legs": {"fedavg 0": leg, "ifca 0": short, "ifca 1": short}}
    race["dropped"] = {"ifca 0": "behind", "ifca 1": "time", "ditto 0": "time", "ditto 1": "time"}
    lines = described({"lines": [], "diagnosis": {"sentences": []}, "race": race, "proved": []})
    assert lines == [
        "Of 5 settings, 1 trained to the end, 1 was dropped as clearly behind the leader, in the one seed of the race, 1 "
        "was dropped for a low rank or lack of time and 2 never started for lack of time."
    ]
    race = {
        "rungs": [9],
        "legs": {"fedavg 0": leg, "ditto 0": [9, None, 1.0, "diverged"]},
        "dropped": {"ditto 0": "diverged"},
    }
    assert described({"lines": [], "diagnosis": {"sentences": []}, "race": race, "proved": []}) == [
        "Of 2 settings, 1 trained to the end and 1 failed or diverged."
    ]
    race = {"rungs": [9], "legs": {"fedavg 0": leg}, "dropped": {}}
    assert described({"lines": [], "diagnosis": {"sentences": []}, "race": race, "proved": []}) == [
        "Of 1 setting, 1 trained to the end."
    ]


def test_an_invalid_method_leaves_no_race_for_resume(monkeypatch):
    def refuse(*_):
        raise UserError("method: got 'nonsense'")

    made = []
    monkeypatch.setattr("flows.advise.candidates", refuse)
    monkeypatch.setattr("flows.advise.new_experiment", lambda *about: made.append(about))
    project = SimpleNamespace(params=SimpleNamespace(comparison=SimpleNamespace(seeds=[0])))
    with pytest.raises(UserError, match="nonsense"):
        folder_name(project, 1.0, ["nonsense"], False, "")
    assert not made


def test_apply_keeps_the_ends_of_lines(tmp_path):
    text = (Path(__file__).parents[4] / "params.yaml").read_text(encoding="utf-8")
    path = tmp_path / "params.yaml"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    settings = ["method.ditto.personal_weight=0.1", 'clients.align={kind: standardise, features: ["crp"]}']
    assert apply_advice(tmp_path, {"advised": "ditto", "settings": settings})
    changed = path.read_bytes()
    assert changed.count(b"\n") == changed.count(b"\r\n") == text.count("\n")


def test_apply_writes_the_advised_method_beside_the_references_and_its_settings(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_bytes((Path(__file__).parents[4] / "params.yaml").read_bytes())
    advice = {"advised": "ditto", "settings": ["method.ditto.personal_weight=0.125", "training.rounds=7"]}
    apply_advice(tmp_path, advice)
    params = strict_yaml.load(path.read_text(encoding="utf-8"))
    assert params["comparison"]["methods"] == ["ditto", SHARED, ALONE]
    assert (params["method"]["ditto"]["personal_weight"], params["training"]["rounds"]) == (0.125, 7)
    assert apply_advice(tmp_path, advice) == []
    apply_advice(tmp_path, {"advised": ALONE, "settings": []})
    assert strict_yaml.load(path.read_text(encoding="utf-8"))["comparison"]["methods"] == [ALONE, SHARED]


def test_a_difference_names_the_better_method_first():
    found = {("ditto", SHARED): DOWN, ("ditto", ALONE): EVEN, (SHARED, ALONE): DOWN}
    lines = decide(ACCURACY, "ditto", {}, Proof(found), {"table": []})["lines"]
    assert lines[2:6] == [
        "FedAvg is better than ditto: +4.0 points, +2.0 to +6.0.",
        "Whether ditto is better than training alone is not certain: +1.0 points, −2.0 to +4.0.",
        "Training alone is better than FedAvg: +4.0 points, +2.0 to +6.0.",
        "A point is a hundredth of accuracy. All ranges together hold the true differences with 95 % confidence; where "
        "results differ much from seed to seed, they are too narrow.",
    ]
    assert decide(ERROR, SHARED, {}, Proof({(SHARED, ALONE): UP}), {"table": []})["lines"][1:2] == [
        "Training alone is better than FedAvg: −0.0400 in rmse, −0.0600 to −0.0200.",
    ]


def test_the_advice_says_what_a_run_costs_beside_fedavg():
    cheap, dear = Cost(2000.0, 3000.0, 4.0, False), Cost(2000.0, 6000.0, 240.0, True)
    found = {("ditto", SHARED): UP, ("ditto", ALONE): UP, (SHARED, ALONE): UP}

    def line(choice, proved, **costs):
        advice = decide(ACCURACY, choice, {}, Proof(proved), {"table": []}, None, costs)
        assert advice["costs"] == {method: cost._asdict() for method, cost in costs.items()}
        return [line for line in advice["lines"] if line.startswith("Costs")]

    assert line("ditto", found, ditto=dear, fedavg=cheap) == [
        "Costs of a run of ditto: 4 minutes on this machine; a silo sends 2.0 kB and receives 6.0 kB, and keeps weights or "
        "other state of its own. FedAvg: 4 seconds; 2.0 kB and 3.0 kB."
    ]
    assert line("ditto", found, ditto=cheap, fedavg=cheap)[0].endswith("FedAvg: 4 seconds; as much.")
    assert line(SHARED, {(SHARED, ALONE): UP}, fedavg=cheap) == [
        "Costs of a run of FedAvg: 4 seconds on this machine; a silo sends 2.0 kB and receives 3.0 kB."
    ]
    alone = line(ALONE, {(SHARED, ALONE): DOWN}, local_only=Cost(0.0, 0.0, 4.0, True), fedavg=cheap)
    assert "a silo sends and receives nothing, and keeps" in alone[0]
    alone = line(ALONE, {(SHARED, ALONE): DOWN}, local_only=Cost(500.0, 500.0, 1.2, True), fedavg=cheap)
    assert "1 second on this machine; a silo keeps its weights, and sends 0.5 kB of metrics and common" in alone[0]
    assert line("ditto", found, fedavg=cheap) == []


DIVERGED = Difference(np.nan, np.nan, np.nan)


@pytest.mark.parametrize(
    ("choice", "over_shared", "over_alone", "shared_over_alone", "expected"),
    [
        ("ditto", DIVERGED, DIVERGED, EVEN, SHARED),
        ("ditto", DIVERGED, DIVERGED, NEAR, ALONE),
        ("ditto", DIVERGED, DOWN, DIVERGED, ALONE),
        ("ditto", DIVERGED, UP, DIVERGED, "ditto"),
        (ALONE, None, None, DIVERGED, ALONE),  # nothing is known
        ("ditto", DIVERGED, DIVERGED, DIVERGED, "ditto"),
    ],
)
def test_a_method_whose_predictions_are_not_finite_is_not_advised(
    choice, over_shared, over_alone, shared_over_alone, expected
):
    found = differences(choice, over_shared, over_alone, shared_over_alone)
    assert advised_method(choice, found, ACCURACY, matters=0.005) == expected
    lines = decide(ACCURACY, choice, {}, Proof(found), {"table": []})["lines"]
    unknown = [line for line in lines if line.endswith("is not known: predictions of one of them are not finite.")]
    assert len(unknown) == sum(one is DIVERGED for one in found.values())
    assert "nan" not in " ".join(lines)
    assert any(line.startswith("A point is") for line in lines) == (len(unknown) < len(found))


@pytest.mark.parametrize(
    ("choice", "diverged", "expected"),
    [
        (SHARED, [SHARED], ALONE),
        ("ditto", ["ditto", SHARED], ALONE),
        ("ditto", ["ditto", ALONE], SHARED),
        ("ditto", ["ditto", SHARED, ALONE], "ditto"),
        (ALONE, [SHARED], ALONE),
    ],
)
def test_where_no_difference_is_known_a_method_that_did_not_diverge_is_advised(choice, diverged, expected):
    pairs = {pair: DIVERGED for pair in proved_pairs(choice, [choice, SHARED, ALONE]) if {*pair} & {*diverged}}
    table = [{"method": m, "accuracy/mean": None if m in diverged else 0.8} for m in {choice, SHARED, ALONE}]
    advice = decide(ACCURACY, choice, {}, Proof(pairs), {"table": table})
    assert advice["advised"] == expected
    assert all(line.endswith("are not finite.") for line in advice["lines"] if line.startswith("Whether"))
    assert "one of them" not in " ".join(advice["lines"])


def test_advice_is_not_kept_if_a_run_of_its_proof_failed(tmp_path):
    run = {"method": "fedavg", "seed": 1, "error": "the loss is no number", "folder": "runs/x"}
    with pytest.raises(IncompleteError):
        keep_advice(tmp_path, {"comparison": {"failed": [run], "runs": []}})
    assert not (tmp_path / ADVICE).exists()
    keep_advice(tmp_path, {"comparison": {"failed": []}})
    assert (tmp_path / ADVICE).exists()


@pytest.mark.parametrize(
    ("changed", "is_other"),
    [
        (["comparison.seeds=[1, 0, 2]"], True),
        (["training.rounds=7"], True),
        (["comparison.seeds=[0, 5]"], False),
        (["advise.minutes=9"], False),
    ],
)
def test_a_race_is_continued_only_with_its_own_seed_and_settings(changed, is_other, project):
    def opened(*overrides):
        return Project.open(["training.rounds=5", "comparison.seeds=[0, 1, 2]", *overrides], project, derived=True)

    name = folder_name(opened(), 1.0, ["ditto"], False, "race")
    if is_other:
        with pytest.raises(UserError, match="--resume: got other settings than those of race"):
            folder_name(opened(*changed), 1.0, [], True, name)
    else:
        assert folder_name(opened(*changed), 1.0, [], True, name) == name


@pytest.mark.parametrize(
    ("began_with", "said"),
    [
        ({"data_version": "0" * 32}, "got data version .*, expected 0000000000 as"),
        ({"methods": ["ditto"]}, "got the methods"),
    ],
)
def test_a_race_is_continued_only_with_its_own_rows_and_methods(began_with, said, project):
    opened = Project.open([], project, derived=True)
    name = folder_name(opened, 1.0, ["fedbn"], False, "race")
    assert folder_name(opened, 1.0, ["fedbn"], True, name) == name
    file = opened.store.runs / name / "experiment.json"
    write_json(file, read_json(file) | began_with)
    with pytest.raises(UserError, match=f"--resume: {said}"):
        folder_name(opened, 1.0, ["fedbn"], True, name)


def test_a_retry_by_prefect_goes_on_with_the_race_that_it_began(project, monkeypatch):
    opened = Project.open([], project, derived=True)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "a flow run")
    name = folder_name(opened, 1.0, [], False, "")
    write_json(opened.store.runs / name / ADVICE, {"experiment": name})
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__RUN_COUNT", "2")
    assert advise._function(project=opened, name="registry") == {"experiment": name}  # no race may be called so
