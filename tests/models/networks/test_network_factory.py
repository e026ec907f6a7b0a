"""The networks against torch.nn with the same weights."""

import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import models
from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.network_factory import build, from_json, num_parameters, size, to_json
from models.networks.wrappers.codebook_network import QuantizedNetwork
from models.networks.wrappers.conditional_network import Bilinear, Ensemble
from models.networks.wrappers.distrans_network import OffsetNetwork
from models.networks.wrappers.domain_generalisation import StochasticRepresentation
from models.prng import client_streams, server_stream


def as_torch(network: MLP, weights: dict) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = [torch.nn.Flatten()]
    widths = (network.inputs, *network.hidden, network.outputs)
    for at, (fan_in, fan_out) in enumerate(pairwise(widths)):
        if at:
            layers.append(torch.nn.ReLU())
        layers.append(torch.nn.Linear(fan_in, fan_out))
        layers[-1].load_state_dict({"weight": weights[f"dense{at}.weight"].T, "bias": weights[f"dense{at}.bias"]})
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("hidden", [(), (7,), (9, 4, 5)])
def test_the_mlp_is_torch_nns_with_the_same_weights(hidden):
    network = MLP(12, hidden, 4)
    weights = network.init(server_stream(0, 0, "init"))
    x = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))
    ours = network.apply(weights, {}, x, None)
    torch.testing.assert_close(ours, as_torch(network, weights)(x))
    assert ours.shape == (6, 4)
    assert num_parameters(weights) == sum(p.numel() for p in as_torch(network, weights).parameters())


def test_fresh_weights_lie_within_one_over_root_fan_in_and_spread_over_it():
    network = MLP(100, (400,), 50)
    weights = network.init(server_stream(1, 0, "init"))
    for name, bound in (
        ("dense0.weight", 0.1),
        ("dense0.bias", 0.1),
        ("dense1.weight", 0.05),
        ("dense1.bias", 0.05),
    ):
        w = weights[name]
        assert float(w.abs().max()) <= bound
        assert float(w.abs().max()) > 0.9 * bound
        assert abs(float(w.mean())) < 4 * bound / 3**0.5 / w.numel() ** 0.5
    assert not torch.equal(weights["dense0.weight"][0, :50], weights["dense1.weight"][0, :50])


@pytest.mark.parametrize(
    "network", [MLP(3, (), 2), MLP(64, (5, 6), 10, dropout=0.25), CNN((28, 28), (10, 20), (50,), 10)]
)
def test_a_network_comes_back_from_its_json(network):
    assert from_json(json.loads(json.dumps(to_json(network)))) == network


def test_build_takes_sizes_from_the_rows_and_options_from_params():
    assert build("mlp", (8, 8), 10, {"hidden": [3], "dropout": 0.5}) == MLP(64, (3,), 10, 0.5)


def test_dropout_keeps_the_mean_and_is_off_without_a_stream():
    network = MLP(1, (20_000,), 1, dropout=0.4)
    ones = {
        "dense0.weight": torch.ones(1, 20_000),
        "dense0.bias": torch.zeros(20_000),
        "dense1.weight": torch.full((20_000, 1), 1 / 20_000),
        "dense1.bias": torch.zeros(1),
    }
    x = torch.ones(2, 1)
    assert network.apply(ones, {}, x, None).ravel().tolist() == pytest.approx([1, 1], abs=1e-4)
    first, second = network.apply(ones, {}, x, server_stream(0, 0, "drop")).ravel().tolist()
    assert first == pytest.approx(1, abs=0.03)
    assert second == pytest.approx(1, abs=0.03)
    assert first != second  # each row has a mask of its own


def test_dropout_is_the_same_inside_vmap():
    network = MLP(5, (8, 8), 3, dropout=0.5)
    weights = network.init(server_stream(0, 0, "init"))
    x = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1))
    streams = client_streams(0, list("abcd"), 1, "drop")
    alone = torch.stack([network.apply(weights, {}, a, s) for a, s in zip(x, streams, strict=True)])
    mapped = torch.func.vmap(lambda a, s: network.apply(weights, {}, a, s))(x, streams)
    torch.testing.assert_close(mapped, alone)


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("shape", [(16, 16), (16, 20, 3)])
def test_the_cnn_is_torch_nns_with_the_same_weights(shape, padding):
    network = CNN(shape, (3, 4), (6,), 5, kernel=3, padding=padding)
    weights = network.init(server_stream(0, 0, "init"))
    channels = shape[2] if len(shape) == 3 else 1
    margin = 1 if padding else 0
    sides = [side // 4 if padding else ((side - 2) // 2 - 2) // 2 for side in shape[:2]]
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(channels, 3, 3, padding=margin),
        torch.nn.MaxPool2d(2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(3, 4, 3, padding=margin),
        torch.nn.MaxPool2d(2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * sides[0] * sides[1], 6),
        torch.nn.ReLU(),
        torch.nn.Linear(6, 5),
    )
    for at, name in ((0, "conv0"), (3, "conv1"), (7, "dense0"), (9, "dense1")):
        weight = weights[f"{name}.weight"]
        theirs[at].load_state_dict(
            {"weight": weight.T if name.startswith("dense") else weight, "bias": weights[f"{name}.bias"]}
        )
    x = torch.randn(7, *shape, generator=torch.Generator().manual_seed(1))
    expected = theirs(x.view(*x.shape[:3], channels).permute(0, 3, 1, 2))
    torch.testing.assert_close(network.apply(weights, {}, x, None), expected)
    assert num_parameters(weights) == sum(p.numel() for p in theirs.parameters())
    assert network.max_width == max(
        w.numel() for w in (x[0], theirs[0](x.view(*x.shape[:3], channels).permute(0, 3, 1, 2))[0])
    )


@pytest.mark.parametrize(
    ("shape", "channels", "sentence"),
    [((64,), (3,), "expected images"), ((8, 8), (3, 4), "got 2 convolutions of 5 x 5, each with pooling, expected")],
)
def test_convolutions_that_cannot_be_are_refused(shape, channels, sentence):
    with pytest.raises(ValueError, match=sentence):
        build("cnn", shape, 10, {"channels": list(channels), "hidden": [5]})


def test_with_one_output_and_no_hidden_layer_it_is_linear_regression_with_an_intercept():
    network = build("mlp", (2, 3), 1, {"hidden": []})
    weights = {"dense0.weight": torch.arange(6.0)[:, None], "dense0.bias": torch.tensor([0.5])}
    x = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network.apply(weights, {}, x, None), x.flatten(1) @ torch.arange(6.0)[:, None] + 0.5)


def test_no_two_layers_rows_or_clients_share_a_mask():
    """Through layers that change nothing, what is left of ones is a product of masks: of two, one in four."""
    network, count = MLP(40, (40, 40), 40, dropout=0.5), 30
    weights = {
        f"dense{layer}.{n}": w for layer in range(3) for n, w in (("weight", torch.eye(40)), ("bias", torch.zeros(40)))
    }
    stack = {n: w.expand(2, *w.shape) for n, w in weights.items()}
    found = network.apply_stack(stack, {}, torch.ones(2, count, 40), client_streams(0, ["a", "b"], 1, "drop"))
    assert set(found.unique().tolist()) == {0, 4}
    assert float((found > 0).double().mean()) == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / found.numel()) ** 0.5)
    assert len(found.flatten(0, 1).unique(dim=0)) == 2 * count


SMALL = MLP(6, (5,), 4)


@pytest.mark.parametrize(
    "network",
    [
        SMALL,
        CNN((28, 28), (10, 20), (50,), 10),
        build("residual", (8, 8), 4, {"hidden": (5,), "widths": (2, 3)}),
        Bilinear(4, 3, 5, True),
        Ensemble(4, 3, 5, 2),
        DeepEnsemble(SMALL, 3),
        QuantizedNetwork(SMALL, 7),
        DeepEnsemble(QuantizedNetwork(SMALL, 7), 2),
        OffsetNetwork(SMALL, (6,)),
        StochasticRepresentation(SMALL, width=3),
    ],
    ids=str,
)
def test_the_size_told_from_shapes_is_that_of_the_weights(network):
    assert size(network) == sum(w.numel() for w in network.init(server_stream(0, 0, "init")).values())


def test_the_convolutional_network_of_selective_averaging_has_its_papers_size():
    options = {"channels": [10, 20], "kernel": 5, "hidden": [50], "dropout": 0.5, "channel_dropout": 0.5}
    assert size(build("cnn", (28, 28), 10, options)) == 21_840


def test_the_sizes_of_the_published_encoders_are_those_that_torchvision_prints():
    head = 512 * 10 + 10
    assert size(build("resnet18", (32, 32, 3), 10, {"hidden": ()})) == 11_176_512 + 2 * 4_800 + head
    assert size(build("vgg16_bn", (32, 32, 3), 10, {"hidden": ()})) == 14_723_136 + 2 * 4_224 + head


@pytest.mark.slow
def test_the_registry_alone_knows_every_kind_also_in_a_copy_under_another_name(tmp_path):
    """A logged model carries such a copy, and imports no network by its own name."""
    ours = Path(models.__path__[0])
    shutil.copytree(ours, tmp_path / "theirs", ignore=shutil.ignore_patterns("__pycache__"))
    asked = "import sys; from theirs.networks.network_factory import registered as kinds; "
    asked += "print('models' in sys.modules, *kinds())"
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True)
    also_ours, *kinds = done.stdout.split()
    assert also_ours == "False"
    texts = [path.read_text(encoding="utf-8") for path in ours.rglob("*.py")]
    assert sorted(kinds) == sorted(kind for text in texts for kind in re.findall(r'^@register\("(\w+)"\)', text, re.M))
