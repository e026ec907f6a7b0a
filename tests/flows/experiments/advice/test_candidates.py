"""Gains of methods on similar silos order the candidates of a race, and decide nothing else."""

import itertools
import math

import pytest

from flows.experiments.advice.candidates import (
    EVIDENCE,
    Evidence,
    Situation,
    candidates,
    in_order,
    load_evidence,
    predicted_gains,
    situation_of,
)
from flows.experiments.advice.race import Candidate
from flows.project.project import Project

ALIKE, LABEL, CONCEPT = Situation(0, 0, 0, 6), Situation(1, 0, 0, 6), Situation(0, 0, 1, 6)


def settings(**counts):
    groups = [[Candidate(method, (), index) for index in range(count)] for method, count in counts.items()]
    turns = itertools.zip_longest(*groups)
    return [candidate for turn in turns for candidate in turn if candidate is not None]


def test_methods_that_promise_more_start_more_settings_and_every_method_starts_one_before_their_last():
    tried = settings(fedavg=4, local_only=4, ditto=4, ifca=4, scaffold=4)
    ordered = in_order(tried, {"ifca": 8.0, "ditto": 3.0, "scaffold": -2.0}, ("fedavg", "local_only"))
    assert sorted(c.name for c in ordered) == sorted(c.name for c in tried)
    assert [c.name for c in ordered[:4]] == ["fedavg 0", "local_only 0", "ifca 0", "ditto 0"]
    first = ordered[: len(ordered) // 2]
    assert sum(c.method == "ifca" for c in first) > sum(c.method == "scaffold" for c in first)
    assert {c.method for c in first} == {c.method for c in tried}
    for method in {c.method for c in tried}:
        assert [c.index for c in ordered if c.method == method] == [0, 1, 2, 3]


def test_a_method_starts_with_the_learning_rate_of_params_and_goes_on_with_the_nearest(project):
    opened = Project.open(["training.optimiser.learning_rate=0.09"], project, derived=True)
    tried = [each.settings[0] for each in candidates(opened, 0, ["fedavg"]) if each.method == "fedavg"]
    rates = [float(setting.removeprefix("training.optimiser.learning_rate=")) for setting in tried]
    assert rates[0] == 0.09
    steps = [round(math.log(rate / 0.09, 3)) for rate in rates]
    assert sorted(steps) == [-2, -1, 0, 1]
    assert [abs(step) for step in steps] == [0, 1, 1, 2]


def test_methods_that_only_repeat_others_race_only_if_they_are_named(project):
    opened = Project.open([], project, derived=True)
    methods = {each.method for each in candidates(opened, 0)}
    assert {"fedavg", "local_only", "ifca", "pooled"} <= methods
    assert not methods & {"fedsgd", "fedbn", "serverbn"}  # the network has no batch normalization
    assert "fedsgd" in {each.method for each in candidates(opened, 0, ["fedsgd"])}


@pytest.mark.parametrize("gains", [{}, {"pooled": 9.0}])
def test_a_bound_starts_last(gains):
    bound = Candidate("pooled", (), 0, bound=True)
    others = settings(fedavg=2, ditto=3)
    assert in_order([others[0], bound, *others[1:]], gains, ("fedavg",))[-1] == bound


def test_without_evidence_the_order_stays():
    tried = settings(fedavg=2, ditto=3)
    assert in_order(tried, {}, ("fedavg",)) == tried
    assert predicted_gains([], ALIKE) == ({}, None)


def test_gains_are_those_of_the_nearest_cells():
    evidence = [Evidence(f"label {n}", LABEL._replace(rows=5 + n / 10), {"fedper": 6.0}) for n in range(5)]
    evidence += [Evidence(f"concept {n}", CONCEPT, {"ifca": 9.0, "fedper": -1.0}) for n in range(5)]
    gains, nearest = predicted_gains(evidence, LABEL)
    assert gains == {"fedper": 6.0}
    assert nearest == {"cell": "label 4", "distance": pytest.approx(0.2)}
    assert predicted_gains(evidence, CONCEPT)[0] == {"ifca": 9.0, "fedper": pytest.approx(-1.0)}


def test_cells_without_a_method_say_nothing_about_it():
    gains = [{"ifca": 6.0}, {"ditto": 1.0}, {"ditto": 3.0}]
    evidence = [Evidence(f"cell {n}", LABEL, each) for n, each in enumerate(gains)]
    assert predicted_gains(evidence, LABEL)[0] == {"ifca": 6.0, "ditto": 2.0}


def test_a_situation_counts_pairs_of_all_groups():
    between = [
        {"pairs": 6, "types": {"label": 0, "feature": 0, "concept": 0}},
        {"pairs": 9, "types": {"label": 3, "feature": 9, "concept": 0}},
    ]
    assert situation_of({"between": between}, [60, 68]) == pytest.approx((0.2, 0.6, 0.0, 6.0))
    assert situation_of({"between": []}, [1]) == (0, 0, 0, 0)


def test_the_evidence_that_siloflow_comes_with_names_shifts_and_methods():
    cells = load_evidence()
    assert EVIDENCE.is_file()
    assert len({cell.name for cell in cells}) == len(cells) >= 20
    for cell in cells:
        assert all(0 <= share <= 1 for share in cell.situation[:3])
        assert cell.gains["fedavg"] == 0
        assert all(map(math.isfinite, cell.gains.values()))
