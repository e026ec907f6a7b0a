"""The engine's batched program and one client after another train alike and measure the same running statistics."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from models.networks.cnn import CNN, BatchNormCNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.network import Network
from models.networks.resnet_vgg import Residual
from models.networks.wrappers.conditional_network import Bilinear, Ensemble
from models.prng import client_streams, fold_in, server_stream, shuffle, uniform
from models.training.engine import (
    Rows,
    Training,
    broadcast_weights,
    full_gradient,
    measure_batchnorm,
    normalisation_statistics,
    per_example_metrics,
    train,
)
from models.training.execution_plan import forms
from models.training.objectives import CrossEntropy, Focal, SquaredError
from models.training.optimizers import SGD, Adam

OPTIMISERS = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.05, 0.9, 0.01),
    "adam": Adam(0.01),
    "adam-decay": Adam(0.01, 0.1),
    "adamw": Adam(0.01, 0.1, decoupled=True),
}
SIZES = [11, 0, 1, 4, 9]
NAMES = ["oslo", "empty", "one", "four", "nine"]


def training(optimiser: str = "sgd", **changes) -> Training:
    return replace(Training(CrossEntropy(), OPTIMISERS[optimiser], epochs=2, batch=4), **changes)


def streams(names: list[str] = NAMES) -> Tensor:
    return client_streams(0, names, 1, "local_train")


NETWORKS = {
    "linear": MLP(100, (), 3),
    "mlp": MLP(100, (7, 6), 3),
    "cnn": CNN((10, 10), (3, 4), (6,), 3, kernel=3),
    "wide cnn": CNN((10, 10), (4,), (), 3, kernel=3, padding=True),
    "conditional mlp": MLP(100, (7,), 3, statistics=4),
    "conditional cnn": CNN((10, 10), (3, 4), (6,), 3, kernel=3, statistics=4),
    "cnn of planes": CNN((10, 10), (3, 4), (6,), 3, kernel=3, statistics=206, planes=2),
    "bilinear": Bilinear(100, 3, 4),
    "bilinear with a constant": Bilinear(100, 3, 4, constant=True),
    "ensemble": Ensemble(100, 3, 4, experts=2),
}


NORMALISING = Residual((10, 10), 3, (6,), 0.0, True, (4, 8))


def statistics(network) -> dict[str, Tensor]:
    """Each client's own, where the network takes any."""
    length = getattr(network, "statistics", 0)
    return {"statistics": torch.linspace(-1, 1, 5 * length).sin().view(5, length)} if length else {}


def others(network) -> list[str]:
    """What there is besides the reference."""
    return [kind for kind in forms(network) if kind != "sequential"]


def images(make_rows) -> Rows:
    """Rows of 10 x 10 numbers, of clients of all sizes."""
    rows = make_rows(SIZES)
    x = rows.x.repeat_interleave(20, 2) * torch.linspace(-1, 1, 100)
    return rows._replace(x=x.view(*rows.x.shape[:2], 10, 10))


@pytest.mark.sample(7)
@pytest.mark.parametrize("proximal", [0.0, 0.5])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_stack_at_once_equals_one_client_after_another(network, optimiser, dropout, proximal, make_rows):
    """In float64, where rounding is out of sight; the optimisers' own amplification of it stays below the tolerance."""
    network = replace(network, dropout=dropout)
    weights = {n: w.double() for n, w in broadcast_weights(network.init(server_stream(0, 0, "init")), 5).items()}
    rows = images(make_rows)
    rows = rows._replace(x=rows.x.double())
    context = {n: t.double() for n, t in statistics(network).items()}
    expected, losses, _ = train(
        network, weights, context, rows, training(optimiser, engine="sequential"), streams(), proximal
    )
    for engine in others(network):
        found, theirs, _ = train(
            network, weights, context, rows, training(optimiser, engine=engine), streams(), proximal
        )
        for name in weights:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-10)
            assert not torch.equal(found[name][0], weights[name][0])
        torch.testing.assert_close(theirs, losses, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("objective", [Focal(2.0), Focal(0.5, (0.5, 1.0, 3.0)), Focal(0.0, 0.25)])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_whatever_focal_loss_a_stack_at_once_equals_one_client_after_another(objective, optimiser, network, make_rows):
    """Under plain SGD from the closed form of its slope, and by autograd otherwise."""
    weights = {n: w.double() for n, w in broadcast_weights(network.init(server_stream(0, 0, "init")), 5).items()}
    rows = make_rows(SIZES)
    stack = (network, weights, {}, rows._replace(x=rows.x.double()))
    expected, *found = (
        train(*stack, training(optimiser, objective=objective, engine=engine), streams())
        for engine in ("sequential", *others(network))
    )
    assert len(found) == 2
    for trained in found:
        for name in weights:
            torch.testing.assert_close(trained.weights[name], expected.weights[name], rtol=0, atol=1e-10)
        torch.testing.assert_close(trained.loss, expected.loss, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("network", [*NETWORKS.values(), NORMALISING], ids=[*NETWORKS, "residual"])
def test_gradients_of_a_stack_are_those_of_one_client_after_another(network, dropout, make_rows):
    """In batches of four where a batch normalises, and otherwise in batches that follow from a client's own sizes."""
    network = replace(network, dropout=dropout)
    weights = {n: w.double() for n, w in broadcast_weights(network.init(server_stream(0, 0, "init")), 5).items()}
    rows, context = images(make_rows), {n: t.double() for n, t in statistics(network).items()}
    stack = (network, weights, context, rows._replace(x=rows.x.double()))
    expected, losses = full_gradient(*stack, training(engine="sequential"), streams())
    for engine in others(network):
        found, theirs = full_gradient(*stack, training(engine=engine), streams())
        assert set(found) == set(weights)
        for name in weights:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-10)
        torch.testing.assert_close(theirs, losses, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("members", [1, 2])
def test_a_gradient_is_that_of_the_mean_loss_of_all_of_a_clients_rows(members, network, make_rows):
    """However few rows are read at once, and of an ensemble each member's own."""
    network, rows = DeepEnsemble(network, 2) if members == 2 else network, make_rows([150, 0, 73])
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 3)
    found, loss = full_gradient(network, weights, {}, rows, training(engine="batched"), streams(NAMES[:3]))
    for client, count in enumerate(rows.counts.tolist()):
        own = {n: w[client].double().requires_grad_() for n, w in weights.items()}
        x, y = rows.x[client, :count].double(), rows.y[client, :count]
        alone = [one.network.apply(one.of(own), {}, x, None) for one in network.single_networks]
        means = [torch.nn.functional.cross_entropy(logits, y, reduction="sum") / max(count, 1) for logits in alone]
        grads = torch.autograd.grad(sum(means), list(own.values()))
        for name, expected in zip(own, grads, strict=True):
            torch.testing.assert_close(found[name][client].double(), expected, rtol=0, atol=1e-7)
        assert float(loss[client]) == pytest.approx(float(sum(means).detach()) / members, abs=1e-6)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_in_float32_they_differ_by_rounding_only(network, make_rows):
    weights, rows = broadcast_weights(network.init(server_stream(0, 0, "init")), 5), images(make_rows)
    expected, *rest = (
        train(network, weights, statistics(network), rows, training(engine=engine), streams())[0]
        for engine in ("sequential", *others(network))
    )
    for found in rest:
        for name in weights:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_outcomes_of_a_stack_are_those_of_one_client_after_another(network, make_rows):
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 5)
    weights = {n: w + torch.arange(5).view(5, *[1] * (w.dim() - 1)) / 50 for n, w in weights.items()}
    rows, context = images(make_rows), statistics(network)
    expected, *rest = (
        per_example_metrics(network, weights, context, rows, CrossEntropy(), engine)
        for engine in ("sequential", *others(network))
    )
    for found in rest:
        torch.testing.assert_close(found["loss"], expected["loss"], rtol=0, atol=1e-5)
        torch.testing.assert_close(found["entropy"], expected["entropy"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in NETWORKS if "conditional" in n or n in ("bilinear", "ensemble")])
def test_other_statistics_give_other_answers_and_a_wrong_number_of_them_is_refused(name, make_rows):
    network = NETWORKS[name]
    weights, x = network.init(server_stream(0, 0, "init")), images(make_rows).x[0]
    found = [network.apply(weights, {"statistics": torch.full((4,), v)}, x, None) for v in (0.0, 1.0)]
    assert not torch.allclose(*found)
    assert torch.equal(network.apply(weights, {}, x, None), found[0])
    with pytest.raises(ValueError, match=r"statistics: got 3 numbers, expected 4\."):
        network.apply(weights, {"statistics": torch.ones(3)}, x, None)


def test_statistics_row_by_row_are_the_clients_own_repeated(make_rows):
    x = images(make_rows).x[0]
    own = torch.linspace(0, 1, 4)
    for network in (n for n in NETWORKS.values() if n.statistics == 4):
        weights = network.init(server_stream(0, 0, "init"))
        once, each = (network.apply(weights, {"statistics": s}, x, None) for s in (own, own.expand(len(x), 4)))
        torch.testing.assert_close(once, each)


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_client_is_trained_as_torch_would_train_it_alone(optimiser, engine, network, make_rows, start):
    """torch.nn and torch.optim on each client by itself: its neighbours' further batches leave it alone."""
    theirs = {
        "sgd": lambda p: torch.optim.SGD(p, 0.1),
        "momentum": lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01),
        "adam": lambda p: torch.optim.Adam(p, 0.01),
        "adam-decay": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    }[optimiser]
    rows = make_rows(SIZES)
    trained, losses, _ = train(network, start(5), {}, rows, training(optimiser, engine=engine), streams())
    for at, count in enumerate(SIZES):
        module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
        begin = {n: w[at] for n, w in start(5).items()}
        for layer, part in ((module[0], "dense0"), (module[2], "dense1")):
            layer.load_state_dict({"weight": begin[f"{part}.weight"].T, "bias": begin[f"{part}.bias"]})
        optimise, seen = theirs(module.parameters()), 0.0
        for epoch in range(2):
            order = shuffle(fold_in(streams()[at], epoch), max(count, 1), torch.tensor(count))[:count]
            for index in order.split(4) if count else ():
                loss = torch.nn.functional.cross_entropy(module(rows.x[at][index]), rows.y[at][index])
                optimise.zero_grad()
                loss.backward()
                optimise.step()
                seen += float(loss.detach()) * len(index)
        tolerance = 2e-4 if optimiser.startswith("adam") else 2e-6
        for layer, part in ((module[0], "dense0"), (module[2], "dense1")):
            ours = trained[f"{part}.weight"][at].T, trained[f"{part}.bias"][at]
            for mine, reference in zip(ours, (layer.weight, layer.bias), strict=True):
                torch.testing.assert_close(mine, reference.detach(), rtol=0, atol=tolerance)
        assert float(losses[at]) == pytest.approx(seen / max(2 * count, 1), abs=1e-5)


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_client_out_of_batches_keeps_every_bit(optimiser, engine, network, make_rows, start):
    """One epoch: the small client's weights are those of a stack in which nobody goes on after it."""
    plan = training(optimiser, engine=engine, epochs=1)
    names = ["four", "big"]
    short = train(network, start(2), {}, make_rows([4, 4], 20, [3, 4]), plan, streams(names))[0]
    long = train(network, start(2), {}, make_rows([4, 20], 20, [3, 4]), plan, streams(names))[0]
    for name in short:
        assert torch.equal(short[name][0], long[name][0])
        assert not torch.equal(short[name][1], long[name][1])


def test_momentum_is_frozen_too_between_epochs(network, make_rows, start):
    """In its second epoch a small client goes on with the velocity that it stopped with."""
    plan = training("momentum", epochs=3)
    names = ["four", "big"]
    short = train(network, start(2), {}, make_rows([4, 4], 20, [3, 4]), plan, streams(names))[0]
    long = train(network, start(2), {}, make_rows([4, 20], 20, [3, 4]), plan, streams(names))[0]
    for name in short:
        assert torch.equal(short[name][0], long[name][0])


def test_a_client_without_rows_keeps_its_weights_and_has_no_loss(network, make_rows, start):
    for engine in ("batched", "vmap", "sequential"):
        plan = training("adamw", engine=engine)
        trained, losses, _ = train(network, start(5), {}, make_rows(SIZES), plan, streams(), 0.5)
        assert all(torch.equal(trained[n][1], start(5)[n][1]) for n in trained)
        assert float(losses[1]) == 0


def test_neighbours_do_not_change_a_clients_bits(network, make_rows, start):
    """Other rows, other sizes, another place: the bits of the same client in a stack of the same shape stay."""
    first = train(network, start(4), {}, make_rows([9, 5, 7, 3], 16, [1, 2, 3, 4]), training(), streams(list("abcd")))[
        0
    ]
    moved = train(network, start(4), {}, make_rows([1, 16, 9, 0], 16, [7, 8, 1, 9]), training(), streams(list("xyaz")))[
        0
    ]
    for name in first:
        assert torch.equal(first[name][0], moved[name][2])


def test_a_neighbour_that_diverges_does_not_spoil_a_client(network, make_rows, start):
    rows = make_rows([9, 9], numbers=[1, 2])
    clean = train(network, start(2), {}, rows, training(), streams(["a", "b"]))[0]
    spoiled = rows._replace(x=torch.stack([rows.x[0], rows.x[1] * torch.inf]))
    found = train(network, start(2), {}, spoiled, training(), streams(["a", "b"]))[0]
    for name in clean:
        assert torch.equal(clean[name][0], found[name][0])
    assert not torch.isfinite(found["dense1.bias"][1]).all()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_stack_size_and_width_change_a_client_by_rounding_only(size, network, make_rows, start):
    alone = train(network, start(1), {}, make_rows([9], 9, [1]), training(), streams(["a"]))[0]
    names = ["a", *(f"x{i}" for i in range(size - 1))]
    rows = make_rows([9] * size, 30, range(1, size + 1))
    found = train(network, start(size), {}, rows, training(), streams(names))[0]
    for name in alone:
        torch.testing.assert_close(found[name][0], alone[name][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("engine", ["vmap", "sequential"])
@pytest.mark.parametrize("batch", [1, 3, 4, 100])
def test_an_epochs_batches_cover_each_row_exactly_once(engine, batch):
    """A network that adds up what it sees: each row carries a digit of its own, in base 2."""

    class Sum(Network):
        dropout = 0.5  # so that a full batch has an order too
        max_width = 1

        def init(self, stream):
            return {}

        def apply(self, weights, context, x, stream):
            return x * weights["seen"]

    def as_mean(logits, y):
        return logits.sum(-1)

    sizes = [7, 1, 4]
    x = torch.zeros(3, 7, 1, dtype=torch.float64)
    for at, size in enumerate(sizes):
        x[at, :size, 0] = 2.0 ** torch.arange(size)
    rows = Rows(x, torch.zeros(3, 7, dtype=torch.int64), torch.tensor(sizes))
    plan = Training(as_mean, _Adder(), 1, batch, engine)
    start = {"seen": torch.zeros(3, 1, dtype=torch.float64)}
    names = ["a", "b", "c"]
    trained, *_ = train(Sum(), start, {}, rows, plan, streams(names))
    steps = [-(-size // min(batch, 7)) for size in sizes]
    if batch == 1:  # a batch of one has the row itself for its gradient
        assert trained["seen"].ravel().tolist() == [2.0**size - 1 for size in sizes]
    # a mean gradient times the batch's rows is their sum, whichever batch a row is in
    loss_sums = _sums_of_batches(sizes, batch, names)
    for at in range(3):
        assert len(loss_sums[at]) == steps[at]
        assert float(trained["seen"][at, 0]) == pytest.approx(sum(loss_sums[at]), rel=1e-12)


class _Adder:
    """w = w + g."""

    def init(self, weights, clients):
        return {}

    def step(self, weights, grads, state):
        return {n: w + grads[n] for n, w in weights.items()}, state


def _sums_of_batches(sizes: list[int], batch: int, names: list[str]) -> list[list[float]]:
    found = []
    for name, size in zip(names, sizes, strict=True):
        order = shuffle(fold_in(streams([name])[0], 0), size, torch.tensor(size)).tolist()
        assert sorted(order) == list(range(size))
        batches = [order[at : at + batch] for at in range(0, size, batch)]
        found.append([sum(2.0**i for i in b) / len(b) for b in batches])
    return found


def test_epochs_and_rounds_have_orders_of_their_own(network, make_rows, start):
    rows = make_rows([12])
    once = train(network, start(1), {}, rows, training(epochs=1), client_streams(0, ["a"], 1, "local_train"))[0]
    again = train(network, start(1), {}, rows, training(epochs=1), client_streams(0, ["a"], 2, "local_train"))[0]
    assert not torch.equal(once["dense0.weight"], again["dense0.weight"])


def test_a_strong_proximal_term_holds_a_client_near_its_anchor(network, make_rows, start):
    rows, names = make_rows([12]), streams(["a"])
    begin = start(1)
    far = [
        sum(float((w - begin[n]).norm()) for n, w in train(network, begin, {}, rows, training(), names, mu)[0].items())
        for mu in (0.0, 1.0, 9.0)
    ]
    assert far[0] > far[1] > far[2]
    elsewhere = {n: w + 1 for n, w in begin.items()}
    drawn = train(network, begin, {}, rows, training(), names, 5.0, elsewhere)[0]
    assert all(float((drawn[n] - elsewhere[n]).abs().mean()) < 0.5 for n in begin)


def test_training_leaves_what_it_was_given_untouched(network, make_rows, start):
    rows, weights = make_rows(SIZES), {n: w.clone() for n, w in start(5).items()}
    before = [t.clone() for t in (*rows, *weights.values())]
    train(network, weights, {}, rows, training("momentum"), streams())
    assert all(torch.equal(a, b) for a, b in zip(before, (*rows, *weights.values()), strict=True))


@pytest.mark.parametrize("objective", [CrossEntropy(), Focal(2.0)])
def test_outcomes_are_those_of_each_client_by_itself(objective, network, make_rows):
    rows = make_rows(SIZES)
    each = [network.init(server_stream(seed, 0, "init")) for seed in range(5)]
    weights = {n: torch.stack([w[n] for w in each]) for n in each[0]}
    found = per_example_metrics(network, weights, {}, rows, objective)
    for at, count in enumerate(SIZES):
        logits = network.apply(each[at], {}, rows.x[at, :count], None)
        p = torch.softmax(logits, -1)
        assert torch.equal(found["correct"][at, :count], logits.argmax(-1) == rows.y[at, :count])
        torch.testing.assert_close(found["loss"][at, :count], objective(logits, rows.y[at, :count]))
        torch.testing.assert_close(found["entropy"][at, :count], torch.special.entr(p).sum(-1))
        for padding in (found["correct"], found["loss"], found["entropy"]):
            assert not padding[at, count:].any()


def test_no_answer_of_a_broken_model_counts_as_right(network, make_rows, start):
    rows = make_rows([6])
    rows = rows._replace(y=torch.zeros_like(rows.y))  # argmax of NaN is 0: it would be right by luck
    broken = {n: w * torch.nan for n, w in start(1).items()}
    assert not per_example_metrics(network, broken, {}, rows, CrossEntropy())["correct"].any()


def test_outcomes_have_no_dropout(make_rows, start):
    dropped, plain = MLP(5, (7,), 3, 0.9), MLP(5, (7,), 3)
    rows = make_rows(SIZES)
    found = [per_example_metrics(n, start(5), {}, rows, CrossEntropy())["loss"] for n in (dropped, plain)]
    assert torch.equal(*found)


def test_a_certain_model_has_no_entropy_rather_than_none(make_rows):
    network = MLP(5, (), 3)
    weights = {"dense0.weight": torch.zeros(1, 5, 3), "dense0.bias": torch.tensor([[500.0, 0.0, -500.0]])}
    found = per_example_metrics(network, weights, {}, make_rows([4]), CrossEntropy())
    assert found["entropy"].ravel().tolist() == [0.0] * 4


@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_a_regression_takes_the_step_of_the_mean_squared_errors_gradient(engine, make_rows):
    """One full batch: w - rate 2 X'(Xw - y)/n, for each client by hand."""
    network, rows = MLP(5, (), 1), make_rows(SIZES)
    rows = rows._replace(y=rows.x.sum(-1) + 0.5 * rows.y)
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 5)
    once = training(objective=SquaredError(), epochs=1, batch=11, engine=engine)
    trained, loss, _ = train(network, weights, {}, rows, once, streams())
    for at, count in enumerate(SIZES):
        x, y, w = rows.x[at, :count], rows.y[at, :count, None], weights["dense0.weight"][at]
        error = x @ w + weights["dense0.bias"][at] - y
        share = 2 / max(count, 1)
        torch.testing.assert_close(trained["dense0.weight"][at], w - 0.1 * share * x.T @ error)
        torch.testing.assert_close(trained["dense0.bias"][at], weights["dense0.bias"][at] - 0.1 * share * error.sum(0))
        assert float(loss[at]) == pytest.approx(float((error**2).sum()) / max(count, 1), rel=1e-5)


def test_outcomes_of_a_regression_are_squared_errors_and_padding_is_none(make_rows):
    network, rows = MLP(5, (7,), 1), make_rows(SIZES)
    rows = rows._replace(y=rows.y + 3.25)  # padding has targets that a prediction misses
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 5)
    found = per_example_metrics(network, weights, {}, rows, SquaredError())
    assert set(found) == {"squared_error", "loss"}
    one = {name: w[0] for name, w in weights.items()}
    for at, count in enumerate(SIZES):
        error = network.apply(one, {}, rows.x[at, :count], None)[:, 0] - rows.y[at, :count]
        torch.testing.assert_close(found["squared_error"][at, :count], error**2)
        assert not found["squared_error"][at, count:].any()


@dataclass(frozen=True)
class Hearing(Network):
    """A network of one number that writes down the stream of every step, and has no other use for it."""

    heard: list[int]
    dropout = 0.5
    max_width = 1

    def init(self, stream):
        return {}

    def apply(self, weights, context, x, stream):
        self.heard.append(int(stream))
        return x[:, :3] * weights["w"]


def test_every_step_of_every_client_epoch_round_and_seed_has_masks_of_its_own(make_rows):
    """Five clients, two of whom have steps of nothing but padding, which need masks too."""
    rows, heard = make_rows([11, 7, 1, 4, 9]), []
    plan = training(engine="sequential", epochs=3)
    for seed, number in ((0, 1), (0, 2), (1, 1)):
        given_streams = client_streams(seed, NAMES, number, "local_train")
        train(Hearing(heard), {"w": torch.ones(5, 1)}, {}, rows, plan, given_streams)
    steps = sum(-(-n // 4) for n in rows.counts.tolist())
    assert len(heard) == len(set(heard)) == 3 * 3 * steps


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
def test_training_with_dropout_is_plain_pytorchs_with_the_masks_of_those_streams(engine, make_rows):
    """The one thing that is taken from the engine is how a stream is named: client, round, epoch, step, layer."""
    network, rows = MLP(5, (7, 7), 3, dropout=0.4), make_rows(SIZES)
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 5)
    trained, *_ = train(network, weights, {}, rows, training(engine=engine), streams())
    for at, (count, stream) in enumerate(zip(SIZES, streams(), strict=True)):
        own = {name: w[at].clone().requires_grad_() for name, w in weights.items()}
        optimiser = torch.optim.SGD(own.values(), 0.1)
        for epoch in range(2):
            order = (
                shuffle(fold_in(stream, epoch), count, torch.tensor(count)) if count else torch.tensor([], dtype=int)
            )
            for number, index in enumerate(order.split(4) if count else ()):
                x = rows.x[at, index]
                for layer in (0, 1):
                    x = torch.relu(x @ own[f"dense{layer}.weight"] + own[f"dense{layer}.bias"])
                    mask = (
                        uniform(fold_in(fold_in(fold_in(stream, epoch), number), layer + 1), (4, 7))[: len(index)]
                        >= 0.4
                    )
                    x = x * mask / 0.6
                optimiser.zero_grad()
                logits = x @ own["dense2.weight"] + own["dense2.bias"]
                torch.nn.functional.cross_entropy(logits, rows.y[at, index]).backward()
                optimiser.step()
        for name, w in own.items():
            torch.testing.assert_close(trained[name][at], w.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("engine", ["batched", "sequential"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_training_loss_is_a_mean_over_rows_and_epochs(epochs, engine, network, make_rows, start):
    """Without a step it is that of the start, whatever the number of epochs and the size of the last batch."""
    rows = make_rows(SIZES)
    still = training(optimiser="sgd", epochs=epochs, engine=engine)
    still = replace(still, optimiser=SGD(0.0))
    found = train(network, start(5), {}, rows, still, streams()).loss
    loss = per_example_metrics(network, start(5), {}, rows, CrossEntropy())["loss"].sum(1) / rows.counts.clamp_min(1)
    torch.testing.assert_close(found, loss, rtol=0, atol=1e-6)


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_training_goes_on_from_the_optimisers_state_as_if_it_had_not_stopped(
    optimiser, engine, network, make_rows, start
):
    """Two epochs in one call and in two are the same bits; who has no rows keeps the state that was given."""
    rows, whole = make_rows(SIZES), training(optimiser, batch=11, engine=engine)
    expected = train(network, start(5), {}, rows, whole, streams())
    half = train(network, start(5), {}, rows, replace(whole, epochs=1), streams())
    found = train(network, half.weights, {}, rows, replace(whole, epochs=1), streams(), optimiser=half.optimiser)
    assert set(found.optimiser) == set(expected.optimiser)
    assert all(torch.equal(found.weights[name], w) for name, w in expected.weights.items())
    assert all(torch.equal(found.optimiser[name], t) for name, t in expected.optimiser.items())
    fresh = train(network, half.weights, {}, rows, replace(whole, epochs=1), streams())
    forgets = optimiser != "sgd"
    assert forgets != all(torch.equal(fresh.weights[name], w) for name, w in expected.weights.items())
    assert all(not t[1].any() for t in expected.optimiser.values())


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize("optimiser", ["momentum", "adam"])
def test_training_only_some_weights_gives_the_optimisers_state_of_the_others_back_as_it_was(
    optimiser, engine, network, make_rows, start
):
    rows, whole = make_rows(SIZES), training(optimiser, engine=engine)
    weights, _, before = train(network, start(5), {}, rows, whole, streams())
    only = ["dense0.weight", "dense0.bias"]
    after = train(network, weights, {}, rows, whole, streams(), optimiser=before, only=only).optimiser
    assert set(after) == set(before)
    kept = {name for name in before if torch.equal(after[name], before[name])}
    assert kept == {name for name in before if name.rpartition(":")[2] not in [*only, "steps"]} != set()


NETWORK = BatchNormCNN((4, 4), 3, (3, 4), (False, True), (5,), 0.0)
COUNTS = (8, 0, 4, 1)
KINDS = pytest.mark.parametrize("kind", ["sequential", "vmap", "batched"])


def work(counts=COUNTS, network=NETWORK):
    draw = torch.Generator().manual_seed(0)
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), len(counts))
    weights = {n: w + 0.2 * torch.rand(w.shape, generator=draw) for n, w in weights.items()}
    x = torch.randn(len(counts), max(counts), 4, 4, generator=draw) + 1
    y = torch.zeros(x.shape[:2], dtype=torch.int64)
    return weights, Rows(x, y, torch.tensor(counts)), client_streams(0, list("abcdefg")[: len(counts)], 1, "t")


@KINDS
def test_measured_running_statistics_are_those_of_torch_batch_by_batch(kind):
    """Of clients whose batches are all as large: torch counts each batch once, and here each row."""
    weights, rows, streams = work()
    found = measure_batchnorm(NETWORK, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 7, 4, kind), streams)
    assert set(found) == set(NETWORK.buffers) == set(normalisation_statistics(NETWORK))
    for at in (0, 2):
        w, count = {n: t[at] for n, t in weights.items()}, COUNTS[at]
        layers = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 5),
            nn.BatchNorm1d(5),
        )
        names = {0: "conv0", 1: "norm0", 3: "conv1", 4: "norm1", 8: "dense0", 9: "norm2"}
        for place, name in names.items():
            for part in ("weight", "bias"):
                value = w[f"{name}.{part}"]
                getattr(layers[place], part).data = value.T if name.startswith("dense") and value.dim() == 2 else value
        order = shuffle(fold_in(streams[at], 0), max(COUNTS), torch.tensor(count))[:count]
        torch.optim.swa_utils.update_bn([rows.x[at, index][:, None] for index in order.split(4)], layers)
        for place in (1, 4, 9):
            for ours, theirs in (("mean", "running_mean"), ("variance", "running_var")):
                torch.testing.assert_close(
                    found[f"{names[place]}.{ours}"][at], getattr(layers[place], theirs), rtol=1e-4, atol=1e-5
                )


@KINDS
def test_running_statistics_that_no_batch_measures_are_unchanged(kind):
    """Of a client without rows all, of one row what its dense layers are normalised by."""
    weights, rows, streams = work()
    found = measure_batchnorm(NETWORK, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 1, 4, kind), streams)
    for name, t in found.items():
        assert torch.equal(t[1], weights[name][1])
        assert torch.equal(t[3], weights[name][3]) == name.startswith("norm2")
        assert not torch.equal(t[2], weights[name][2])


def test_a_last_batch_of_one_row_does_not_change_running_statistics_of_dense_layers():
    """Five rows in batches of four: it counts neither as a mean of that row nor as no variance."""
    weights, rows, streams = work((5,))
    found = measure_batchnorm(NETWORK, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 1, 4), streams)
    order = shuffle(fold_in(streams[0], 0), 5, torch.tensor(5))[:4]
    four = Rows(rows.x[:, order], rows.y[:, order], torch.tensor([4]))
    of_four = measure_batchnorm(NETWORK, weights, {}, four, Training(CrossEntropy(), SGD(0.1), 1, 4), streams)
    for part in ("mean", "variance"):
        torch.testing.assert_close(found[f"norm2.{part}"], of_four[f"norm2.{part}"])


def test_a_network_without_batch_norm_has_no_running_statistics():
    network = MLP(16, (5,), 3)
    weights, rows, streams = work(network=network)
    assert measure_batchnorm(network, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 1, 4), streams) == {}
