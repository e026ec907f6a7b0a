"""What a proof trains fits the minutes, and FedAvg without silos is measured over all silos."""

import pytest

from flows.advice.candidates import POOLED, SHARED
from flows.advice.proof import ProofPlan, plan_proof, race_seconds, seconds_needed
from flows.advice.race import Candidate, Leg, Race
from flows.experiment.comparison.client_gains import ALONE

PROVED = {m: Candidate(m, (), 0) for m in (SHARED, ALONE, "ditto", POOLED)}


def race(seconds):
    return Race([9], list(PROVED.values()), {c.name: Leg(9, None, seconds) for c in PROVED.values()})


@pytest.mark.parametrize("one_run", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("budget", [100.0, 300.0, 1000.0])
def test_race_and_proof_fit_the_budget_if_any_advice_does(budget, one_run):
    if seconds_needed(one_run) > budget:
        pytest.skip("refused before")
    racing = race_seconds(budget, one_run)
    assert racing >= 2 * one_run
    assert racing + 9 * one_run <= budget + 1e-9


@pytest.mark.parametrize(
    ("seconds", "methods", "seeds"),
    [(100.0, 4, 5), (13.0, 4, 3), (11.0, 3, 3), (0.0, 3, 3)],
)
def test_a_proof_has_as_many_seeds_as_fit_and_pooled_training_only_if_it_fits(tmp_path, seconds, methods, seeds):
    plan = plan_proof(tmp_path / "proof.json", race(1.0), PROVED, 0, seconds)
    assert (len(plan.methods), len(plan.seeds)) == (methods, seeds)
    assert 0 not in plan.seeds
    resumed = plan_proof(tmp_path / "proof.json", race(50.0), PROVED, 0, 1.0)
    assert resumed == plan == ProofPlan(list(PROVED)[:methods], list(range(1, 1 + seeds)))


def test_runs_without_silos_cost_time_too(tmp_path):
    plans = [
        plan_proof(tmp_path / f"{excludes}.json", race(1.0), PROVED, 0, 20.0, excludes) for excludes in (False, True)
    ]
    assert [len(plan.seeds) for plan in plans] == [5, 4]
