"""What holds for every kind of network that has registered: its forms are one network."""

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product

import pytest
import torch
from torch import nn

from models.gaussians import PRECISION
from models.metrics.uncertainty import predictive
from models.networks.cnn import CNN, BatchNormCNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.exported_network import ExportedModel
from models.networks.mlp import MLP, DenseHead, dense
from models.networks.network import Network, register, registered
from models.networks.network_abilities import BatchedNetwork
from models.networks.network_factory import from_json, kind_of, to_json
from models.networks.resnet_vgg import VGG16, Residual, ResNet18
from models.networks.statistics_context import STATISTICS
from models.networks.wrappers.client_columns import ClientColumns
from models.networks.wrappers.codebook_network import COUNT, OWN, QuantizedNetwork, code_usage
from models.networks.wrappers.conditional_network import Bilinear, Ensemble
from models.networks.wrappers.distrans_network import OffsetNetwork
from models.networks.wrappers.domain_generalisation import GradientMatching, StochasticRepresentation, gradients
from models.networks.wrappers.per_row_context import PerRowContext
from models.networks.wrappers.posterior_update import MEAN, RAW, WEIGHT, Tilted
from models.networks.wrappers.variational import Variational
from models.prng import client_streams, fold_in, server_stream, shuffle
from models.training.engine import (
    Rows,
    Training,
    broadcast_weights,
    correct_on_common_rows,
    full_gradient,
    per_example_metrics,
    train,
)
from models.training.execution_plan import forms, resolve
from models.training.objectives import CrossEntropy, Focal, SquaredError
from models.training.optimizers import SGD, Adam


@dataclass(frozen=True)
class Thin(VGG16):
    """Two stages of few channels."""

    stages = ((3, 4), (5,))


@dataclass(frozen=True)
class Slim(ResNet18):
    """Two layers of few channels."""

    widths = (3, 4)


DENSE = MLP(64, (6,), 3, 0.3)
FLAT = CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True, dropout=0.3)
NORMALISING = Residual((8, 8), 3, (6,), 0.3, True, (3, 4))
NETWORKS = {
    "linear": MLP(64, (), 3),
    "mlp": MLP(64, (6, 5), 3, 0.3, statistics=4),
    "cnn": CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True, dropout=0.3, statistics=4),
    "cnn of dropped channels": CNN((8, 8), (3, 4), (6,), 3, 3, True, 0.3, channel_dropout=0.4),
    "cnn of planes": CNN((8, 8), (3,), (6, 5), 3, kernel=3, dropout=0.3, statistics=134, planes=2),
    "cnn_bn": BatchNormCNN((8, 8), 3, (3, 4), (False, True), (6, 5), 0.3),
    "residual": NORMALISING,
    "vgg16_bn": Thin((8, 8), 3, (6,), 0.3),
    "resnet18": Slim((16, 16, 2), 3, (6,), 0.3),
    "bilinear": Bilinear(64, 3, 4, constant=True),
    "ensemble": Ensemble(64, 3, 4, experts=2),
    "quantised mlp": QuantizedNetwork(DENSE, 5, room=2, segments=2),
    "quantised residual": QuantizedNetwork(NORMALISING, 5, room=2, segments=2),
    "quantised without words": QuantizedNetwork(NORMALISING, 0),
    "transformed cnn": OffsetNetwork(FLAT, (8, 8)),
    "transformed residual": OffsetNetwork(NORMALISING, (8, 8)),
    "represented cnn": StochasticRepresentation(FLAT, 0.1, 0.1),
    "represented residual": StochasticRepresentation(NORMALISING, 0.1, 0.1, width=4),
    "matched mlp": GradientMatching(DENSE, 0.5),
    "matched residual": GradientMatching(NORMALISING, 0.5),
    "deep_ensemble": DeepEnsemble(DENSE, 2),
    "deep_ensemble of words": DeepEnsemble(QuantizedNetwork(NORMALISING, 5, room=2), 2),
    "rowwise": PerRowContext(MLP(64, (6,), 3, 0.3, statistics=4), (8, 8), 4),
    "columns beside": ClientColumns(DENSE, "beside"),
    "columns within": ClientColumns(DENSE, "within"),
    "variational mlp": Variational(DENSE, "local", "gaussian", 2, 0.1),
    "variational mlp of flipout": Variational(DENSE, "flipout", "point", 2, 0.1),
    "variational mlp of naive draws": Variational(DENSE, "naive", "none", 0, 0.1),
    "variational cnn": Variational(FLAT, "local", "point", 2, 0.1),
    "variational cnn of flipout": Variational(FLAT, "flipout", "gaussian", 2, 0.1),
    "variational cnn of naive draws": Variational(FLAT, "naive", "none", 2, 0.1),
    "tilted mlp": Tilted(DENSE, "local", "gaussian", "nonneg", 2),
    "tilted mlp of flipout": Tilted(DENSE, "flipout", "point", "free", 2),
    "tilted mlp of naive draws": Tilted(DENSE, "naive", "none", "clipped", 2),
    "tilted cnn": Tilted(FLAT, "local", "point", "free", 2),
    "tilted cnn of flipout": Tilted(FLAT, "flipout", "none", "nonneg", 2),
    "tilted cnn of naive draws": Tilted(FLAT, "naive", "gaussian", "nonneg", 0),
    "tilted columns": Tilted(ClientColumns(DENSE, "beside"), "local", "point", "nonneg", 2),
}
OPTIMISERS = {
    "sgd": SGD(0.05, weight_decay=0.01),
    "momentum": SGD(0.02, 0.9),
    # a bias before a normalising layer has no gradient but rounding, of which the usual epsilon would let Adam make a step
    "adam": Adam(0.01, epsilon=1e-3),
}
COUNTS = (7, 0, 4, 1)
NAMES = ["seven", "none", "four", "one"]

each_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def at_work(network, dtype=torch.float64):
    """Weights that differ from client to client, context, padded rows, and streams."""
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(len(COUNTS), *shape, generator=draw).to(dtype)

    start = broadcast_weights(network.init(server_stream(0, 0, "init")), len(COUNTS))
    weights = {n: w.to(dtype) * (1 + 0.2 * drawn(*w.shape[1:]).tanh()) for n, w in start.items()}
    context = {}
    if length := getattr(network, "statistics", 0) if not isinstance(network, PerRowContext) else 0:
        context[STATISTICS] = drawn(length)
    for one in network.single_networks:
        if isinstance(one.network, QuantizedNetwork) and one.network.room:
            weights[one.prefix + OWN] = drawn(one.network.room, one.network.length)
            context[one.prefix + COUNT] = torch.tensor([2, 0, 1, 0])
        if isinstance(one.network, GradientMatching):
            context |= {name: 0.1 * drawn(*weights[name].shape[1:]) for name in one.network.parts}
        if isinstance(one.network, Tilted):
            context[WEIGHT] = torch.linspace(0.001, 0.01, len(COUNTS)).to(dtype)
            for name in [name.removesuffix(RAW) for name in weights if name.endswith(RAW)]:
                context[name + MEAN] = 0.1 * drawn(*weights[name].shape[1:])
                context[name + PRECISION] = 1 + drawn(*weights[name].shape[1:]) ** 2
    x = drawn(max(COUNTS), *shape_of(network))
    y = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[:2]) % 3
    return weights, context, Rows(x, y, torch.tensor(COUNTS)), client_streams(0, NAMES, 1, "t")


def shape_of(network):
    """Of one row."""
    if isinstance(network, PerRowContext):
        return (64 + network.statistics,)
    if hasattr(network, "inner"):
        return shape_of(network.inner)
    return getattr(network, "shape", (8, 8))


def plan(kind, optimiser=OPTIMISERS["sgd"], epochs=1):
    return Training(CrossEntropy(), optimiser, epochs, 3, kind)


def close(found, expected, tolerance):
    assert set(found) == set(expected)
    for name, t in expected.items():
        torch.testing.assert_close(
            found[name], t, rtol=0, atol=tolerance, msg=lambda said, name=name: f"{name}: {said}"
        )


def test_every_kind_that_has_registered_is_tested_here():
    # a program and trees, which no gradient trains: see test_torch_module.py and test_trees.py
    served_only = {"exported", "trees"}
    assert {network.kind for network in NETWORKS.values()} == set(registered()) - served_only


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@each_network
def test_the_forms_learn_the_same(network, optimiser):
    """In float64. Clients of 7, no, 4 and 1 rows in batches of 3, with padding, dropout, context and a proximal term."""
    weights, context, rows, streams = at_work(network)
    reference = train(network, weights, context, rows, plan("sequential", OPTIMISERS[optimiser]), streams, 0.1)
    for kind in forms(network):
        found = train(network, weights, context, rows, plan(kind, OPTIMISERS[optimiser]), streams, 0.1)
        close(found.weights, reference.weights, 1e-10)
        close(found.optimiser, reference.optimiser, 1e-10)
        torch.testing.assert_close(found.loss, reference.loss, rtol=0, atol=1e-6)
    assert any(not torch.equal(w[0], weights[n][0]) for n, w in reference.weights.items())
    assert all(torch.equal(w[1], weights[n][1]) for n, w in reference.weights.items())


REGRESSIONS = {
    "mlp": MLP(64, (6,), 1, 0.3),
    "represented": StochasticRepresentation(MLP(64, (6,), 1, 0.3), 0.1, 0.1),
    "matched residual": GradientMatching(Residual((8, 8), 1, (6,), 0.3, True, (3, 4)), 0.5),
    "transformed": OffsetNetwork(MLP(64, (6,), 1, 0.3), (8, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("network", REGRESSIONS.values(), ids=REGRESSIONS)
def test_the_forms_learn_the_same_regression(network):
    weights, context, rows, streams = at_work(network)
    rows = rows._replace(y=rows.y.double())
    learning = replace(plan("sequential", SGD(0.01)), objective=SquaredError())
    reference = train(network, weights, context, rows, learning, streams)
    for kind in forms(network):
        found = train(network, weights, context, rows, replace(learning, engine=kind), streams)
        close(found.weights, reference.weights, 1e-10)


@pytest.mark.slow
@each_network
def test_the_forms_have_the_same_gradients(network):
    weights, context, rows, streams = at_work(network)
    expected, losses = full_gradient(network, weights, context, rows, plan("sequential"), streams)
    for kind in forms(network):
        found, theirs = full_gradient(network, weights, context, rows, plan(kind), streams)
        close(found, expected, 1e-10)
        torch.testing.assert_close(theirs, losses, rtol=0, atol=1e-6)


@pytest.mark.slow
@each_network
def test_the_forms_answer_the_same_and_so_do_the_rows_of_clients_that_share_a_model(network):
    weights, context, rows, streams = at_work(network)
    expected = per_example_metrics(network, weights, context, rows, CrossEntropy(), "sequential")
    passes = predictive(network, weights, context, rows.x, streams, 2, "sequential")
    one = {name: w[:1].expand(len(COUNTS), *w.shape[1:]) for name, w in weights.items()}
    alike = per_example_metrics(network, one, context, rows, CrossEntropy(), "sequential")
    for kind in forms(network):
        close(per_example_metrics(network, weights, context, rows, CrossEntropy(), kind), expected, 1e-10)
        found = predictive(network, weights, context, rows.x, streams, 2, kind)
        close(found._asdict(), passes._asdict(), 1e-10)
        if not context:
            close(per_example_metrics(network, one, {}, rows, CrossEntropy(), kind, shared=True), alike, 1e-10)


@each_network
def test_the_forms_find_the_same_of_common_rows_correct_as_of_rows_of_each_client(network):
    weights, context, rows, _ = at_work(network)
    x, y = rows.x[0], rows.y[0]
    clients = len(COUNTS)
    alike = Rows(x.expand(clients, *x.shape), y.expand(clients, *y.shape), torch.full((clients,), len(y)))
    broken = {name: w.clone() for name, w in weights.items()}
    for w in broken.values():
        w[1] = torch.nan
    for objective, of_clients in product((CrossEntropy(), Focal()), (weights, broken)):
        expected = per_example_metrics(network, of_clients, context, alike, objective, "sequential")
        finite_losses = torch.isfinite(expected["loss"]).all(1)
        assert finite_losses.tolist() == [client != 1 or of_clients is weights for client in range(clients)]
        for kind in forms(network):
            correct, finite = correct_on_common_rows(network, of_clients, context, (x, y), objective, kind)
            assert torch.equal(correct, expected["correct"])
            assert torch.equal(finite, finite_losses)


def test_channels_are_dropped_whole_row_by_row_scaled_and_in_training_only():
    """Of the last convolution, before its pooling: without dense layers in between, a channel's share of the logits."""
    network = CNN((8, 8), (3, 20), (), 20, 3, True, channel_dropout=0.4)
    weights = network.init(server_stream(0, 0, "init"))
    places = network.encoded[1]
    weights["dense0.weight"] = torch.eye(20).repeat_interleave(places, 0)
    weights["dense0.bias"] = torch.zeros(20)
    weights["conv1.bias"] += 1  # so that no channel is 0 by itself
    x = torch.rand(50, 8, 8, generator=torch.Generator().manual_seed(0))
    calm, drawn = (network.apply(weights, {}, x, stream) for stream in (None, server_stream(0, 1, "t")))
    assert (calm > 0).all()
    dropped = drawn == 0
    torch.testing.assert_close(drawn[~dropped], calm[~dropped] / 0.6)
    assert float(dropped.double().mean()) == pytest.approx(0.4, abs=4 * (0.24 / dropped.numel()) ** 0.5)
    assert len(dropped.unique(dim=0)) == len(x)
    assert len(dropped.unique(dim=1).T) == 20


@pytest.mark.parametrize(
    "network", [NETWORKS["cnn of dropped channels"], replace(FLAT, dropout=0.0, channel_dropout=0.4)]
)
def test_a_network_whose_features_are_random_has_no_parts(network):
    assert network.random
    assert (network.encoder_head, network.linear_head, resolve(network, "batched").encoder_head) == (None, None, None)
    weights, context, rows, streams = at_work(network)
    passes = predictive(network, weights, context, rows.x, streams, 20)
    certain = predictive(network, weights, context, rows.x, None, 0)
    assert not torch.allclose(passes.p, certain.p, atol=1e-3)


@pytest.mark.parametrize(
    "network",
    [
        replace(FLAT, dropout=0.0, channel_dropout=0.4),
        StochasticRepresentation(MLP(64, (6,), 3)),
        MLP(64, (6,), 3, 0.3),
    ],
    ids=["channels", "draws", "dropout"],
)
def test_what_a_client_learns_does_not_depend_on_who_else_is_in_its_stack(network):
    """Nor where its rows fit into one batch: whose order then changes nothing, unless the rows draw."""
    weights, context, rows, streams = at_work(network)
    together = train(network, weights, context, rows, replace(plan("batched"), batch=5), streams).weights
    own = Rows(rows.x[2:3, :4], rows.y[2:3, :4], rows.counts[2:3])
    of_client = [{n: t[2:3] for n, t in held.items()} for held in (weights, context)]
    alone = train(network, *of_client, own, replace(plan("batched"), batch=5), streams[2:3]).weights
    close(alone, {n: t[2:3] for n, t in together.items()}, 1e-10)


IN_PARTS = {name: network for name, network in NETWORKS.items() if network.single_networks[0].network.encoder_head}


@pytest.mark.parametrize("network", IN_PARTS.values(), ids=IN_PARTS)
def test_the_forms_encode_use_words_and_have_a_last_layers_gradient_alike(network):
    weights, context, rows, _ = at_work(network)

    def looked_at(kind):
        found = {}
        for one in network.single_networks:
            own = (one.of(weights), one.of(context))
            found[f"{one.prefix}features"] = features = resolve(one.network, kind).features(*own, rows.x)
            assert features.shape[-2:] == one.network.encoded
            if one.network.quantized:
                found |= one.named(code_usage(one.network, *own, rows.x, rows.counts, kind))
            if isinstance(one.network, GradientMatching):
                found |= gradients(one.network, *own, rows, CrossEntropy(), kind)
        return {name: value.nan_to_num(-1.0) for name, value in found.items()}  # of a client without rows

    expected = looked_at("sequential")
    for kind in forms(network):
        close(looked_at(kind), expected, 1e-10)


@pytest.mark.slow
@each_network
def test_in_float32_the_forms_differ_by_rounding_only(network):
    """One step: a rounding may choose another word, of which the next steps would make more."""
    weights, context, rows, streams = at_work(network, torch.float32)
    once = replace(plan("sequential", SGD(0.01)), batch=max(COUNTS))
    expected = train(network, weights, context, rows, once, streams)
    for kind in forms(network):
        close(train(network, weights, context, rows, replace(once, engine=kind), streams).weights, expected[0], 1e-4)


@each_network
def test_it_comes_back_from_its_json(network):
    written = json.loads(json.dumps(to_json(network)))
    if type(network) is registered()[kind_of(network)]:
        assert from_json(written) == network


@each_network
def test_every_kind_is_a_frozen_record_that_says_what_it_offers(network):
    assert is_dataclass(network)
    assert hash(network) == hash(replace(network))
    assert {f.name for f in fields(network)}.isdisjoint(
        {"kind", "stacked", "has_custom_cost", "fused", "parted", "ended"}
    )
    names = set(network.init(server_stream(0, 0, "init"))) | {one.prefix + OWN for one in network.single_networks}
    assert {*network.buffers, *network.lr_multipliers, *network.normalising} <= names
    moving = {name for name in network.buffers if name.endswith((".mean", ".variance"))}
    assert moving <= {*network.normalising}
    assert 2 * len(moving) == len(network.normalising)
    assert bool(network.encoder_head) >= bool(network.linear_head)


KINDS = pytest.mark.parametrize("kind", ["sequential", "vmap", "batched"])


@KINDS
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_encoder_is_trained_as_torch_trains_the_same_layers(momentum, kind):
    """nn.Sequential and torch.optim.SGD on each client's rows alone, in its order; running statistics too."""
    network = Thin((8, 8), 3, (), 0.0)
    weights, _, rows, streams = at_work(network)
    trained = train(network, weights, {}, rows, plan(kind, SGD(0.05, momentum), epochs=2), streams).weights
    for at, count in enumerate(COUNTS):
        layers, names = layers_of(network, {n: w[at] for n, w in weights.items()})
        optimiser = torch.optim.SGD(layers.parameters(), 0.05, momentum)
        for epoch in range(2):
            order = shuffle(fold_in(streams[at], epoch), max(COUNTS), torch.tensor(count))[:count]
            for index in order.split(3) if count else ():
                optimiser.zero_grad()
                nn.functional.cross_entropy(layers(rows.x[at, index][:, None]), rows.y[at, index]).backward()
                optimiser.step()
        state = layers.state_dict()
        for theirs, ours in names.items():
            expected = state[theirs].T if ours == "dense0.weight" else state[theirs]
            torch.testing.assert_close(trained[ours][at], expected, rtol=0, atol=1e-9, msg=ours)


def layers_of(network, weights):
    """The network as torch's layers with these weights, and their names there to those here."""
    layers, names, inside = [], {}, 1
    for widths in network.stages:
        for width in widths:
            at = len(layers)
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            names |= {f"{at}.{part}": f"features.{at}.{part}" for part in ("weight", "bias")}
            own = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "variance"}
            names |= {f"{at + 1}.{theirs}": f"features.{at + 1}.{ours}" for theirs, ours in own.items()}
            inside = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(inside * 4, 3)]
    names |= {f"{len(layers) - 1}.{part}": f"dense0.{part}" for part in ("weight", "bias")}
    made = nn.Sequential(*layers).double()
    state = {t: weights[o].T if o == "dense0.weight" else weights[o] for t, o in names.items()}
    made.load_state_dict(made.state_dict() | state)
    return made, names


@dataclass(frozen=True)
class Own(Network):
    """A user's own network, written for one client."""

    inputs: int
    dropout: float = 0.0
    max_width = 64

    def init(self, stream):
        return {"w": torch.ones(self.inputs, 3)}

    def apply(self, weights, context, x, stream):
        return x.flatten(1) @ weights["w"]


class Looking(Own):
    """It decides by a number, which torch cannot map."""

    def apply(self, weights, context, x, stream):
        return super().apply(weights, context, x, stream) * (2 if x.sum() > 0 else 1)


def test_a_network_from_outside_needs_one_function_and_joins_under_its_name(monkeypatch):
    monkeypatch.setattr("models.networks.network._KINDS", dict(registered()))

    @register("own")
    class Named(Own):
        pass

    network = Named(64)
    assert from_json(to_json(network)) == network
    assert register("own")(Named) is Named
    here = __name__.replace(".", r"\.")
    both = (
        rf"network own: got this name from {here}\.\S+\.Named and {here}\.Looking, expected one\. Rename one of them\.$"
    )
    with pytest.raises(ValueError, match=both):
        register("own")(Looking)
    assert forms(network) == ("vmap", "sequential")
    weights, _, rows, streams = at_work(network)
    expected = train(network, weights, {}, rows, plan("sequential"), streams).weights
    close(train(network, weights, {}, rows, plan("vmap"), streams).weights, expected, 1e-10)


def test_what_torch_cannot_map_is_refused_with_the_way_out():
    network = Looking(64)
    weights, _, rows, streams = at_work(network)
    with pytest.raises(ValueError, match=r"engine\.kind: torch cannot map the network Looking over clients"):
        train(network, weights, {}, rows, plan("vmap"), streams)
    train(network, weights, {}, rows, plan("sequential"), streams)


class Paced(MLP):
    """Its weights learn at rates of their own, which a step in place does not know."""

    lr_multipliers = {"dense0.weight": 2.0}  # noqa: RUF012


def test_a_step_in_place_is_taken_where_it_is_the_same_step():
    assert resolve(DENSE, "batched", SGD(0.1)).fused_sgd is DENSE
    for network, kind, optimiser in (
        (DENSE, "batched", SGD(0.1, 0.9)),
        (DENSE, "batched", Adam(0.1)),
        (DENSE, "batched", None),
        (DENSE, "vmap", SGD(0.1)),
        (DENSE, "sequential", SGD(0.1)),
        (FLAT, "batched", SGD(0.1)),
        (Paced(64, (6,), 3), "batched", SGD(0.1)),
    ):
        assert resolve(network, kind, optimiser).fused_sgd is None


@pytest.mark.parametrize("kind", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize(
    "make",
    [
        lambda inner: inner,
        lambda inner: GradientMatching(inner, 0),
        lambda inner: StochasticRepresentation(inner, 0, 0, sampled=False),
        lambda inner: DeepEnsemble(inner, 2),
    ],
    ids=["alone", "matched", "represented", "members"],
)
def test_weights_keep_their_rates_whatever_is_around_their_network(make, kind):
    """With one step of plain gradient descent a weight moves twice as far."""
    moves = []
    for inner in (MLP(64, (6,), 3), Paced(64, (6,), 3)):
        network = make(inner)
        weights, context, rows, streams = at_work(network)
        once = replace(plan(kind, SGD(0.1)), batch=max(COUNTS))
        found = train(network, weights, context, rows, once, streams).weights
        moves.append({n.rpartition("/")[2]: w - weights[n] for n, w in found.items()})
    close(moves[1], {n: w * Paced.lr_multipliers.get(n, 1) for n, w in moves[0].items()}, 1e-12)


class Bare(MLP):
    """Nothing of it is by hand."""

    stacked = None


class BareResidual(Residual):
    """Its encoder reads the batch."""

    stacked = None


class Alone(DenseHead, BatchedNetwork, Network):
    """It has a form for a whole stack, and parts of one client only."""

    inputs, hidden, dropout, max_width, encoded = 64, (), 0.0, 64, (64, 1)

    def init(self, stream):
        return MLP(64, (), 3).init(stream)

    def encode(self, weights, context, x, used=None):
        return x.flatten(1).unsqueeze(-1), {}

    def pre_head(self, weights, context, z):
        return z.squeeze(-1)

    def apply_stack(self, weights, context, x, streams):
        return dense(weights, 0, x.flatten(2))


@pytest.mark.parametrize(
    "network",
    [
        DeepEnsemble(Bare(64, (6,), 3), 2),
        PerRowContext(Bare(64, (), 3, statistics=4), (8, 8), 4),
        Variational(Bare(64, (6,), 3, 0.3), deviation=0.1),
        Tilted(Bare(64, (6,), 3, 0.3)),
        *(
            make(inner)
            for inner in (Bare(64, (6,), 3, 0.3), BareResidual((8, 8), 3, (6,), 0.3, True, (3, 4)), Alone())
            for make in (
                lambda inner: QuantizedNetwork(inner, 4, room=2),
                lambda inner: GradientMatching(inner, 0.5),
                lambda inner: StochasticRepresentation(inner, 0.1, 0.1),
                lambda inner: OffsetNetwork(inner, (8, 8)),
            )
        ),
    ],
    ids=lambda network: f"{network.kind} of {type(getattr(network, 'inner', None)).__name__}",
)
def test_around_a_network_without_parts_by_hand_nothing_is_by_hand(network):
    """A plan asks the network itself, not what its class could do."""
    assert forms(network) == ("vmap", "sequential")
    planned = resolve(network, "batched", SGD(0.1))
    assert (planned.kind, planned.stacked, planned.encoder_head) == ("vmap", None, None)
    weights, context, rows, streams = at_work(network)
    expected = train(network, weights, context, rows, plan("sequential"), streams).weights
    close(train(network, weights, context, rows, plan("batched"), streams).weights, expected, 1e-10)


def test_a_cost_of_one_client_asks_for_that_of_a_stack_where_there_is_a_form_for_stacks():
    with pytest.raises(TypeError, match="Half: got a cost for one client and none for a stack, expected both"):

        class Half(MLP):
            def cost(self, weights, context, batch, objective):
                return super().cost(weights, context, batch, objective)


def test_rows_of_several_clients_train_nothing_that_learns_from_a_clients_batch():
    with pytest.raises(ValueError, match="got rows of several clients for residual, expected one client, from"):
        PerRowContext(NORMALISING, (8, 8), 4)


@pytest.mark.slow
@each_network
def test_an_exported_program_answers_any_number_of_rows_as_the_engine_does(network):
    weights, context, rows, _ = at_work(network, torch.float32)
    one = ({name: w[0] for name, w in part.items()} for part in (weights, context))
    program = ExportedModel(network, *one, classes=3).export(rows.x[0, :2]).module()
    scored = per_example_metrics(network, weights, context, rows, CrossEntropy(), "sequential")
    for count in (1, 3, 7):
        found = program(rows.x[0, :count])
        right = -found.gather(1, rows.y[0, :count, None])[:, 0].log()
        torch.testing.assert_close(right, scored["loss"][0, :count], rtol=1e-5, atol=1e-5)
