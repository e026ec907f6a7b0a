"""What clients tell of their validation rows with what they trained, against torch's own losses on rows from disk."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.conditional import Conditional
from flows.methods.ditto import Ditto
from flows.methods.fedavg import FedAvg
from flows.methods.pooled import Pooled
from models.networks.mlp import MLP
from models.training.objectives import Focal, SquaredError
from silos.cohort import Cohort
from silos.errors import UserError
from silos.storage.partition_store import open_client, open_common_rows
from tasks.evaluate import evaluate
from tasks.execution.steps import step
from tasks.local_train import local_train
from tasks.tracking.result_tables import by_client

SIZES = {"a": 9, "b": 12, "c": 4}


def loss_of(setup, weights, client, common=False):
    """The mean cross-entropy, or squared error, of one client's validation rows with these weights, by torch."""
    folder, manifest = Path(setup.silos.folder), setup.silos.manifest
    opened = open_common_rows(folder, manifest, "validation") if common else None
    x, y = opened or open_client(folder, manifest.client(client), "validation")
    found, y = setup.network.apply(weights, {}, torch.from_numpy(x), None).double(), torch.from_numpy(y)
    if setup.training.objective.task == "regression":
        return float(torch.nn.functional.mse_loss(found[:, 0], y.double()))
    return float(torch.nn.functional.cross_entropy(found, y))


def of_each(update, client):
    return {name: w[update.clients.index(client)] for name, w in update.each.items()}


@pytest.mark.parametrize("common", [(), ("validation",)])
@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
def test_a_client_tells_its_cross_entropy_with_the_weights_it_was_given_and_with_those_it_trained(
    engine, common, make_problem, make_round
):
    """Also where it trains with another loss, and where validation rows are nobody's."""
    setup = make_problem(SIZES, silos={"validation": 12, "common": common}, objective=Focal(2.0, 3.0), engine=engine)
    model, round = FedAvg().model(FedAvg().init(setup), setup), make_round(setup, validate=True)
    for update in round.train(local_train, model, each=True):
        for client in update.clients:
            before, after = update.validation[client]
            assert before == pytest.approx(loss_of(setup, model.shared, client, bool(common)), abs=1e-6)
            assert after == pytest.approx(loss_of(setup, of_each(update, client), client, bool(common)), abs=1e-6)
            assert after != before
            assert round.validation[client] == update.validation[client]
    assert set(round.validation) == set(SIZES)


def test_of_a_regression_it_is_the_mean_squared_error(make_problem, make_round):
    def rows_of(client, total):
        rng = np.random.default_rng(list(client.encode()))
        return rng.normal(size=(total, 5)), rng.normal(size=total)

    silos = {"validation": 11, "task": "regression", "rows_of": rows_of}
    setup = make_problem(SIZES, network=MLP(5, (4,), 1), silos=silos, objective=SquaredError())
    model, round = FedAvg().model(FedAvg().init(setup), setup), make_round(setup, validate=True)
    for update in round.train(local_train, model, each=True):
        for client in update.clients:
            expected = (loss_of(setup, w, client) for w in (model.shared, of_each(update, client)))
            assert update.validation[client] == pytest.approx(tuple(expected), rel=1e-5)


def test_of_fewer_than_ten_different_rows_nothing_is_told(make_problem, make_round):
    """Copies of a row are one row."""
    different = {"a": 9, "b": 10, "c": 40}

    def rows_of(client, total):
        rng = np.random.default_rng(list(client.encode()))
        x, y = rng.normal(size=(different[client], 5)), rng.integers(0, 3, different[client])
        return np.resize(x, (total, 5)), np.resize(y, total)

    setup = make_problem(dict.fromkeys(SIZES, 40), silos={"validation": 20, "rows_of": rows_of})
    model, round = FedAvg().model(FedAvg().init(setup), setup), make_round(setup, validate=True)
    round.train(local_train, model)
    assert {c: all(map(math.isfinite, pair)) for c, pair in round.validation.items()} == {
        "a": False,
        "b": True,
        "c": True,
    }
    assert all(map(math.isnan, round.validation["a"]))


def test_being_asked_changes_nothing_but_the_bytes(make_problem, play):
    setup = make_problem(SIZES, silos={"validation": 12})
    asked, plain = (play(FedAvg(), setup, [1, 2], validate=asks) for asks in (True, False))
    assert asked.state.sha256() == plain.state.sha256()
    assert asked.reports == plain.reports
    for ours, theirs in zip(asked.rounds, plain.rounds, strict=True):
        assert ours.tally.bytes_up - theirs.tally.bytes_up == 2 * 4 * len(SIZES)
        assert ours.tally.bytes_down == theirs.tally.bytes_down
        assert theirs.validation is None


def test_a_client_that_trains_twice_in_a_round_tells_of_the_last_time(make_problem, play):
    """Ditto's personal weights, which begin where the shared ones do."""
    setup = make_problem(SIZES, silos={"validation": 12})
    played = play(Ditto(), setup, [1], validate=True)
    store, refs = played.private, played.state.private["personal"]
    for client in SIZES:
        own = {name: torch.from_numpy(w.copy()) for name, w in store.load("personal", refs, client).items()}
        assert played.rounds[0].validation[client][1] == pytest.approx(loss_of(setup, own, client), abs=1e-6)


def test_members_of_a_pooled_client_answer_each_for_itself(make_problem, play):
    setup = make_problem(SIZES, silos={"validation": 12})
    start, played = Pooled().init(setup), play(Pooled(), setup, [1], validate=True)
    told = played.rounds[0].validation
    for client in SIZES:
        expected = (loss_of(setup, s.tensors["weights"], client) for s in (start, played.state))
        assert told[client] == pytest.approx(tuple(expected), abs=1e-6)
    assert played.rounds[0].tally.bytes_up == 0


def test_with_statistics_of_its_own_a_pooled_member_answers_with_them(make_problem, play):
    """Swapped for zeros they would answer otherwise; each is scored as evaluation scores it."""
    setup = make_problem(SIZES, silos={"validation": 12})
    page = Conditional(arm="pooled")
    played = play(page, setup, [1], validate=True)
    round, model = played.rounds[0], page.model(played.state, setup)
    table = by_client(round.map_clients(evaluate, model, silos=setup.silos, training=setup.training))
    for client in SIZES:
        assert round.validation[client][1] == pytest.approx(table[client]["validation/loss"], abs=1e-6)


@step
def silent_train(cohort: Cohort, model, training, private, seed, round, device="cpu"):
    return local_train.fn(cohort, model, training, private, seed, round, device)


def test_a_step_that_cannot_tell_is_refused_with_the_way_out(make_problem, make_round):
    setup = make_problem(SIZES, silos={"validation": 12})
    model = FedAvg().model(FedAvg().init(setup), setup)
    with pytest.raises(
        UserError, match=r"clients\.sampling\.kind: got improving, expected uniform or by_size, since silent_train of"
    ):
        replace(make_round(setup), validation={}).train(silent_train, model)
