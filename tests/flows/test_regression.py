"""Every method on a regression; with no hidden layer the optimum is least squares, which numpy knows."""

from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.base import find_method, method_names
from flows.project.project import Project
from flows.training.training_setup import training_setup
from models.metrics.task_metrics import TASK_METRICS
from models.networks.mlp import MLP
from models.training.objectives import SquaredError
from models.training.optimizers import SGD
from silos.cohort import Cohort, make_stacks
from silos.errors import UserError
from silos.storage.partition_store import open_client
from tasks.evaluate import evaluate
from tasks.paired_outcomes import pair_outcomes
from tasks.tracking.result_tables import by_client, summary

SIZES = {"oslo": 30, "lyon": 60, "rome": 45, "one": 1}
CLASSES_ONLY = {"selective", "selective_authors", "uefl", "uefl_authors"}
RMSE = TASK_METRICS["regression"]
LINEAR = ["data.source={kind: synthetic, task: linear, clusters: 1, clients_per_cluster: 2, rows: 8, features: 2}"]
LINEAR += ["data.name=lines", "data.scheme=[{kind: column, column: client}]"]


def numbers(client: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """y = a + x·theta + noise, with a and theta of the client's own."""
    rng = np.random.default_rng(list(client.encode()))
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    return x, x @ rng.normal(size=5) + rng.normal() + 0.3 * rng.normal(size=rows)


@pytest.fixture
def regression(make_problem):
    """Full batches, so that a round is gradient descent."""

    def build(hidden=(), **training):
        usual = {"objective": SquaredError(), "optimiser": SGD(0.1), "epochs": 1, "batch": 1000}
        silos = {"rows_of": numbers, "task": "regression"}
        return make_problem(SIZES, network=MLP(5, hidden, 1), silos=silos, **{**usual, **training})

    return build


def rows_of(setup, client, split="train"):
    return open_client(Path(setup.silos.folder), setup.silos.manifest.client(client), split)


def least_squares(setup, clients):
    """Coefficients and intercept, (6,) float64."""
    x, y = (np.concatenate(part) for part in zip(*(rows_of(setup, c) for c in clients), strict=True))
    return np.linalg.lstsq(np.c_[x, np.ones(len(x))].astype(float), y.astype(float), rcond=None)[0]


def coefficients(weights):
    return np.append(np.asarray(weights["dense0.weight"])[:, 0], np.asarray(weights["dense0.bias"]))


def test_pooled_reaches_least_squares(regression, play):
    setup = regression(epochs=200)
    weights = play(find_method("pooled")(), setup, [1, 2]).state.tensors["weights"]
    np.testing.assert_allclose(coefficients(weights), least_squares(setup, SIZES), atol=2e-5)


def test_mini_batches_come_near_to_least_squares(regression, play):
    setup = regression(epochs=40, batch=16, optimiser=SGD(0.01))
    weights = play(find_method("pooled")(), setup, [1, 2, 3]).state.tensors["weights"]
    np.testing.assert_allclose(coefficients(weights), least_squares(setup, SIZES), atol=0.1)


def test_fedavg_with_one_full_batch_a_round_reaches_the_least_squares_of_all_rows(regression, play):
    setup = regression()
    weights = play(find_method("fedavg")(), setup, range(1, 301)).state.tensors["weights"]
    np.testing.assert_allclose(coefficients(weights), least_squares(setup, SIZES), atol=2e-5)


def test_local_only_reaches_each_clients_own_least_squares(regression, play):
    setup = regression(epochs=400)
    played = play(find_method("local_only")(), setup, [1, 2])
    refs = played.state.private["weights"]
    for client in ("oslo", "lyon", "rome"):
        own = played.private.load("weights", refs, client)
        np.testing.assert_allclose(coefficients(own), least_squares(setup, [client]), atol=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*method_names()} - CLASSES_ONLY))
def test_every_method_lowers_the_rmse_on_a_network_with_hidden_units(name, regression, play, sequential):
    setup = regression(hidden=(8,), epochs=2, batch=8, optimiser=SGD(0.05))
    found = []
    for form in (setup, sequential(setup)):
        played = play(find_method(name)(), form, [1, 2, 3, 4])
        found.append(scores_of(played, played.state))
    before = summary(by_client(scores_of(played, played.page.init(setup)), RMSE), "test", RMSE)
    after, reference = (summary(by_client(s, RMSE), "test", RMSE) for s in found)
    assert after["rmse/pooled"] < 0.99 * before["rmse/pooled"]  # FedSGD has made four steps
    assert after == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize("name", sorted(CLASSES_ONLY))
def test_a_method_that_is_of_classes_only_says_so(name, regression):
    with pytest.raises(
        UserError,
        match=rf"data\.source: got numeric targets, expected classes, since {name} .* Use a source with classes",
    ):
        find_method(name)().init(regression())


def test_the_rmse_is_the_root_of_the_mean_over_clients_of_their_mean_squared_error(regression, play):
    played = play(find_method("fedavg")(), regression(), [1])
    weights, setup = played.state.tensors["weights"], played.setup
    squares = {}
    for client in SIZES:
        x, y = rows_of(setup, client, "test")
        squares[client] = np.mean((np.c_[x, np.ones(len(x))] @ coefficients(weights) - y) ** 2)
    table = by_client(scores_of(played, played.state), RMSE)
    assert {c: table[c]["test/rmse"] ** 2 for c in SIZES} == pytest.approx(squares, rel=1e-5)
    assert summary(table, "test", RMSE)["rmse/pooled"] == pytest.approx(np.mean(list(squares.values())) ** 0.5)


def test_the_paired_sums_are_of_squared_errors_row_by_row(regression, play):
    played = [play(find_method("fedavg")(), regression(), range(1, rounds)) for rounds in (2, 5)]
    kept = []
    for one in played:
        scores = scores_of(one, one.state, keep_outcomes=True)
        kept.append([(one.private, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()})])
    setup = played[0].setup
    (sums,) = pair_outcomes.fn(Cohort(setup.silos, make_stacks(setup.silos, len(SIZES))), *kept)
    assert set(sums.clients) == set(SIZES)
    for at, client in enumerate(sums.clients):
        x, y = rows_of(setup, client, "test")
        first, second = (
            (np.c_[x, np.ones(len(x))] @ coefficients(p.state.tensors["weights"]) - y) ** 2 for p in played
        )
        d = first - second
        assert sums.rows[at] == len(y)
        assert sums.by_seed[at].tolist() == pytest.approx([d.sum()], rel=1e-3)
        assert [float(s[at]) for s in (sums.squares, sums.mean_squares)] == pytest.approx([(d**2).sum()] * 2, rel=1e-3)


def test_outcomes_that_are_not_finite_are_compared_without_a_warning(regression, play, recwarn):
    played = play(find_method("fedavg")(), regression(), [1])
    broken = played.state.with_tensors(
        weights={n: torch.full_like(w, 1e30) for n, w in played.state.tensors["weights"].items()}
    )
    scores = scores_of(played, broken, keep_outcomes=True)
    kept = [(played.private, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()})]
    silos = played.setup.silos
    assert all(
        sums.by_seed.isnan().all() for sums in pair_outcomes.fn(Cohort(silos, make_stacks(silos, 2)), kept, kept)
    )
    assert not recwarn.list


def test_a_regression_needs_squared_error_and_a_classification_must_not_have_it(project):
    said = r"params\.yaml: training\.objective\.kind: got squared_error, expected cross_entr"
    with pytest.raises(UserError, match=said):
        training_setup(Project.open(["training.objective={kind: squared_error}"], project, derived=True), 0)
    said = (
        r"params\.yaml: training\.objective\.kind: got focal, expected squared_error, since "
        r"data/lines is a regression\. Use"
    )
    with pytest.raises(UserError, match=said):
        training_setup(Project.open([*LINEAR, "training.objective={kind: focal}"], project, derived=True), 0)


def test_a_regression_has_no_deep_ensemble(project):
    asked = [*LINEAR, "training.objective={kind: squared_error}", "model.members=3"]
    said = (
        r"params\.yaml: model\.members: got 3, expected 1, since data/lines is a regression .*\. "
        r"Set model\.members to 1\."
    )
    with pytest.raises(UserError, match=said):
        training_setup(Project.open(asked, project, derived=True), 0)


def test_the_network_of_a_regression_has_one_output(project):
    setup = training_setup(
        Project.open([*LINEAR, "training.objective={kind: squared_error}"], project, derived=True), 0
    )
    assert setup.network == MLP(2, (8,), 1)
    assert setup.training.objective == SquaredError()


def scores_of(played, state, **options):
    model = played.page.model(state, played.setup)
    setup = played.setup
    return played.rounds[0].map_clients(evaluate, model, silos=setup.silos, training=setup.training, **options)
