"""The authors' VIRTUAL: each of its ways is an option, and without them it is ours."""

import pytest
import torch

from flows.methods.common.posterior_sites import KNOWN, SITES
from flows.methods.references.virtual_authors import VirtualAuthors
from flows.methods.virtual import Virtual
from models.gaussians import DEVIATION, PRECISION, PULL
from models.prng import client_streams
from models.training.optimizers import Adam
from tasks.expectation_propagation import POSTERIOR

SIZES = {"oslo": 11, "lyon": 7, "rome": 9}
NONE_OF_THEM = {"evidence": False, "kept": 1, "guarded": True, "doubled_precision": False}
OURS = {"bias": "point", "kl_weight": 1e-3, "share": "rows", "damping": 1, "draws": 10}


@pytest.fixture
def setup(make_problem):
    return make_problem(SIZES, optimiser=Adam(0.01))


def test_without_their_ways_it_is_ours_to_the_bit(setup, play):
    theirs = play(VirtualAuthors(**NONE_OF_THEM, **OURS), setup, [1, 2, 3])
    ours = play(Virtual(site="free"), setup, [1, 2, 3])
    assert theirs.state.sha256() == ours.state.sha256()


def test_their_sites_start_as_full_evidence_for_a_draw_of_each_clients_own(setup):
    state = VirtualAuthors().init(setup)
    drawn = [setup.network.init(stream) for stream in client_streams(setup.seed, setup.silos.clients, 0, "init")]
    rows = torch.tensor([SIZES[client] for client in setup.silos.clients], dtype=torch.float64)
    name = "dense0.weight"
    mean = sum(w[name].double() * share for w, share in zip(drawn, (rows / rows.sum()).tolist(), strict=True))
    known, full = state.tensors[KNOWN], 0.0067**-2
    torch.testing.assert_close(known[name + PRECISION], torch.full_like(mean, 1 + full), rtol=1e-6, atol=0)
    torch.testing.assert_close(known[name + PULL] / full, mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("kept", "sound"), [(1.0, True), (1 / 0.6, False)])
def test_what_they_keep_breaks_that_the_server_is_the_prior_times_the_sites(setup, play, kept, sound):
    state = play(VirtualAuthors(kept=kept), setup, [1, 2]).state
    for name, known in state.tensors[KNOWN].items():
        prior = 1.0 if name.endswith(PRECISION) else 0.0
        apart = float((known - prior - state.tensors[SITES][name].sum(0)).abs().max() / known.abs().max())
        assert (apart < 1e-12) == sound


def test_their_server_is_scored_with_twice_its_precision(setup, play):
    played = play(VirtualAuthors(), setup, [1])
    theirs, plain = (page.model(played.state, setup).shared for page in (VirtualAuthors(), Virtual(bias="none")))
    for name, w in plain.items():
        torch.testing.assert_close(theirs[name], w / 2**0.5 if name.endswith(DEVIATION) else w)


def test_the_generation_of_2019_visits_one_client_after_another_and_sums_nothing_up(setup, play):
    page = VirtualAuthors(generation=2019)
    assert (page.visits, page.columns, page.noise, page.damping, page.evidence) == (
        "sequential",
        "beside",
        "naive",
        1,
        False,
    )
    played = play(page, setup, [1])
    assert {*played.state.private["columns"]} == {*SIZES}
    last = played.private.load(POSTERIOR, played.state.private[POSTERIOR], setup.silos.clients[-1])
    for name, w in page.model(played.state, setup).shared.items():  # its whole step, and nobody's on top of it
        torch.testing.assert_close(w, torch.from_numpy(last[name]), rtol=1e-4, atol=1e-5)


def test_what_is_set_beside_a_generation_stays_and_the_rest_is_the_generations():
    ours = {"kl_weight": 0.5, "site": "nonneg", "visits": "parallel"}
    page = VirtualAuthors(generation=2019, **ours)
    assert {name: getattr(page, name) for name in ours} == ours
    assert (page.noise, page.share, page.columns) == ("naive", "whole", "beside")
    newer = VirtualAuthors()
    assert newer == VirtualAuthors(generation=2020)
    assert (newer.site, newer.bias, newer.share, newer.draws) == ("free", "none", "whole", 1)
    assert newer.damping * newer.kept == pytest.approx(0.4)


def test_visits_in_turn_weigh_the_divergence_more_where_nothing_is_said_of_it():
    assert (Virtual().kl_weight, Virtual(visits="sequential").kl_weight) == (0.001, 0.01)
    assert Virtual(visits="sequential", kl_weight=0.5).kl_weight == 0.5
    assert VirtualAuthors(visits="sequential").kl_weight == VirtualAuthors().kl_weight == 2e-5
    assert VirtualAuthors(generation=2019).kl_weight == 0.1


def test_a_start_as_evidence_asks_for_sites_that_the_server_holds():
    with pytest.raises(ValueError, match="Value error, got evidence or kept with a site other than free, expected"):
        VirtualAuthors(site="nonneg")
