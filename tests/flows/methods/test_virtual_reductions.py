"""VIRTUAL and what it is reduced to, from the page, and what it answers and tells."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from flows.methods.base import start_method
from flows.methods.common.posterior_sites import KNOWN, SITES, variational_weights
from flows.methods.fedavg import FedAvg
from flows.methods.virtual import Virtual
from models.gaussians import DEVIATION, PRECISION, PULL, natural
from models.networks.cnn import CNN
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.prng import client_streams, fold_in, normal, server_stream, shuffle
from models.training.engine import per_example_metrics
from models.training.optimizers import SGD, Adam
from silos.client_store import ClientStore
from silos.cohort import Stack
from silos.errors import UserError
from tasks.evaluate import evaluate
from tasks.execution.load_client_data import load_rows, load_weights
from tasks.tracking.result_tables import by_client

pytestmark = pytest.mark.slow

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
GAUSSIAN = ("dense0.weight", "dense1.weight")


def kept(played, section, client, state=None):
    """What the client has in its store, or what it begins with."""
    refs = (state or played.state).private[section]
    if client not in refs:
        return {name: torch.zeros_like(t) for name, t in gaussian_of(played.state.tensors[KNOWN]).items()}
    return {name: torch.from_numpy(array) for name, array in played.private.load(section, refs, client).items()}


def gaussian_of(known):
    return {name: t for name, t in known.items() if name.endswith((PULL, PRECISION))}


def sites_of(played):
    """Every client's, (clients, ...), from its store or from where the server holds them."""
    if SITES in played.state.tensors:
        return dict(played.state.tensors[SITES])
    each = [kept(played, SITES, client) for client in played.setup.silos.clients]
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def prior_times_sites(played, prior=1.0):
    return {n: t.sum(0) + (prior if n.endswith(PRECISION) else 0) for n, t in sites_of(played).items()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(t, second[name]) for name, t in first.items())


# one client


def bayes_by_backprop(rows, weights, raw, stream, rate, kl_weight, epochs=2, batch=4):
    """Blundell et al. 2015 with local reparameterisation and a standard normal prior: a plain loop of plain steps.

    Deviations are as VIRTUAL has them, 1 / (1 + softplus(raw)^-2) the variance: the prior's precision, and more.
    """
    x, y, count = rows.x[0], rows.y[0], int(rows.counts[0])
    weights, raw = ({n: w.clone().requires_grad_() for n, w in part.items()} for part in (weights, raw))
    for epoch in range(epochs):
        of_epoch = fold_in(stream, epoch)
        order = shuffle(of_epoch, len(y), rows.counts[0])[:count]
        for number, index in enumerate(order.split(batch)):
            of_batch, out, nats = fold_in(of_epoch, number), x[index], []
            for layer, name in enumerate(GAUSSIAN):
                spread = softplus(raw[name]) ** 2
                variance = spread / (1 + spread)
                noise = normal(fold_in(of_batch, 2**19 + layer), (len(index), weights[name].shape[1]))
                mean = out @ weights[name] + weights[f"dense{layer}.bias"]
                out = mean + (out**2 @ variance + 1e-12).sqrt() * noise
                out = torch.relu(out) if layer == 0 else out
                nats.append(((variance - variance.log() - 1 + weights[name] ** 2) / 2).sum())
            loss = cross_entropy(out, y[index], reduction="none").sum() / len(index)
            loss = loss + torch.tensor(kl_weight) / count * (nats[0] + nats[1])
            leaves = [*weights.values(), *raw.values()]
            slopes = torch.autograd.grad(loss, leaves)
            with torch.no_grad():
                for leaf, slope in zip(leaves, slopes, strict=True):
                    leaf -= rate * slope
    return ({n: w.detach() for n, w in part.items()} for part in (weights, raw))


@pytest.fixture
def alone(make_problem, sequential):
    return sequential(make_problem({"a": 13}, optimiser=SGD(0.05)))


def raw_of_site(precision):
    """softplus(raw)^-2 is what a precision has more than the prior."""
    deviation = precision**-0.5
    return (deviation + torch.log(-torch.expm1(-deviation))).float()


def first_raw(weights, deviation):
    return raw_of_site(torch.full_like(weights, deviation**-2 - 1, dtype=torch.float64))


@pytest.mark.parametrize("kl_weight", [1e-3, 1.0])
def test_one_client_is_bayes_by_backprop_bit_for_bit(kl_weight, alone, play):
    """One visit: its posterior to the bit, and what the server knows as that in natural parameters."""
    page = Virtual(kl_weight=kl_weight, deviation=0.05)
    played = play(page, alone, [1])
    weights = alone.network.init(server_stream(alone.seed, 0, "init"))
    raw = {name: first_raw(weights[name], 0.05) for name in GAUSSIAN}
    stream = client_streams(alone.seed, ["a"], 1, "local_train")[0]
    rows = load_rows(alone.silos, Stack(("a",), 1), "train", "cpu")
    weights, raw = bayes_by_backprop(rows, weights, raw, stream, 0.05, kl_weight)
    posterior, known = kept(played, "posterior", "a"), played.state.tensors[KNOWN]
    for name, w in weights.items():
        assert torch.equal(posterior[name], w)
    for name in GAUSSIAN:
        spread = softplus(raw[name]) ** 2
        assert torch.equal(posterior[name + DEVIATION], (spread / (1 + spread)).sqrt())
        precision = softplus(raw[name].double()) ** -2
        assert torch.equal(known[name + PRECISION], 1 + precision.float().double())
        assert torch.equal(known[name + PULL], ((1 + precision) * weights[name].double()).float().double())
    for name in ("dense0.bias", "dense1.bias"):
        torch.testing.assert_close(known[name], weights[name], rtol=0, atol=1e-7)


def test_over_several_visits_one_clients_cavity_stays_the_prior_and_it_goes_on_as_bayes_by_backprop(alone, play):
    """To the rounding of float32, in which steps are sent; two rounds of two refinements.

    A visit starts no wider than the first did: a nonnegative site of little precision has next to no slope in it.
    """
    played = play(Virtual(deviation=0.05, refinements=2), alone, [1])
    weights = alone.network.init(server_stream(alone.seed, 0, "init"))
    raw = {name: first_raw(weights[name], 0.05) for name in GAUSSIAN}
    rows = load_rows(alone.silos, Stack(("a",), 1), "train", "cpu")
    for number in (1, 2):
        if number > 1:
            played = play(played.page, alone, [number], state=played.state)
        for purpose in ("local_train", "visit 1"):
            start = {name: torch.minimum(r, first_raw(r, 0.05)) for name, r in raw.items()}
            stream = client_streams(alone.seed, ["a"], number, purpose)[0]
            weights, raw = bayes_by_backprop(rows, weights, start, stream, 0.05, 1e-3)
        known, site = played.state.tensors[KNOWN], kept(played, SITES, "a")
        for name in GAUSSIAN:
            assert torch.equal((known[name + PRECISION] - site[name + PRECISION]).float(), torch.ones_like(raw[name]))
            assert (known[name + PULL] - site[name + PULL]).abs().max() < 1e-9
            found = variational_weights(known)
            torch.testing.assert_close(found[name], weights[name], rtol=0, atol=1e-5)
            spread = softplus(raw[name]) ** 2
            torch.testing.assert_close(found[name + DEVIATION], (spread / (1 + spread)).sqrt(), rtol=1e-4, atol=0)


# reductions


@pytest.mark.parametrize("noise", ["local", "flipout", "naive"])
@pytest.mark.parametrize("site", ["nonneg", "free", "clipped"])
def test_with_tiny_deviations_and_no_divergence_it_is_fedavg(site, noise, make_problem, play):
    """Within 1e-5 after each of three rounds, of clients of which some are absent."""
    setup, absent = make_problem(SIZES), {2: ["b", "e"]}
    page = Virtual(kl_weight=0, deviation=1e-6, site=site, noise=noise)
    for last in (1, 2, 3):
        ours, theirs = (play(p, setup, range(1, last + 1), absent=absent) for p in (page, FedAvg()))
        found = variational_weights(ours.state.tensors[KNOWN])
        for name, w in theirs.state.tensors["weights"].items():
            torch.testing.assert_close(found[name], w, rtol=0, atol=1e-5)


def test_damping_0_changes_nothing_that_the_server_or_a_site_knows(make_problem, play):
    setup, page = make_problem(SIZES), Virtual(damping=0, deviation=0.05)
    before, played = page.init(setup), play(page, setup, [1, 2])
    assert equal(played.state.tensors[KNOWN], before.tensors[KNOWN])
    assert not any(t.any() for t in sites_of(played).values())
    assert played.reports[0].metrics["loss/train"] != played.reports[1].metrics["loss/train"]
    once = play(Virtual(deviation=0.05), setup, [3])
    after = play(Virtual(deviation=0.05), setup, [3], state=played.state)
    assert equal(after.state.tensors[KNOWN], once.state.tensors[KNOWN]), "it goes on as if nothing had been"


# the invariant: the server is the prior times all sites


def test_a_rejected_or_halved_visit_keeps_the_invariant_and_every_cavity_proper(make_problem, play):
    """Undamped whole steps of free sites, which take precision away that the others do not have."""
    page = Virtual(site="free", share="whole", kl_weight=1.0, deviation=0.05)
    setup = make_problem(dict.fromkeys("abcdefgh", 6), optimiser=Adam(0.05), epochs=8)
    state, taken = None, []
    for number in range(1, 7):
        before = state
        played = play(page, setup, [number], state=state)
        state, sites = played.state, played.state.tensors[SITES]
        taken.append(played.reports[0].metrics.get("visits/taken", 1.0))
        assert played.reports[0].metrics.get("visits/rejected", 0.0) == float(taken[-1] == 0)
        expected = prior_times_sites(played)
        for name in GAUSSIAN:
            known = state.tensors[KNOWN][name + PRECISION]
            torch.testing.assert_close(expected[name + PRECISION], known, rtol=1e-12, atol=1e-9)
            assert known.min() >= 0.1
            assert (known - sites[name + PRECISION]).min() >= 0.1
        if taken[-1] == 0:
            assert equal(state.tensors[KNOWN], before.tensors[KNOWN])
    assert any((sites[name + PRECISION] < 0).any() for name in GAUSSIAN)
    assert min(taken) < 1


# what it tells


def test_the_report_tells_divergence_precision_and_signal_of_what_is_known(make_problem, play):
    played = play(Virtual(deviation=0.05), make_problem({"a": 13}, optimiser=Adam(0.01)), [1])
    numbers, known = played.reports[0].metrics, played.state.tensors[KNOWN]
    precision = torch.cat([known[name + PRECISION].flatten() for name in GAUSSIAN])
    posterior = kept(played, "posterior", "a")
    of_prior = [Normal(posterior[n].double(), posterior[n + DEVIATION].double()) for n in GAUSSIAN]
    nats = sum(float(kl_divergence(q, Normal(0.0, 1.0)).sum()) for q in of_prior)
    assert numbers["divergence/mean"] == pytest.approx(nats, rel=1e-5)
    assert numbers["precision/least"] == float(precision.min())
    assert numbers["precision/mean"] == pytest.approx(float(precision.mean()))
    found = variational_weights(known)
    sure = torch.cat([(found[name].abs() > found[name + DEVIATION]).flatten() for name in GAUSSIAN])
    assert numbers["signal/share"] == pytest.approx(float(sure.double().mean()))


def test_the_clients_that_were_called_and_every_clients_own_posterior_are_answers(make_problem, play):
    page = Virtual(deviation=0.05, answers=("server", "own", "own_called", "own_refreshed"))
    setup = make_problem(SIZES, optimiser=Adam(0.01))
    played = play(page, setup, [1, 2], absent={1: ["e"], 2: ["b", "e"]})
    round = replace(played.rounds[-1], clients=setup.silos.clients, dropped=())
    answers = page.other_models(played.state, round)
    assert list(answers) == ["own", "own_called", "own_refreshed"]
    assert answers["own"].clients == answers["own_refreshed"].clients == setup.silos.clients
    assert answers["own_called"].clients == ("a", "c", "d")
    server = variational_weights(played.state.tensors[KNOWN])

    def of(name, client):
        opened, _ = load_weights(answers[name].select([client]), Stack((client,), 1), played.private, "cpu")
        return {n: t[0] for n, t in opened.items()}

    for client in SIZES:
        own, refreshed = of("own", client), of("own_refreshed", client)
        assert equal(own, server if client == "e" else kept(played, "posterior", client))
        assert not equal(refreshed, own)
    assert equal(of("own_called", "a"), of("own", "a"))
    scores = round.map_clients(evaluate, answers["own"], training=setup.training)
    stack = Stack(("c",), 1)
    weights, context = load_weights(answers["own"].select(["c"]), stack, played.private, "cpu")
    rows = load_rows(setup.silos, stack, "test", "cpu")
    loss = per_example_metrics(answers["own"].network, weights, context, rows, setup.training.objective)["loss"].mean()
    assert by_client(scores)["c"]["test/loss"] == pytest.approx(float(loss), rel=1e-5)


def test_refreshed_answers_change_nothing_and_are_one_visit_more(make_problem, play):
    """What every client would believe after the next round's visit, if all were called."""
    page = Virtual(deviation=0.05, answers=("server", "own_refreshed"))
    setup = make_problem(SIZES, optimiser=Adam(0.01))
    played = play(page, setup, [1])
    before, up = played.state.sha256(), played.rounds[-1].tally.bytes_up
    next_round = replace(played.rounds[-1], number=2)
    refreshed = page.other_models(played.state, next_round)["own_refreshed"]
    assert played.state.sha256() == before
    after = play(page, setup, [2], state=played.state)
    for client in SIZES:
        opened, _ = load_weights(refreshed.select([client]), Stack((client,), 1), played.private, "cpu")
        assert equal({n: t[0] for n, t in opened.items()}, kept(after, "posterior", client))
    assert up == after.rounds[-1].tally.bytes_up


@pytest.mark.parametrize("first", ["own", "own_called", "own_refreshed"])
def test_the_first_answer_is_the_methods_own(first, make_problem, play):
    page = Virtual(deviation=0.05, answers=(first, "server"))
    assert page.tested_model == "personal"
    played = play(page, make_problem(SIZES), [1])
    model = page.scored_model(played.state, played.rounds[-1])
    assert model.is_personal
    assert list(page.other_models(played.state, played.rounds[-1])) == ["server"]
    assert Virtual().tested_model == "global"


@pytest.mark.parametrize("site", ["nonneg", "free"])
def test_a_client_that_never_trains_is_answered_for(site, write_silos, make_problem, play):
    """Fresh clients too have rows of their own, and no place among the sites."""
    roles = [{"kind": "fresh", "per_domain": 1}]
    silos = write_silos(SIZES, roles=roles, name="fresh")
    setup = replace(make_problem(SIZES), silos=silos.federated())
    page = Virtual(deviation=0.05, site=site, answers=("server", "own", "own_refreshed"))
    played = play(page, setup, [1])
    everybody = replace(played.rounds[-1], setup=replace(setup, silos=silos), clients=silos.clients, dropped=())
    assert set(silos.clients) - set(setup.silos.clients)
    for model in (page.scored_model(played.state, everybody), *page.other_models(played.state, everybody).values()):
        scores = everybody.map_clients(evaluate, model, silos=silos, training=setup.training)
        assert set(by_client(scores)) == set(silos.clients)


@pytest.mark.parametrize("columns", ["beside", "within"])
def test_columns_stay_with_their_clients_and_the_server_knows_what_it_knew_without(columns, make_problem, play):
    setup = make_problem(SIZES, optimiser=Adam(0.01))
    page = Virtual(deviation=0.05, columns=columns)
    played, plain = play(page, setup, [1, 2], absent={2: ["b"]}), play(Virtual(deviation=0.05), setup, [1])
    assert played.state.tensors[KNOWN].keys() == plain.state.tensors[KNOWN].keys()
    assert played.rounds[0].tally.bytes_up == plain.rounds[0].tally.bytes_up
    assert played.rounds[0].tally.bytes_down == plain.rounds[0].tally.bytes_down
    own = {client: kept(played, "columns", client) for client in SIZES}
    assert not equal(own["a"], own["b"])
    assert all("own" in n or "gate" in n or "read" in n or "across" in n for n in own["a"])
    before = play(page, setup, [1])
    assert equal(kept(before, "columns", "b"), own["b"])
    assert not equal(kept(before, "columns", "a"), own["a"])


@pytest.mark.parametrize("visits", ["parallel", "sequential"])
def test_a_seed_gives_the_same_and_another_another(visits, make_problem, play, tmp_path):
    page = Virtual(visits=visits, deviation=0.05)
    setup = make_problem(SIZES)
    first, again = (play(page, setup, [1, 2], private=ClientStore(str(tmp_path / n))) for n in ("one", "two"))
    assert first.state.sha256() == again.state.sha256()
    assert first.reports == again.reports
    other = play(page, replace(setup, seed=1), [1, 2])
    assert other.state.sha256() != first.state.sha256()


def test_a_convolutional_network_learns_with_every_noise(make_problem, play):
    def images(client, total):
        draw = np.random.default_rng(len(client) + total)
        y = np.arange(total) % 3
        return draw.random((total, 8, 8)) + y[:, None, None], y

    network = CNN((8, 8), (3,), (6,), 3, kernel=3, padding=True)
    setup = make_problem({"a": 12, "b": 9}, network=network, optimiser=Adam(0.02), silos={"rows_of": images})
    for noise in ("local", "flipout", "naive"):
        played = play(Virtual(noise=noise, deviation=0.02), setup, range(1, 6))
        losses = [report.metrics["loss/train"] for report in played.reports]
        assert losses[-1] < losses[0]


# what is refused


def test_an_ensemble_is_refused(make_problem):
    with pytest.raises(UserError, match=r"model\.members: got 2, .* Set model\.members to 1, or use one of"):
        start_method(Virtual(), make_problem(SIZES, network=DeepEnsemble(MLP(5, (6,), 3), 2)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"answers": ("own", "server", "own")}, "got a model twice, expected it once"),
        ({"answers": ()}, "at least 1 item"),
        ({"answers": ("theirs",)}, "'server', 'own', 'own_called' or 'own_refreshed'"),
        ({"kl_weight": -1}, "greater than or equal to 0"),
        ({"deviation": 0}, "greater than 0"),
        ({"prior_precision": 0}, "greater than 0"),
        ({"damping": 1.1}, "less than or equal to 1"),
        ({"upload": 0}, "greater than 0"),
        ({"refinements": 0}, "greater than or equal to 1"),
        ({"draws": -1}, "greater than or equal to 0"),
        ({"site": "negative"}, "'nonneg', 'free' or 'clipped'"),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Virtual(**options)


def test_natural_parameters_of_the_prior_are_where_it_begins(make_problem):
    page = Virtual(prior_precision=4.0, bias="gaussian")
    known = page.init(make_problem(SIZES)).tensors[KNOWN]
    assert {name.rpartition(".")[2] for name in known} == {"pull", "precision"}
    for name in ("dense0.weight", "dense1.bias"):
        expected = natural(torch.zeros_like(known[name + PULL]), torch.full_like(known[name + PULL], 0.5))
        assert torch.equal(known[name + PULL], expected.pull)
        assert torch.equal(known[name + PRECISION], expected.precision)


def test_a_run_tells_the_other_answers_under_their_names(play_run):
    """And is no other run for it: what is asked beside the first answer is no round."""
    usual = ("method.virtual.deviation=0.05", "clients.fraction=0.5")
    more, one = (
        play_run("virtual", "threads", 1, *usual, f"method.virtual.answers=[{answers}]")
        for answers in ("server,own,own_called,own_refreshed", "server")
    )
    metrics, alone = more["metrics"], one["metrics"]
    for name in ("own", "own_called", "own_refreshed"):
        assert 0 <= metrics[f"{name}/accuracy/mean"] <= 1
        assert metrics[f"{name}/loss/mean"] != metrics["loss/mean"]
    assert not any(name.startswith("own") for name in alone)
    assert alone.items() <= metrics.items()
    assert more["weights_sha256"] == one["weights_sha256"]
