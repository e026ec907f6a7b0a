"""What a run scores: common rows once, fresh and unseen clients apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flows.core.config.params_schema import EvaluationParams
from flows.methods.base import find_method
from flows.training.evaluation import Scorer
from flows.training.run_records.round_record import metrics_of
from flows.training.run_records.run_folder import RunFolder
from models.metrics.task_metrics import TASK_METRICS
from models.networks.mlp import MLP
from silos.cohort import Silos, open_common
from silos.data_params import DataParams
from silos.storage.partition_store import write
from tasks.evaluate import evaluate
from tasks.tracking.metric_names import metric_name_fault
from tasks.tracking.result_tables import by_client

DIGITS = {"name": "digits", "seed": 0, "source": {"kind": "digits"}}
EQUAL = {"kind": "equal", "clients": 3}
SPLIT = {"validation": 0.1, "test": 0.2}


@pytest.fixture
def open_digits(tmp_path):
    """Digits, partitioned as asked."""

    def build(*steps, **split):
        data = DataParams.model_validate({**DIGITS, "scheme": [EQUAL, *steps], "split": {**SPLIT, **split}})
        write(tmp_path / "digits", data, tmp_path)
        return Silos.open(tmp_path / "digits", str((steps, sorted(split))))

    return build


@pytest.fixture
def score(make_round, play, make_problem):
    """Scores of a method's model after one round."""

    def run(silos, name, clients=None):
        setup = make_problem({"a": 2}, network=MLP(64, (), 10), batch=32)
        setup = replace(setup, silos=silos.federated())
        played = play(find_method(name)(), setup, [1])
        everybody = replace(setup, silos=silos if clients is None else silos.select(clients))
        model = played.page.model(played.state, everybody)
        return model, played.rounds[0].map_clients(
            evaluate, model, silos=everybody.silos, training=setup.training, splits=("test",)
        )

    return run


def test_common_rows_are_every_clients_test_rows_and_nobodys_training_rows(open_digits, score):
    silos = open_digits(test_rows="common")
    x, y = open_common(silos, "test")
    assert len(y) == silos.common("test") == round(0.2 * 1797)
    model, scores = score(silos, "fedavg")
    logits = model.network.apply(model.shared, {}, torch.from_numpy(x), None)
    right = int((logits.argmax(1).numpy() == y).sum())
    assert {row["test/rows"] for row in by_client(scores).values()} == {len(y)}
    assert {row["test/accuracy"] for row in by_client(scores).values()} == {right / len(y)}


def test_one_clients_scores_on_common_rows_stand_for_all_where_the_model_is_the_same(open_digits, score):
    silos = open_digits(test_rows="common")
    _, each = score(silos, "fedavg")
    _, (one,) = score(silos, "fedavg", clients=silos.clients[:1])
    stood, found = by_client([one.for_all(silos.clients)]), by_client(each)
    assert list(stood) == list(silos.clients)
    for client in silos.clients:
        assert stood[client] == pytest.approx(found[client], rel=1e-6)


def test_personal_models_differ_on_common_rows(open_digits, score):
    silos = open_digits(test_rows="common")
    _, scores = score(silos, "local_only")
    assert len({row["test/accuracy"] for row in by_client(scores).values()}) > 1


@pytest.mark.parametrize("test_rows", ["own", "common"])
def test_uncertainty_without_dropout_is_that_of_the_scored_test_rows(
    test_rows, open_digits, play, make_problem, tmp_path
):
    silos = open_digits(test_rows=test_rows)
    setup = replace(make_problem({"a": 2}, network=MLP(64, (), 10), batch=32), silos=silos)
    played = play(find_method("fedavg")(), setup, [1])
    scorer = Scorer(played.page, silos, silos, TASK_METRICS["classification"], EvaluationParams())
    model = scorer.model(played.state, played.rounds[0])
    _, uncertainty = scorer.final_scores(model, played.rounds[0], RunFolder(tmp_path))
    scored = by_client(scorer.score(model, played.rounds[0]))
    for client in silos.clients:
        of_client = {"accuracy": "accuracy", "loss": "nll", "entropy": "entropy"}
        expected = {name: scored[client][f"test/{metric}"] for metric, name in of_client.items()}
        assert {name: uncertainty[client][name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_unseen_clients_are_scored_and_never_trained(open_digits, score):
    turned = {"kind": "rotation", "angles": [0, 90, 180]}
    silos = open_digits(turned, {"kind": "hold_out", "domains": ["rot90"]})
    (unseen,) = [c for c in silos.clients if silos.role(c) == "unseen"]
    assert silos.federated().clients == tuple(c for c in silos.clients if c != unseen)
    _, scores = score(silos, "fedavg")
    assert np.isfinite(by_client(scores)[unseen]["test/accuracy"])


@pytest.mark.parametrize("domains", [("東京", "京都"), ("a/b", "a|b"), (".", ".."), ("d" * 300, "d" * 300 + "e")])
def test_every_domain_has_metrics_of_its_own_whatever_its_name(domains, write_silos):
    silos = write_silos({"a": 5, "b": 5, "c": 5}, domains=dict(zip("abc", (*domains, domains[1]), strict=True)))
    about = {"test/rows": 1, "test/loss": 0.0, "test/entropy": 0.0}
    table = {c: {**about, "test/accuracy": v} for c, v in {"a": 0.25, "b": 0.5, "c": 1.0}.items()}
    found = {
        k: v for k, v in metrics_of(table, silos, TASK_METRICS["classification"]).items() if k.startswith("domain/")
    }
    assert sorted(v for name, v in found.items() if name.endswith("accuracy/mean")) == [0.25, 0.75]
    assert not any(map(metric_name_fault, found))
