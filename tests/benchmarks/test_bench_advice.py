"""The study of advice: its federations, its runs without Prefect, and the strategies replayed from them."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.advice import federations
from benchmarks.advice.run_table import RunTable, paired
from benchmarks.advice.strategies import TRIALS, Contest, advise, genetic_search, hindsight, published_tree, strategies
from benchmarks.bench_advice import MINUTES, AdviceStudy, summary
from flows.experiments.advice.candidates import SHARED
from flows.experiments.advice.race import Candidate
from flows.experiments.comparison.client_gains import ALONE
from flows.run import run
from models.metrics.paired_difference import ACCURACY
from tasks.tracking.json_io import read_json

RATES = [
    Candidate(method, (f"training.optimiser.learning_rate={rate}",), index)
    for method in (SHARED, ALONE, "finetune")
    for index, rate in enumerate((0.3, 0.1))
]


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    study = AdviceStudy(tmp_path_factory.mktemp("study"), print)
    (irises,) = [one for one in federations.study() if one.name == "irises"]
    project = study.open(irises).with_overrides(["training.rounds=9"])
    with project.data.working("study"):
        table = RunTable(project, study._cache / "runs")
        yield Contest(table, RATES, RATES, ["feature"], 0.5)


@pytest.mark.slow
def test_federations_have_names_of_their_own_and_rows_of_several_clients():
    every = [*federations.study(), *federations.matrix()]
    assert len(federations.study()) == 24
    assert len({one.name for one in every}) == len(every)
    for one in every:
        if one.archive:
            with pytest.raises(Exception, match=rf"downloads/{one.archive}: got no such file, expected the rows of"):
                one.rows(Path("nowhere"))
            continue
        rows, again = one.rows(Path("nowhere")), one.rows(Path("nowhere"))
        assert all(np.array_equal(a, b) for a, b in zip(rows[:3], again[:3], strict=True))
        assert len(rows.x) == len(rows.y) == len(rows.client)
        assert np.isfinite(rows.x).all()
        assert len(np.unique(rows.client)) >= 3
        assert np.unique(rows.client, return_counts=True)[1].min() >= 10


def test_a_strong_cell_differs_more_than_a_weak_one():
    made = [one for one in federations.matrix() if one.cell and not one.archive and one.cell.size == "many"]
    cells = {one.cell: one.rows(Path()) for one in made}

    def spread(kind, strength):
        rows = cells["table", kind, strength, "many"]
        shares = [
            np.bincount(rows.y[rows.client == c], minlength=4) / np.sum(rows.client == c)
            for c in np.unique(rows.client)
        ]
        return np.std(shares, axis=0).sum()

    assert spread("label", "strong") > 1.5 * spread("label", "weak") > 1.5 * spread("none", "strong")
    sizes = [
        np.unique(cells["digits", "quantity", s, "many"].client, return_counts=True)[1] for s in ("strong", "weak")
    ]
    assert sizes[0].max() / sizes[0].min() > 2 * sizes[1].max() / sizes[1].min()
    clients = {one.cell.kind: len(np.unique(cells[one.cell].client)) - one.fresh for one in made}
    assert set(clients.values()) == {9}
    assert all(one.fresh == (3 if "+" in one.cell.kind else 0) for one in made)


@pytest.mark.slow
def test_a_run_of_the_table_is_the_run_that_siloflow_makes(contest, prefect, monkeypatch):
    project = contest.table.project
    monkeypatch.chdir(project.root)
    result = run(SHARED, 3, [*project.overrides, *RATES[0].settings], derived=True)
    of_table = contest.table.run(RATES[0], 3, 9)
    means = {client: float(rows.mean()) for client, rows in of_table.test.items()}
    assert means == pytest.approx({row["client"]: row["accuracy"] for row in result["metrics"]["accuracy/by_client"]})
    assert of_table.rungs[-1].score.value == pytest.approx(result["metrics"]["validation/accuracy/mean"], abs=1e-6)
    of_standardizer = read_json(project.root / result["folder"] / "scaling.json")["bytes"]
    assert of_table.bytes == sum(result["bytes"].values()) - sum(of_standardizer)


def test_a_run_is_trained_as_far_as_it_is_asked_for_and_then_read(contest, monkeypatch):
    table = contest.table
    first = table.run(RATES[3], 5, 1)
    assert [rung.rounds for rung in first.rungs] == [1]
    assert not first.test
    whole = table.run(RATES[3], 5, 3)
    assert [rung.rounds for rung in whole.rungs] == [1, 3, 9]
    assert whole.rungs[0].score == first.rungs[0].score
    monkeypatch.setattr(RunTable, "_train", None)
    assert table.run(RATES[3], 5, 9).test.keys() == whole.test.keys()


@pytest.mark.slow
def test_with_time_for_all_the_race_chooses_among_whole_runs_and_the_proof_the_simplest(contest):
    choice = advise(contest, 1e6, contest.plain)
    assert choice.candidate.method in (SHARED, ALONE, "finetune")
    assert choice.seconds > 0
    hurried = advise(contest, 1.0, contest.plain)  # the references always run
    assert hurried.candidate.method in (SHARED, ALONE)
    assert hurried.seconds < choice.seconds


def test_strategies_train_what_they_say(contest, monkeypatch):
    tried = set()
    whole = Contest.whole

    def counting(self, candidate, seed=0):
        tried.add(candidate.name)
        return whole(self, candidate, seed)

    monkeypatch.setattr(Contest, "whole", counting)
    genetic_search(contest, 1)
    assert len(tried) == min(TRIALS, len(RATES))
    tried.clear()
    assert published_tree(contest).candidate.method == SHARED
    assert tried == {"fedavg 0", "fedavg 1"}
    names = strategies(MINUTES)
    assert len(names) == 2 * len(MINUTES) + 8
    assert [choice.candidate.method for choice in names["a random method"](contest)] == contest.methods


def test_hindsight_and_values_are_means_over_clients_of_the_report(contest):
    best = contest.tuned(SHARED).candidate
    tests = [contest.table.run(best, seed, 9).test for seed in (10, 11)]
    by_hand = np.mean([[rows.mean() for rows in test.values()] for test in tests])
    assert hindsight(contest)[SHARED] == contest.value(best) == pytest.approx(by_hand)
    assert paired([tests[0]], [tests[0]], ACCURACY, 0.95).mean == 0


def test_regret_is_the_distance_to_the_best_method():
    def of(best, five, other):
        values = dict.fromkeys(
            [f"{a}, {m:g} minutes" for a, m in itertools.product(("advise", "race"), MINUTES)], other
        )
        values["advise, 5 minutes"] = five
        strategy = {name: {"value": value, "seconds": 1.0} for name, value in values.items()}
        return [{"methods": {"ditto": best, "fedavg": other, "flux": None}, "strategies": strategy}]

    found = summary({"study": {"a": of(0.9, 0.9, 0.8), "b": of(0.7, 0.68, 0.6), "c": of(-0.5, -0.5, -0.7)}})
    assert found["federations"] == 3
    five, other = found["strategies"]["advise, 5 minutes"], found["strategies"]["race, 2 minutes"]
    assert five["regret"][0] == pytest.approx(2 / 3, abs=0.01)
    assert (five["worst"], five["within_a_point"]) == (2.0, 2)
    assert five["behind"] == [0, 0, 0]
    assert other["regret"][0] == pytest.approx(40 / 3, abs=0.01)
    assert other["behind"][0] == pytest.approx(38 / 3, abs=0.01)
