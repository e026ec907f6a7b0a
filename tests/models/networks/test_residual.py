"""The residual encoder against torch.nn with the same weights, in training and in evaluation, one client and several."""

import json

import pytest
import torch
from torch import nn

from models.networks.network_factory import from_json, to_json
from models.networks.resnet_vgg import Residual
from models.prng import client_streams, server_stream
from models.training.engine import Rows, Training, broadcast_weights, train
from models.training.objectives import Batch, CrossEntropy
from models.training.optimizers import SGD, Adam

NETWORK = Residual((8, 8), 3, (12,), 0.0, True, (4, 6))


class Stage(nn.Module):
    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, width, 3, padding=1)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        x = self.conv(x)
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return nn.functional.max_pool2d(torch.relu(x + inner), 2)


class Reference(nn.Module):
    def __init__(self, weights) -> None:
        super().__init__()
        self.stages = nn.ModuleList([Stage(1, 4), Stage(4, 6)])
        self.dense0, self.dense1 = nn.Linear(24, 12), nn.Linear(12, 3)
        state = {}
        for name, w in weights.items():
            where = (
                name.replace("stage", "stages.").replace(".mean", ".running_mean").replace(".variance", ".running_var")
            )
            state[where] = w.T if name.startswith("dense") and w.dim() == 2 else w
        state |= {
            f"{n}.num_batches_tracked": torch.tensor(0) for n in (k[:-13] for k in state if k.endswith("running_mean"))
        }
        self.load_state_dict(state)

    def forward(self, x):
        x = x[:, None]
        for stage in self.stages:
            x = stage(x)
        return self.dense1(nn.functional.gelu(self.dense0(x.flatten(1))))


@pytest.fixture
def weights():
    return NETWORK.init(server_stream(0, 0, "init"))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_evaluation_is_torch_nns_with_the_same_weights(weights):
    x = draw(5, 8, 8)
    weights = {n: w + 0.3 * draw(*w.shape, seed=1).abs() for n, w in weights.items()}
    torch.testing.assert_close(NETWORK.apply(weights, {}, x, None), Reference(weights).eval()(x))


def test_every_hidden_layer_has_a_gelu():
    network = Residual((8, 8), 3, (12, 5, 7), 0.0, True, (4,))
    weights, x = network.init(server_stream(0, 0, "init")), draw(5, 8, 8)
    expected = network.encode_stack(broadcast_weights(weights, 1), {}, x[None])[0][0].flatten(1)
    for layer in range(4):
        expected = expected @ weights[f"dense{layer}.weight"] + weights[f"dense{layer}.bias"]
        expected = nn.functional.gelu(expected) if layer < 3 else expected
    torch.testing.assert_close(network.apply(weights, {}, x, None), expected)


def test_a_training_step_moves_weights_and_running_statistics_as_torch_does(weights):
    x, y = draw(6, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    reference = Reference(weights)
    optimiser = torch.optim.SGD(reference.parameters(), 0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
    rows = Rows(x[None], y[None], torch.tensor([6]))
    plan = Training(CrossEntropy(), SGD(0.1), 3, 6, "batched")
    trained, *_ = train(NETWORK, broadcast_weights(weights, 1), {}, rows, plan, client_streams(0, ["a"], 1, "t"))
    expected = Reference({n: w[0] for n, w in trained.items()})
    for name, w in reference.state_dict().items():
        if not name.endswith("tracked"):
            torch.testing.assert_close(expected.state_dict()[name], w, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.1, 0.9), Adam(0.01)])
def test_a_stack_of_unequal_clients_learns_what_each_learns_alone(weights, optimiser):
    """Padding enters neither the batch's statistics nor the running ones; who has no rows left is frozen."""
    counts = [9, 5, 1, 4]
    rows = Rows(draw(4, 9, 8, 8).double(), torch.arange(36).view(4, 9) % 3, torch.tensor(counts))
    start = {n: w.double() for n, w in broadcast_weights(weights, 4).items()}
    streams = client_streams(0, list("abcd"), 1, "t")
    plans = [Training(CrossEntropy(), optimiser, 2, 4, kind) for kind in ("batched", "sequential")]
    found, reference = (train(NETWORK, start, {}, rows, plan, streams) for plan in plans)
    for name, w in reference[0].items():
        torch.testing.assert_close(found[0][name], w, rtol=0, atol=1e-9, msg=name)
    torch.testing.assert_close(found[1], reference[1], rtol=0, atol=1e-9)


def test_a_single_row_leaves_the_running_statistics_of_a_place_of_one_alone():
    """torch refuses such a batch, since its variance is not known."""
    network = Residual((2, 2), 3, (), 0.0, False, (4,))
    norm = [n for n in network.buffers if "norm2" in n]
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 1)
    batch = Batch(
        draw(1, 1, 2, 2),
        torch.zeros(1, 1, dtype=torch.int64),
        torch.ones(1, 1),
        torch.ones(1),
        torch.zeros(1, dtype=torch.int64),
        True,
        True,
    )
    loss, moved = network.cost_stack(weights, {}, batch, CrossEntropy())
    assert torch.isfinite(loss).all()
    assert all(torch.isfinite(moved[n]).all() for n in norm)


def test_dropout_acts_on_the_logits_too(weights):
    network = Residual((8, 8), 3, (12,), 0.5, True, (4, 6))
    streams = client_streams(0, ["a"], 1, "t")
    logits = network.apply_stack(broadcast_weights(weights, 1), {}, draw(1, 200, 8, 8), streams)
    assert 0.3 < float((logits == 0).float().mean()) < 0.7
    kept = Residual((8, 8), 3, (12,), 0.5, False, (4, 6)).apply_stack(
        broadcast_weights(weights, 1), {}, draw(1, 200, 8, 8), streams
    )
    assert not (kept == 0).any()


def test_the_papers_encoder_has_the_papers_size():
    network = Residual((28, 28), 10, (512,), 0.1, True, (128, 256, 512))
    weights = network.init(server_stream(0, 0, "init"))
    learned = {n: w for n, w in weights.items() if n not in network.buffers}
    head = sum(w.numel() for n, w in learned.items() if n.startswith("dense"))
    assert head == 2_364_938
    assert sum(w.numel() for w in learned.values()) - head == 7_673_344


def test_it_comes_back_from_its_json_and_refuses_what_is_too_small():
    assert from_json(json.loads(json.dumps(to_json(NETWORK)))) == NETWORK
    with pytest.raises(ValueError, match="leave nothing of an image of 4 x 4"):
        Residual((4, 4), 3, (), 0.0, True, (4, 4, 4))
    with pytest.raises(ValueError, match=r"got rows of shape \(4,\), expected images for convolutions"):
        Residual((4,), 3)
