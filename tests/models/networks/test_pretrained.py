"""VGG16 and ResNet18 against torchvision's with the same weights, their sizes, and starting from given numbers."""

import json
import pickle
from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from models.networks.network_factory import from_json, num_trainable, size, to_json
from models.networks.pretrained_encoder import rename_torchvision
from models.networks.resnet_vgg import VGG16, Residual, ResNet18
from models.prng import client_streams, server_stream
from models.training.engine import Rows, Training, broadcast_weights, train
from models.training.objectives import CrossEntropy
from models.training.optimizers import SGD, Adam
from silos.sources.torchvision_datasets import torchvision

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", [VGG16, ResNet18])


class Thin(VGG16):
    """The same layers, of few channels."""

    stages = ((3,) * 2, (4,) * 2, (4,) * 3, (5,) * 3, (6,) * 3)


class Slim(ResNet18):
    """The same layers, of few channels."""

    widths = (3, 4, 5, 6)


@cache
def theirs(kind) -> nn.Module:
    """torchvision's network, fresh; not to be changed. Of VGG's 124 million numbers after the encoder few are left."""
    torchvision()
    from torchvision import models

    if kind is ResNet18:
        return models.resnet18(weights=None)
    network = models.vgg16_bn(weights=None)
    network.classifier = nn.Linear(512, 10)
    return network


class Reference(nn.Module):
    """torchvision's encoder under the paper's head, both with our weights."""

    def __init__(self, kind, weights) -> None:
        super().__init__()
        whole = deepcopy(theirs(kind))
        encoder = [(n, m) for n, m in whole.named_children() if n not in ("fc", "classifier", "avgpool")]
        self.encoder = nn.Sequential()
        for name, module in encoder:
            self.encoder.add_module(name, module)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dense0, self.dense1 = nn.Linear(512, 12), nn.Linear(12, 3)
        self.double().load_state_dict(self.named(weights))

    def named(self, weights) -> dict:
        state = {n: torch.tensor(0) for n in self.state_dict() if n.endswith("num_batches_tracked")}
        for name, w in weights.items():
            if name.startswith("dense"):
                state[name] = w.T if w.dim() == 2 else w
            else:
                state[f"encoder.{name}".replace(".mean", ".running_mean").replace(".variance", ".running_var")] = w
        return state

    def forward(self, x):
        x = self.pool(self.encoder(x.permute(0, 3, 1, 2))).flatten(1)
        return self.dense1(nn.functional.gelu(self.dense0(x)))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fresh(network):
    return network.init(server_stream(0, 0, "init"))


@KINDS
def test_evaluation_and_a_training_step_are_torchvisions_with_the_same_weights(kind):
    network = kind((32, 32, 3), 3, (12,), 0.0)
    weights = {n: w.double() for n, w in fresh(network).items()}
    weights |= {n: w + 0.3 * draw(*w.shape, seed=1).abs() for n, w in weights.items() if w.dim() == 1}
    x, y = draw(6, 32, 32, 3).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    reference = Reference(kind, weights)
    with torch.no_grad():
        torch.testing.assert_close(network.apply(weights, {}, x, None), reference.eval()(x))
    optimiser = torch.optim.SGD(reference.train().parameters(), 0.1)
    nn.functional.cross_entropy(reference(x), y).backward()
    optimiser.step()
    rows = Rows(x[None], y[None], torch.tensor([6]))
    plan = Training(CrossEntropy(), SGD(0.1), 1, 6, "batched")
    trained, *_ = train(network, broadcast_weights(weights, 1), {}, rows, plan, client_streams(0, ["a"], 1, "t"))
    found = reference.named({n: w[0] for n, w in trained.items()})
    for name, w in reference.state_dict().items():
        if not name.endswith("tracked"):
            torch.testing.assert_close(
                found[name], w, rtol=1e-7, atol=1e-9, msg=lambda message, name=name: f"{name}: {message}"
            )


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.1, 0.9), Adam(0.01)])
@pytest.mark.parametrize("network", [Thin((32, 32), 3, (7,)), Slim((9, 9, 3), 3, (7,))])
def test_a_stack_of_unequal_clients_learns_what_each_learns_alone(network, optimiser):
    """A bias that is normalised away has the gradient 0, of which Adam magnifies the rounding: so to 1e-7."""
    counts = [9, 5, 1, 4]
    rows = Rows(draw(4, 9, *network.shape).double(), torch.arange(36).view(4, 9) % 3, torch.tensor(counts))
    start = {n: w.double() for n, w in broadcast_weights(fresh(network), 4).items()}
    streams = client_streams(0, list("abcd"), 1, "t")
    plans = [Training(CrossEntropy(), optimiser, 2, 4, engine) for engine in ("batched", "sequential")]
    found, reference = (train(network, start, {}, rows, plan, streams) for plan in plans)
    for name, w in reference[0].items():
        torch.testing.assert_close(
            found[0][name], w, rtol=0, atol=1e-7, msg=lambda message, name=name: f"{name}: {message}"
        )
        assert name in network.buffers or not torch.equal(w, start[name]), name
    torch.testing.assert_close(found[1], reference[1], rtol=0, atol=1e-9)


def test_vgg16_has_the_papers_size():
    network = VGG16((32, 32, 3), 10)
    head = sum(w.numel() for n, w in fresh(network).items() if n.startswith("dense"))
    assert network.encoded == (512, 1)
    assert head == 267_786
    assert num_trainable(network) - head == 14_723_136
    assert size(network) - num_trainable(network) == 2 * sum(width for stage in VGG16.stages for width in stage)


@pytest.mark.parametrize("network", [Thin((32, 32), 3), Slim((9, 9), 3), Residual((8, 8), 3)])
def test_every_running_statistic_of_the_encoder_is_a_buffer_and_nothing_else(network):
    names = [n for n in fresh(network) if n.endswith((".mean", ".variance"))]
    assert sorted(network.buffers) == sorted(names)


@pytest.mark.parametrize("side", [8, 28, 224])
def test_resnet18_ends_in_one_place_of_any_image(side):
    network = ResNet18((side, side), 10)
    z, _ = network.encode_stack({n: w[None] for n, w in fresh(network).items()}, {}, draw(1, 1, side, side))
    assert z.shape[2:] == network.encoded == (512, 1)


@KINDS
def test_fresh_weights_spread_as_torchvisions_do(kind):
    network = kind((32, 32, 3), 10)
    weights, expected = fresh(network), rename_torchvision(theirs(kind).state_dict())
    for name, w in network.trunk_weights(server_stream(3, 0, "init")).items():
        assert w.shape == expected[name].shape
        spread = expected[name].std(correction=0)
        torch.testing.assert_close(
            w.std(correction=0), spread, rtol=0.05, atol=0, msg=lambda message, name=name: f"{name}: {message}"
        )
        assert w.dim() == 1 or not torch.equal(w, weights[name])


@KINDS
def test_given_numbers_are_where_the_encoder_starts_and_the_head_is_fresh(kind):
    state = theirs(kind).state_dict()
    network = replace(kind((32, 32, 3), 10), pretrained="a hash")
    network.load_pretrained(state)
    weights, before = fresh(network), fresh(replace(network, pretrained=None))
    for name, w in weights.items():
        torch.testing.assert_close(
            w, before[name] if name.startswith("dense") else rename_torchvision(state)[name], rtol=0, atol=0
        )
    weights["dense0.bias"].zero_()
    next(iter(weights.values())).zero_()
    assert fresh(network)[next(iter(weights))].any()


@pytest.mark.parametrize("thin", [Thin((32, 32, 3), 3), Slim((9, 9, 3), 3)])
def test_with_given_numbers_a_grey_image_is_three_equal_channels(thin):
    grey = replace(thin, shape=thin.shape[:2], pretrained="grey")
    grey.load_pretrained({n: w + 0.1 for n, w in fresh(thin).items()})
    weights, x = {n: w.expand(2, *w.shape) for n, w in fresh(grey).items()}, draw(2, 4, *grey.shape)
    colour = x[..., None].expand(*x.shape, 3)
    torch.testing.assert_close(grey.apply_stack(weights, {}, x, None), thin.apply_stack(weights, {}, colour, None))
    assert fresh(replace(grey, pretrained=None)).keys() == weights.keys()
    with pytest.raises(ValueError, match=r"got images of 2 channels, .* Set model.pretrained to null"):
        replace(thin, shape=(32, 32, 2), pretrained="grey")


def test_numbers_of_another_network_are_refused():
    network = replace(Thin((32, 32, 3), 3), pretrained="wrong")
    state = dict(fresh(network.__class__((32, 32, 3), 3)))
    with pytest.raises(ValueError, match=r"got no features.0.weight"):
        network.load_pretrained(fresh(Slim((9, 9, 3), 3)))
    with pytest.raises(ValueError, match=r"features.0.bias: got the shape \(4,\), expected \(3,\)"):
        network.load_pretrained({**state, "features.0.bias": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"features.1.mean: got numbers that are not finite"):
        network.load_pretrained({**state, "features.1.mean": torch.tensor([0.0, torch.nan, 0.0])})


@KINDS
def test_it_comes_back_from_its_json_and_from_a_pickle_without_the_numbers(kind):
    network = kind((32, 32), 10, pretrained="a hash")
    assert network.buffers
    assert from_json(json.loads(json.dumps(to_json(network)))) == network
    pickled = pickle.dumps(network)
    assert pickle.loads(pickled) == network
    assert len(pickled) < 10_000


def test_an_image_that_the_poolings_leave_nothing_of_is_refused():
    with pytest.raises(ValueError, match="leave nothing of an image of 28 x 28"):
        VGG16((28, 28), 10)
