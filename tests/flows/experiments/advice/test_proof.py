"""What a proof trains fits the minutes, and FedAvg without silos is measured over all silos."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.advise import _cost, _losers, _measure_proof, _ProofRuns
from flows.experiments.advice.candidates import POOLED, SHARED
from flows.experiments.advice.exclude_silos import losing_silos
from flows.experiments.advice.proof import (
    Cost,
    ProofPlan,
    check_minutes,
    measure,
    plan_proof,
    race_seconds,
    seconds_needed,
    seeds_that_fit,
)
from flows.experiments.advice.race import Candidate, Leg, Pace, Race
from flows.experiments.advice.race_trials import RaceTrials, leg_of, pace_of
from flows.experiments.comparison.client_gains import ALONE
from flows.experiments.comparison.run_trials import Plan, trial_name
from flows.experiments.comparison.tuner import Score
from flows.training.paired_runs import client_strata
from flows.training.run_records.run_folder import RunFolder, run_name
from models.metrics.paired_difference import difference
from models.metrics.task_metrics import TASK_METRICS
from silos.client_store import ClientStore
from silos.errors import UserError
from tasks.evaluate import OUTCOMES
from tasks.execution.task_runner import PlainRunner
from tasks.messages.message_policy import LEAST_ROWS
from tasks.tracking.json_io import write_json

SILOS, ROWS = ("a", "b", "c", "d", "e"), 60
PROVED = {m: Candidate(m, (), 0) for m in (SHARED, ALONE, "ditto", POOLED)}


def race(seconds):
    return Race([9], list(PROVED.values()), {c.name: Leg(9, None, seconds) for c in PROVED.values()})


@pytest.mark.parametrize("one_run", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("budget", [100.0, 300.0, 1000.0])
def test_race_and_proof_fit_the_budget_if_any_advice_does(budget, one_run):
    if seconds_needed(one_run) > budget:
        pytest.skip("refused before")
    racing = race_seconds(Race([9], [], pace=Pace(one_run, one_run / 9)), budget)
    assert racing >= 2 * one_run
    assert racing + 9 * one_run <= budget + 1e-9


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_a_diagnosis_took_is_not_for_the_race(tmp_path, at_once):
    first = Candidate(SHARED, (), 0)
    project: Any = SimpleNamespace(
        store=SimpleNamespace(runs=tmp_path), params=SimpleNamespace(training=SimpleNamespace(rounds=9))
    )
    write_rounds(RunFolder(tmp_path / "advise" / run_name(SHARED, 0, trial_name(0))), 0.5)
    processes: Any = SimpleNamespace(
        experiment="advise", start_for=lambda *_: None, start_asked=lambda _: None, at_once=at_once
    )

    def seconds(before, pace=None):
        legs = {first.name: Leg(1, Score(0.5, 1.0), 0.5)}
        started = Race([1, 3, 9], [first], legs, before=before, pace=pace)
        RaceTrials(project, processes, 0, 100.0).plan(started)
        return started.pace, race_seconds(started, 100.0 - before, at_once)

    pace, of_proof = Pace(4.5, 0.5), 9 * 4.5 if at_once == 1 else 5 * 4.5
    assert seconds(0.0) == (pace, pytest.approx(min(60.0, 100.0 - of_proof)))
    assert seconds(40.0) == (pace, pytest.approx(min(36.0, 60.0 - of_proof)))
    if at_once > 1:
        assert seconds(60.0) == (pace, pytest.approx(40.0 - of_proof))  # two at once fit
        return
    with pytest.raises(
        UserError,
        match=r"expected at least 2, .* with `--minutes 2 --resume`, or with `--set training\.rounds=5`\.",
    ):
        seconds(60.0)  # eleven runs of 5 rounds take 27.5 of 40 seconds, of 6 rounds 33
    with pytest.raises(UserError, match=r"eleven runs\. Run the command with `--minutes 3 --resume`\.$"):
        seconds(99.0)  # not even one round fits
    assert seconds(60.0, pace) == (pace, 9.0)  # a resumed race is not refused; its references train to the end


def write_rounds(folder: RunFolder, *seconds: float) -> RunFolder:
    """Write the journal of a run whose rounds took these seconds."""
    for number, spent in enumerate(seconds, 1):
        record = {"round": number, "time_ms": 0, "metrics": {}, "seconds": {"round": spent}, "dropped": []}
        write_json(folder.journal.folder / f"{number:06d}.json", record)
    return folder


@pytest.mark.parametrize(("at_once", "runs"), [(1, 11), (2, 6), (3, 4), (4, 4), (9, 2)])
def test_the_runs_of_the_proof_start_when_those_of_the_race_have_ended(at_once, runs):
    assert seconds_needed(6.0, at_once) == 6.0 * runs


def test_minutes_that_just_suffice_are_taken_and_fewer_are_refused_with_those_that_suffice():
    leg, pace = Leg(1, None, 1.0), Pace(6.0, 0.5)
    check_minutes(70.0, 4.0, leg, pace, SHARED)  # eleven runs take 66 seconds
    with pytest.raises(UserError, match="expected at least 2, since one run of fedavg takes about 6 seconds"):
        check_minutes(69.9, 4.0, leg, pace, SHARED)


def test_the_rounds_to_come_take_the_median_of_those_trained_so_that_a_slow_first_one_counts_once(tmp_path):
    folder = write_rounds(RunFolder(tmp_path / "run"), 9.0, 0.5, 0.75, 7.0)
    assert pace_of(folder, Leg(3, None, 10.5), 9) == Pace(10.5 + 6 * 0.75, 0.75)  # round 4 is of a later leg


def test_the_seconds_of_a_leg_are_those_of_its_own_rounds_also_of_those_before_a_stop(tmp_path):
    folder, metrics = write_rounds(RunFolder(tmp_path / "run"), 1.0, 2.0, 3.0, 4.0), TASK_METRICS["classification"]
    saved = {"validation/accuracy/mean": 0.75, "validation/loss/mean": 0.5}
    write_json(folder.validation, {"round": 3, "metrics": saved})
    for known, seconds, expected in (
        (Leg(1, None, 1.0), 0.5, 5.0),  # two rounds, of which most were trained before
        (Leg(1, None, 1.0), 6.5, 6.5),  # with the start of the run
        (None, 0.5, 6.0),
    ):
        assert leg_of(folder, 3, seconds, known, metrics) == Leg(3, Score(0.75, 0.5), expected)


def test_the_cost_of_a_run_is_the_mean_over_seeds_of_the_bytes_of_one_silo(tmp_path):
    stores = {name: ClientStore(str(tmp_path / name)) for name in ("one", "two")}
    project: Any = SimpleNamespace(
        root=tmp_path,
        silos=SimpleNamespace(federated=lambda: SimpleNamespace(clients=SILOS)),
        store=SimpleNamespace(private=lambda folder: stores[folder.name]),
    )
    runs = [
        {"folder": name, "bytes": {"up": up, "down": 3 * up}, "seconds": {"total": up / 100}}
        for name, up in (("one", 1000), ("two", 2000))
    ]
    correct = np.ones((len(SILOS), 4), np.uint8)
    stores["one"].save(OUTCOMES, SILOS, {"correct": correct}, "outcomes")
    assert _cost(project, runs) == Cost(300.0, 900.0, 15.0, keeps_state=False)
    stores["two"].save("personal", SILOS, {"w": correct})
    assert _cost(project, runs).keeps_state


def test_a_race_leaves_the_time_that_the_proof_of_its_leader_takes():
    legs = {name: Leg(1, Score(0.5, 1.0), 1.0) for name in ("fedavg 0", "local_only 0")}
    candidates = [PROVED[m] for m in (SHARED, ALONE, "ditto")]
    started = Race([1, 9], candidates, legs, pace=Pace(9.0, 1.0))
    started.legs["ditto 0"] = Leg(1, Score(0.9, 1.0), 3.0)
    started.alive.append(PROVED[POOLED])
    assert race_seconds(started, 160.0) == 160.0 - 3 * 3 * 9.0  # the leader of a rung that is not complete may change
    started.alive.pop()
    assert race_seconds(started, 160.0) == 160.0 - 3 * (2 * 9.0 + 27.0)
    assert race_seconds(started, 1000.0) == 600.0


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
        plan_proof(tmp_path / f"{excludes} {seconds}.json", race(1.0), PROVED, 0, seconds, excludes)
        for excludes, seconds in ((False, 20.0), (True, 20.0), (True, 12.0), (True, 11.0))
    ]
    assert [(len(plan.methods), len(plan.seeds), plan.excludes) for plan in plans] == [
        (4, 5, False),
        (4, 4, True),
        (3, 3, True),  # rather than pooled training
        (3, 3, False),
    ]


def project_of(silos, task="classification") -> Any:
    params = SimpleNamespace(runner=SimpleNamespace(kind="threads"))
    scored = SimpleNamespace(federated=lambda: silos)
    return SimpleNamespace(scored=scored, quantity=TASK_METRICS[task], params=params)


def outcomes(folder, right, silos=SILOS, rows=ROWS):
    """Store outcomes of which the first `right` rows of each silo are correct."""
    store = ClientStore(str(folder))
    correct = (np.arange(rows) < np.array([[right[silo]] for silo in silos])).astype(np.uint8)
    return store, store.save(OUTCOMES, silos, {"correct": correct}, "outcomes")


@pytest.mark.parametrize(
    ("gains", "common", "losers"),
    [
        ({"a": -30, "b": -3}, [], ["a"]),
        ({"a": -30, "b": -30}, [], ["a", "b"]),
        ({"a": -30, "b": -30, "c": -30}, [], []),  # more than half: then FedAvg is wrong for all
        ({"a": -30}, ["test"], []),
        ({"a": 30}, [], []),
        ({"a": -4, "b": 1, "c": 1, "d": 1, "e": 1}, [], []),  # p is 0.04, and 0.2 of five silos
    ],
)
def test_silos_that_certainly_lose_by_fedavg_are_named(gains, common, losers, write_silos, tmp_path):
    silos = write_silos(dict.fromkeys(SILOS, 2), validation=ROWS, test=ROWS + 7, common=common)
    alone = dict.fromkeys(SILOS, 30)
    shared = {silo: right + gains.get(silo, 10) for silo, right in alone.items()}
    runs = [outcomes(tmp_path / name, right) for name, right in (("shared", shared), ("alone", alone))]
    assert losing_silos(project_of(silos), *runs) == losers


def test_silos_lose_by_errors_that_grow(write_silos, tmp_path):
    silos = write_silos(dict.fromkeys(SILOS, 2), validation=ROWS, test=ROWS + 7)
    errors = np.random.default_rng(0).exponential(size=(len(SILOS), ROWS))
    factors = np.array([[3.0], *[[0.3]] * 4])
    stores = {name: ClientStore(str(tmp_path / name)) for name in ("shared", "alone")}
    runs = [
        (stores[name], stores[name].save(OUTCOMES, SILOS, {"squared_error": table}, "outcomes"))
        for name, table in (("shared", factors * errors), ("alone", errors))
    ]
    assert losing_silos(project_of(silos, "regression"), *runs) == ["a"]


@pytest.mark.parametrize(("rows", "losers"), [(LEAST_ROWS, ["a"]), (LEAST_ROWS - 1, [])])
def test_a_silo_loses_certainly_only_by_as_many_rows_as_it_may_report(rows, losers, write_silos, tmp_path):
    silos = write_silos(dict.fromkeys(SILOS, 2), validation=rows, test=ROWS)
    alone = dict.fromkeys(SILOS, rows)
    both = (("shared", {**alone, "a": 0}), ("alone", alone))
    runs = [outcomes(tmp_path / name, right, rows=rows) for name, right in both]
    assert losing_silos(project_of(silos), *runs) == losers


@pytest.mark.parametrize(("names", "losers"), [(SILOS[:4], []), (SILOS, ["a", "b"])])
def test_half_of_the_silos_are_not_left_out(names, losers, write_silos, tmp_path):
    silos = write_silos(dict.fromkeys(names, 2), validation=ROWS, test=ROWS + 7)
    alone = dict.fromkeys(SILOS, 30)
    shared = {**dict.fromkeys(SILOS, 40), "a": 0, "b": 0}
    runs = [outcomes(tmp_path / name, right, names) for name, right in (("shared", shared), ("alone", alone))]
    assert losing_silos(project_of(silos), *runs) == losers


def test_silos_that_lose_and_cannot_leave_are_not_left_out(write_silos, tmp_path):
    def refuse(_):
        raise UserError("clients.leave: got a, which joins later")

    project = project_of(write_silos(dict.fromkeys(SILOS, 2), validation=ROWS, test=ROWS + 7))
    project.params.clients, project.with_overrides = SimpleNamespace(leave={}), refuse
    alone = dict.fromkeys(SILOS, 30)
    runs = {SHARED: outcomes(tmp_path / "shared", {**alone, "a": 0}), ALONE: outcomes(tmp_path / "alone", alone)}
    trials: Any = SimpleNamespace(project=project, seed=0, outcomes=lambda candidate: runs[candidate.method])
    assert losing_silos(project, runs[SHARED], runs[ALONE]) == ["a"]
    assert _losers(trials, PROVED) == []


def test_intervals_of_methods_and_of_fedavg_without_silos_hold_at_once(write_silos, tmp_path):
    """One pair of methods, and FedAvg without a silo less each of two methods, are three intervals."""
    silos = write_silos(dict.fromkeys(SILOS, 2), validation=0, test=ROWS)
    right = {SHARED: {**dict.fromkeys(SILOS, 40), "a": 10}, ALONE: dict.fromkeys(SILOS, 30)}
    runs = {
        m: [outcomes(tmp_path / f"{m}{i}", {k: v + i for k, v in own.items()}) for i in range(3)]
        for m, own in right.items()
    }
    without = [outcomes(tmp_path / f"without{i}", dict.fromkeys(SILOS, 50 + i)) for i in range(3)]
    alone = measure(project_of(silos), SHARED, runs).differences[SHARED, ALONE]
    found = measure(project_of(silos), SHARED, runs, ["a"], without)
    strata = client_strata(PlainRunner(), silos, runs[SHARED], runs[ALONE], TASK_METRICS["classification"])
    for measured, intervals in ((alone, 1), (found.differences[SHARED, ALONE], 3)):
        expected = difference(list(strata.values()), 1 - 0.05 / intervals, TASK_METRICS["classification"].bound)
        assert (measured.low, measured.high) == pytest.approx((expected.low, expected.high))
    rest = client_strata(PlainRunner(), silos.select(SILOS[1:]), without, runs[SHARED], TASK_METRICS["classification"])
    own = client_strata(PlainRunner(), silos.select(["a"]), runs[ALONE], runs[SHARED], TASK_METRICS["classification"])
    both = [*rest.values(), *own.values()]
    expected = difference(both, 1 - 0.05 / 3, TASK_METRICS["classification"].bound, pooled_variance=False)
    assert found.exclusion is not None
    measured = found.exclusion.differences[SHARED]
    assert (measured.low, measured.high) == pytest.approx((expected.low, expected.high))


def test_fedavg_without_silos_is_measured_over_all_silos_of_which_those_train_alone(write_silos, tmp_path):
    silos = write_silos(dict.fromkeys(SILOS, 2), validation=0, test=ROWS)
    right = {SHARED: {**dict.fromkeys(SILOS, 40), "a": 10}, ALONE: dict.fromkeys(SILOS, 30)}
    runs = {method: [outcomes(tmp_path / method, of_method)] * 3 for method, of_method in right.items()}
    without = [outcomes(tmp_path / "without", dict.fromkeys(SILOS, 50))] * 3  # at `a`, training alone counts instead
    found = measure(project_of(silos), SHARED, runs, ["a"], without)
    assert found.differences.keys() == {(SHARED, ALONE)}
    assert found.differences[SHARED, ALONE].mean == pytest.approx((4 * 10 - 20) / 5 / ROWS)
    assert found.exclusion is not None
    assert found.exclusion.differences[SHARED].mean == pytest.approx((4 * 10 + 20) / 5 / ROWS)
    assert found.exclusion.differences[ALONE].mean == pytest.approx(4 * 20 / 5 / ROWS)
    assert measure(project_of(silos), SHARED, runs).exclusion is None


@pytest.mark.parametrize(
    ("lost", "gain", "is_excluded"),
    [([], 12, True), ([(SHARED, 3)], 11, False), ([(SHARED, seed) for seed in (1, 2, 3)], None, False)],
)
def test_methods_are_paired_on_the_seeds_that_all_have_finished(lost, gain, is_excluded, write_silos, tmp_path):
    """FedAvg without silos has no pair for a seed that is missing, so it is not measured then."""
    silos = write_silos(dict.fromkeys(SILOS, 2), validation=0, test=ROWS)
    project = project_of(silos)
    project.root, project.store = tmp_path, SimpleNamespace(private=lambda folder: ClientStore(f"{folder}/private"))

    def trained(name, right):
        _, hashes = outcomes(tmp_path / name / "private", dict.fromkeys(SILOS, right))
        write_json(tmp_path / name / "outcomes.json", hashes)
        return {"folder": name}

    results = {
        (method, seed): trained(f"{method}-{seed}", start + 2 * seed * (method == SHARED))
        for method, start in ((SHARED, 38), (ALONE, 30))
        for seed in (1, 2, 3)
        if (method, seed) not in lost
    }
    without: Any = [trained(f"without-{seed}", 47 + 2 * seed) for seed in (1, 2, 3)]
    apart: Any = [None] * 3
    plan = Plan([SHARED, ALONE], [1, 2, 3], SHARED, 0, "v")
    of_method, proof = _measure_proof(project, SHARED, _ProofRuns(plan, {}, results, [], apart, without), ["a"])
    whole = [seed for seed in (1, 2, 3) if (SHARED, seed) not in lost]
    assert [run["folder"] for run in of_method[ALONE]] == [f"{ALONE}-{seed}" for seed in whole]
    assert (proof.exclusion is not None) == is_excluded
    expected = {} if gain is None else {(SHARED, ALONE): pytest.approx(gain / ROWS)}
    assert {pair: measured.mean for pair, measured in proof.differences.items()} == expected


def test_silos_that_train_alone_in_both_have_no_variance_and_hide_none(write_silos, tmp_path):
    """Many rows that are equal in both do not make the rows of other silos look less variable."""
    rows = {**dict.fromkeys(SILOS, 30), "a": 500}
    silos = write_silos(dict.fromkeys(SILOS, 2), validation=0, test=rows)

    def run_of(name, seed):
        store = ClientStore(str(tmp_path / f"{name}{seed}"))
        rng = np.random.default_rng([seed, len(name)])
        right = {silo: rng.integers(0, 2, (1, count), np.uint8) for silo, count in rows.items()}
        return store, {
            silo: ref
            for silo in SILOS
            for silo, ref in store.save(OUTCOMES, [silo], {"correct": right[silo]}, "outcomes").items()
        }

    runs = {name: [run_of(name, seed) for seed in range(3)] for name in (SHARED, ALONE, "without")}
    found = measure(project_of(silos), SHARED, {m: runs[m] for m in (SHARED, ALONE)}, ["a"], runs["without"])
    rest = silos.select(SILOS[1:])
    strata = client_strata(PlainRunner(), rest, runs["without"], runs[ALONE], TASK_METRICS["classification"])
    assert found.exclusion is not None
    expected = difference(list(strata.values()), pooled_variance=False).error * 4 / 5
    assert found.exclusion.differences[ALONE].error == pytest.approx(expected)


def test_runs_at_once_are_planned_as_one_queue():
    """Nine runs of a second in two processes take five; three seeds one after another would take six."""
    assert seeds_that_fit(4.9, [1.0, 1.0, 1.0], 2) == 3
    assert seeds_that_fit(6.0, [1.0, 1.0, 1.0], 2) == 4
    assert seeds_that_fit(8.0, [1.0, 1.0, 1.0], 2) == 5
    assert seeds_that_fit(12.0, [1.0, 1.0, 1.0]) == 4
