"""Private local training as a client does it: what leaves, what it costs, and which faults the checks here find."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.finetune import FineTune
from flows.methods.local_only import LocalOnly
from models.client_model import Model
from models.networks.mlp import MLP
from models.privacy_accounting import epsilon, rho
from models.server_state import ClientStateRefs
from models.training.engine import Privacy, Training
from models.training.keyed_noise import KeyedNormals
from models.training.optimizers import SGD
from models.training.private_training import clipped_sums
from silos.client_store import ClientStore
from silos.cohort import Cohort, make_stacks
from silos.errors import RefusalError
from silos.privacy.owner_file import OWNER_FILE, make_store
from tasks.evaluate import evaluate, sum_targets
from tasks.execution.load_client_data import load_rows
from tasks.fit_scale import check_scale
from tasks.local_train import local_train
from tasks.messages.message_policy import privacy_rules_of
from tasks.messages.round_messages import Update
from tasks.messages.score_messages import Scores
from tasks.privacy.record_answers import cost_of_run, digest_of, noise_for, report_privacy_cost, shares_of_rows
from tasks.remote.step_list import client_steps, message_types, returned_by

CLIENTS = {"c0": 24, "c1": 31, "c2": 18}
PRIVACY = Privacy(clip=0.5, noise_multiplier=2.0, divisor=20.0, rounds=4)
RATE = 0.3


@pytest.fixture
def problem(make_problem):
    return make_problem(CLIENTS, network=MLP(5, (6,), 3), optimiser=SGD(RATE), epochs=1, privacy=PRIVACY)


def _answers(setup, tmp_path, weights=None, store="main", **options):
    """Return the updates of all clients, each with its own weights."""
    make_store(tmp_path / store / "private")  # with its own register of rows
    weights = weights or FedAvg().init(setup).tensors["weights"]
    model = Model(setup.network, weights, clients=setup.silos.clients)
    cohort = Cohort(setup.silos, make_stacks(setup.silos, 2))
    private = ClientStore(str(tmp_path / store / "private" / "run"))
    options = {"training": setup.training, "private": private, "seed": 0, "round": 1, **options}
    return local_train.fn(cohort, model, each=True, **options)


def _own(updates):
    """Return the weights of each client as a vector, by name."""
    flat = {}
    for update in updates:
        for index, client in enumerate(update.clients):
            flat[client] = torch.cat([w[index].flatten() for _, w in sorted(update.each.items())])
    return flat


def _start(setup):
    return torch.cat([w.flatten() for _, w in sorted(FedAvg().init(setup).tensors["weights"].items())])


def _without_rows(monkeypatch):
    """Let no row count, so that what leaves is the noise alone."""
    monkeypatch.setattr(
        "tasks.privacy.train_with_noise.shares_of_rows",
        lambda _silos, _stack, rows: torch.zeros_like(rows.y, dtype=torch.float32),
    )


def _without_noise(monkeypatch):
    monkeypatch.setattr(KeyedNormals, "fill", lambda _, numbers: numbers.zero_())


def faults(setup, fewer, tmp_path, monkeypatch):
    """List what is wrong with private training: the checks that each planted fault must fail.

    Args:
        setup: A problem whose gradients are longer than the clip norm.
        fewer: The same rows without one of client c1.
    """
    found, size = set(), RATE / PRIVACY.divisor
    with monkeypatch.context() as patch:
        _without_noise(patch)
        change = {
            client: float((w - _own(_answers(fewer, tmp_path, store="quiet"))[client]).norm()) / size
            for client, w in _own(_answers(setup, tmp_path, store="quiet")).items()
        }
        if change["c1"] > PRIVACY.clip * 1.001:
            found.add("one row changes more than the clip norm")
        if max(change["c0"], change["c2"]) > 0:
            found.add("a client depends on the rows of another")
    with monkeypatch.context() as patch:
        _without_rows(patch)
        first, other = (_own(_answers(setup, tmp_path, store=name)) for name in ("first", "other"))
    start = _start(setup)
    drawn = {client: (start - w) / (size * PRIVACY.clip * PRIVACY.noise_multiplier) for client, w in first.items()}
    everything = torch.cat([*drawn.values()])
    sizes = [w.numel() for _, w in sorted(FedAvg().init(setup).tensors["weights"].items())]
    if any(bool((part == 0).all()) for values in drawn.values() for part in values.split(sizes)):
        found.add("a weight has no noise")
    deviation, error = float(everything.std()), 4 / math.sqrt(2 * len(everything))
    if abs(deviation - 1) > error:
        found.add("the noise has another deviation")
    if abs(float(torch.corrcoef(torch.stack([drawn["c0"], drawn["c1"]]))[0, 1])) > 0.5:
        found.add("two clients share their noise")
    if torch.equal(first["c0"], other["c0"]):
        found.add("the noise does not follow from the client's secret")
    for update in _answers(setup, tmp_path, store="losses"):
        if len(update.loss):
            found.add("losses leave")
        if update.shares is None or len(set(update.shares.tolist())) != 1:
            found.add("the mean depends on numbers of rows")
    return found


@pytest.fixture
def fewer(problem, make_problem, tmp_path):
    """The problem without the last training row of c1, in data of another name."""
    stored = np.load(tmp_path / "small.npz")
    rows = {
        client: (stored["x"][stored["client"] == client], stored["y"][stored["client"] == client]) for client in CLIENTS
    }

    def rows_of(client, total):
        x, y = rows[client]
        keep = np.ones(len(x), bool)
        if client == "c1":
            keep[CLIENTS["c1"] - 1] = False
        return x[keep][:total], y[keep][:total]

    less = {**CLIENTS, "c1": CLIENTS["c1"] - 1}
    return make_problem(
        less,
        network=problem.network,
        optimiser=SGD(RATE),
        epochs=1,
        privacy=PRIVACY,
        silos={"rows_of": rows_of, "name": "fewer"},
    )


def test_private_training_has_none_of_the_faults_that_are_looked_for(problem, fewer, tmp_path, monkeypatch):
    assert faults(problem, fewer, tmp_path, monkeypatch) == set()


def _by_rows(monkeypatch):
    real = local_train.fn.__wrapped__.__globals__["train_with_noise"]

    def divided(silos, stack, rows, network, weights, context, training, *rest):
        few = replace(training, privacy=replace(training.privacy, divisor=float(rows.counts[0]) / 4))
        return real(silos, stack, rows, network, weights, context, few, *rest)

    monkeypatch.setattr("tasks.local_train.train_with_noise", divided)


def _changed(change):
    def plant(monkeypatch):
        fill = KeyedNormals.fill

        def fill_and_change(self, numbers):
            fill(self, numbers)
            change(numbers)

        monkeypatch.setattr(KeyedNormals, "fill", fill_and_change)

    return plant


def _halve(numbers):
    numbers /= 2


def _leave_biases(numbers):
    if len(numbers) <= 6:
        numbers[:] = 0


def _public_key(monkeypatch):
    monkeypatch.setattr("silos.privacy.secret.Secret.key", lambda *_: bytes(32))


def _not_clipped(monkeypatch):
    monkeypatch.setattr("models.training.private_training._Clipping._scale", lambda _self, _squares, shares: shares)


def _row_weights(monkeypatch):
    real = local_train.fn.__wrapped__.__globals__["build_update"]

    def weighted(stack, model, trained, rows, private, shares, *rest):
        return real(stack, model, trained, rows, private, None, *rest)

    monkeypatch.setattr("tasks.local_train.build_update", weighted)


def _report_losses(monkeypatch):
    real = local_train.fn.__wrapped__.__globals__["train_with_noise"]
    monkeypatch.setattr("tasks.local_train.train_with_noise", lambda *a: real(*a)._replace(loss=torch.ones(a[1].size)))
    monkeypatch.setattr("tasks.execution.steps.unprotected", lambda *_: "")


def _mix_clients(monkeypatch):
    real = local_train.fn.__wrapped__.__globals__["train_with_noise"]

    def mixed(*arguments):
        trained = real(*arguments)
        return trained._replace(weights={n: w.mean(0, keepdim=True).expand_as(w) for n, w in trained.weights.items()})

    monkeypatch.setattr("tasks.local_train.train_with_noise", mixed)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_report_losses, "losses leave"),
        (_mix_clients, "a client depends on the rows of another"),
        (_not_clipped, "one row changes more than the clip norm"),
        (_by_rows, "one row changes more than the clip norm"),
        (_changed(_halve), "the noise has another deviation"),
        (_changed(_leave_biases), "a weight has no noise"),
        (_public_key, "two clients share their noise"),
        (_public_key, "the noise does not follow from the client's secret"),
        (_row_weights, "the mean depends on numbers of rows"),
    ],
)
def test_a_planted_fault_is_found(plant, found, problem, fewer, tmp_path, monkeypatch):
    plant(monkeypatch)
    assert found in faults(problem, fewer, tmp_path, monkeypatch)


def test_the_same_question_gets_the_same_bytes_and_other_weights_other_noise(problem, tmp_path):
    one, again = (_own(_answers(problem, tmp_path)) for _ in range(2))
    assert all(torch.equal(one[client], again[client]) for client in CLIENTS)
    moved = {name: w + 1e-6 for name, w in FedAvg().init(problem).tensors["weights"].items()}
    other = _own(_answers(problem, tmp_path, moved))
    assert all(float((one[client] - other[client]).abs().mean()) > 0.1 * RATE / PRIVACY.divisor for client in CLIENTS)
    (cost,) = {float(c) for message in _costs(problem, tmp_path) for c in message.spent}
    assert cost == pytest.approx(cost_of_run(PRIVACY, 1)), "both answers are of one run"


def _costs(setup, tmp_path, store="main"):
    cohort = Cohort(setup.silos, make_stacks(setup.silos, 2))
    return report_privacy_cost.fn(cohort, setup.training, ClientStore(str(tmp_path / store / "private")))


def test_a_dealing_to_other_workers_gives_the_same_bits(problem, make_round, tmp_path):
    model = FedAvg().model(FedAvg().init(problem), problem)
    (tmp_path / "own").mkdir()
    private = ClientStore(str(tmp_path / "own" / "private"))
    one, other = (make_round(problem, workers=n, private=private).train(local_train, model) for n in (1, 2))
    for a, b in zip(one, other, strict=True):
        assert a.clients == b.clients
        assert all(torch.equal(a.sums[name], b.sums[name]) for name in a.sums)


def test_a_round_of_fedavg_is_the_mean_of_clients_that_count_the_same(problem, play, tmp_path, monkeypatch):
    _without_noise(monkeypatch)
    played = play(FedAvg(), problem, [1])
    mean = torch.stack([*_own(_answers(problem, tmp_path)).values()]).mean(0)
    found = torch.cat([w.flatten() for _, w in sorted(played.state.tensors["weights"].items())])
    torch.testing.assert_close(found, mean, rtol=1e-5, atol=1e-6)
    assert played.reports[0].metrics == {}, "no loss"


def test_beyond_the_owners_budget_a_client_sends_nothing(problem, tmp_path):
    folder = tmp_path / "main" / "private"
    make_store(folder)
    file = folder / OWNER_FILE
    file.write_text(file.read_text().replace("budget: 8.0 ", "budget: 0.5 "))
    with pytest.raises(RefusalError, match=r"expected one within its privacy budget of 0\.5 at delta 1e-05"):
        _answers(problem, tmp_path)
    assert {float(c) for message in _costs(problem, tmp_path) for c in message.spent} == {0.0}


def test_the_noise_of_a_run_has_the_epsilon_that_was_set():
    for target, delta, rounds, epochs in ((1.0, 1e-5, 10, 1), (4.0, 1e-6, 50, 2), (8.0, 1e-5, 7, 3)):
        privacy = Privacy(1.0, noise_for(target, delta, rounds * epochs), 10.0, rounds)
        assert epsilon(cost_of_run(privacy, epochs), delta) == pytest.approx(target, rel=1e-6)
        assert cost_of_run(privacy, epochs) == pytest.approx(rho(target, delta), rel=1e-6)


def test_weights_and_statistics_that_clients_keep_are_refused(problem, tmp_path):
    for part in ("personal", "context"):
        start = FedAvg().init(problem).tensors["weights"]
        model = Model(problem.network, start, clients=problem.silos.clients)
        kept = replace(model, **{part: ClientStateRefs("kept", {}, {"more": torch.zeros(1)})})
        cohort = Cohort(problem.silos, make_stacks(problem.silos, 2))
        make_store(tmp_path / "main" / "private")
        private = ClientStore(str(tmp_path / "main" / "private" / "run"))
        with pytest.raises(RefusalError, match="that clients keep"):
            local_train.fn(cohort, kept, problem.training, private, seed=0, round=1)


def test_numbers_without_noise_do_not_leave_with_noisy_ones(problem, tmp_path):
    with pytest.raises(RefusalError, match=r"Update\.validation: got numbers of training rows without noise"):
        _answers(problem, tmp_path, validate=True)
    cohort = Cohort(problem.silos, make_stacks(problem.silos, 2))
    model = FedAvg().model(FedAvg().init(problem), problem)
    private = ClientStore(str(tmp_path / "main" / "private" / "run"))
    assert evaluate.fn(cohort, model, problem.training, private, splits=("test",))
    with pytest.raises(RefusalError, match=r"Scores\.sums"):
        evaluate.fn(cohort, model, problem.training, private, splits=("train",))


def test_an_owner_can_demand_noise(problem, tmp_path):
    folder = tmp_path / "main" / "private"
    make_store(folder)
    file = folder / OWNER_FILE
    file.write_text(file.read_text().replace("private_training: false", "private_training: true"))
    assert _answers(problem, tmp_path)
    plain = replace(problem, training=replace(problem.training, privacy=None))
    with pytest.raises(RefusalError, match="as the owner has set under private_training"):
        _answers(plain, tmp_path)


def test_rows_of_a_unit_count_together(problem, monkeypatch):
    monkeypatch.setattr("tasks.privacy.record_answers.open_units", lambda *_: np.arange(24) // 6)
    stack = make_stacks(problem.silos.select(["c0"]), 1)[0]
    shares = shares_of_rows(problem.silos, stack, load_rows(problem.silos, stack, "train", "cpu"))
    torch.testing.assert_close(shares, torch.full((1, 24), 1 / 6))


def test_the_page_lists_the_rule_of_every_field_that_may_leave_a_private_step():
    lines = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    listed = {
        (record.strip("`"), field.strip("` ")): rule
        for record, fields, rule in (row for row in cells if len(row) == 3)
        for field in fields.split(",")
    }
    sent = {kind for step in client_steps().values() for kind in message_types(returned_by(step.name))}
    ruled = {(m.__name__, field): rule.value for m in sent for field, rule in privacy_rules_of(m).items()}
    assert {name for name, _ in ruled} >= {Update.__name__, Scores.__name__}
    # messages that extend an update are those of methods without noise
    extended = {m.__name__ for m in sent if issubclass(m, Update) and m is not Update}
    assert listed == {key: rule for key, rule in ruled.items() if key[0] not in extended}


def test_the_batch_size_is_no_part_of_a_question(problem, tmp_path):
    one = _own(_answers(problem, tmp_path))
    other = replace(problem, training=replace(problem.training, batch=7))
    assert all(torch.equal(weights, one[client]) for client, weights in _own(_answers(other, tmp_path)).items())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clip", 1e-7),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", math.nan),
        ("divisor", -1.0),
        ("rounds", 0),
        ("rounds", -1),
    ],
)
def test_a_price_or_clip_norm_that_protects_nothing_cannot_be_asked_for(key, value, problem):
    with pytest.raises(ValueError, match=key):
        replace(PRIVACY, **{key: value})
    with pytest.raises(ValueError, match="epochs"):
        replace(problem.training, epochs=0)
    assert Training(problem.training.objective, SGD(0.1), 0, 4).epochs == 0, "without privacy, as fine-tuning may"


def test_an_answer_that_is_paid_for_has_the_noise_that_is_paid_for(problem, tmp_path):
    cheap = replace(problem, training=replace(problem.training, privacy=replace(PRIVACY, noise_multiplier=20.0)))
    _answers(cheap, tmp_path)
    _answers(problem, tmp_path)
    spent = {round(float(c), 9) for message in _costs(problem, tmp_path) for c in message.spent}
    assert spent == {round(cost_of_run(PRIVACY, 1) + cost_of_run(cheap.training.privacy, 1), 9)}


def test_columns_that_each_client_aligns_by_its_own_rows_are_refused(problem, tmp_path):
    aligned = replace(problem.silos, scaling=replace(problem.silos.scaling, own_columns=(0,)))
    with pytest.raises(RefusalError, match="aligns by its own rows"):
        _answers(replace(problem, silos=aligned), tmp_path)


def test_means_of_rows_that_fill_in_missing_values_are_refused(make_problem, tmp_path):
    def rows_of(value):
        x = np.full((31, 5), 0.5)
        x[::2, 0], x[1, 0] = np.nan, value
        return lambda _, total: (x[:total], np.arange(total) % 3)

    def setup(value, fill):
        columns = [{"name": f"x{at}", "missing": {"fill": fill}} for at in range(5)]
        silos = {
            "rows_of": rows_of(value),
            "features": columns,
            "validation": 0,
            "test": 0,
            "name": f"v{value > 1}{fill}",
        }
        return make_problem({"c0": 31}, network=MLP(5, (), 3), epochs=1, privacy=PRIVACY, silos=silos)

    def change(fill):
        sums = []
        for value in (0.5, 1e6):
            one = setup(value, fill)
            (stack,) = make_stacks(one.silos, 1)
            rows = load_rows(one.silos, stack, "train", "cpu")
            weights = {name: w[None] for name, w in FedAvg().init(one).tensors["weights"].items()}
            shares = shares_of_rows(one.silos, stack, rows)
            sums.append(clipped_sums(one.network, weights, {}, rows, one.training, shares))
        first, second = (torch.cat([total.flatten() for _, total in sorted(each.items())]) for each in sums)
        return float((first - second).norm())

    assert change(0) <= 2 * PRIVACY.clip < 5 * PRIVACY.clip < change("mean"), "one value changes all that are filled in"
    with pytest.raises(RefusalError, match=r"data: x0: got missing: \{fill: mean\}, expected a number with"):
        _answers(setup(0.5, "mean"), tmp_path)
    assert len(_answers(setup(0.5, 0), tmp_path)) == 1


def test_under_an_owners_demand_no_scores_of_weights_without_noise_leave(problem, tmp_path):
    folder = tmp_path / "main" / "private"
    make_store(folder)
    file = folder / OWNER_FILE
    file.write_text(file.read_text().replace("private_training: false", "private_training: true"))
    start = FedAvg().init(problem).tensors["weights"]
    kept = Model(problem.network, {}, ClientStateRefs("kept", {}, start), clients=problem.silos.clients)
    cohort = Cohort(problem.silos, make_stacks(problem.silos, 2))
    private = ClientStore(str(folder / "run"))
    alone = replace(problem.training, privacy=None, reports_loss=False)
    assert local_train.fn(cohort, kept, alone, private, seed=0, round=1), "weights stay, and no loss leaves"
    with pytest.raises(RefusalError, match=r"Scores\.sums: .* as the owner has set under private_training"):
        evaluate.fn(cohort, kept, problem.training, private)
    for step in (sum_targets, check_scale):
        model = () if step is sum_targets else (kept,)
        with pytest.raises(RefusalError, match="as the owner has set under private_training"):
            step.fn(cohort, *model, private=private)


def test_of_own_weights_that_stay_no_loss_leaves_under_privacy(problem, play):
    for page in (LocalOnly(), FineTune()):
        played = play(page, problem, [1])
        assert "loss/train" not in played.reports[0].metrics
        model = page.scored_model(played.state, played.rounds[0])
        assert isinstance(model.personal, ClientStateRefs)


def test_no_name_of_a_tensor_stands_for_a_name_and_numbers():
    """Otherwise two questions of one hash would have one noise."""
    one = {"weights": {"a": torch.zeros(1, 2), "b": torch.ones(1, 1)}}
    forged = {"weights": {"a": torch.zeros(1, 2), "": torch.ones(1, 1)}}
    others = [forged, {"weights": {**one["weights"], "c": torch.zeros(1, 0)}}, {"context": one["weights"]}]
    assert len({digest_of("", each, 0) for each in (one, *others)}) == 4
