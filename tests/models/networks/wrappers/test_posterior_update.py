"""A visit of VIRTUAL: where the client's problem has a closed form the federation is exact; what is sent is what changed."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from models.gaussians import DEVIATION, PRECISION, PULL, Natural, inverse_softplus, natural, plus
from models.networks.mlp import MLP
from models.networks.wrappers.client_columns import ClientColumns
from models.networks.wrappers.posterior_update import RAW, SiteTraining, Tilted, train_site
from models.networks.wrappers.variational import drop_biases, is_gaussian
from models.prng import client_streams, server_stream
from models.training.engine import Rows, Training, broadcast_weights
from models.training.objectives import CrossEntropy, SquaredError
from models.training.optimizers import SGD, Adam

NAMES = ["a", "b", "c"]
PRIOR = 2.0
INIT = server_stream(0, 0, "init")
W = "dense0.weight"


def federation(network, precision=PRIOR):
    """What a server knows before the first visit."""
    known = {}
    for name, w in network.inner.init(INIT).items():
        if is_gaussian(name, network.bias):
            known |= natural(torch.zeros_like(w), torch.full_like(w, precision**-0.5)).named(name)
        elif network.bias != "none":
            known[name] = w
    return known


def says_nothing(known):
    return {name: torch.zeros_like(t) for name, t in known.items() if name.endswith((PULL, PRECISION))}


def visit(network, known, sites, rows, how, learning, start=None, shares=None, names=NAMES):
    """Of clients who all know the same; sites: (clients, ...)."""
    count = len(rows.counts)
    begin = None if start is None else broadcast_weights(start, count)
    share = torch.ones(count) if shares is None else torch.tensor(shares)
    streams = client_streams(0, names[:count], 1, "t")
    return train_site(network, broadcast_weights(known, count), sites, {}, begin, rows, learning, streams, share, how)


# the conjugate case: orthogonal columns, noise of variance 1/2, so that the squared error is -log p but for a constant


def regressions():
    """Rows of three clients, each of 8, whose columns are orthogonal: the posterior is diagonal."""
    hadamard = torch.tensor([[1.0]])
    for _ in range(3):
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    draw = torch.Generator().manual_seed(0)
    scale = 0.9 + 0.3 * torch.rand(3, 1, 3, generator=draw)
    x = hadamard[:, 1:4] * scale
    y = x.sum(-1) + 0.7 * torch.randn(3, 8, generator=draw)
    return Rows(x, y, torch.tensor([8, 8, 8]))


def posterior_of(rows, clients):
    """In closed form: precision prior + 2 sum x^2, pull 2 sum x y."""
    x, y = rows.x[clients].double(), rows.y[clients].double()
    precision = PRIOR + 2 * (x**2).sum((0, 1))
    return Natural(2 * (x * y[..., None]).sum((0, 1)), precision)


# fresh weights are surer than any cavity here: a nonnegative site of little precision has next to no slope in it
BAYES = SiteTraining(kl_weight=1.0, deviation=0.1)
SOLVED = Training(SquaredError(), SGD(0.1), 350, 8, "sequential")


def one_of(rows, at):
    return Rows(*(part[at : at + 1] for part in rows))


def pass_through(network, rows, order, known, sites):
    """Every client in turn, with its whole step."""
    for at in order:
        own = {name: t[None] for name, t in sites[at].items()}
        found = visit(network, known, own, one_of(rows, at), BAYES, SOLVED)
        step = {name: t[0] for name, t in found.step.items()}
        sites[at], known = plus(sites[at], step), plus(known, step)
    return known


def equals(known, expected):
    """To the digits of the float32 in which clients train."""
    found = Natural.of(known, W)
    torch.testing.assert_close(found.precision[:, 0], expected.precision, rtol=1e-4, atol=0)
    torch.testing.assert_close(found.mean[:, 0], expected.mean, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "order"),
    [("nonneg", (0, 1, 2)), ("nonneg", (1, 2, 0)), ("nonneg", (2, 1, 0)), ("free", (2, 0, 1)), ("clipped", (1, 0, 2))],
)
def test_one_pass_gives_the_exact_posterior_and_a_second_does_not_change_it_whatever_the_order(site, order, solved):
    rows = regressions()
    network = solved(MLP(3, (), 1), bias="none", site=site)
    known = federation(network)
    sites = [says_nothing(known) for _ in range(3)]
    known = pass_through(network, rows, order, known, sites)
    equals(known, posterior_of(rows, [0, 1, 2]))
    equals(pass_through(network, rows, order, known, sites), posterior_of(rows, [0, 1, 2]))


@pytest.mark.slow
def test_without_a_clients_site_the_server_knows_what_the_others_rows_say(solved):
    rows = regressions()
    network = solved(MLP(3, (), 1), bias="none", site="nonneg")
    known = federation(network)
    sites = [says_nothing(known) for _ in range(3)]
    known = pass_through(network, rows, [0, 1, 2], known, sites)
    for gone in range(3):
        without = {name: total - sites[gone][name] for name, total in known.items()}
        equals(without, posterior_of(rows, [at for at in range(3) if at != gone]))


@pytest.mark.slow
def test_clients_visited_at_once_whose_whole_steps_are_added_give_the_exact_posterior(solved):
    rows = regressions()
    network = solved(MLP(3, (), 1), bias="none")
    known = federation(network)
    found = visit(network, known, broadcast_weights(says_nothing(known), 3), rows, BAYES, SOLVED)
    equals({name: t + found.step[name].sum(0) for name, t in known.items()}, posterior_of(rows, [0, 1, 2]))


@pytest.mark.slow
def test_the_authors_kappa_counts_every_row_so_often_as_it_is_less_than_1(solved):
    """A cold posterior: the fixed point is that of the likelihood to the power of 1 / kl_weight."""
    rows = regressions()
    network = solved(MLP(3, (), 1), bias="none")
    known = federation(network)
    cold = replace(BAYES, kl_weight=0.5)
    found = visit(network, known, broadcast_weights(says_nothing(known), 3), rows, cold, SOLVED)
    of_rows = posterior_of(rows, [0, 1, 2])
    expected = Natural(2 * of_rows.pull, PRIOR + 2 * (of_rows.precision - PRIOR))
    equals({name: t + found.step[name].sum(0) for name, t in known.items()}, expected)


# networks with a hidden layer


NETWORK = Tilted(MLP(5, (7,), 3), "local", "point", "nonneg")
LEARNING = Training(CrossEntropy(), Adam(0.01), 3, 4, "batched")
USUAL = SiteTraining(kl_weight=1e-2, deviation=0.05)


def start_of(network):
    return {n: w for n, w in network.inner.init(INIT).items() if is_gaussian(n, network.bias)}


def first_visit(network=NETWORK, rows=None, how=USUAL, learning=LEARNING, shares=None):
    known = federation(network, 1.0)
    sites = broadcast_weights(says_nothing(known), len(rows.counts))
    return known, visit(network, known, sites, rows, how, learning, start_of(network), shares)


@pytest.mark.parametrize("bias", ["point", "gaussian", "none"])
@pytest.mark.parametrize("site", ["nonneg", "free", "clipped"])
def test_server_times_step_is_the_clients_posterior_where_it_is_alone(site, bias, make_rows):
    """Its whole step; to float32, in which it is sent."""
    known, found = first_visit(replace(NETWORK, site=site, bias=bias), make_rows([9, 6]))
    for name in [n.removesuffix(PULL) for n in known if n.endswith(PULL)]:
        for at in range(2):
            told = Natural.of({n: t + found.step[n][at] for n, t in known.items() if n in found.step}, name)
            torch.testing.assert_close(told.mean.float(), found.posterior[name][at], rtol=0, atol=1e-5)
            torch.testing.assert_close(told.deviation.float(), found.posterior[name + DEVIATION][at], rtol=1e-4, atol=0)
    assert set(found.points) == {n for n in known if not n.endswith((PULL, PRECISION))}
    for name, step in found.points.items():
        torch.testing.assert_close((known[name] + step).float(), found.posterior[name], rtol=0, atol=1e-6)


def test_the_engines_forms_make_the_same_visit(make_rows):
    """In float32, of which the third digit of a step's precision is a rounding of a deviation of 0.05."""
    rows = make_rows([9, 0, 6])
    _, expected = first_visit(rows=rows, learning=replace(LEARNING, engine="sequential"))
    for kind in ("batched", "vmap"):
        _, found = first_visit(rows=rows, learning=replace(LEARNING, engine=kind))
        for name, t in expected.posterior.items():
            torch.testing.assert_close(found.posterior[name], t, rtol=1e-4, atol=1e-5)
        for name, t in expected.step.items():
            torch.testing.assert_close(found.step[name], t, rtol=1e-3, atol=0.05)
        torch.testing.assert_close(found.nats, expected.nats, rtol=1e-4, atol=0)


def test_a_step_has_float32s_digits_and_a_share_of_it_is_the_share_of_the_whole(make_rows):
    rows = make_rows([9, 6])
    _, whole = first_visit(rows=rows)
    _, half = first_visit(rows=rows, shares=[0.5, 0.0])
    for name, step in whole.step.items():
        assert torch.equal(step.float().double(), step)
        assert torch.equal(half.step[name][0], step[0] / 2)
        assert not half.step[name][1].any()
    assert torch.equal(half.points["dense0.bias"][0], whole.points["dense0.bias"][0] / 2)
    assert not half.points["dense0.bias"][1].any()


def test_of_a_client_without_rows_no_step_counts(make_rows):
    _, found = first_visit(rows=make_rows([9, 0]))
    for step in (*found.step.values(), *found.points.values()):
        assert step[0].any()
        assert not step[1].any()


@pytest.mark.slow
@pytest.mark.parametrize("site", ["nonneg", "free"])
def test_where_divergence_is_all_that_counts_a_client_comes_to_its_cavity(site, make_rows):
    network = replace(NETWORK, site=site)
    heavy, learning = replace(USUAL, kl_weight=1e6), replace(LEARNING, optimiser=Adam(0.05, beta2=0.9), epochs=100)
    _, found = first_visit(network, make_rows([9, 6]), heavy, learning)
    for name in (W, "dense1.weight"):
        torch.testing.assert_close(found.posterior[name], torch.zeros_like(found.posterior[name]), rtol=0, atol=0.03)
        deviation = found.posterior[name + DEVIATION]
        torch.testing.assert_close(deviation, torch.ones_like(deviation), rtol=0, atol=0.05)
    before = first_visit(network, make_rows([9, 6]), USUAL)[1].nats
    assert (found.nats < before / 100).all()


def test_a_client_sends_the_steps_that_move_means_most_and_tells_how_many_it_keeps_back(make_rows):
    rows = make_rows([9, 6])
    known, whole = first_visit(rows=rows)
    _, some = first_visit(rows=rows, how=replace(USUAL, upload=0.25))
    weights = 5 * 7 + 7 * 3
    names = [n.removesuffix(PULL) for n in known if n.endswith(PULL)]
    for at in range(2):
        sizes = torch.cat([(whole.step[n + PULL][at].abs() / known[n + PRECISION].sqrt()).flatten() for n in names])
        sent = torch.cat([(some.step[n + PRECISION][at] != 0).flatten() for n in names])
        assert int(sent.sum()) == weights // 4
        assert sizes[sent].min() > sizes[~sent].max()
        assert int(some.unsent[at]) == weights - weights // 4
    for name, step in some.step.items():
        assert torch.equal(step, torch.where(step != 0, whole.step[name], 0.0))
    assert whole.unsent.tolist() == [0, 0]


def test_a_clipped_site_has_no_negative_precision_and_leaves_the_trained_mean(make_rows):
    """Against a cavity that is surer than one client's few rows make it."""
    network = replace(NETWORK, site="clipped", bias="none")
    rows, sure = make_rows([3]), 400.0
    known = federation(network, sure)
    learning = replace(LEARNING, optimiser=Adam(0.05), epochs=40)
    start = start_of(network)
    free, clipped = (
        visit(
            replace(network, site=site), known, broadcast_weights(says_nothing(known), 1), rows, USUAL, learning, start
        )
        for site in ("free", "clipped")
    )
    cut = 0
    for name in (W, "dense1.weight"):
        wanted = free.step[name + PRECISION][0] < 0
        cut += int(wanted.sum())
        assert not clipped.step[name + PRECISION][0][wanted].any()
        assert (clipped.step[name + PRECISION] >= 0).all()
        told = Natural.of(plus(known, {n: t[0] for n, t in clipped.step.items()}), name)
        torch.testing.assert_close(told.mean.float(), clipped.posterior[name][0], rtol=0, atol=1e-5)
        unclipped = Natural(
            known[name + PULL] + free.step[name + PULL][0],
            known[name + PRECISION] + clipped.step[name + PRECISION][0],
        )
        apart = (unclipped.mean.float() - free.posterior[name][0])[wanted].abs()
        assert not wanted.any() or apart.max() > 1e-3
    assert cut


def test_sites_of_a_nonnegative_visit_are_positive_however_small(make_rows):
    """As a difference of float32 precisions they would come out negative now and then."""
    known = federation(NETWORK, 2e4)
    found = visit(NETWORK, known, broadcast_weights(says_nothing(known), 2), make_rows([9, 6]), USUAL, LEARNING)
    for name in (W, "dense1.weight"):
        assert (found.step[name + PRECISION] > 0).all()
        assert found.step[name + PRECISION].min() < 1


def test_the_divergence_counts_by_each_clients_own_rows_whoever_else_is_in_the_stack(make_rows):
    """With a heavy divergence the weight of a nat, kl_weight / rows, decides how far a client moves."""
    heavy = replace(USUAL, kl_weight=1.0)
    known, stack = first_visit(rows=make_rows([12, 3, 6]), how=heavy)
    for at, count in enumerate((12, 3, 6)):
        alone = visit(
            NETWORK,
            known,
            broadcast_weights(says_nothing(known), 1),
            make_rows([count], numbers=[at], width=12),
            heavy,
            LEARNING,
            start_of(NETWORK),
            names=NAMES[at:],
        )
        for name, w in alone.posterior.items():
            torch.testing.assert_close(stack.posterior[name][at], w[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(stack.nats[at], alone.nats[0], rtol=1e-4, atol=0)


def test_steps_are_ranked_in_units_of_the_servers_deviation(make_rows):
    """The server is sure of some weights and unsure of others: the largest pulls are not the largest moves."""
    known = federation(NETWORK, 1.0)
    draw = torch.Generator().manual_seed(1)
    for name in [n for n in known if n.endswith(PRECISION)]:
        known[name] = 10 ** (3 * torch.rand(known[name].shape, generator=draw, dtype=torch.float64))
    ask = partial(visit, NETWORK, known, broadcast_weights(says_nothing(known), 2), make_rows([9, 6]))
    whole, some = (ask(replace(USUAL, upload=upload), LEARNING) for upload in (1.0, 0.25))
    names = [n.removesuffix(PULL) for n in known if n.endswith(PULL)]
    for at in range(2):
        pulls = torch.cat([whole.step[n + PULL][at].abs().flatten() for n in names])
        moves = torch.cat([(whole.step[n + PULL][at].abs() / known[n + PRECISION].sqrt()).flatten() for n in names])
        sent = torch.cat([(some.step[n + PRECISION][at] != 0).flatten() for n in names])
        assert moves[sent].min() > moves[~sent].max()
        assert pulls[sent].min() < pulls[~sent].max(), "by size alone others would be sent"


@pytest.mark.slow
def test_where_divergence_is_all_that_counts_a_column_comes_to_its_prior(make_rows):
    network = Tilted(ClientColumns(MLP(5, (7,), 3), "within"), "local", "none", "nonneg")
    drawn = drop_biases(network.inner.init_column(INIT), "none")
    column = {
        **drawn,
        **{n + RAW: inverse_softplus(torch.full_like(w, 0.05)) for n, w in drawn.items() if is_gaussian(n, "none")},
    }
    known = federation(replace(network, inner=network.inner.inner), 1.0)
    heavy = replace(USUAL, kl_weight=1e6, prior_precision=16.0)
    learning = replace(LEARNING, optimiser=Adam(0.05, beta2=0.9), epochs=100)
    start = start_of(replace(network, inner=network.inner.inner))
    found = train_site(
        network,
        broadcast_weights(known, 2),
        broadcast_weights(says_nothing(known), 2),
        broadcast_weights(column, 2),
        broadcast_weights(start, 2),
        make_rows([9, 6]),
        learning,
        client_streams(0, NAMES[:2], 1, "t"),
        torch.ones(2),
        heavy,
    )
    deviation = found.posterior["own0.weight" + DEVIATION]
    torch.testing.assert_close(deviation, torch.full_like(deviation, 0.25), rtol=0, atol=0.02)
    torch.testing.assert_close(found.posterior["own0.weight"], torch.zeros_like(deviation), rtol=0, atol=0.03)
