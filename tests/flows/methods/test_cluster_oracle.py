"""The oracle is FedAvg within the groups that the partition wrote down."""

from dataclasses import replace

import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.local_only import LocalOnly
from flows.methods.references.cluster_oracle import ClusterOracle
from silos.client_store import ClientStore

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
DOMAINS = {"a": "north", "b": "south", "c": "north", "d": "south", "e": "north"}


def test_one_group_is_fedavg_to_the_bit(make_problem, play):
    setup = make_problem(SIZES)
    absent = {2: ["b", "e"]}
    oracle, fedavg = (play(page, setup, [1, 2, 3], absent=absent) for page in (ClusterOracle(), FedAvg()))
    for name, w in fedavg.state.tensors["weights"].items():
        assert torch.equal(oracle.state.tensors["weights"][name], w[None])
    assert oracle.reports == fedavg.reports
    assert [(r.tally.bytes_up, r.tally.bytes_down) for r in oracle.rounds] == [
        (r.tally.bytes_up, r.tally.bytes_down) for r in fedavg.rounds
    ]


def test_every_group_is_fedavg_on_its_clients_alone(make_problem, play):
    setup = make_problem(SIZES, silos={"domains": DOMAINS})
    oracle = play(ClusterOracle(), setup, [1, 2, 3])
    assert oracle.state.numbers["groups"] == ["north", "south"]
    for at, group in enumerate(("north", "south")):
        alone = replace(setup, silos=setup.silos.select([c for c in SIZES if DOMAINS[c] == group]))
        for name, w in play(FedAvg(), alone, [1, 2, 3]).state.tensors["weights"].items():
            assert torch.equal(oracle.state.tensors["weights"][name][at], w)


def test_groups_of_one_client_are_local_only_to_the_bit(make_problem, play, tmp_path):
    setup = make_problem(SIZES, silos={"domains": {c: c for c in SIZES}})
    oracle = play(ClusterOracle(), setup, [1, 2, 3], stack=1)
    store = ClientStore(str(tmp_path / "own"))
    local = play(LocalOnly(), setup, [1, 2, 3], stack=1, private=store)
    model = oracle.page.model(oracle.state, setup)
    for at, client in enumerate(model.clients):
        kept = store.load("weights", local.state.private["weights"], client)
        for name in kept:
            assert torch.equal(model.personal[name][at], torch.from_numpy(kept[name]))


def test_a_group_of_whom_nobody_answers_keeps_its_weights(make_problem, play):
    setup = make_problem(SIZES, silos={"domains": DOMAINS})
    before = play(ClusterOracle(), setup, [1]).state
    after = play(ClusterOracle(), setup, [2], state=before, absent={2: ["b", "d"]}).state
    for name, w in before.tensors["weights"].items():
        assert torch.equal(after.tensors["weights"][name][1], w[1])
        assert not torch.equal(after.tensors["weights"][name][0], w[0])


def test_a_fresh_client_has_its_groups_model_and_an_unseen_group_has_none(make_problem, play):
    domains = {**DOMAINS, "f": "west"}
    roles = [{"kind": "hold_out", "domains": ["west"]}, {"kind": "fresh", "per_domain": 1}]
    everybody = make_problem({**SIZES, "f": 6}, silos={"domains": domains, "roles": roles})
    setup = replace(everybody, silos=everybody.silos.federated())
    played = play(ClusterOracle(), setup, [1])
    (fresh, other), (unseen,) = ([c for c in domains if everybody.silos.role(c) == r] for r in ("fresh", "unseen"))
    silos = played.page.silos_with_a_model(everybody.silos)
    assert set(silos.clients) == set(domains) - {unseen}
    model = played.page.model(played.state, replace(everybody, silos=silos))
    for client in (fresh, other):
        at = ["north", "south"].index(domains[client])
        for name, w in played.state.tensors["weights"].items():
            assert torch.equal(model.personal[name][model.clients.index(client)], w[at])


@pytest.mark.parametrize("page", [FedAvg(), ClusterOracle(), LocalOnly()])
def test_who_has_a_model(page, make_problem):
    roles = [{"kind": "hold_out", "domains": ["south"]}, {"kind": "fresh", "per_domain": 1}]
    silos = make_problem(SIZES, silos={"domains": DOMAINS, "roles": roles}).silos
    with_model = {silos.role(c) for c in page.silos_with_a_model(silos).clients}
    assert (
        with_model
        == {
            FedAvg: {"federated", "fresh", "unseen"},
            ClusterOracle: {"federated", "fresh"},
            LocalOnly: {"federated"},
        }[type(page)]
    )
