"""New words for some clients: what was there stays bit for bit, and words are found in a client's own rows."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from flows.methods.common.codebook_transfer import common_codebooks
from models.client_model import Model
from models.networks.deep_ensemble import DeepEnsemble
from models.networks.mlp import MLP
from models.networks.wrappers.codebook_network import COUNT, OWN, SHARED, QuantizedNetwork
from models.prng import server_stream
from models.server_state import ClientStateRefs
from models.training.engine import broadcast_weights
from silos.client_store import ClientStore
from silos.cohort import Cohort, Stack
from silos.errors import UserError
from tasks.codebook_extend import borrow_words, codebook_extend, codebook_replace
from tasks.codebooks import common_codes, compute_tokens, report_centroids
from tasks.execution.load_client_data import load_rows
from tasks.execution.task_runner import Broadcast, PlainRunner
from tasks.messages.round_messages import Centroids

CLIENTS = {"oslo": 30, "lyon": 20, "one": 1}
HELD = {"oslo": 2, "lyon": 0, "one": 1}


@pytest.fixture
def world(make_problem, make_round, tmp_path):
    network = QuantizedNetwork(MLP(5, (), 3), words=4, room=3)
    setup = make_problem(CLIENTS, network=network)
    private = ClientStore(str(tmp_path / "private"))
    own = torch.randn(3, 3, 5, generator=torch.Generator().manual_seed(0)).numpy()
    refs = private.save("codewords", list(CLIENTS), {OWN: own})
    shared = network.init(server_stream(0, 0, "init"))
    start = {OWN: torch.zeros(3, 5)}
    context = {COUNT: torch.tensor([HELD[c] for c in setup.silos.clients])}
    model = Model(network, shared, ClientStateRefs("codewords", refs, start), context, setup.silos.clients)
    return setup, make_round(setup, private=private), model, dict(zip(CLIENTS, own, strict=True))


def extend(world, clients, words=4, room=6, seed=0, round_number=1, task=codebook_extend, **options):
    setup, round, model, *_ = world
    done = round.map_clients(
        task,
        model,
        training=setup.training,
        extend=clients,
        words=words,
        room=room,
        seed=seed,
        round=round_number,
        **options,
    )
    counts = {c: int(n) for m in done for c, n in zip(m.clients, m.words, strict=True)}
    return counts, {c: round.private.load("codewords", m.refs, c) for m in done for c in m.clients}


def test_old_words_survive_bit_for_bit_and_only_those_that_are_named_get_more(world):
    counts, stored = extend(world, ("oslo",))
    assert counts == {"oslo": 6, "lyon": 0, "one": 1}
    for client, own in world[3].items():
        assert stored[client][OWN].shape == (6, 5)
        assert np.array_equal(stored[client][OWN][: HELD[client]], own[: HELD[client]])
    assert np.isfinite(stored["oslo"][OWN]).all()
    assert len(np.unique(stored["oslo"][OWN], axis=0)) == 6


def test_new_words_are_the_k_means_centres_of_the_clients_own_training_rows(world):
    """Features of this network are the rows, so they can be clustered here."""
    _, stored = extend(world, ("lyon",))
    rows = world[0].silos
    x = load_rows(rows, Stack(("lyon",), 1), "train", "cpu").x[0, :20].numpy()
    found = stored["lyon"][OWN][:4]
    nearest = ((x[:, None] - found) ** 2).sum(-1).argmin(1)
    for word in range(4):
        np.testing.assert_allclose(found[word], x[nearest == word].mean(0), atol=1e-5)
    best = KMeans(4, n_init=20, random_state=1).fit(x).inertia_
    assert ((x - found[nearest]) ** 2).sum() < 2 * best


@pytest.mark.parametrize("engine", ["batched", "vmap", "sequential"])
def test_tokens_are_the_features_of_each_clients_rows_by_every_form(engine, make_problem):
    """Of clients of 30, 20 and 1 rows and a dummy, in two slices each."""
    network = QuantizedNetwork(MLP(5, (6,), 3, dropout=0.5), words=4, segments=2)
    setup, weights = make_problem(CLIENTS, network=network), network.init(server_stream(0, 0, "init"))
    cohort, (one,) = Cohort(setup.silos, (Stack(setup.silos.clients, 4),)), network.single_networks
    found = compute_tokens(cohort, cohort.stacks[0], one, broadcast_weights(weights, 4), {}, engine, "cpu")
    assert {client: tokens.shape for client, tokens in found.items()} == {c: (2 * n, 3) for c, n in CLIENTS.items()}
    for client, count in CLIENTS.items():
        x = load_rows(setup.silos, Stack((client,), 1), "train", "cpu").x[0, :count]
        z = torch.relu(x @ weights["dense0.weight"] + weights["dense0.bias"])
        np.testing.assert_allclose(found[client], z.reshape(2 * count, 3), atol=1e-6)


def test_a_client_with_fewer_tokens_than_words_gets_as_many_as_it_has(world):
    counts, stored = extend(world, ("one",))
    assert counts["one"] == HELD["one"] + 1
    assert np.array_equal(stored["one"][OWN][2:3], world[3]["one"][2:3]), "nothing is written beyond"


def test_the_authors_way_gives_everybody_other_words_in_the_place_of_the_last_ones(world):
    setup, round, model, own = world
    copies = {SHARED: np.repeat(model.shared[SHARED].numpy()[None], 3, 0), OWN: np.stack(list(own.values()))}
    refs = round.private.save("codewords", list(CLIENTS), copies)
    start = {OWN: torch.zeros(3, 5), SHARED: model.shared[SHARED]}
    local = replace(
        model,
        shared={n: w for n, w in model.shared.items() if n != SHARED},
        personal=ClientStateRefs("codewords", refs, start),
    )
    counts, stored = extend((setup, round, local, own), ("oslo",), room=4, task=codebook_replace)
    assert counts == {"oslo": 4, "lyon": 0, "one": 1}
    before = model.shared[SHARED].numpy()
    assert np.array_equal(stored["oslo"][SHARED], before)
    assert (stored["lyon"][SHARED] != before).any(1).all()
    assert not np.array_equal(stored["one"][OWN][:1], own["one"][:1])
    assert not np.array_equal(stored["oslo"][OWN][:2], own["oslo"][:2])


def test_random_words_have_nothing_of_the_rows(world):
    _, stored = extend(world, ("lyon",), fill="random")
    again = extend(world, ("lyon",), fill="random")[1]
    assert np.array_equal(stored["lyon"][OWN], again["lyon"][OWN])
    assert 0.3 < stored["lyon"][OWN][:4].std() < 2


def test_features_that_are_no_numbers_are_named_with_their_client(world):
    setup, round, _, own = world
    broken = replace(world[2], network=QuantizedNetwork(MLP(5, (6,), 3), 4, 3))
    weights = {n: w * torch.nan for n, w in broken.network.init(server_stream(0, 0, "init")).items()}
    wide = round.private.save("codewords", list(CLIENTS), {OWN: np.zeros((3, 3, 6), np.float32)})
    broken = replace(broken, shared=weights, personal=ClientStateRefs("codewords", wide, {OWN: torch.zeros(3, 6)}))
    with pytest.raises(UserError, match="small: features: got numbers that are not finite, expected finite ones"):
        extend((setup, round, broken, own), ("oslo",))


def test_a_common_book_is_found_from_centres_in_any_order_of_clients(world):
    setup, round, model, _ = world
    told = round.map_clients(report_centroids, model, training=setup.training, words=4, seed=0, round=1)
    assert sum(float(w.sum()) for m in told for w in m.weights) == CLIENTS["oslo"] + CLIENTS["lyon"], "one tells none"
    assert round.tally.bytes_up == sum(m.bytes_up for m in told)
    assert [c.shape[1] for m in told for c in m.centres] == [5] * 3
    assert common_codes.fn(told, 0, 0).shape == (0, 5)
    book = common_codes.fn(told, 3, 0)
    assert book.shape == (3, 5)
    assert torch.equal(book, common_codes.fn(list(reversed(told)), 3, 0))


WHEN = [(0, 1), (0, 2), (1, 1)]  # seed, round


@pytest.mark.parametrize("fill", ["kmeans", "random"])
def test_new_words_are_drawn_anew_in_every_round_by_every_seed(fill, world):
    found = [extend(world, ("oslo", "lyon"), fill=fill, seed=seed, round_number=number)[1] for seed, number in WHEN]
    for client, first in (("oslo", 2), ("lyon", 0)):
        drawn = [stored[client][OWN][first : first + 4] for stored in found]
        assert not any(np.array_equal(one, other) for one, other in combinations(drawn, 2))


def test_random_words_are_other_words_for_every_client(world):
    _, stored = extend(world, ("oslo", "lyon"), fill="random")
    assert not np.array_equal(stored["oslo"][OWN][2:6], stored["lyon"][OWN][:4])


@pytest.fixture
def crowd(make_problem, make_round):
    """Two members, and clients with rows enough for several centres."""
    network = DeepEnsemble(QuantizedNetwork(MLP(5, (6,), 3), words=4), 2)
    setup = make_problem({"oslo": 200, "lyon": 150}, network=network)
    model = Model(network, network.init(server_stream(0, 0, "init")), clients=setup.silos.clients)
    return setup, make_round(setup), model


def test_centres_are_looked_for_anew_in_every_round_by_every_seed_and_member(crowd):
    setup, round, model = crowd
    found = []
    for seed, number in WHEN:
        told = round.map_clients(report_centroids, model, training=setup.training, words=4, seed=seed, round=number)
        found += [centre for m in told for c, centre in zip(m.clients, m.centres, strict=True) if c == "oslo"]
    assert len(found) == 2 * len(WHEN)
    assert not any(np.array_equal(one, other) for one, other in combinations(found, 2))


def test_what_members_that_are_equal_draw_is_not(ensemble):
    """The same features and the same words of two members: only the draws may differ."""
    setup, round, model, own, _ = ensemble
    first, second = model.network.single_networks
    shared = first.named(first.of(model.shared)) | second.named(first.of(model.shared))
    twice = np.stack([own[f"0/{c}"] for c in CLIENTS])
    refs = round.private.save("codewords", list(CLIENTS), {f"{m}/{OWN}": twice for m in (0, 1)})
    context = {f"{m}/{COUNT}": model.context[f"0/{COUNT}"] for m in (0, 1)}
    alike = replace(model, shared=shared, personal=replace(model.personal, refs=refs), context=context)
    for fill in ("kmeans", "random"):
        _, stored = extend((setup, round, alike, own), ("lyon",), fill=fill)
        assert not np.array_equal(stored["lyon"][f"0/{OWN}"][:4], stored["lyon"][f"1/{OWN}"][:4])
    told = round.map_clients(report_centroids, alike, training=setup.training, words=4, seed=0, round=1)
    (one,), (other,) = (
        [m.centres[m.clients.index("oslo")] for m in told if m.prefix == p and "oslo" in m.clients]
        for p in ("0/", "1/")
    )
    assert not np.array_equal(one, other)


class Hearing(PlainRunner):
    """Keeps the seeds with which the server looked for common words."""

    def run_on_server(self, task, *args):
        """See PlainRunner."""
        self.seeds = [*getattr(self, "seeds", []), args[-1]]
        return super().run_on_server(task, *args)


def test_common_words_are_looked_for_anew_in_every_round_by_every_seed_and_member(crowd):
    setup, round, model = crowd
    runner = Hearing(1)
    for seed, number in WHEN:
        setup = replace(setup, seed=seed)
        (books,) = common_codebooks(replace(round, setup=setup, number=number, runner=runner), [model], 3)
        assert {name: book.shape for name, book in books.items()} == {f"{m}/{SHARED}": (3, 6) for m in (0, 1)}
    assert len(runner.seeds) == len(set(runner.seeds)) == 2 * len(WHEN)


def test_another_seed_of_the_servers_finds_other_common_words(crowd):
    setup, round, model = crowd
    told = round.map_clients(report_centroids, model, training=setup.training, words=12, seed=0, round=1)
    books = [common_codes.fn([message for message in told if message.prefix == "0/"], 3, seed) for seed in range(4)]
    assert not any(torch.equal(one, other) for one, other in combinations(books, 2))


@pytest.fixture
def ensemble(world):
    """Two members with different features and own words, of which the second has one fewer where there are any."""
    setup, round, _, _ = world
    network = DeepEnsemble(QuantizedNetwork(MLP(5, (6,), 3), words=4, room=3), 2)
    own = torch.randn(2, 3, 3, 6, generator=torch.Generator().manual_seed(1)).numpy()
    refs = round.private.save("codewords", list(CLIENTS), {f"{m}/{OWN}": own[m] for m in (0, 1)})
    held = {f"{m}/{c}": max(n - m, 0) for m in (0, 1) for c, n in HELD.items()}
    context = {f"{m}/{COUNT}": torch.tensor([held[f"{m}/{c}"] for c in setup.silos.clients]) for m in (0, 1)}
    start = {f"{m}/{OWN}": torch.zeros(3, 6) for m in (0, 1)}
    shared = network.init(server_stream(0, 0, "init"))
    model = Model(network, shared, ClientStateRefs("codewords", refs, start), context, setup.silos.clients)
    return setup, round, model, {f"{m}/{c}": own[m][at] for m in (0, 1) for at, c in enumerate(CLIENTS)}, held


def extend_all(ensemble, clients, words=4, room=6, **options):
    setup, round, model, *_ = ensemble
    when = {"seed": 0, "round": 1, "training": setup.training}
    asked = {"extend": clients, "words": words, "room": room, **when, **options}
    done = round.map_clients(codebook_extend, model, **asked)
    counts = {name: count for message in done for name, count in message.held.items()}
    return counts, {c: round.private.load("codewords", m.refs, c) for m in done for c in m.clients}


def test_every_member_gets_words_and_those_that_were_there_survive_bit_for_bit(ensemble):
    counts, stored = extend_all(ensemble, ("oslo",))
    *_, before, held = ensemble
    assert counts == held | {"0/oslo": 6, "1/oslo": 5}
    for name, own in before.items():
        member, client = name.split("/")
        assert np.array_equal(stored[client][f"{member}/{OWN}"][: held[name]], own[: held[name]])
    fresh = [stored["oslo"][f"{m}/{OWN}"][held[f"{m}/oslo"] : counts[f"{m}/oslo"]] for m in (0, 1)]
    assert not np.array_equal(*fresh), "under each member's own encoder"


@pytest.mark.parametrize("fill", ["kmeans", "random"])
def test_the_first_member_gets_the_words_that_the_network_alone_would_get(fill, ensemble):
    setup, round, model, _, _ = ensemble
    _, stored = extend_all(ensemble, ("oslo", "lyon"), fill=fill)
    own = {c: round.private.load("codewords", model.personal.refs, c)[f"0/{OWN}"] for c in CLIENTS}
    refs = round.private.save("codewords", list(CLIENTS), {OWN: np.stack(list(own.values()))})
    one = model.network.single_networks[0]
    personal = ClientStateRefs("codewords", refs, one.of(model.personal.start))
    alone = Model(one.network, one.of(model.shared), personal, one.of(model.context), model.clients)
    _, expected = extend((setup, round, alone, own), ("oslo", "lyon"), fill=fill)
    for client in CLIENTS:
        assert np.array_equal(stored[client][f"0/{OWN}"], expected[client][OWN])
    assert not np.array_equal(stored["lyon"][f"0/{OWN}"], stored["lyon"][f"1/{OWN}"])


def test_a_member_in_which_fewer_tokens_differ_gets_fewer_words(ensemble):
    """Features of the second member that are all zero are one token."""
    setup, round, model, own, held = ensemble
    dead = {n: w * 0 if n.startswith("1/dense0") else w for n, w in model.shared.items()}
    counts, _ = extend_all((setup, round, replace(model, shared=dead), own, held), ("oslo",))
    assert (counts["0/oslo"], counts["1/oslo"]) == (6, 2)


def test_clients_tell_centres_of_every_member(ensemble):
    setup, round, model, *_ = ensemble
    told = round.map_clients(report_centroids, model, training=setup.training, words=4, seed=0, round=1)
    assert sorted({message.prefix for message in told}) == ["0/", "1/"]
    for prefix in ("0/", "1/"):
        mine = [message for message in told if message.prefix == prefix]
        assert sum(float(w.sum()) for m in mine for w in m.weights) == CLIENTS["oslo"] + CLIENTS["lyon"]


def test_borrowed_words_are_those_of_the_same_member(ensemble):
    setup, round, model, own, held = ensemble
    lent = ClientStateRefs("codewords", {c: model.personal.refs[c] for c in ("oslo", "one")}, model.personal.start)
    only = setup.silos.select(["lyon"])
    done = round.map_clients(borrow_words, model, silos=only, lent=Broadcast(lent), words=Broadcast(held), room=5)
    assert {n: c for m in done for n, c in m.held.items()} == {"0/lyon": 3, "1/lyon": 1}
    stored = round.private.load("codewords", done[0].refs, "lyon")
    assert np.array_equal(stored[f"1/{OWN}"], np.concatenate([own["1/oslo"][:1], np.zeros((4, 6), np.float32)]))


def test_borrowed_words_are_those_of_all_of_all_that_lend(world):
    setup, round, model, own = world
    lent = ClientStateRefs("codewords", {c: model.personal.refs[c] for c in ("oslo", "one")}, model.personal.start)
    only = setup.silos.select(["lyon"])
    (done,) = round.map_clients(
        borrow_words, model, silos=only, lent=Broadcast(lent), words=Broadcast({"oslo": 2, "one": 1}), room=5
    )
    stored = round.private.load("codewords", done.refs, "lyon")[OWN]
    assert done.words.tolist() == [3]
    expected = np.concatenate([own["oslo"][:2], own["one"][:1], np.zeros((2, 5), np.float32)])
    assert np.array_equal(stored, expected)


def test_centres_are_of_all_of_a_clients_training_rows_and_of_no_others(make_problem, make_round, tmp_path):
    """A few of many rows lie far away, at the end and beyond what is read at once; so do all validation and test rows."""

    def rows_of(client, total):
        x = np.random.default_rng(0).normal(size=(total, 5))
        x[580:600] += 100
        x[600:] -= 100
        return x, np.zeros(total, np.int64)

    network = QuantizedNetwork(MLP(5, (), 3), words=2)
    setup = make_problem({"oslo": 600}, network=network, silos={"rows_of": rows_of, "validation": 9, "test": 9})
    model = Model(network, network.init(server_stream(0, 0, "init")), clients=("oslo",))
    (told,) = make_round(setup).map_clients(report_centroids, model, training=setup.training, words=2, seed=0, round=1)
    near, far = np.argsort(told.centres[0].mean(1))
    assert told.weights[0][near] > 10 * told.weights[0][far] > 50
    assert np.abs(told.centres[0][near]).max() < 1
    assert np.abs(told.centres[0][far] - 100).max() < 2


def test_a_common_word_is_the_mean_of_tokens_and_not_of_centres():
    far, near = np.zeros((1, 2), np.float32), np.ones((2, 2), np.float32)
    told = [Centroids(("a",), (far,), (np.array([97.0]),)), Centroids(("b",), (near,), (np.array([1.0, 2.0]),))]
    assert common_codes.fn(told, 1, 0)[0].tolist() == pytest.approx([0.03, 0.03], abs=1e-6)


def test_centres_stand_for_all_of_a_clients_tokens_also_where_only_some_were_looked_at(make_problem, make_round):
    network, rows = QuantizedNetwork(MLP(5, (), 3), words=1), {"large": 600, "small": 100}
    setup = make_problem(rows, network=network)
    model = Model(network, network.init(server_stream(0, 0, "init")), clients=tuple(rows))
    told = make_round(setup).map_clients(report_centroids, model, training=setup.training, words=1, seed=0, round=1)
    assert {c: w.tolist() for m in told for c, w in zip(m.clients, m.weights, strict=True)} == {
        "large": [600],
        "small": [100],
    }
