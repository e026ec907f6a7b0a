"""The pooled arm against a plain loop over the rows of all clients, each with its client's statistics behind it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.conditional import Conditional
from flows.methods.pooled import Pooled
from models.networks.mlp import MLP
from models.prng import client_streams, fold_in, shuffle
from models.training.optimizers import SGD, Adam
from silos.storage.partition_store import open_client

SIZES = {"a": 13, "b": 5, "c": 8, "d": 2, "e": 10}
CLASSES, FEATURES, BATCH, EPOCHS = 3, 5, 4, 2
LENGTH = CLASSES * FEATURES


def own_rows(setup, client):
    """x, y and cov(x, one-hot y), class after class, by numpy."""
    x, y = open_client(Path(setup.silos.folder), setup.silos.manifest.client(client), "train")
    joint = np.cov(np.column_stack([x, np.eye(CLASSES)[y]]).astype(float).T)
    return x, y, joint[FEATURES:, :FEATURES].flatten()


def plainly(setup, clients, logits, make, start, rounds):
    """Epochs of mini-batches in plain torch; the orders are the ones that the pooled client draws."""
    parts = [own_rows(setup, client) for client in clients]
    x = torch.from_numpy(np.concatenate([x for x, _, _ in parts]))
    y = torch.from_numpy(np.concatenate([y for _, y, _ in parts]))
    beside = torch.from_numpy(np.concatenate([np.tile(m, (len(y), 1)) for _, y, m in parts])).float()
    weights = {n: w.clone().requires_grad_() for n, w in start.items()}
    for number in range(1, rounds + 1):
        optimiser = make(list(weights.values()))
        stream = client_streams(setup.seed, ["+".join(clients)], number, "local_train")[0]
        for epoch in range(EPOCHS):
            order = shuffle(fold_in(stream, epoch), len(y), torch.tensor(len(y)))
            for rows in order.split(BATCH):
                optimiser.zero_grad()
                found = logits(weights, x[rows], beside[rows])
                torch.nn.functional.cross_entropy(found, y[rows]).backward()
                optimiser.step()
    return {name: w.detach() for name, w in weights.items()}


def joined(w, x, m):
    hidden = torch.relu(torch.cat([x, m], 1) @ w["dense0.weight"] + w["dense0.bias"])
    return hidden @ w["dense1.weight"] + w["dense1.bias"]


def ensemble(w, x, m):
    share = torch.softmax(m @ w["gate.weight"] + w["gate.bias"], 1)
    experts = (x @ w["expert.weight"] + w["expert.bias"]).view(len(x), 2, CLASSES)
    return torch.einsum("re,rec->rc", share, experts)


FORMS = {"joined": joined, "ensemble": ensemble}
OPTIMISERS = [
    (SGD(0.1, 0.5), lambda p: torch.optim.SGD(p, 0.1, 0.5)),
    (Adam(0.01, 0.1, decoupled=True), lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)),
]


@pytest.mark.parametrize(("ours", "theirs"), OPTIMISERS, ids=["sgd", "adamw"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_a_plain_loop_over_rows_with_their_statistics_behind_them(form, ours, theirs, make_problem, play):
    setup = make_problem(SIZES, optimiser=ours)
    page = Conditional(form=form, arm="pooled", experts=2)
    start = page.init(setup).tensors["weights"]
    played = play(page, setup, [1, 2])
    expected = plainly(setup, tuple(SIZES), FORMS[form], theirs, start, 2)
    for name, w in expected.items():
        torch.testing.assert_close(played.state.tensors["weights"][name], w, rtol=0, atol=2e-6)
    moved = max(float((w - start[name]).abs().max()) for name, w in expected.items())
    assert moved > 0.05


def test_only_those_who_answered_are_in_it(make_problem, play):
    setup, there = make_problem(SIZES, optimiser=SGD(0.1)), ("b", "c", "e")
    page = Conditional(arm="pooled")
    start = page.init(setup).tensors["weights"]
    played = play(page, setup, [1], absent={1: ["a", "d"]})
    expected = plainly(setup, there, joined, lambda p: torch.optim.SGD(p, 0.1), start, 1)
    for name, w in expected.items():
        torch.testing.assert_close(played.state.tensors["weights"][name], w, rtol=0, atol=2e-6)


def test_with_zeros_for_statistics_it_is_the_method_pooled_to_the_bit(make_problem, play):
    small = make_problem(SIZES)
    large = make_problem(SIZES, network=MLP(FEATURES, (6,), CLASSES, statistics=LENGTH))
    ours = play(Conditional(arm="pooled", source="zeros"), small, [1, 2])
    theirs = play(Pooled(), large, [1, 2])
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w)
    assert (ours.rounds[0].tally.bytes_up, ours.rounds[0].tally.bytes_down) == (0, 0)


def test_of_one_client_it_is_that_clients_own_training_to_rounding(make_problem, play):
    setup = make_problem({"only": 13})
    pooled, alone = (play(Conditional(arm=arm), setup, [1, 2]).state.tensors["weights"] for arm in ("pooled", "fedavg"))
    for name, w in alone.items():
        torch.testing.assert_close(pooled[name], w, rtol=0, atol=1e-6)
