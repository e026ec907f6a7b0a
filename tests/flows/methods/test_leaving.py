"""Clients that leave VIRTUAL for good: what the server knows is then the prior times the sites of those who remain."""

import numpy as np
import pytest
import torch

from flows.methods import virtual
from flows.methods.common.posterior_sites import KNOWN, SITES
from flows.methods.references.virtual_authors import VirtualAuthors
from flows.methods.virtual import Virtual
from models.gaussians import DEVIATION, PRECISION, PULL, Natural
from models.networks.mlp import MLP
from models.training.objectives import SquaredError
from models.training.optimizers import SGD, Adam
from silos.client_store import ClientStore
from silos.cohort import Stack
from tasks.execution.load_client_data import load_rows
from tasks.expectation_propagation import POSTERIOR
from tasks.tracking.checkpoint import load_state, save_state

SIZES = {"oslo": 11, "lyon": 7, "one": 1, "rome": 9, "bonn": 8}
GONE = ["oslo", "one", "bonn"]  # in two stacks, or three
WEIGHTS = 5 * 6 + 6 * 3
WAYS = {
    "plain": {},
    "damped and equal": {"damping": 0.3, "share": "equal"},
    "sparse": {"upload": 0.1},
    "clipped": {"site": "clipped"},
    "in turn": {"visits": "sequential", "share": "whole", "kl_weight": 0.01},
    "gaussian biases": {"bias": "gaussian", "prior_precision": 7.0},
    "columns": {"columns": "beside"},
    "free": {"site": "free"},
    "free, in turn": {"site": "free", "visits": "sequential"},
}
WAY = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


@pytest.fixture
def setup(make_problem):
    return make_problem(SIZES, optimiser=Adam(0.01))


def sites(played):
    """Of each client that has one the natural parameters of its site, from its store or from where the server holds it."""
    if SITES in played.state.tensors:
        held = played.state.tensors[SITES]
        return {c: {n: t[at] for n, t in held.items()} for at, c in enumerate(played.setup.silos.clients)}
    refs = played.state.private[SITES]
    return {c: {n: torch.from_numpy(t) for n, t in played.private.load(SITES, refs, c).items()} for c in refs}


def assert_prior_times(those, state, prior):
    """To 1e-12 of the greatest number: a site that was rounded to float32 on its way would leave 6e-8 of itself."""
    for name, known in state.tensors[KNOWN].items():
        if name.endswith((PULL, PRECISION)):
            expected = sum(site[name] for site in those) + prior * float(name.endswith(PRECISION))
            assert float((known - expected).abs().max()) <= 1e-12 * max(1.0, float(known.abs().max()))


@pytest.mark.parametrize(
    "options",
    [pytest.param(way, marks=() if name == "plain" else pytest.mark.slow, id=name) for name, way in WAYS.items()],
)
def test_the_server_is_the_prior_times_the_sites_of_those_who_remain_at_once_and_ever_after(options, setup, play):
    page = Virtual(**options)
    before = play(page, setup, [1, 2, 3], absent={1: ["bonn"]})
    assert set(GONE) <= sites(before).keys()
    leave = {4: GONE}
    nobody = play(page, setup, [4], state=before.state, absent={4: [*SIZES]}, leave=leave)
    assert nobody.reports[0].metrics == {}, "all of it is taken out"
    remain = [site for client, site in sites(before).items() if client not in GONE]
    assert_prior_times(remain, nobody.state, page.prior_precision)
    state = before.state
    for number in (4, 5):
        played = play(page, setup, [number], state=state, leave=leave)
        state = played.state
        remain = [site for client, site in sites(played).items() if client not in GONE]
        assert_prior_times(remain, state, page.prior_precision)
    assert_prior_times(sites(played).values(), state, page.prior_precision)


@pytest.mark.slow
@WAY
def test_who_left_keeps_its_own_posterior_and_columns_and_is_scored_with_them(options, setup, play, make_round):
    page = Virtual(**options, answers=["own", "server", "own_refreshed"])
    before = play(page, setup, [1, 2])
    after = play(page, setup, [3, 4], state=before.state, leave={3: GONE})
    for section in ({POSTERIOR, "columns"}) & before.state.private.keys():
        for client in GONE:
            assert after.state.private[section][client] == before.state.private[section][client]
    round = make_round(setup, 4, private=after.private)
    own, refreshed = page.scored_model(after.state, round), page.other_models(after.state, round)["own_refreshed"]
    assert set(own.clients) == set(refreshed.clients) == set(SIZES)
    assert own.personal.refs["oslo"] == before.state.private[POSTERIOR]["oslo"]


@pytest.mark.slow
@WAY
def test_two_float64_a_weight_leave_a_client_that_leaves_where_it_was_ever_called_and_nothing_comes_down(
    options, setup, play
):
    page = Virtual(**options)
    before = play(page, setup, [1], absent={1: ["one"]})
    everybody = {2: [*SIZES]}
    tally = play(page, setup, [2], state=before.state, absent=everybody, leave={2: GONE}).rounds[0].tally
    weights = WEIGHTS + (6 + 3 if page.bias == "gaussian" else 0)
    assert tally.bytes_up == (0 if page.site == "free" else 2 * 2 * 8 * weights)
    assert tally.bytes_down == 0
    never = play(page, setup, [2], state=before.state, absent=everybody, leave={2: ["one"]})
    assert never.rounds[0].tally.bytes_up == 0
    assert never.state.sha256() == before.state.sha256()


@pytest.mark.slow
@WAY
def test_a_run_that_is_resumed_in_the_round_of_leaving_or_around_it_has_the_same_bits(options, setup, play, tmp_path):
    """As is one that is dealt to two workers."""
    page, leave = Virtual(**options), {2: ["oslo"], 3: ["one", "bonn"]}
    whole = play(page, setup, [1, 2, 3, 4], leave=leave, private=ClientStore(str(tmp_path / "whole")))
    for last in (1, 2, 3):
        private = ClientStore(str(tmp_path / f"half{last}"))
        half = play(page, setup, range(1, last + 1), leave=leave, private=private, workers=2)
        play(page, setup, [last + 1], state=half.state, leave=leave, private=private)  # killed before it counted
        save_state(tmp_path / "checkpoint", half.state, last)
        state = load_state(tmp_path / "checkpoint").state
        rest = play(page, setup, range(last + 1, 5), state=state, leave=leave, private=private, workers=2)
        assert rest.state.sha256() == whole.state.sha256()
        assert rest.reports == whole.reports[last:]


@pytest.mark.slow
@pytest.mark.parametrize("site", ["nonneg", "free"])
def test_when_all_have_left_who_said_anything_newcomers_start_from_the_common_draw(site, setup, play, tmp_path):
    """And not from the prior, of whose width nothing can be learned."""
    page = Virtual(site=site, bias="none")
    first, late = (ClientStore(str(tmp_path / name)) for name in ("first", "late"))
    new = play(page, setup, [3], absent={3: GONE}, private=first).state
    state = play(page, setup, [1, 2], absent={n: ["lyon", "rome"] for n in (1, 2)}, private=late).state
    after = play(page, setup, [3], state=state, leave={3: GONE}, private=late).state
    for name, t in new.tensors[KNOWN].items():
        scale = float(t.abs().max())
        torch.testing.assert_close(after.tensors[KNOWN][name], t, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.slow
def test_of_free_sites_no_more_is_taken_out_than_leaves_server_and_cavities_proper_and_a_person_is_told(
    make_problem, play
):
    """Whole steps with full divergence, of which some take much precision away; the rest counts on, as one who vanished."""
    page = Virtual(site="free", share="whole", kl_weight=1.0, deviation=0.05)
    setup = make_problem(dict.fromkeys("abcdefgh", 6), optimiser=Adam(0.05), epochs=8)
    played, shares = play(page, setup, range(1, 5)), set()
    for gone in ("a", "abc", "aceg", "bcdefgh"):
        after = play(page, setup, [5], state=played.state, absent={5: "abcdefgh"}, leave={5: gone})
        taken = after.reports[0].metrics.get("leave/taken", 1.0)
        assert bool(after.reports[0].messages) == (taken < 1)
        shares.add(taken)
        left, before = sites(after), sites(played)
        assert_prior_times(left.values(), after.state, 1.0)
        for client, site in before.items():
            rest = 1 - taken if client in gone else 1
            assert all(torch.equal(left[client][name], rest * t) for name, t in site.items())
        for name, known in after.state.tensors[KNOWN].items():
            if name.endswith(PRECISION):
                assert float(min((known - site[name]).min() for site in ({name: 0 * known}, *left.values()))) >= 0.1
    assert 1.0 in shares
    assert min(shares) < 1


@pytest.mark.slow
def test_the_authors_server_takes_out_what_their_cavities_do_even_where_that_leaves_no_law(setup, play):
    page = VirtualAuthors()
    before = play(page, setup, [1, 2])
    after = play(page, setup, [3], state=before.state, absent={3: [*SIZES]}, leave={3: ["rome"]}).state.tensors
    for name, site in sites(before)["rome"].items():
        torch.testing.assert_close(after[KNOWN][name], before.state.tensors[KNOWN][name] - site, rtol=1e-15, atol=0)


# the conjugate case: orthogonal columns, noise of variance 1/2, so that the squared error is -log p but for a constant

W, PRIOR = "dense0.weight", 2.0


def regression(client, total):
    """Rows whose columns are orthogonal over the first 8, which are those of training."""
    hadamard = np.ones((1, 1))
    for _ in range(3):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    draw = np.random.default_rng([*client.encode()])
    x = hadamard[:, 1:4] * (0.9 + 0.3 * draw.random(3))
    return np.resize(x, (total, 3)), np.resize(x.sum(1) + 0.7 * draw.normal(size=8), total)


def exact(setup, clients):
    """Bayes in closed form on these clients' training rows: precision prior + 2 sum x^2, pull 2 sum x y."""
    opened = [load_rows(setup.silos, Stack((client,), 1), "train", "cpu") for client in clients]
    x, y = (torch.cat([part[at][0] for part in opened]).double() for at in (0, 1))
    return Natural(2 * (x * y[:, None]).sum(0), PRIOR + 2 * (x**2).sum(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "who"), [("nonneg", ["a", "c", "ac"]), ("free", ["ac"]), ("clipped", ["ac"])], ids=lambda value: str(value)
)
def test_the_answer_after_a_leave_is_exact_bayes_without_the_rows_of_who_left(
    site, who, make_problem, play, sequential, monkeypatch, solved
):
    """At once, and unchanged by another round of those who remain; while one that only vanishes leaves its evidence."""
    monkeypatch.setattr(virtual, "Tilted", solved)  # what clients solve in closed form in place of what they estimate
    rows = {"rows_of": regression, "task": "regression", "validation": 0, "test": 1}
    learning = {"objective": SquaredError(), "optimiser": SGD(0.1), "epochs": 350, "batch": 8}
    setup = sequential(make_problem(dict.fromkeys("abc", 8), network=MLP(3, (), 1), silos=rows, **learning))
    page = Virtual(
        site=site, bias="none", prior_precision=PRIOR, kl_weight=1, deviation=0.1, visits="sequential", share="whole"
    )
    played = play(page, setup, [1])
    answers(page, setup, played.state, exact(setup, "abc"))
    for gone in map(list, who):
        remain = [client for client in "abc" if client not in gone]
        left = play(page, setup, [2], state=played.state, absent={2: "abc"}, leave={2: gone}).state
        answers(page, setup, left, exact(setup, remain))
        left = play(page, setup, [2], state=played.state, leave={2: gone}).state
        answers(page, setup, left, exact(setup, remain))
        vanished = play(page, setup, [2], state=played.state, absent={2: gone}).state
        answers(page, setup, vanished, exact(setup, "abc"))


def answers(page, setup, state, expected):
    """To the digits of the float32 in which clients train."""
    law = page.model(state, setup).shared
    torch.testing.assert_close(law[W][:, 0].double(), expected.mean, rtol=0, atol=2e-4)
    torch.testing.assert_close(law[W + DEVIATION][:, 0].double(), expected.deviation, rtol=1e-4, atol=0)
