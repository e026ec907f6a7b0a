"""Scores are counted on each client's own rows, and the outcomes that a client keeps are those that were counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from flows.training.paired_runs import compare_pairs
from models.metrics.client_metrics import CLIENT_METRICS
from silos.client_store import ClientStore
from silos.storage.partition_store import open_client
from tasks.evaluate import OUTCOMES, PREDICTED, ClientMetrics, evaluate
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.result_tables import by_client, summary

SIZES = {"a": 9, "b": 12, "c": 4}


@pytest.fixture
def scored(make_problem, make_round, tmp_path):
    setup = make_problem(SIZES, silos={"validation": 0, "test": 6})
    page, store = FedAvg(), ClientStore(str(tmp_path / "own"))
    model = page.model(page.init(setup), setup)
    round = make_round(setup, stack=2, private=store)
    scores = round.map_clients(evaluate, model, training=setup.training, keep_outcomes=True)
    return setup, model, store, scores


def test_scores_are_those_of_the_model_on_each_clients_rows(scored):
    setup, model, _, scores = scored
    table = by_client(scores)
    assert sorted(table) == sorted(SIZES)
    for client in SIZES:
        x, y = open_client(_folder(setup), setup.silos.manifest.client(client), "test")
        logits = model.network.apply(model.shared, {}, torch.from_numpy(x), None).double()
        p = torch.softmax(logits, -1)
        assert table[client]["test/rows"] == 6
        assert table[client]["test/accuracy"] == pytest.approx(float((logits.argmax(-1).numpy() == y).mean()))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))
        assert table[client]["test/loss"] == pytest.approx(float(loss), abs=1e-6)
        assert table[client]["test/entropy"] == pytest.approx(float(torch.special.entr(p).sum(-1).mean()), abs=1e-6)
        # validation is carved from the source's own training rows only if asked: here it has none
        assert table[client]["validation/rows"] == 0
        assert table[client]["validation/accuracy"] is None
    assert summary(table, "validation") == {}


def test_the_outcomes_that_a_client_keeps_are_those_that_were_counted(scored):
    setup, model, store, scores = scored
    refs = {c: r for s in scores if s.split == "test" for c, r in s.outcomes.items()}
    for client in SIZES:
        x, y = open_client(_folder(setup), setup.silos.manifest.client(client), "test")
        predicted = model.network.apply(model.shared, {}, torch.from_numpy(x), None).argmax(-1).numpy()
        right = predicted == y
        kept = store.load(OUTCOMES, refs, client)["correct"]
        np.testing.assert_array_equal(store.load(OUTCOMES, refs, client)[PREDICTED][: len(y)], predicted)
        np.testing.assert_array_equal(kept[: len(y)].astype(bool), right)
        assert not kept[len(y) :].any()


def test_without_being_asked_no_client_keeps_outcomes(make_problem, make_round, tmp_path):
    setup, page = make_problem(SIZES), FedAvg()
    store = ClientStore(str(tmp_path / "own"))
    round = make_round(setup, private=store)
    model = page.model(page.init(setup), setup)
    scores = round.map_clients(evaluate, model, training=setup.training)
    assert all(s.outcomes == {} for s in scores)
    assert not [*(tmp_path / "own").rglob("*.safetensors")]


def _folder(setup):
    from pathlib import Path

    return Path(setup.silos.folder)


@pytest.mark.parametrize("common", [False, True])
def test_a_client_whose_rows_do_not_define_the_metric_is_left_out_of_sums_and_pairs(
    common, make_problem, make_round, tmp_path
):
    silos = {"validation": 0, "test": 12, "one_class": "c"} | ({"common": ("test",)} if common else {})
    setup = make_problem(SIZES, silos=silos)
    page, store, auc = LocalOnly(), ClientStore(str(tmp_path / "own")), CLIENT_METRICS["auc"]
    metrics, sides = ClientMetrics((auc,), auc), []
    for seed in (0, 1):
        round = make_round(replace(setup, seed=seed), stack=2, private=store)
        model = page.model(page.init(replace(setup, seed=seed)), setup)
        scores = round.map_clients(
            evaluate, model, training=setup.training, splits=("test",), keep_outcomes=True, client_metrics=metrics
        )
        sides.append((scores, (store, {c: ref for s in scores for c, ref in s.outcomes.items()})))
    tables = [by_client(scores, auc) for scores, _ in sides]
    scored = ("a", "b", "c") if common else ("a", "b")
    for table in tables:
        assert [client for client in SIZES if table[client]["test/auc"] is not None] == list(scored)
        assert summary(table, "test", auc)["auc/undefined"] == 3 - len(scored)
    kept = [store.load(OUTCOMES, refs, "c") for _, (_, refs) in sides]
    assert [("auc" in outcomes, "correct" in outcomes) for outcomes in kept] == [(common, True)] * 2
    found = compare_pairs(PlainRunner(), setup.silos, [sides[0][1]], [sides[1][1]], auc)
    expected = np.mean([tables[0][client]["test/auc"] - tables[1][client]["test/auc"] for client in scored])
    assert found.mean == pytest.approx(expected)
    assert found.low <= found.mean <= found.high
    if not common:
        alone = setup.silos.select(["c"])
        assert compare_pairs(PlainRunner(), alone, [sides[0][1]], [sides[1][1]], auc) is None
