"""The oracle is VQ-FedAvg whose words are averaged within the domains that the partition wrote down."""

from dataclasses import replace

import pytest
import torch

from flows.methods.base import start_method
from flows.methods.references.vq_oracle import VQOracle
from flows.methods.uefl import UEFL
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.wrappers.codebook_network import SHARED
from models.training.optimizers import Adam
from silos.errors import UserError
from tasks.aggregate import Aggregation

SIZES = {"a": 13, "b": 9, "c": 8, "d": 11, "e": 10}
DOMAINS = {"a": "north", "b": "south", "c": "north", "d": "south", "e": "north"}
OPTIONS = {"words": 4, "segments": 2, "start": "normal", "warm_up": 0}


@pytest.fixture
def make(make_problem):
    network = MLP(5, (6,), 3, dropout=0.2)
    return lambda domains=None: make_problem(SIZES, network=network, optimiser=Adam(0.01), silos={"domains": domains})


@pytest.mark.parametrize("options", [{}, {"start": "centres", "warm_up": 1}])
def test_one_domain_is_vq_fedavg_to_the_bit(options, make, play):
    options = {**OPTIONS, **options}
    absent = {2: ["b", "e"]}
    oracle = play(VQOracle(**options), make(), [1, 2, 3], absent=absent)
    shared = play(UEFL(arm="paper", tolerance=None, until="budget", **options), make(), [1, 2, 3], absent=absent)
    expected = dict(shared.state.tensors["weights"])
    assert torch.equal(oracle.state.tensors["books"][SHARED][0], expected.pop(SHARED))
    for name, w in expected.items():
        assert torch.equal(oracle.state.tensors["weights"][name], w), name
    assert [r.tally.bytes_up for r in oracle.rounds] == [r.tally.bytes_up for r in shared.rounds]


def test_weights_are_everybodys_and_words_the_domains_own(make, play):
    setup = make(DOMAINS)
    oracle = play(VQOracle(**OPTIONS), setup, [1])
    everybody = play(UEFL(arm="paper", tolerance=None, **OPTIONS), setup, [1])
    for name, w in oracle.state.tensors["weights"].items():
        assert torch.allclose(w, everybody.state.tensors["weights"][name], atol=1e-6), name
    for at, domain in enumerate(("north", "south")):
        silos = setup.silos.select([c for c in SIZES if DOMAINS[c] == domain])
        alone = play(UEFL(arm="paper", tolerance=None, **OPTIONS), replace(setup, silos=silos), [1])
        assert torch.equal(oracle.state.tensors["books"][SHARED][at], alone.state.tensors["weights"][SHARED])


@pytest.mark.parametrize("absent", [["b", "d"], ["d"]], ids=["nobody of the south", "nobody with ten rows"])
def test_words_start_where_the_domains_own_features_are(absent, make, play):
    page = VQOracle(**{**OPTIONS, "start": "centres", "warm_up": 1})
    played = play(page, make(DOMAINS), [1])
    assert played.state.tensors["books"][SHARED].shape == (2, 0, 3)
    waiting = play(page, make(DOMAINS), [2], state=played.state, absent={2: absent})
    assert waiting.state.tensors["books"][SHARED].shape == (2, 0, 3)
    assert waiting.reports[0].messages[0].startswith("codewords start when every domain has a client with 10 different")
    after = play(page, make(DOMAINS), [3], state=waiting.state)
    north, south = after.state.tensors["books"][SHARED]
    assert north.shape == south.shape
    assert 1 <= len(north) <= 4
    assert not torch.equal(north, south)


def test_a_domain_of_which_nobody_answers_keeps_its_words(make, play):
    before = play(VQOracle(**OPTIONS), make(DOMAINS), [1]).state
    after = play(VQOracle(**OPTIONS), make(DOMAINS), [2], state=before, absent={2: ["b", "d"]}).state
    old, new = before.tensors["books"][SHARED], after.tensors["books"][SHARED]
    assert torch.equal(old[1], new[1])
    assert not torch.equal(old[0], new[0])


def test_every_client_reads_the_words_of_its_domain_and_an_unseen_domain_has_none(make_problem, play):
    roles = [{"kind": "hold_out", "domains": ["west"]}, {"kind": "fresh", "per_domain": 1}]
    domains = {**DOMAINS, "w": "west"}
    setup = make_problem({**SIZES, "w": 5}, silos={"domains": domains, "roles": roles})
    trained = replace(setup, silos=setup.silos.federated())
    played = play(VQOracle(**OPTIONS), trained, [1])
    there = played.page.silos_with_a_model(setup.silos)
    assert "w" not in there.clients
    assert set(there.clients) > set(trained.silos.clients)
    model = played.page.model(played.state, replace(setup, silos=there))
    place = {client: at for at, client in enumerate(model.clients)}
    books = played.state.tensors["books"][SHARED]
    for client in model.clients:
        expected = books[["north", "south"].index(DOMAINS[client])]
        assert torch.equal(model.personal[SHARED][place[client]], expected)


def test_an_option_and_a_network_that_do_not_fit_are_named(make):
    with pytest.raises(UserError, match=r"method\.vq_oracle\.segments: got 4, expected a divisor of the 6 channels"):
        VQOracle(segments=4).init(make())
    with pytest.raises(UserError, match=r"model\.members: got 2, expected 1, since this method wraps a single"):
        start_method(VQOracle(), replace(make(), network=DeepEnsemble(MLP(5, (6,), 3), 2)))


def test_a_client_is_not_clipped_for_the_distance_between_the_words_of_two_domains(make, play):
    page, setup = VQOracle(**OPTIONS), make(DOMAINS)
    start = page.init(setup)
    books = start.tensors["books"][SHARED].clone()
    books[1] += 5
    start = start.with_tensors(books={SHARED: books})
    plain, clipped = (
        play(page, replace(setup, aggregation=Aggregation(clip=clip)), [1], state=start) for clip in (None, 3.0)
    )
    for name, w in plain.state.tensors["weights"].items():
        assert torch.allclose(clipped.state.tensors["weights"][name], w, atol=1e-6), name
