"""The engine on the device of its inputs: a GPU where there is one, and everywhere no tensor made on another device."""

from dataclasses import replace

import pytest
import torch

from models.metrics.uncertainty import predictive, uncertainty_metrics
from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.resnet_vgg import Residual
from models.networks.wrappers.codebook_network import COUNT, OWN, QuantizedNetwork, code_usage
from models.networks.wrappers.conditional_network import Bilinear, Ensemble
from models.networks.wrappers.distrans_network import OffsetNetwork
from models.networks.wrappers.domain_generalisation import StochasticRepresentation
from models.prng import client_streams, server_stream
from models.training.engine import Rows, Training, broadcast_weights, per_example_metrics, train
from models.training.objectives import CrossEntropy, Focal
from models.training.optimizers import SGD, Adam

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
NETWORKS = {
    "mlp": MLP(64, (6,), 3, dropout=0.2, statistics=4),
    "cnn": CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True, dropout=0.2, statistics=4),
    "bilinear": Bilinear(64, 3, 4, constant=True),
    "ensemble": Ensemble(64, 3, 4, experts=2),
    "residual": Residual((8, 8), 3, (6,), 0.2, True, (3, 4)),
    "quantised": QuantizedNetwork(
        CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True, dropout=0.2), 5, room=3, segments=2
    ),
    "transformed": OffsetNetwork(MLP(64, (6,), 3), (8, 8)),
    "represented": StochasticRepresentation(MLP(64, (6,), 3)),
    "deep_ensemble": DeepEnsemble(QuantizedNetwork(MLP(64, (6,), 3, dropout=0.2), 5, room=3), 2),
}
OPTIMISERS = {"sgd": SGD(0.1, weight_decay=0.01), "momentum": SGD(0.1, 0.9), "adamw": Adam(0.01, 0.1, decoupled=True)}


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_tensor_is_made_where_the_rows_are(device, network, optimiser, engine):
    """What is made without a device lands on `meta` here, and then meets the others in an error."""
    rows, weights, context, streams = stack(network, device)
    plan = Training(Focal(2.0), optimiser, 2, 4, engine)
    with torch.device("meta"):
        trained, loss, _ = train(network, weights, context, rows, plan, streams, proximal=0.1)
        found = per_example_metrics(network, trained, context, rows, CrossEntropy(), engine)
        found |= uncertainty_metrics(
            predictive(network, trained, context, rows.x, streams, 3, engine), rows.y, rows.counts
        )
        for one in network.single_networks:
            if isinstance(one.network, QuantizedNetwork):
                found |= code_usage(one.network, one.of(trained), one.of(context), rows.x, rows.counts, engine)
    for tensor in (*trained.values(), loss, *found.values()):
        assert tensor.device.type == device


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("device", DEVICES)
def test_a_device_learns_what_the_reference_on_the_cpu_learns(device, network, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # else convolutions have 10 bits of mantissa
    plan = Training(CrossEntropy(), SGD(0.1), 2, 4, "sequential")
    rows, weights, context, streams = stack(network, "cpu")
    expected, *_ = train(network, weights, context, rows, plan, streams)
    rows, weights, context, streams = stack(network, device)
    found, *_ = train(network, weights, context, rows, replace(plan, engine="batched"), streams)
    for name, w in expected.items():
        torch.testing.assert_close(found[name].cpu(), w, rtol=0, atol=1e-5)


def stack(network, device):
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(3, 9, 8, 8, generator=draw)
    y = torch.randint(0, 3, (3, 9), generator=draw)
    rows = Rows(x.to(device), y.to(device), torch.tensor([9, 0, 5], device=device))
    weights = broadcast_weights({n: w.to(device) for n, w in network.init(server_stream(0, 0, "init")).items()}, 3)
    context = {"statistics": torch.rand(3, 4, generator=draw).to(device)}
    for one in network.single_networks:
        if isinstance(one.network, QuantizedNetwork):
            own = torch.rand(3, one.network.room, one.network.length, generator=draw)
            weights[one.prefix + OWN] = own.to(device)
            context[one.prefix + COUNT] = torch.tensor([3, 0, 1], device=device)
    return rows, weights, context, client_streams(0, ["a", "", "c"], 1, "local_train").to(device)
