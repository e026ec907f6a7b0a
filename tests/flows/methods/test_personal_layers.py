"""FedPer and FedRep: against float64 loops of their papers' algorithms, and their reductions."""

from pathlib import Path

import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.fedper import FedPer
from flows.methods.fedrep import FedRep
from flows.methods.local_only import LocalOnly
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.training.optimizers import SGD
from silos.client_store import ClientStore
from silos.errors import UserError
from silos.storage.partition_store import open_client

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
ABSENT = {1: ["e"], 2: ["b", "e"], 3: ["a", "e"]}
RATE = 0.1
HEAD = ("dense1.weight", "dense1.bias")
BODY = ("dense0.weight", "dense0.bias")


def steps(w, x, y, epochs, names):
    """Full-batch gradient steps of the weights `names` in float64, by plain autograd."""
    for _ in range(epochs):
        leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
        hidden = torch.relu(x @ leaves["dense0.weight"] + leaves["dense0.bias"])
        logits = hidden @ leaves["dense1.weight"] + leaves["dense1.bias"]
        torch.nn.functional.cross_entropy(logits, y).backward()
        w = {n: (t - RATE * t.grad if n in names else t).detach() for n, t in leaves.items()}
    return w


def rows_of(setup, client):
    x, y = open_client(Path(setup.silos.folder), setup.silos.manifest.client(client), "train")
    return torch.from_numpy(x.copy()).double(), torch.from_numpy(y.copy())


@pytest.mark.parametrize("engine", ["batched", "sequential"])
@pytest.mark.parametrize("method", [FedPer(fit_epochs=4), FedRep(head_epochs=2, fit_epochs=4)])
def test_it_is_the_papers_loop_with_absent_clients_and_a_client_that_never_trains(method, engine, make_problem, play):
    setup = make_problem(SIZES, batch=100, epochs=3, optimiser=SGD(RATE), engine=engine)
    played = play(method, setup, [1, 2, 3], absent=ABSENT)
    start = {name: value.double() for name, value in FedAvg().init(setup).tensors["weights"].items()}
    body, heads = {n: start[n] for n in BODY}, {client: {n: start[n] for n in HEAD} for client in SIZES}
    for number in (1, 2, 3):
        trained = {}
        for client in sorted(set(SIZES) - set(ABSENT[number])):
            own, rows = {**body, **heads[client]}, rows_of(setup, client)
            if isinstance(method, FedRep):
                own = steps(steps(own, *rows, 2, HEAD), *rows, 3, BODY)
            else:
                own = steps(own, *rows, 3, HEAD + BODY)
            heads[client], trained[client] = {n: own[n] for n in HEAD}, own
        total = sum(SIZES[client] for client in trained)
        body = {n: sum(SIZES[client] * own[n] for client, own in trained.items()) / total for n in BODY}
    heads["e"] = steps({**body, **heads["e"]}, *rows_of(setup, "e"), 4, HEAD)
    assert played.state.tensors["weights"].keys() == {*BODY}  # the server has no head
    for name in BODY:
        torch.testing.assert_close(played.state.tensors["weights"][name].double(), body[name], rtol=0, atol=1e-6)
    assert "e" not in played.state.private["heads"]
    model = played.page.scored_model(played.state, played.rounds[-1])
    for client in SIZES:
        own = played.private.load("heads", model.personal.refs, client)
        for name in HEAD:
            torch.testing.assert_close(torch.from_numpy(own[name]).double(), heads[client][name], rtol=0, atol=1e-6)


def test_fedper_without_personal_layers_is_fedavg_to_the_bit(make_problem, play):
    setup = make_problem(SIZES)
    ours, theirs = (play(method, setup, [1, 2, 3], absent=ABSENT) for method in (FedPer(layers=0), FedAvg()))
    assert ours.state.sha256() == theirs.state.sha256()
    assert ours.reports == theirs.reports


def test_fedper_with_all_layers_personal_is_local_only_to_the_bit(make_problem, play, tmp_path):
    setup = make_problem(SIZES)
    ours = play(FedPer(layers=2), setup, [1, 2], absent=ABSENT, private=ClientStore(str(tmp_path / "ours")))
    theirs = play(LocalOnly(), setup, [1, 2], absent=ABSENT, private=ClientStore(str(tmp_path / "theirs")))
    assert ours.state.private["heads"].keys() == theirs.state.private["weights"].keys()
    for client in theirs.state.private["weights"]:
        own, alone = (
            p.private.load(name, p.state.private[name], client) for p, name in ((ours, "heads"), (theirs, "weights"))
        )
        assert all((own[name] == alone[name]).all() for name in alone)
    assert ours.reports == theirs.reports


@pytest.mark.parametrize("method", [FedPer(), FedRep(head_epochs=2)])
def test_the_head_is_not_sent_and_the_steps_are_counted(method, make_problem, play):
    setup = make_problem(SIZES, batch=100, epochs=3)
    tally = play(method, setup, [1]).rounds[0].tally
    assert tally.bytes_down == 5 * 4 * (5 * 6 + 6)
    assert tally.bytes_up == 5 * 4 * (5 * 6 + 6 + 2)
    assert set(tally.steps.values()) == {3 if type(method) is FedPer else 5}


def test_each_member_of_an_ensemble_has_its_own_head(make_problem):
    setup = make_problem(SIZES, network=DeepEnsemble(MLP(5, (6,), 3), 2))
    state = FedPer().init(setup)
    assert set(FedPer().model(state, setup).personal.start) == {f"{m}/{name}" for m in (0, 1) for name in HEAD}


def test_too_many_personal_layers_are_refused(make_problem):
    with pytest.raises(
        UserError, match=r"method\.fedper\.layers: got 3, expected at most 2, the dense layers of this mlp"
    ):
        FedPer(layers=3).init(make_problem(SIZES))
    with pytest.raises(
        UserError, match=r"method\.fedrep\.layers: got 2, all layers of this mlp, expected one layer less"
    ):
        FedRep(layers=2).init(make_problem(SIZES))
