"""Boosted trees against scikit-learn, which trained them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from flows.methods.client_sampler import Uniform
from flows.methods.trees import Trees
from models.networks.exported_network import ExportedModel
from models.networks.network_factory import from_json, to_json
from models.networks.tree_ensemble import TreeEnsemble, fit_trees
from models.training.objectives import SquaredError
from silos.errors import UserError
from silos.storage.partition_store import open_client

SIZES = {"a": 90, "b": 60, "c": 45, "d": 1}
OPTIONS = {"iterations": 7, "leaves": 6, "depth": 4, "least_rows": 5}


def theirs(kind, x, y):
    return kind(
        max_iter=7, max_leaf_nodes=6, max_depth=4, min_samples_leaf=5, early_stopping=False, random_state=0
    ).fit(x.reshape(len(x), -1), y)


def rows_of(setup, client):
    x, y = open_client(Path(setup.silos.folder), setup.silos.manifest.client(client), "train")
    return x.copy(), y.copy()


def logits(model, x):
    return model.network.apply(model.shared, {}, torch.from_numpy(x), None)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_the_tensors_predict_what_scikit_learn_predicts(classes, dtype):
    """Whole numbers too, whose thresholds are far from the values only by a half."""
    rng = np.random.default_rng(classes)
    x = rng.normal(scale=5, size=(200, 4)).astype(dtype).astype(np.float32)
    y = x[:, 0] * x[:, 1] + rng.normal(size=200)
    if classes > 1:
        y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    network = TreeEnsemble(4, classes, 7, 6, 4)
    weights = fit_trees(network, x, y, 0.1, 5)
    found = network.apply(weights, {}, torch.from_numpy(x), None)
    if classes == 1:
        expected = theirs(HistGradientBoostingRegressor, x, y).predict(x)
        np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)
    else:
        expected = theirs(HistGradientBoostingClassifier, x, y).predict_proba(x)
        np.testing.assert_allclose(found.exp(), expected, atol=2e-6)


@pytest.mark.parametrize("present", [(0, 2), (1, 2, 3), (3,)])
def test_a_class_without_rows_has_the_least_probability(present):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)).astype(np.float32), rng.choice(present, 80)
    network = TreeEnsemble(3, 4, 7, 6, 4)
    found = network.apply(fit_trees(network, x, y, 0.1, 5), {}, torch.from_numpy(x), None).exp().numpy()
    absent = [c for c in range(4) if c not in present]
    np.testing.assert_allclose(found[:, absent], 1e-6 / 4, rtol=1e-3)
    if len(present) > 1:
        expected = theirs(HistGradientBoostingClassifier, x, y).predict_proba(x)
        np.testing.assert_allclose(found[:, list(present)], expected, atol=2e-6)


def test_silos_vote_by_rows_and_an_absent_silo_joins_the_vote_later(make_problem, play):
    setup = make_problem(SIZES)
    played = play(Trees(**OPTIONS), setup, [1, 2], absent={1: ["b"]})
    assert played.state.numbers["silos"] == ["a", "c", "d", "b"]
    assert played.state.finished
    x, _ = rows_of(setup, "a")
    total, mixed = sum(SIZES.values()), np.zeros((len(x), 3))
    for client, rows in SIZES.items():
        own_x, own_y = rows_of(setup, client)
        if len(np.unique(own_y)) < 2:
            mixed[:, own_y[0]] += rows / total
        else:
            model = theirs(HistGradientBoostingClassifier, own_x, own_y)
            mixed[:, model.classes_] += rows / total * model.predict_proba(x)
    np.testing.assert_allclose(logits(played.page.model(played.state, setup), x).exp(), mixed, atol=3e-6)
    first, second = (round.tally for round in played.rounds)
    assert first.bytes_up > 0
    assert second.bytes_up == pytest.approx(first.bytes_up / 3)
    assert second.bytes_down == 0


@pytest.mark.parametrize("arm", ["local", "pooled", "federated"])
def test_training_ends_when_all_silos_that_remain_have_trees(arm, make_problem, play):
    setup = make_problem(SIZES)
    played = play(Trees(arm=arm, **OPTIONS), setup, [1], absent={1: ["b"]}, leave={1: ["b"]})
    assert played.state.finished
    assert not play(Trees(arm=arm, **OPTIONS), setup, [1], absent={1: ["b"]}).state.finished


def test_training_does_not_wait_for_silos_that_never_train(make_problem, play):
    setup, trees = make_problem(SIZES), Trees(**OPTIONS)
    sampler = trees.sampler(Uniform(leave={"b": 1, "c": 2}))
    first, second = (sampler.sample(setup, number, {}) for number in (1, 2))
    assert (first.leaving, second.leaving) == (("b",), ("c",))
    assert Uniform(leave={"b": 1}).sample(setup, 1, {}).leaving == ()
    played = play(trees, setup, [1], absent={1: ["b"]}, leave={1: first.leaving})
    assert played.state.finished


def test_local_trees_stay_with_their_silo_and_pooled_trees_are_of_all_rows(make_problem, play):
    setup = make_problem(SIZES)
    local, pooled = (play(Trees(arm=arm, **OPTIONS), setup, [1]) for arm in ("local", "pooled"))
    assert set(local.state.private["trees"]) == set(SIZES)
    assert not local.state.tensors
    assert local.rounds[0].tally.bytes_up == 4 * 2 * len(SIZES)  # rows and loss
    x, y = rows_of(setup, "b")
    own = local.private.load("trees", local.state.private["trees"], "b")
    network = local.page.model(local.state, setup).network
    found = network.apply({n: torch.from_numpy(w) for n, w in own.items()}, {}, torch.from_numpy(x), None)
    expected = theirs(HistGradientBoostingClassifier, x, y).predict_proba(x)
    np.testing.assert_allclose(found.exp(), expected, atol=2e-6)
    rows, labels = (np.concatenate(part) for part in zip(*(rows_of(setup, c) for c in SIZES), strict=True))
    expected = theirs(HistGradientBoostingClassifier, rows, labels).predict_proba(x)
    np.testing.assert_allclose(logits(pooled.page.model(pooled.state, setup), x).exp(), expected, atol=2e-6)


def test_the_vote_of_one_silo_is_its_own_trees_to_the_bit(make_problem, play):
    setup = make_problem({"a": 90})
    federated, pooled = (play(Trees(arm=arm, **OPTIONS), setup, [1]) for arm in ("federated", "pooled"))
    for name, w in pooled.state.tensors["weights"].items():
        assert torch.equal(federated.state.tensors["weights"][name], w)


def test_trees_of_a_regression_are_averaged_by_rows(make_problem, play):
    def numbers(client, rows):
        rng = np.random.default_rng(list(client.encode()))
        x = rng.normal(size=(rows, 5)).astype(np.float32)
        return x, x[:, 0] ** 2 + 0.1 * rng.normal(size=rows)

    setup = make_problem(SIZES, objective=SquaredError(), silos={"rows_of": numbers, "task": "regression"})
    played = play(Trees(**OPTIONS), setup, [1])
    x, _ = rows_of(setup, "a")
    expected = sum(
        rows
        * (theirs(HistGradientBoostingRegressor, *rows_of(setup, c)).predict(x) if rows > 1 else rows_of(setup, c)[1])
        for c, rows in SIZES.items()
    ) / sum(SIZES.values())
    np.testing.assert_allclose(logits(played.page.model(played.state, setup), x)[:, 0], expected, atol=1e-5)


def test_trees_are_exported_and_rebuilt_from_their_card(make_problem, play):
    setup = make_problem(SIZES)
    model = (played := play(Trees(**OPTIONS), setup, [1])).page.model(played.state, setup)
    x = torch.from_numpy(rows_of(setup, "b")[0])
    assert from_json(to_json(model.network)) == model.network
    exported = ExportedModel(model.network, model.shared, {}, 3)
    program = exported.export(x[:2]).module()
    torch.testing.assert_close(program(x), logits(model, x.numpy()).softmax(-1))


def test_pictures_are_refused(make_problem):
    with pytest.raises(UserError, match=r"data\.source: got pictures of shape \(8, 8\), expected a table, since trees"):
        Trees().init(make_problem(SIZES, silos={"rows_of": lambda _, n: (np.zeros((n, 8, 8)), np.arange(n) % 3)}))
