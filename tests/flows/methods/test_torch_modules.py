"""A module of torch trains under every method; FedAvg of it gives the weights of the hand-batched network."""

import pytest
import torch
from torch import nn

from flows.methods.base import find_method, method_names
from flows.methods.fedavg import FedAvg
from models.networks.torch_module import wrap_module
from models.server_state import ServerState
from silos.errors import UserError

SIZES = {"oslo": 24, "lyon": 17, "rome": 12, "bonn": 11}
OPTIONS = {
    "flux": {"warm_up": 0},
    "selective": {"local_rounds": 2},
    "selective_authors": {"local_rounds": 1},
    "uefl": {"first_rounds": 1, "words": 3, "start": "centres", "warm_up": 1},
    "uefl_authors": {"words": 3, "first_rounds": 1, "more_rounds": 1},
    "vq_oracle": {"start": "centres", "warm_up": 1, "words": 3},
}
NORMALISED = {"fedbn", "serverbn"}  # they are about networks that normalise
APART = {"conditional", "distrans", "fediir", "fedper", "fedrep", "fedsr", "flux", "uefl", "uefl_authors", "vq_oracle"}


class Module(nn.Module):
    def __init__(self, shape, outputs, norm: bool = False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.ReLU())
        self.head = nn.Linear(6, outputs)

    def forward(self, x):
        return self.head(self.body(x))


class Whole(Module):
    """Without a last Linear that could be taken away."""

    def forward(self, x):
        return super().forward(x) * 1.5


@pytest.mark.slow
@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize("make", [Module, Whole])
def test_it_trains_under_every_method_and_those_that_take_it_apart_need_a_last_linear(name, make, make_problem, play):
    network = wrap_module("mine", make, (5,), 3, {"norm": name in NORMALISED})
    page = find_method(name)(**OPTIONS.get(name, {}))
    silos = {"validation": 5, "domains": dict.fromkeys(SIZES, "north") | {"rome": "south"}}
    setup = make_problem(SIZES, network=network, silos=silos)
    if name.startswith("selective") or name == "serverbn":
        setup = make_problem(SIZES, network=network, silos={**silos, "common": ["validation"]})
    if make is Whole and name in APART:
        with pytest.raises(UserError, match=r"model\.kind: got mine, (which has no|expected)"):
            play(page, setup, [1])
        return
    state = play(page, setup, [1, 2]).state
    assert state.sha256() != page.init(setup).sha256()
    assert all(torch.isfinite(w).all() for part in state.tensors.values() for w in part.values())


def test_fedavg_of_a_dense_module_gives_the_weights_of_the_mlp(make_problem, play):
    ours, theirs = make_problem(SIZES), make_problem(SIZES, network=wrap_module("mine", Module, (5,), 3, {}))
    start = FedAvg().init(ours).tensors["weights"]
    names = {"body.0.weight": "dense0.weight", "body.0.bias": "dense0.bias"}
    names |= {"dense0.weight": "dense1.weight", "dense0.bias": "dense1.bias"}
    same = {n: start[o].T.contiguous() if n == "body.0.weight" else start[o] for n, o in names.items()}
    rounds = [1, 2, 3, 4, 5]
    by_hand = play(FedAvg(), ours, rounds).state.tensors["weights"]
    mapped = play(FedAvg(), theirs, rounds, state=ServerState({"weights": same})).state.tensors["weights"]
    for name, other in names.items():
        found = mapped[name].T if name == "body.0.weight" else mapped[name]
        assert (found - by_hand[other]).abs().max() < 1e-6
