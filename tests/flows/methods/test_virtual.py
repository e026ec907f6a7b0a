"""VIRTUAL as a page: what the server knows is the prior times the sites that clients keep, whatever a round does."""

import math
from dataclasses import replace

import pytest
import torch

from flows.methods.base import RoundReport
from flows.methods.common.posterior_sites import KNOWN, SITES
from flows.methods.virtual import Virtual
from models.gaussians import DEVIATION, PRECISION, PULL
from models.networks.cnn import BatchNormCNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.network import Network
from models.training.optimizers import SGD, Adam
from silos.errors import UserError
from tasks.expectation_propagation import POSTERIOR

pytestmark = pytest.mark.slow

SIZES = {"oslo": 11, "lyon": 7, "one": 1, "rome": 9}
WAYS = {
    "plain": {},
    "damped": {"damping": 0.3},
    "equal": {"share": "equal"},
    "sparse": {"upload": 0.1},
    "clipped": {"site": "clipped"},
    "in turn": {"visits": "sequential", "share": "whole", "kl_weight": 0.01},
    "refined": {"refinements": 2},
    "gaussian biases": {"bias": "gaussian"},
    "no biases": {"bias": "none"},
    "sparse and damped": {"upload": 0.2, "damping": 0.5},
    "clipped, in turn": {"visits": "sequential", "refinements": 2, "site": "clipped", "damping": 0.7},
    "another prior": {"prior_precision": 7.0},
    "columns": {"columns": "beside"},
    "free": {"site": "free"},
    "free and sparse": {"site": "free", "upload": 0.2, "refinements": 2},
    "free, in turn": {"site": "free", "visits": "sequential", "damping": 0.5},
    "free and whole": {"site": "free", "share": "whole", "kl_weight": 1.0},
}


@pytest.fixture
def setup(make_problem):
    return make_problem(SIZES, optimiser=Adam(0.01))


def sites(played, name):
    """The natural parameter of this name in the sites of all clients that have one, added up."""
    if SITES in played.state.tensors:
        return played.state.tensors[SITES][name].sum(0)
    refs = played.state.private[SITES]
    return sum(torch.from_numpy(played.private.load(SITES, refs, client)[name]) for client in refs)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_the_server_is_the_prior_times_the_sites_after_every_round(setup, play, options):
    page, state = Virtual(**options), None
    for number in (1, 2, 3):
        played = play(page, setup, [number], state=state, absent={2: ["oslo", "one"]})
        state = played.state
        for name, known in state.tensors[KNOWN].items():
            if name.endswith((PULL, PRECISION)):
                prior = page.prior_precision * float(name.endswith(PRECISION))
                apart = (known - prior - sites(played, name)).abs().max()
                assert float(apart) <= 1e-12 * max(1.0, float(known.abs().max()))


@pytest.mark.parametrize("options", [WAYS["plain"], WAYS["clipped"], WAYS["in turn"], WAYS["sparse"]])
def test_without_any_one_client_the_server_keeps_at_least_the_priors_precision(setup, play, options):
    played = play(Virtual(**options), setup, range(1, 5))
    refs = played.state.private[SITES]
    for name, known in played.state.tensors[KNOWN].items():
        if name.endswith(PRECISION):
            for client in refs:
                without = known - torch.from_numpy(played.private.load(SITES, refs, client)[name])
                assert float(without.min()) >= 1 - 1e-9


@pytest.mark.parametrize("site", ["nonneg", "clipped", "free"])
def test_ten_rounds_without_a_client_leave_a_proper_posterior_and_what_it_keeps_as_it_was(site, setup, play):
    """The server's, and the client's own when it is visited again."""
    page = Virtual(site=site)
    first = play(page, setup, [1])
    later = play(page, setup, range(2, 12), state=first.state, absent={n: ["oslo"] for n in range(2, 12)})
    for section, refs in first.state.private.items():
        assert later.state.private[section]["oslo"] == refs["oslo"]
    back = play(page, setup, [12], state=later.state)
    own = back.private.load(POSTERIOR, back.state.private[POSTERIOR], "oslo")
    assert own.keys() == page.model(later.state, setup).shared.keys()
    for law in (page.model(later.state, setup).shared, {name: torch.from_numpy(w) for name, w in own.items()}):
        assert all(torch.isfinite(w).all() for w in law.values())
        assert all((w > 0).all() for name, w in law.items() if name.endswith(DEVIATION))
    assert math.isfinite(back.reports[0].client_metrics["divergence"]["oslo"])


def test_visited_in_turn_and_in_full_the_server_is_the_last_clients_posterior(setup, play):
    page = Virtual(visits="sequential", share="whole", kl_weight=0.01)
    played = play(page, setup, [1])
    last = setup.silos.clients[-1]
    own = played.private.load(POSTERIOR, played.state.private[POSTERIOR], last)
    for name, w in page.model(played.state, setup).shared.items():
        torch.testing.assert_close(w, torch.from_numpy(own[name]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("site", ["clipped", "free"])
def test_a_visit_in_which_nobody_learns_changes_nothing(make_problem, play, site):
    """Training starts at what the server knows; `nonneg` starts no less sure than a fresh weight is."""
    page = Virtual(site=site)
    state = play(page, make_problem(SIZES, optimiser=Adam(0.01)), [1]).state
    still = make_problem(SIZES, optimiser=SGD(0.0))
    before = page.model(state, still).shared
    after = page.model(play(page, still, [2], state=state).state, still).shared
    for name, w in before.items():
        torch.testing.assert_close(after[name], w, rtol=1e-5, atol=1e-7)


def test_of_a_tenth_of_the_weights_about_a_tenth_is_sent(setup, play):
    whole, sparse = (play(Virtual(upload=upload), setup, [1]).rounds[0].tally.bytes_up for upload in (1.0, 0.1))
    assert sparse < 0.25 * whole


@pytest.mark.parametrize("columns", ["beside", "within"])
def test_columns_stay_with_their_clients_and_the_server_answers_without(setup, play, columns):
    page = Virtual(columns=columns)
    played = play(page, setup, [1, 2])
    assert not [
        name for section in played.state.tensors.values() for name in section if "own" in name or "gate" in name
    ]
    refs = played.state.private["columns"]
    (first, second) = (played.private.load("columns", refs, client) for client in ("oslo", "rome"))
    assert any((first[name] != second[name]).any() for name in first)
    assert set(page.model(played.state, setup).shared) == set(Virtual().model(played.state, setup).shared)


class Misnamed(Network):
    """A linear network whose weights have the names that somebody liked."""

    dropout, max_width = 0.0, 3

    def init(self, stream):
        return {"kernel": torch.zeros(5, 3), "offset": torch.zeros(3)}

    def apply(self, weights, context, x, stream):
        return x @ weights["kernel"] + weights["offset"]


def test_a_network_of_which_no_weight_is_named_as_gaussian_ones_are_is_refused_with_how_to_name_them(setup):
    with pytest.raises(UserError, match=r"Misnamed: got no weight whose name ends in \.weight"):
        Virtual().init(replace(setup, network=Misnamed()))


def test_networks_without_a_variational_form_are_refused_by_name(setup):
    normalising = replace(setup, network=BatchNormCNN((8, 8), 3, (3,), (True,), (6,)))
    with pytest.raises(UserError, match=r"model.kind: got cnn_bn, expected mlp or cnn"):
        Virtual().init(normalising)
    with pytest.raises(UserError, match=r"model.kind: got deep_ensemble, expected mlp for method.virtual.columns"):
        Virtual(columns="within").init(replace(setup, network=DeepEnsemble(MLP(5, (6,), 3), 2)))


@pytest.mark.parametrize("visits", ["parallel", "sequential"])
def test_a_round_of_two_refinements_reports_its_last_visits(visits, setup, play, monkeypatch):
    turns = []

    def recorded(page, *ask):
        turns.append(found := VISIT(page, *ask))
        return found

    VISIT = Virtual._visit
    monkeypatch.setattr(Virtual, "_visit", recorded)
    played = play(Virtual(refinements=2, visits=visits), setup, [1])
    last = [message for messages in turns[len(turns) // 2 :] for message in messages]
    expected = RoundReport.from_updates(last)
    assert played.reports[0].metrics["loss/train"] == expected.metrics["loss/train"]
    assert played.reports[0].client_metrics["train_loss"] == expected.client_metrics["train_loss"]
    every = RoundReport.from_updates([message for messages in turns for message in messages])
    assert every.metrics["loss/train"] != expected.metrics["loss/train"]
