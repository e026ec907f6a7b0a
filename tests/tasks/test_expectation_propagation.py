"""A visit as a task: pure, added up over the stack, and kept by the client as it was sent."""

import pytest
import torch

from flows.methods.common import posterior_sites
from flows.methods.virtual import Virtual
from models.client_model import Model
from models.gaussians import PRECISION
from models.networks.wrappers.posterior_update import SiteTraining, Tilted
from models.training.optimizers import Adam
from silos.client_store import ClientStore
from tasks.expectation_propagation import POSTERIOR, update_site

SIZES = {"a": 13, "b": 5, "c": 8, "d": 1, "e": 10}
WEIGHTS, BIASES = 5 * 6 + 6 * 3, 6 + 3
SHARES = {"a": 0.3, "b": 0.1, "c": 0.2, "d": 0.05, "e": 1.0}


@pytest.fixture
def ask(make_problem, make_round):
    """What all clients answer at their first visit, and the store."""
    setup = make_problem(SIZES)

    def run(site="nonneg", upload=1.0, **options):
        page = Virtual(site=site)
        network = Tilted(setup.network, site=site)
        model = posterior_sites.site_model(network, page.init(setup), setup, setup.silos.clients, {})
        round = make_round(setup, **{"stack": 3, **options})
        begin = posterior_sites.initial_means(page.init(setup), setup, "point")
        how = SiteTraining(1e-3, 0.01, upload=upload)
        return round.train(update_site, model, how=how, shares=SHARES, start=begin), round

    return run


def kept(messages, store, section, client):
    refs = next(m.private[section] for m in messages if client in m.clients)
    return {name: torch.from_numpy(array) for name, array in store.load(section, refs, client).items()}


def same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert (a.clients, a.private) == (b.clients, b.private)
        for part in ("sums", "steps"):
            mine, theirs = getattr(a, part), getattr(b, part)
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(t, theirs[name]) for name, t in mine.items())
        for part in ("loss", "nats", "rows", "unsent"):
            assert torch.equal(getattr(a, part), getattr(b, part))


@pytest.mark.parametrize("site", ["nonneg", "free"])
def test_running_it_twice_or_dealing_it_to_more_workers_gives_the_same_messages(site, ask):
    (first, _), (again, _), (dealt, _) = ask(site), ask(site), ask(site, workers=2)
    same(first, again)
    same(first, dealt)


def test_the_steps_of_a_stack_are_those_of_its_clients_alone_added_and_each_site_keeps_its_own(ask, tmp_path):
    """Dummies of the last stack add nothing."""
    together, round = ask()
    alone, of_alone = ask(stack=1, private=ClientStore(str(tmp_path / "alone")))
    steps = {message.clients[0]: message for message in alone}
    for message in together:
        for name, total in message.sums.items():
            expected = torch.stack([steps[client].sums[name] for client in message.clients]).sum(0)
            torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-2 if name.endswith(PRECISION) else 1e-3)
        stored = [kept(together, round.private, "sites", client) for client in message.clients]
        for name in stored[0]:
            torch.testing.assert_close(
                torch.stack([s[name] for s in stored]).sum(0), message.sums[name], rtol=1e-14, atol=0
            )
    for client, message in steps.items():
        for name, t in kept(alone, of_alone.private, "sites", client).items():
            assert t.dtype == torch.float64
            assert torch.equal(t, message.sums[name])


def test_where_the_server_holds_the_sites_clients_keep_none_and_send_their_steps_apart(ask):
    messages, round = ask("free")
    for message in messages:
        assert set(message.private) == {POSTERIOR}
        assert set(message.sums) == {"dense0.bias", "dense1.bias"}
        assert all(len(t) == len(message.clients) for t in message.steps.values())
        assert set(kept(messages, round.private, POSTERIOR, message.clients[0])) == {
            *(f"dense{layer}.{part}" for layer in (0, 1) for part in ("weight", "bias", "weight.deviation"))
        }


@pytest.mark.parametrize("site", ["nonneg", "free"])
def test_bytes_up_are_two_numbers_a_weight_that_is_sent_and_a_bit_of_every_weight(site, ask):
    """Besides, biases, and of each client its rows, loss, nats, and how many weights it does not send."""
    beside = 4 * (BIASES + 4)
    for upload, mask in ((1.0, 0), (0.25, WEIGHTS / 8)):
        messages, round = ask(site, upload)
        sent = sum(
            int((~_unsent(m, round.private, messages, site, client)).sum()) for m in messages for client in m.clients
        )
        assert sent == len(SIZES) * sent_of(upload)
        expected = len(SIZES) * (8 * sent_of(upload) + beside + mask)
        assert sum(m.bytes_up for m in messages) == pytest.approx(expected, abs=len(messages))
        assert round.tally.bytes_up == sum(m.bytes_up for m in messages)


def sent_of(upload):
    return round(upload * WEIGHTS)


def _unsent(message, private, messages, site, client):
    """Which weights' steps are 0, from where the step is kept."""
    if site == "free":
        held = {n: t[message.clients.index(client)] for n, t in message.steps.items()}
    else:
        held = kept(messages, private, "sites", client)
    return torch.cat([(t == 0).flatten() for name, t in sorted(held.items()) if name.endswith(PRECISION)])


def test_a_number_a_weight_comes_down_twice_in_float64_and_sites_too_where_the_server_holds_them(ask):
    for site, numbers in (("nonneg", 2), ("free", 4)):
        _, round = ask(site)
        assert round.tally.bytes_down == len(SIZES) * (8 * numbers * WEIGHTS + 4 * BIASES)


@pytest.mark.slow
@pytest.mark.parametrize("site", ["nonneg", "free"])
def test_validation_losses_are_of_what_the_client_got_and_then_of_what_it_trained(site, make_problem, make_round):
    """However long clients train, the first loss is the same; the second falls from it."""
    page, losses = Virtual(site=site), []
    for epochs in (1, 12):
        setup = make_problem(SIZES, silos={"validation": 12}, optimiser=Adam(0.02), epochs=epochs)
        round = make_round(setup, stack=3, validate=True)
        page.run_round(page.init(setup), round)
        losses.append(round.validation)
    for client in SIZES:
        (before, short), (same, long) = (of[client] for of in losses)
        assert before == pytest.approx(same, rel=1e-6)
        assert len({before, short, long}) == 3
    assert sum(after for _, after in losses[1].values()) < sum(before for before, _ in losses[1].values())


def test_a_share_that_is_no_number_is_refused(make_problem, make_round):
    setup = make_problem(SIZES)
    page = Virtual()
    model: Model = posterior_sites.site_model(Tilted(setup.network), page.init(setup), setup, setup.silos.clients, {})
    shares = {**SHARES, "c": float("nan")}
    with pytest.raises(ValueError, match="shares: got nan for client c, expected numbers of at least 0"):
        make_round(setup).train(update_site, model, how=SiteTraining(1e-3, 0.01), shares=shares)
