"""A method trains a deep ensemble as it trains a network, or says which methods do."""

import pytest
import torch

from flows.methods.base import find_method, method_names, start_method
from flows.methods.fediir import FedIIR
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.training.engine import per_example_metrics
from models.training.optimizers import SGD, Adam
from silos.cohort import Stack
from silos.errors import UserError
from tasks.evaluate import evaluate
from tasks.execution.load_client_data import load_rows, load_weights
from tasks.tracking.checkpoint import load_state, save_state
from tasks.tracking.result_tables import by_client, summary

pytestmark = pytest.mark.slow

CLIENTS = {"oslo": 11, "lyon": 7, "one": 1, "same": 6, "rome": 9}
SILOS = {"one_class": "same", "common": ["validation"]}
INNER = MLP(5, (6,), 3, dropout=0.2)
TAKE = [name for name in method_names() if find_method(name).takes_members]
# what they do next hangs on what all members say together
LOOK = {"ifca", "cfl", "uefl", "uefl_authors"}


@pytest.fixture
def make(make_problem):
    def build(network, name=""):
        optimiser = SGD(0.1) if name == "scaffold" else Adam(0.01)  # whose variates are of plain SGD
        return make_problem(CLIENTS, network=network, optimiser=optimiser, silos=SILOS)

    return build


@pytest.mark.parametrize("name", sorted({*method_names()} - {*TAKE}))
def test_a_method_around_one_network_refuses_an_ensemble_and_names_those_that_take_one(name, make):
    with pytest.raises(UserError, match=r"model\.members: got 3, .* Set model.members to 1, or use one of cfl, .*uefl"):
        start_method(find_method(name)(), make(DeepEnsemble(INNER, 3)))


def test_a_page_around_one_network_that_forgot_to_say_so_is_told_what_to_write(make):
    class Forgetful(FedIIR):
        takes_members = True

    said = r"model\.members: got 3, expected 1, since this method wraps .* takes_members = False in the method's class"
    with pytest.raises(UserError, match=said):
        start_method(Forgetful(), make(DeepEnsemble(INNER, 3)))


@pytest.mark.parametrize("name", TAKE)
def test_a_method_that_takes_an_ensemble_trains_it_keeps_it_and_is_scored_with_it(name, make, play, tmp_path):
    page, setup = find_method(name)(), make(DeepEnsemble(INNER, 2), name)
    played = play(page, setup, [1, 2])
    save_state(tmp_path / "checkpoint", played.state, 2)
    assert load_state(tmp_path / "checkpoint")[0].sha256() == played.state.sha256()
    after = play(page, setup, [3, 4, 5, 6], state=played.state)
    losses = []
    for state in (page.init(setup), after.state):
        model = page.model(state, setup)
        scores = played.rounds[0].map_clients(evaluate, model, silos=setup.silos, training=setup.training)
        losses.append(summary(by_client(scores), "test")["loss/mean"])
    assert losses[1] < losses[0]


@pytest.mark.parametrize("name", [name for name in TAKE if name not in LOOK])
def test_the_first_member_is_the_run_without_an_ensemble(name, make, play):
    page, network = find_method(name)(), DeepEnsemble(INNER, 2)
    ours, theirs = (play(page, make(one, name), [1, 2]) for one in (network, INNER))
    first, second = network.single_networks
    for client in CLIENTS:
        opened = [
            load_weights(page.model(p.state, p.setup).select([client]), Stack((client,), 1), p.private, "cpu")[0]
            for p in (ours, theirs)
        ]
        for part, w in opened[1].items():
            torch.testing.assert_close(first.of(opened[0])[part], w, rtol=0, atol=1e-6)
            assert not torch.equal(second.of(opened[0])[part], w)


def test_dealing_does_not_matter_and_both_engines_learn_the_same(make, play, sequential):
    page, setup = (
        find_method("uefl")(arm="paper", words=4, first_rounds=1, tolerance=-1),
        make(DeepEnsemble(INNER, 2)),
    )
    one, more = (play(page, setup, [1, 2], workers=n, stack=2) for n in (1, 2))
    assert one.state.sha256() == more.state.sha256()
    reference = play(page, sequential(setup), [1])
    batched = play(page, setup, [1])
    losses = []
    for played in (reference, batched):
        model = page.model(played.state, setup)
        stack = Stack(("oslo",), 1)
        weights, context = load_weights(model.select(["oslo"]), stack, played.private, "cpu")
        rows = load_rows(setup.silos, stack, "test", "cpu")
        losses.append(per_example_metrics(model.network, weights, context, rows, setup.training.objective)["loss"])
    torch.testing.assert_close(*losses, rtol=0, atol=1e-5)
