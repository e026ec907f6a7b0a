"""Selective averaging of its authors' code: every switch, and a loop in torch whose clients do share one tensor."""

from itertools import product

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from flows.methods.references.selective_authors import SelectiveAuthors
from models.training.optimizers import Adam
from silos.cohort import Stack, open_stack
from silos.errors import UserError
from tasks.execution.load_client_data import load_weights

pytestmark = pytest.mark.slow

SIZES = {"a": 13, "b": 5, "c": 8}
COMMON = {"common": ["validation"], "validation": 8}
PLAIN = {"averaging": "mean", "starts": "common", "weighting": "rows"}


@pytest.fixture
def setup(make_problem):
    """A step is an epoch, so that an outsider's loop needs no order of rows."""
    return make_problem(SIZES, silos=COMMON, optimiser=Adam(0.01), keeps=True, batch=100, epochs=1)


def weights_of(played, client):
    model = played.page.model(played.state, played.setup).select([client])
    return {n: w[0] for n, w in load_weights(model, Stack((client,), 1), played.private, "cpu")[0].items()}


def test_without_their_ways_it_is_fedavg_to_the_bit(setup, play):
    ours = play(SelectiveAuthors(local_rounds=0, **PLAIN), setup, [1, 2, 3])
    theirs = play(FedAvg(), setup, [1, 2, 3])
    for client, (name, w) in product(SIZES, theirs.state.tensors["weights"].items()):
        assert torch.equal(weights_of(ours, client)[name], w)


def test_before_there_are_groups_it_is_local_training_to_the_bit(setup, play):
    ours = play(SelectiveAuthors(local_rounds=3, **PLAIN), setup, [1, 2])
    theirs = play(LocalOnly(), setup, [1, 2])
    for client in SIZES:
        mine, other = weights_of(ours, client), weights_of(theirs, client)
        assert all(torch.equal(mine[name], other[name]) for name in other)


def modules(setup):
    """The start of each client, as torch has it."""
    made = {}
    for client in setup.silos.clients:
        w = setup.initial_weights(purpose=f"init {client}")
        layers = [torch.nn.Linear(*w[f"dense{at}.weight"].shape) for at in range(len(w) // 2)]
        for at, layer in enumerate(layers):
            layer.weight.data, layer.bias.data = w[f"dense{at}.weight"].T.clone(), w[f"dense{at}.bias"].clone()
        relus = [torch.nn.ReLU()] * (len(layers) - 1)
        made[client] = torch.nn.Sequential(*[m for pair in zip(layers, [*relus, None], strict=True) for m in pair if m])
    return made


def authors_loop(setup, rounds, shared=True):
    """Their federated training: after a round every client's parameters become the mean, one tensor for all (`.data =`)."""
    nets = modules(setup)
    optimisers = {client: torch.optim.Adam(net.parameters(), 0.01) for client, net in nets.items()}
    for _ in range(rounds):
        for client, net in nets.items():
            rows = open_stack(setup.silos, Stack((client,), 1), "train")
            loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(rows.x[0])), torch.from_numpy(rows.y[0]))
            optimisers[client].zero_grad()
            loss.backward()
            optimisers[client].step()
        for parameters in zip(*(net.parameters() for net in nets.values()), strict=True):
            mean = torch.stack([p.data for p in parameters]).mean(0)
            for p in parameters:
                p.data = mean if shared else mean.clone()
    return nets


@pytest.mark.parametrize(("averaging", "shared"), [("in_turn", True), ("mean", False)])
def test_clients_that_share_one_tensor_train_in_turn(averaging, shared, setup, play):
    nets = authors_loop(setup, 5, shared)
    addresses = {next(net.parameters()).data_ptr() for net in nets.values()}
    assert (len(addresses) == 1) == shared
    ours = play(SelectiveAuthors(local_rounds=0, averaging=averaging), setup, range(1, 6))
    for client, net in nets.items():
        mine = weights_of(ours, client)
        for at, layer in enumerate(m for m in net if isinstance(m, torch.nn.Linear)):
            torch.testing.assert_close(mine[f"dense{at}.weight"], layer.weight.data.T, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(mine[f"dense{at}.bias"], layer.bias.data, rtol=1e-4, atol=1e-6)
    other = authors_loop(setup, 5, not shared)["a"][0].weight.data
    assert (other.T - weights_of(ours, "a")["dense0.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("averaging", ["in_turn", "mean"])
def test_the_last_group_counts_and_a_client_of_two_is_in_both_means(averaging, setup, play):
    page = SelectiveAuthors(local_rounds=1, averaging=averaging)
    before = play(page, setup, [1, 2])
    groups = [["a", "c"], ["b", "c"]]
    state = before.state.with_numbers(groups=groups, group={"a": 0, "b": 1, "c": 1})
    weights = {name: torch.stack([w[0], w[0] + 1]) for name, w in before.state.tensors["weights"].items()}
    state = state.with_tensors(weights=weights)
    after = play(page, setup, [3], state=state, private=before.private)
    alone = play(page, setup, [3], state=state.with_numbers(groups=[["a"], ["b", "c"]]), private=before.private)
    for name, w in after.state.tensors["weights"].items():
        last = alone.state.tensors["weights"][name]
        assert torch.equal(w[1], last[1])
        of_c = 2 * w[0] - last[0]  # what c has in the mean of the first
        if averaging == "in_turn":
            torch.testing.assert_close(of_c, last[1], atol=1e-5, rtol=1e-5)
        else:
            assert (of_c - last[0]).abs().max() > 0.5  # c trained from the second group's weights, which are 1 larger


def test_starts_are_each_clients_own(setup, play):
    played = play(SelectiveAuthors(local_rounds=2), setup, [1])
    drawn = {client: setup.initial_weights(purpose=f"init {client}")["dense0.weight"] for client in SIZES}
    for client in SIZES:
        moved = (weights_of(played, client)["dense0.weight"] - drawn[client]).abs().max()
        assert moved < 0.011  # one step of Adam
        assert min((drawn[client] - drawn[other]).abs().max() for other in SIZES if other != client) > 0.1


def test_equal_weights_are_a_mean_over_clients(setup, play):
    first = {}
    for weighting in ("equal", "rows"):
        page = SelectiveAuthors(local_rounds=0, weighting=weighting)
        first[weighting] = play(page, setup, [1]).state.tensors["weights"]["dense0.bias"][0]
    alone = play(SelectiveAuthors(local_rounds=1), setup, [1])
    own = np.stack([weights_of(alone, client)["dense0.bias"].double().numpy() for client in SIZES])
    np.testing.assert_allclose(first["equal"], own.mean(0), atol=1e-6)
    np.testing.assert_allclose(first["rows"], np.average(own, 0, weights=list(SIZES.values())), atol=1e-6)


def test_a_client_that_comes_late_is_in_the_first_group(setup, play):
    played = play(SelectiveAuthors(local_rounds=1), setup, [1, 2, 3, 4], absent={1: ["b"], 2: ["b"], 3: ["b"]})
    assert played.state.numbers["group"]["b"] == 0
    assert "b" in played.state.numbers["groups"][0]


@pytest.mark.parametrize("averaging", ["in_turn", "mean"])
def test_who_is_away_when_groups_first_average_is_in_no_mean_then(averaging, setup, play):
    page = SelectiveAuthors(local_rounds=1, averaging=averaging, threshold=0.0)
    played = play(page, setup, [1, 2], absent={2: ["b"]})
    assert played.state.numbers["groups"] == [["a", "b", "c"]]
    alone = play(SelectiveAuthors(local_rounds=3), setup, [1, 2])
    for name, w in played.state.tensors["weights"].items():
        mean = (weights_of(alone, "a")[name].double() + weights_of(alone, "c")[name].double()) / 2
        torch.testing.assert_close(w[0], mean.to(w.dtype))
    apart = play(page.model_copy(update={"threshold": 1.0}), setup, [1, 2, 3], absent={2: ["b"]})
    assert apart.state.numbers["group"] == {"a": 0, "b": 1, "c": 2}


def test_groups_are_made_later_where_nobody_was_there_at_the_end_of_phase_1(setup, play):
    played = play(SelectiveAuthors(local_rounds=2, threshold=1.0), setup, [1, 3, 4])
    assert played.state.numbers["groups"] == [["a"], ["b"], ["c"]]
    assert played.reports[1].messages
    assert "weights" in played.state.tensors


def test_groups_need_common_rows_and_no_groups_need_none(make_problem, play):
    bare = make_problem(SIZES)
    with pytest.raises(UserError, match="on which selective_authors tests every client"):
        play(SelectiveAuthors(), bare, [1])
    assert play(SelectiveAuthors(local_rounds=0), bare, [1]).state.numbers["groups"] == [["a", "b", "c"]]
