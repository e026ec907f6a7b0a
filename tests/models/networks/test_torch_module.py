"""Any torch.nn.Module is a network: with the bits of its own functions, in every engine, or it is refused in a sentence."""

import pickle
import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from models.networks.cnn import BatchNormCNN
from models.networks.exported_network import ExportedNetwork
from models.networks.network import learned
from models.networks.network_factory import build, from_json, is_bundled, size, to_json
from models.networks.torch_module import Dropout, HeadedModule, ModuleRefusedError, wrap_module
from models.prng import client_streams, server_stream
from models.training.engine import Rows, Training, broadcast_weights, per_example_metrics, train
from models.training.engine_and_stack_size import pick_kernel
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD, Adam


class Dense(nn.Module):
    """The MLP of siloflow as people write it."""

    def __init__(self, shape, outputs, hidden: int = 8, p: float = 0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), hidden), nn.ReLU(), Dropout(p))
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.head(self.body(x))


class Transformer(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.tokens = nn.Embedding(4, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, outputs)

    def forward(self, x):
        return self.head(self.encoder(self.tokens(x.long())).mean(1))


class Normalised(nn.Module):
    """The network cnn_bn of siloflow, of one convolution, as people write it."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * shape[0] * shape[1], outputs)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x.unsqueeze(1)))).movedim(1, 1).flatten(1))


class Recurrent(nn.Module):
    """torch has no form of it that is mapped over clients."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.net, self.head = nn.GRU(shape[1], 4, batch_first=True), nn.Linear(4, outputs)

    def forward(self, x):
        return self.head(self.net(x)[0][:, -1])


class WeightNorm(Dense):
    """Each of its layers is a product of a length and a direction, by hooks that torch numbers through a process."""

    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.body[1], self.head = (nn.utils.parametrizations.weight_norm(part) for part in (self.body[1], self.head))


MODULES = {"dense": (Dense, {"p": 0.5}), "transformer": (Transformer, {}), "normalised": (Normalised, {})}
SHAPES = {"transformer": (6,)}


def network_of(name):
    make, options = MODULES[name]
    return wrap_module(name, make, SHAPES.get(name, (4, 4)), 3, options)


def rows_of(shape, clients=3, width=11):
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(0, 4, (clients, width, *shape), generator=draw).float()
    return Rows(x, torch.randint(0, 3, (clients, width), generator=draw), torch.tensor([11, 6, 9]))


def trained(network, kind, optimiser=SGD(0.1), epochs=2, weights=None):
    """Weights of three clients; batches of four leave padding, and clients without rows."""
    rows = rows_of(SHAPES.get(network.kind, (4, 4)))
    weights = broadcast_weights(weights or network.init(server_stream(0, 0, "init")), 3)
    training = Training(CrossEntropy(), optimiser, epochs, 4, kind)
    return train(network, weights, {}, rows, training, client_streams(0, ["a", "b", "c"], 1, "t")).weights, rows


@pytest.mark.parametrize(
    ("name", "optimiser"),
    [*((name, SGD(0.1, momentum=0.5)) for name in MODULES), ("dense", SGD(0.1)), ("dense", Adam(0.01))],
)
def test_engines_agree_and_batched_is_vmap(name, optimiser):
    network = network_of(name)
    (mapped, rows), (alone, _), (batched, _) = (
        trained(network, k, optimiser) for k in ("vmap", "sequential", "batched")
    )
    for weight in mapped:
        torch.testing.assert_close(mapped[weight], alone[weight], atol=1e-5, rtol=1e-4)
        assert torch.equal(mapped[weight], batched[weight])
    one, two = (
        per_example_metrics(network, mapped, {}, rows, CrossEntropy(), k)["loss"] for k in ("vmap", "sequential")
    )
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


def test_a_dense_module_trains_to_the_weights_of_the_hand_batched_mlp():
    ours, theirs = build("mlp", (4, 4), 3, {"hidden": [8]}), wrap_module("dense", Dense, (4, 4), 3, {})
    start = ours.init(server_stream(0, 0, "init"))
    same = {"body.1.weight": start["dense0.weight"].T.contiguous(), "body.1.bias": start["dense0.bias"]}
    same |= {"dense0.weight": start["dense1.weight"], "dense0.bias": start["dense1.bias"]}
    (by_hand, _), (mapped, _) = trained(ours, "batched", weights=start), trained(theirs, "vmap", weights=same)
    torch.testing.assert_close(mapped["body.1.weight"].mT, by_hand["dense0.weight"], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mapped["dense0.weight"], by_hand["dense1.weight"], atol=1e-6, rtol=1e-5)


def test_batch_normalisation_of_torch_leaves_padding_out_as_siloflows_does():
    ours, theirs = BatchNormCNN((4, 4), 3, (4,), (False,), (), 0.0), network_of("normalised")
    start = ours.init(server_stream(0, 0, "init"))
    names = {"conv.weight": "conv0.weight", "conv.bias": "conv0.bias", "norm.weight": "norm0.weight"}
    names |= {"norm.bias": "norm0.bias", "norm.running_mean": "norm0.mean", "norm.running_var": "norm0.variance"}
    names |= {"dense0.weight": "dense0.weight", "dense0.bias": "dense0.bias"}
    by_hand, _ = trained(ours, "batched", weights=start)
    mapped, _ = trained(theirs, "vmap", weights={name: start[other] for name, other in names.items()})
    for name, other in names.items():
        torch.testing.assert_close(mapped[name], by_hand[other], atol=1e-5, rtol=1e-4)
    assert theirs.buffers == ("norm.running_mean", "norm.running_var")
    assert set(theirs.normalising) == {*theirs.buffers, "norm.weight", "norm.bias"}


def test_first_weights_follow_from_the_stream_and_leave_the_global_generator_alone():
    network, before = network_of("dense"), torch.get_rng_state()
    one, again, other = (network.init(server_stream(seed, 0, "init")) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(before, torch.get_rng_state())
    assert size(network) == sum(w.numel() for w in one.values()) == 16 * 8 + 8 + 8 * 3 + 3


def test_dropout_draws_from_the_clients_stream():
    network = network_of("dense")
    weights, x = network.init(server_stream(0, 0, "init")), torch.ones(5, 4, 4)
    one, again, other = (network.apply(weights, {}, x, server_stream(seed, 0, "pass")) for seed in (0, 0, 1))
    assert network.random
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert not torch.equal(one, network.apply(weights, {}, x, None))


@pytest.mark.parametrize("name", ["transformer", "normalised"])
def test_a_module_that_ends_in_a_linear_offers_its_parts(name):
    network = network_of(name)
    assert isinstance(network, HeadedModule)
    weights, x = network.init(server_stream(0, 0, "init")), rows_of(network.shape).x[0]
    z, _ = network.encode(weights, {}, x)
    assert z.shape == (len(x), *network.encoded)
    joined = network.with_statistics(2)
    more = joined.init(server_stream(0, 0, "init"))
    assert more["dense0.weight"].shape[0] == weights["dense0.weight"].shape[0] + 2
    given = joined.apply(more, {"statistics": torch.zeros(2)}, x, None)
    torch.testing.assert_close(given, network.apply(weights, {}, x, None))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODULES, "weight_norm"])
def test_it_travels_to_another_process_and_to_a_logged_model(name):
    network = network_of(name) if name in MODULES else wrap_module(name, WeightNorm, (4, 4), 3, {})
    weights, x = network.init(server_stream(0, 0, "init")), rows_of(network.shape).x[0]
    expected = network.apply(weights, {}, x, None)
    there = pickle.loads(pickle.dumps(network))
    assert torch.equal(there.apply(weights, {}, x, None), expected)
    assert not is_bundled(network)
    served = from_json(to_json(ExportedNetwork.of(network, weights, {}, network.shape)))
    assert is_bundled(served)
    for some in (x, x[:1]):
        torch.testing.assert_close(served.apply(weights, {}, some, None), network.apply(weights, {}, some, None))


def test_threads_call_it_side_by_side():
    network = network_of("dense")
    found, expected = {}, trained(network, "vmap")[0]
    threads = [threading.Thread(target=lambda n=n: found.update({n: trained(network, "vmap")[0]})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[n][name], expected[name]) for n in range(4) for name in expected)


@pytest.mark.parametrize("make", [Recurrent, WeightNorm])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_torch_cannot_map_runs_one_client_after_another(make):
    network = wrap_module(make.__name__, make, (4, 4), 3, {})
    assert network.maps == (pick_kernel(network, 4, "cpu").kind == "vmap")
    weights, _ = trained(network, pick_kernel(network, 4, "cpu").kind)
    start = network.init(server_stream(0, 0, "init"))
    assert all(not torch.equal(weights[name][0], w) for name, w in start.items())


def test_frozen_and_unused_parameters_are_no_gradients():
    class Half(Dense):
        def __init__(self, shape, outputs):
            super().__init__(shape, outputs)
            self.unused = nn.Linear(2, 2)
            self.body[1].bias.requires_grad_(False)

    network = wrap_module("half", Half, (4, 4), 3, {})
    assert set(network.buffers) == {"body.1.bias", "unused.weight", "unused.bias"}
    start = network.init(server_stream(0, 0, "init"))
    assert set(learned(network, start)) == {"body.1.weight", "dense0.weight", "dense0.bias"}
    weights, _ = trained(network, "vmap")
    assert all(torch.equal(weights[name][at], start[name]) for name in network.buffers for at in range(3))


class Counting(Dense):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Remembering(Dense):
    def forward(self, x):
        self.last = self.body(x)
        return self.head(self.last)


class TorchDropout(Dense):
    def forward(self, x):
        return self.head(nn.functional.dropout(self.body(x), 0.3, self.training))


class RandomDraw(Dense):
    def forward(self, x):
        return super().forward(x) * (1 + random.random())


class NumpyDraw(Dense):
    def forward(self, x):
        return super().forward(x) + float(np.random.rand())


class NumpyStart(Dense):
    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.head.weight.data.fill_(float(np.random.rand()))


class Mixing(Dense):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Hidden(Dense):
    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.scale = torch.rand(1)

    def forward(self, x):
        return super().forward(x) * self.scale


class Momentum(Normalised):
    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.norm.momentum = 0.01


class Wide(Dense):
    def forward(self, x):
        return super().forward(x)[:, :2]


class Broken(Dense):
    def forward(self, x):
        return super().forward(x.view(-1, 5))


class Squeezing(Dense):
    def forward(self, x):
        return super().forward(x).squeeze()


class SqueezedFeatures(Dense):
    def forward(self, x):
        return self.head(self.body(x).squeeze())


class Auxiliary(Dense):
    def forward(self, x):
        return (super().forward(x), x) if self.training else super().forward(x)


REFUSED = {
    Squeezing: r"returns \(3,\) for 1 row in evaluation, expected a tensor \(rows, 3\)\. .* as \.squeeze\(\) does",
    SqueezedFeatures: r"returns \(3,\) for 1 row in evaluation, expected a tensor \(rows, 3\)\.",
    Auxiliary: r"returns tuple for 3 rows in training, expected a tensor \(rows, 3\)$",
    Counting: "keeps state outside its parameters and buffers: calls changes in training",
    Remembering: "keeps state outside its parameters and buffers: last changes in training",
    TorchDropout: r"draws from a global generator in training, as torch\.nn\.Dropout does\. Set dropout to 0, or use",
    RandomDraw: "draws from a global generator in training",
    NumpyDraw: "draws from a global generator in training",
    NumpyStart: "draws its first weights from another generator than torch's",
    Mixing: "mixes the rows of a batch, some of which are padding",
    Hidden: "draws state outside its parameters and buffers when it is made. Register it as a buffer",
    Momentum: r"its layer norm normalises with momentum 0\.01 .*, expected 0\.1 and True",
    Wide: r"returns \(3, 2\) for 3 rows in evaluation, expected a tensor \(rows, 3\)",
    Broken: r"fails on 3 rows of shape \(4, 4\): RuntimeError",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_module_that_is_no_function_of_weights_and_rows_is_refused(make):
    with pytest.raises(ModuleRefusedError, match=REFUSED[make]):
        wrap_module("refused", make, (4, 4), 3, {})


def test_what_is_no_module_is_refused():
    with pytest.raises(ModuleRefusedError, match=r"gives a int, expected a torch\.nn\.Module"):
        wrap_module("refused", lambda **_: 3, (4, 4), 3, {})
    assert replace(network_of("dense"), kind="other").kind == "other"
