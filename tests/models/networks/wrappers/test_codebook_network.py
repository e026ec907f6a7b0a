"""The codebook: nearest is nearest, gradients go where equation 5 says, and no client sees another's words."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.network_factory import from_json, to_json
from models.networks.resnet_vgg import Residual
from models.networks.wrappers.codebook_network import (
    COUNT,
    OWN,
    SHARED,
    QuantizedNetwork,
    code_usage,
    kmeans_centroids,
    nearest,
    perplexity,
    pooled_centroids,
)
from models.prng import client_streams, server_stream
from models.training.engine import Rows, Training, broadcast_weights, train
from models.training.objectives import Batch, CrossEntropy
from models.training.optimizers import SGD, Adam

INNER = {
    "mlp": MLP(64, (8,), 3, dropout=0.2),
    "cnn": CNN((8, 8), (3, 4), (6,), 3, kernel=3, padding=True, dropout=0.2),
    "residual": Residual((8, 8), 3, (6,), 0.2, True, (4, 8)),
}
COUNTS = [3, 0, 1]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stack(network, clients: int = 3, rows: int = 7, dtype=torch.float32):
    weights = {n: w.to(dtype) for n, w in broadcast_weights(network.init(server_stream(0, 0, "init")), clients).items()}
    weights[OWN] = draw(clients, network.room, network.length, seed=3).to(dtype)
    given = Rows(
        draw(clients, rows, 8, 8).to(dtype),
        torch.arange(clients * rows).view(clients, -1) % 3,
        torch.tensor([7, 4, 1][:clients]),
    )
    return weights, {COUNT: torch.tensor(COUNTS[:clients])}, given, client_streams(0, list("abc")[:clients], 1, "t")


def whole_batch(rows: Rows, streams: torch.Tensor) -> Batch:
    return Batch(
        rows.x,
        rows.y,
        torch.ones(rows.y.shape, dtype=rows.x.dtype),
        torch.full((len(rows.y),), rows.y.shape[1]),
        streams,
        True,
        True,
    )


@given(some.integers(1, 40), some.integers(1, 9), some.integers(1, 5), some.integers(0, 10**6))
def test_the_nearest_word_is_the_nearest_by_brute_force(tokens, words, length, seed):
    x, book = draw(2, tokens, length, seed=seed), draw(2, words, length, seed=seed + 1)
    usable = torch.tensor([words, (words + 1) // 2])
    index = nearest(x, book, usable)
    for client in range(2):
        distance = torch.cdist(x[client].double(), book[client, : usable[client]].double())
        at = distance.gather(1, index[client][:, None])[:, 0]
        torch.testing.assert_close(at, distance.min(1).values, rtol=0, atol=1e-5)


def test_of_equally_near_words_the_first_is_taken():
    book = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    assert nearest(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]), book).tolist() == [[0, 0]]


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_cutting_and_joining_is_the_identity_and_slices_are_of_one_place(segments):
    network = QuantizedNetwork(INNER["residual"], 5, segments=segments)
    z = draw(2, 3, 8, 4)
    tokens = network.to_tokens(z)
    assert tokens.shape == (2, 3 * 4 * segments, 8 // segments)
    assert torch.equal(network.from_tokens(tokens, z), z)
    assert torch.equal(tokens[1, 0], z[1, 0, : 8 // segments, 0])


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_without_words_it_is_the_inner_network_bit_for_bit(inner):
    network = QuantizedNetwork(inner, words=0)
    weights, _, rows, streams = stack(network)
    del weights[OWN]
    plain = {n: w for n, w in weights.items() if n != SHARED}
    plan = Training(CrossEntropy(), Adam(0.01), 2, 4, "batched")
    ours, *_ = train(network, weights, {}, rows, plan, streams)
    theirs, *_ = train(inner, plain, {}, rows, plan, streams)
    assert all(torch.equal(ours[n], w) for n, w in theirs.items())


def test_a_book_that_holds_every_token_changes_nothing():
    """c = z: no distance to pay, and the step is the inner network's."""
    inner = replace(INNER["residual"], dropout=0.0)
    network = QuantizedNetwork(inner, words=28)
    weights, _, rows, streams = stack(network, 1)
    batch = whole_batch(rows, streams)
    del weights[OWN]
    z, _ = network.encode_stack(weights, {}, batch.x, batch.used, True)
    weights = {**weights, SHARED: network.to_tokens(z)}
    assert weights[SHARED].shape == (1, 28, 8)
    cost, _ = network.cost_stack(weights, {}, batch, CrossEntropy())
    plain, _ = inner.cost_stack(weights, {}, batch, CrossEntropy())
    torch.testing.assert_close(cost, plain)


def test_gradients_go_straight_through_to_the_encoder_and_to_words_only_from_their_distance():
    network = QuantizedNetwork(replace(INNER["residual"], dropout=0.0), words=6, code_weight=0.0)
    weights, _, rows, streams = stack(network, 1, dtype=torch.float64)
    del weights[OWN]
    leaves = {n: w.clone().requires_grad_(w.is_floating_point()) for n, w in weights.items()}
    cost, _ = network.cost_stack(leaves, {}, whole_batch(rows, streams), CrossEntropy())
    grads = dict(zip(leaves, torch.autograd.grad(cost.sum(), list(leaves.values()), allow_unused=True), strict=True))
    assert not grads[SHARED].any()
    assert grads["stage0.conv.weight"].abs().sum() > 0
    with_distance = replace(network, code_weight=1.0)
    cost, _ = with_distance.cost_stack(leaves, {}, whole_batch(rows, streams), CrossEntropy())
    assert torch.autograd.grad(cost.sum(), leaves[SHARED])[0].abs().sum() > 0


def test_the_distance_has_the_gradients_of_equation_5():
    """2 sum (e - t) / numbers in a word, commitment 2 (z - c) / numbers in a feature."""

    class Bare(MLP):
        """Its features are its rows, and its logits do not depend on them."""

        def apply_head(self, weights, embedding, streams):
            return embedding[..., :1] * 0 + weights["dense0.bias"][:, None]

    network = QuantizedNetwork(Bare(64, (), 3), words=5, commitment=0.25, segments=4)
    weights, _, rows, streams = stack(network, 1, dtype=torch.float64)
    del weights[OWN]
    x = rows.x.clone().requires_grad_()
    book = weights[SHARED].clone().requires_grad_()
    batch = whole_batch(rows._replace(x=x), streams)
    cost, _ = network.cost_stack({**weights, SHARED: book}, {}, batch, CrossEntropy())
    on_words, on_rows = torch.autograd.grad(cost.sum(), [book, x])
    z, _ = network.encode_stack(weights, {}, rows.x)
    codes, index = network.quantize_stack(weights, {}, z)
    tokens, numbers = network.to_tokens(z)[0], z.numel()
    for word in range(5):
        mine = tokens[index[0] == word]
        expected = 2 * (weights[SHARED][0, word] - mine).sum(0) / numbers
        torch.testing.assert_close(on_words[0, word], expected)
    expected = 0.25 * 2 * (z - codes).squeeze(-1).view_as(x) / numbers
    torch.testing.assert_close(on_rows, expected)


def test_no_client_reads_another_clients_codewords():
    """With NaN in every other client's own words and in the room beyond its own, nothing of a client changes."""
    network = QuantizedNetwork(INNER["residual"], words=4, room=3)
    weights, context, rows, streams = stack(network)
    plan = Training(CrossEntropy(), Adam(0.01), 2, 4, "batched")
    expected, loss, _ = train(network, weights, context, rows, plan, streams)
    for client in range(3):
        poisoned = weights[OWN].clone()
        poisoned[torch.arange(3) != client] = torch.nan
        poisoned[client, COUNTS[client] :] = torch.nan
        found, own_loss, _ = train(network, {**weights, OWN: poisoned}, context, rows, plan, streams)
        for name, w in expected.items():
            size = COUNTS[client] if name == OWN else None
            assert torch.equal(found[name][client][:size], w[client][:size]), name
        assert own_loss[client] == loss[client]


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_clients_with_books_of_different_sizes_learn_what_each_learns_alone(inner, learns_alone):
    network = QuantizedNetwork(inner, words=4, room=3, segments=2)
    weights, context, rows, streams = stack(network, dtype=torch.float64)
    learns_alone(network, weights, context, rows, streams, batch=4)


def test_a_word_that_nobody_chose_stays_bit_for_bit():
    network = QuantizedNetwork(INNER["cnn"], words=40)
    weights, _, rows, streams = stack(network)
    del weights[OWN]
    trained, *_ = train(network, weights, {}, rows, Training(CrossEntropy(), Adam(0.01), 1, 4, "batched"), streams)
    moved = (trained[SHARED] != weights[SHARED]).any(2)
    used = code_usage(network, weights, {}, rows.x, rows.counts, "batched")["words_used"]
    assert moved.any(1).all()
    assert (moved.sum(1) < 40).all()
    assert (used <= 40).all()


def test_perplexity_is_one_for_one_word_and_their_number_if_all_are_used_equally():
    counts = torch.tensor([[9, 0, 0, 0], [5, 5, 5, 5], [1, 2, 3, 4]])
    found = perplexity(counts).tolist()
    assert found[:2] == pytest.approx([1, 4])
    assert 1 < found[2] < 4
    assert perplexity(torch.zeros(1, 4)).isnan().all()


def test_habits_count_the_words_of_a_clients_own_rows():
    network = QuantizedNetwork(MLP(64, (), 3), words=4, segments=4)
    weights, _, _, _ = stack(network, 1)
    del weights[OWN]
    x = weights[SHARED][0, [0, 1, 1, 3]].reshape(1, 1, 64).repeat(1, 250, 1)
    found = code_usage(network, weights, {}, x, torch.tensor([201]), "batched")
    assert found["words_used"].tolist() == [3]
    expected = float(perplexity(torch.tensor([[1.0, 2.0, 0.0, 1.0]]))[0])
    assert found["perplexity"].tolist() == pytest.approx([expected])
    assert found["perplexity_100"].tolist() == pytest.approx([expected])
    assert found["code_loss"].tolist() == pytest.approx([0], abs=1e-12)


def test_centres_are_fewer_where_fewer_tokens_differ_and_say_how_many_they_stand_for():
    tokens = np.repeat(np.eye(3, dtype=np.float32), [5, 3, 2], 0)
    found, weight = kmeans_centroids(tokens, 8, seed=0)
    assert found.shape == (3, 3)
    assert sorted(weight.tolist()) == [2, 3, 5]
    again, _ = kmeans_centroids(tokens, 8, seed=0)
    assert np.array_equal(found, again)
    with pytest.raises(ValueError, match="features: got numbers that are not finite, expected finite ones"):
        kmeans_centroids(np.full((4, 3), np.nan, np.float32), 2, 0)


@pytest.mark.parametrize("rows", [1, 9, 10, 19, 47])
@pytest.mark.parametrize("each", [1, 3])
def test_no_centre_stands_for_tokens_of_fewer_different_rows_than_asked(rows, each):
    """Every row's tokens are in a direction of their own, so a centre shows whose tokens it is a mean of."""
    owner = np.arange(rows * each) % rows
    strength = np.random.default_rng(0).uniform(1, 5, rows * each)
    tokens = (np.eye(rows)[owner] * strength[:, None]).astype(np.float32)
    found, weight = pooled_centroids(tokens, owner, 16, seed=0, least=10)
    assert all((centre > 0).sum() >= 10 for centre in found)
    assert len(found) == len(weight) <= rows // 10 * each
    if rows >= 10:
        np.testing.assert_allclose((found * weight[:, None]).sum(0), tokens.sum(0), rtol=1e-4)
        assert weight.sum() == len(tokens)
    again, _ = pooled_centroids(tokens, owner, 16, seed=0, least=10)
    assert np.array_equal(found, again)


def test_centres_of_many_rows_are_where_their_clusters_are_and_copies_of_a_row_are_one():
    draw = np.random.default_rng(0)
    middle = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]])
    tokens = np.repeat(middle, [20, 30, 40], 0).astype(np.float32) + draw.normal(size=(90, 2)).astype(np.float32)
    found, weight = pooled_centroids(tokens, np.arange(90), 3, seed=0, least=10)
    assert sorted(weight.tolist()) == [20, 30, 40]
    assert all(np.abs(found - point).sum(1).min() < 2 for point in middle)
    copies = np.concatenate([np.arange(60), np.full(30, 60)])  # the last thirty are one row
    assert len(pooled_centroids(tokens, copies, 3, seed=0, least=10)[0]) == 3
    copies = np.concatenate([np.zeros(20, int), np.arange(70)])  # the first cluster is one row
    assert len(pooled_centroids(tokens, copies, 3, seed=0, least=10)[0]) == 2


def test_segments_that_do_not_divide_the_channels_are_refused_with_those_that_do():
    with pytest.raises(ValueError, match="segments: got 3, expected a divisor of the 8 channels of the features"):
        QuantizedNetwork(INNER["residual"], 4, segments=3)


def test_it_comes_back_from_its_json():
    network = QuantizedNetwork(INNER["residual"], 4, 2, 2)
    assert from_json(json.loads(json.dumps(to_json(network)))) == network


def test_plain_descent_moves_the_words_too():
    network = QuantizedNetwork(INNER["mlp"], words=4)
    weights, _, rows, streams = stack(network)
    del weights[OWN]
    trained, *_ = train(network, weights, {}, rows, Training(CrossEntropy(), SGD(0.1), 1, 4, "batched"), streams)
    assert not torch.equal(trained[SHARED], weights[SHARED])


def test_tokens_that_hardly_differ_get_as_many_centres_as_can_be_told_apart():
    far = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]], np.float32)
    near = np.nextafter(far, np.float32(1000), dtype=np.float32)
    found, share = kmeans_centroids(np.concatenate([far, near]), 6, 0)
    assert 3 <= len(found) == len(share) <= 6
    assert (share > 0).all()
    assert share.sum() == 6
    assert all(np.abs(found - point).sum(1).min() < 1e-3 for point in far)


def test_habits_of_clients_in_a_stack_are_those_of_each_alone():
    network = QuantizedNetwork(INNER["residual"], words=4, room=3, segments=2)
    weights, context, rows, _ = stack(network)
    counts = torch.tensor([rows.y.shape[1], 2, 1])
    found = code_usage(network, weights, context, rows.x, counts, "batched")
    for at, count in enumerate(counts.tolist()):
        own = ({n: t[at : at + 1] for n, t in of.items()} for of in (weights, context))
        alone = code_usage(network, *own, rows.x[at : at + 1, :count], counts[at : at + 1], "batched")
        for name, value in alone.items():
            torch.testing.assert_close(found[name][at : at + 1], value, rtol=1e-5, atol=1e-7, msg=name)
    z, _ = network.encode_stack(weights, context, rows.x)
    far = ((z - network.quantize_stack(weights, context, z).codes) ** 2).mean((2, 3))
    for at, count in enumerate(counts.tolist()):
        assert float(found["code_loss"][at]) == pytest.approx(1.25 * float(far[at, :count].mean()), rel=1e-5)


def test_a_batch_of_a_hundred_in_which_a_client_has_no_rows_says_nothing_of_its_words():
    network = QuantizedNetwork(MLP(64, (), 3), words=4, segments=4)
    weights, *_ = stack(network, 2)
    del weights[OWN]
    x = weights[SHARED][0, [0, 1, 1, 3]].reshape(1, 1, 64).repeat(2, 250, 1)
    found = code_usage(
        network,
        {n: w[:1].expand(2, *w.shape[1:]) for n, w in weights.items()},
        {},
        x,
        torch.tensor([250, 3]),
        "batched",
    )
    assert float(found["perplexity_100"][1]) == pytest.approx(float(found["perplexity_100"][0]))
    assert float(found["perplexity_100"][1]) == pytest.approx(float(found["perplexity"][1]))
