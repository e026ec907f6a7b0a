"""What a model says of its doubt, against brute force, and the passes that share what they would repeat."""

import math
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as some
from sklearn.metrics import log_loss

from models.metrics.uncertainty import Predictive, average_passes, predictive, uncertainty_metrics
from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.resnet_vgg import Residual
from models.networks.wrappers.codebook_network import COUNT, OWN, QuantizedNetwork
from models.prng import client_streams, fold_in, server_stream
from models.training.engine import broadcast_weights

NETWORKS = {
    "mlp": MLP(64, (8, 6), 3, dropout=0.4),
    "cnn": CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True, dropout=0.4),
    "residual": Residual((8, 8), 3, (6, 5), 0.4, True, (4, 8)),
    "quantised": QuantizedNetwork(Residual((8, 8), 3, (6,), 0.4, True, (4, 8)), 5, 2),
}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stack(network):
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 2)
    weights = {n: w + 0.3 * draw(*w.shape, seed=4).abs() for n, w in weights.items()}
    context = {}
    for one in network.single_networks:
        if isinstance(one.network, QuantizedNetwork):
            weights[one.prefix + OWN] = draw(2, 2, one.network.length, seed=one.number)
            context[one.prefix + COUNT] = torch.tensor([2, 0])
    return weights, context


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_passes_over_the_head_are_whole_passes_with_the_same_masks(network):
    (weights, context), x = stack(network), draw(2, 9, 8, 8, seed=2)
    streams = client_streams(0, ["a", "b"], 1, "u")
    found = predictive(network, weights, context, x, streams, 5)
    own = [fold_in(fold_in(streams, 0), t) for t in range(5)]
    whole = average_passes([network.apply_stack(weights, context, x, stream) for stream in own])
    torch.testing.assert_close(found.p, whole.p, rtol=0, atol=1e-7)
    assert not torch.equal(found.each, torch.special.entr(found.p).sum(-1))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_without_dropout_all_passes_agree_with_the_deterministic_softmax(network):
    inner = (
        {"inner": replace(network.inner, dropout=0.0)} if isinstance(network, QuantizedNetwork) else {"dropout": 0.0}
    )
    network = replace(network, **inner)
    (weights, context), x = stack(network), draw(2, 9, 8, 8, seed=2)
    streams = client_streams(0, ["a", "b"], 1, "u")
    expected = torch.softmax(network.apply_stack(weights, context, x, None).double(), -1)
    for given_streams, passes in ((streams, 20), (streams, 1), (None, 0)):
        found = predictive(network, weights, context, x, given_streams, passes)
        assert torch.equal(found.p, expected)
        numbers = uncertainty_metrics(found, torch.zeros(2, 9, dtype=torch.int64), torch.tensor([9, 9]))
        torch.testing.assert_close(numbers["mutual_information"], torch.zeros(2).double())


@pytest.mark.parametrize("inner", NETWORKS.values(), ids=NETWORKS)
def test_an_ensemble_without_passes_is_its_members_together(inner):
    network = DeepEnsemble(inner, 3)
    (weights, context), x = stack(network), draw(2, 9, 8, 8, seed=2)
    said = [
        one.network.apply_stack(one.of(weights), one.of(context), x, None).double() for one in network.single_networks
    ]
    found, expected = predictive(network, weights, context, x, None, 0), average_passes(said)
    torch.testing.assert_close(found.p, expected.p, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.each, expected.each, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        found.p, torch.softmax(network.apply_stack(weights, context, x, None), -1).double(), rtol=0, atol=1e-6
    )
    numbers = uncertainty_metrics(found, torch.zeros(2, 9, dtype=torch.int64), torch.tensor([9, 9]))
    assert numbers["mutual_information"].max() > 1e-4, "members that were drawn apart disagree"


def test_members_that_are_equal_do_not_disagree():
    network = DeepEnsemble(NETWORKS["cnn"], 3)
    (weights, _), x = stack(network), draw(2, 9, 8, 8, seed=2)
    first, *others = network.single_networks
    for other in others:
        weights |= other.named(first.of(weights))
    found = predictive(network, weights, {}, x, None, 0)
    numbers = uncertainty_metrics(found, torch.zeros(2, 9, dtype=torch.int64), torch.tensor([9, 9]))
    torch.testing.assert_close(numbers["mutual_information"], torch.zeros(2).double(), rtol=0, atol=1e-12)
    alone = predictive(network.inner, first.of(weights), {}, x, None, 0)
    torch.testing.assert_close(found.p, alone.p, rtol=0, atol=1e-12)


def test_an_ensembles_passes_are_those_of_every_member_with_masks_of_its_own():
    network = DeepEnsemble(NETWORKS["residual"], 2)
    (weights, context), x = stack(network), draw(2, 9, 8, 8, seed=2)
    streams = client_streams(0, ["a", "b"], 1, "u")
    found = predictive(network, weights, context, x, streams, 4)
    first, second = network.single_networks
    of_first = predictive(network.inner, first.of(weights), {}, x, streams, 4)
    masks = [second.stream(fold_in(fold_in(streams, 0), t)) for t in range(4)]
    of_second = average_passes([network.inner.apply_stack(second.of(weights), {}, x, mask) for mask in masks])
    torch.testing.assert_close(found.p, (of_first.p + of_second.p) / 2, rtol=0, atol=1e-7)
    torch.testing.assert_close(found.each, (of_first.each + of_second.each) / 2, rtol=0, atol=1e-7)


def test_passes_repeat_and_change_nothing():
    network = NETWORKS["residual"]
    (weights, context), x = stack(network), draw(2, 300, 8, 8)
    before = {n: w.clone() for n, w in weights.items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again = (
        predictive(network, weights, context, x, client_streams(0, ["a", "b"], 1, "u"), 3).p for _ in range(2)
    )
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(w, before[n]) for n, w in weights.items())
    alone = predictive(
        network, {n: w[1:] for n, w in weights.items()}, {}, x[1:], client_streams(0, ["b"], 1, "u"), 3
    ).p
    torch.testing.assert_close(alone[0], first[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("passes", [1, 2])
def test_no_two_rows_of_a_client_share_masks_however_many_rows_there_are(passes):
    """Rows that are all alike, of two clients that are alike: what differs between their predictions is masks."""
    network, rows = MLP(64, (64,), 3, dropout=0.5), 520
    weights = broadcast_weights(network.init(server_stream(0, 0, "init")), 2)
    x = draw(1, 1, 8, 8, seed=2).expand(2, rows, 8, 8)
    found = predictive(network, weights, {}, x, client_streams(0, ["a", "b"], 1, "u"), passes)
    assert len(found.p.flatten(0, 1).unique(dim=0)) == 2 * rows


def test_more_passes_are_other_passes():
    """Three passes twice over would have the mean of three."""
    network = MLP(64, (64,), 3, dropout=0.5)
    weights, x = broadcast_weights(network.init(server_stream(0, 0, "init")), 1), draw(1, 300, 8, 8)
    streams = client_streams(0, ["a"], 1, "u")
    means = [predictive(network, weights, {}, x, streams, passes).p for passes in range(1, 7)]
    each = [(n + 1) * after - n * before for n, (before, after) in enumerate(pairwise([means[0] * 0, *means]))]
    assert all((one - other).abs().amax(-1).min() > 1e-9 for one, other in combinations(each, 2))


@given(some.integers(2, 6), some.integers(1, 30), some.integers(1, 4), some.integers(0, 10**6))
def test_entropy_lies_between_none_and_all_and_no_pass_is_less_sure_than_their_mean(classes, rows, passes, seed):
    found = average_passes([3 * draw(1, rows, classes, seed=seed + t) for t in range(passes)])
    y = torch.arange(rows)[None] % classes
    numbers = {n: float(v[0]) for n, v in uncertainty_metrics(found, y, torch.tensor([rows])).items()}
    assert -1e-12 <= numbers["entropy"] <= math.log(classes) + 1e-12
    assert numbers["mutual_information"] >= -1e-12
    p, right = found.p[0].numpy(), (found.p[0].argmax(-1) == y[0]).numpy()
    assert numbers["accuracy"] == pytest.approx(right.mean())
    assert numbers["nll"] == pytest.approx(log_loss(y[0], p, labels=range(classes)), rel=1e-9)
    assert numbers["brier"] == pytest.approx(((p - np.eye(classes)[y[0]]) ** 2).sum(1).mean())
    assert numbers["ece"] == pytest.approx(calibration(p.max(1), right), abs=1e-12)


def calibration(confidence: np.ndarray, right: np.ndarray) -> float:
    """Guo et al. 2017, equation 5: bins ((m - 1)/15, m/15]."""
    total = 0.0
    for m in range(1, 16):
        inside = (confidence > (m - 1) / 15) & (confidence <= m / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


@given(some.lists(some.tuples(some.integers(1, 15), some.sampled_from([-0.01, 0, 0.01]), some.booleans()), min_size=1))
@example([(9, 0, True), (9, 0.01, False)])
@example([(1, 0, True), (1, 0.01, False)])
@example([(15, 0, False), (15, -0.01, True)])
def test_a_confidence_on_the_edge_of_two_bins_is_in_the_lower_one(told):
    """Of sixteen classes the first is predicted; where it should not be right, the second is the truth."""
    confidence = np.array([min(max(m / 15 + off, 1 / 15), 1) for m, off, _ in told])
    right = np.array([yes for *_, yes in told])
    p = torch.from_numpy(np.concatenate([confidence[:, None], np.repeat((1 - confidence[:, None]) / 15, 15, 1)], 1))[
        None
    ]
    found = uncertainty_metrics(
        Predictive(p, p.sum(-1)), torch.from_numpy(~right)[None].long(), torch.tensor([len(told)])
    )
    assert float(found["ece"]) == pytest.approx(calibration(confidence, right), abs=1e-12)


def test_certain_and_ignorant_predictions_have_the_entropies_that_they_must():
    p = torch.tensor([[[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]]).double()
    found = Predictive(p, torch.special.entr(p).sum(-1))
    y = torch.tensor([[0, 1]])
    assert uncertainty_metrics(found, y, torch.tensor([1]))["entropy"].tolist() == [0]
    assert uncertainty_metrics(found, y, torch.tensor([2]))["entropy"].tolist() == pytest.approx([math.log(4) / 2])
    assert uncertainty_metrics(found, y, torch.tensor([0]))["entropy"].isnan().all()
