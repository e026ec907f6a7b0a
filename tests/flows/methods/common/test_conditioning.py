"""What a conditional model reads in the place of statistics: each source is what it says it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.common.conditioning import Conditioning, StatisticsMatrix
from flows.methods.fedavg import FedAvg
from models.server_state import ClientStateRefs
from models.statistics.feature_vector import compute, make
from silos.cohort import Stack
from silos.errors import UserError
from silos.storage.partition_store import open_client
from tasks.execution.load_client_data import load_weights

DOMAINS = {"a": "east", "b": "east", "c": "east", "d": "west", "e": "west", "f": "west", "g": "north"}
SIZES = {"a": 13, "b": 9, "c": 8, "d": 11, "e": 10, "f": 12, "g": 7}
ROLES = [{"kind": "hold_out", "domains": ["north"]}, {"kind": "fresh", "per_domain": 1}]
ASKED = (make({"kind": "covariance_xy"}), make({"kind": "mean"}))
SOURCES = ("local", "zeros", "pooled", "random", "permuted", "client_id", "cluster_id")
LENGTH = 3 * 5 + 5


@pytest.fixture
def everybody(make_problem):
    """Two clients to train and a fresh one of east and of west, and one of a law that nobody trains on."""
    return make_problem(SIZES, silos={"domains": DOMAINS, "roles": ROLES})


@pytest.fixture
def read(make_round):
    """What these clients read, client to numbers; by default all of them, asked at once."""

    def run(setup, source, clients=None, known=None, statistics=ASKED, **options):
        conditions, round = Conditioning(statistics, source), make_round(setup, **options)
        clients = setup.silos.clients if clients is None else clients
        page = FedAvg()
        model = page.model(page.init(setup), setup)
        known = conditions.collect(round, model, clients, known or StatisticsMatrix())
        context = conditions.context(setup.silos, clients, known, setup.seed)
        model = replace(model, context=context, clients=tuple(clients))
        _, opened = load_weights(model, Stack(tuple(clients), len(clients)), round.private, "cpu")
        zeros = torch.zeros(len(clients), conditions.count(setup.silos))
        return dict(zip(clients, opened.get("statistics", zeros), strict=True)), known, context

    return run


def trained(setup):
    return setup.silos.federated().clients


def own(setup, clients, statistics=ASKED):
    """The statistics of the training rows of these clients together."""
    folder, manifest = Path(setup.silos.folder), setup.silos.manifest
    x, y = (
        np.concatenate(p)
        for p in zip(*(open_client(folder, manifest.client(c), "train") for c in clients), strict=True)
    )
    return compute(statistics, torch.from_numpy(x), torch.from_numpy(y), 3).vector.float()


def test_local_is_each_clients_own_and_the_server_holds_references_only(everybody, read):
    found, _, context = read(everybody, "local")
    assert isinstance(context, ClientStateRefs)
    assert not context.start
    for client in SIZES:
        assert torch.equal(found[client], own(everybody, [client]))


def test_zeros_are_zeros_and_nobody_is_asked(everybody, read):
    found, known, context = read(everybody, "zeros")
    assert context == {}
    assert known == StatisticsMatrix()
    assert all(torch.equal(v, torch.zeros(LENGTH)) for v in found.values())


def test_pooled_is_the_same_for_all_and_of_the_rows_of_those_who_train(everybody, read):
    found, _, _ = read(everybody, "pooled")
    expected = own(everybody, trained(everybody))
    assert len({v.numpy().tobytes() for v in found.values()}) == 1
    torch.testing.assert_close(found["g"], expected, rtol=1e-5, atol=1e-6)


def test_random_has_the_clients_norm_and_does_not_depend_on_its_rows(everybody, read, make_problem):
    found, _, context = read(everybody, "random")
    assert not isinstance(context, ClientStateRefs)

    def other_rows(client, total):
        rng = np.random.default_rng([7, *client.encode()])
        return 5 * rng.normal(size=(total, 5)), np.arange(total) % 3

    silos = {"domains": DOMAINS, "roles": ROLES, "rows_of": other_rows, "name": "others"}
    others, _, _ = read(make_problem(SIZES, silos=silos), "random")
    another_seed, _, _ = read(replace(everybody, seed=1), "random")
    for client in SIZES:
        assert float(found[client].norm()) == pytest.approx(float(own(everybody, [client]).norm()), rel=1e-5)
        cosine = torch.cosine_similarity
        assert float(cosine(found[client], others[client], 0)) == pytest.approx(1, abs=1e-5)
        assert abs(float(cosine(found[client], own(everybody, [client]), 0))) < 0.8
        assert abs(float(cosine(found[client], another_seed[client], 0))) < 0.8
    assert len({v.numpy().tobytes() for v in found.values()}) == len(SIZES)


def test_random_for_one_number_is_finite_though_its_norm_is_not_told(everybody, read):
    """A fingerprint of one value."""
    found, known, _ = read(everybody, "random", statistics=(make({"kind": "fingerprint", "values": 1}),))
    assert known.norms == {}
    assert [float(v.abs()) for v in found.values()] == pytest.approx([1.0] * len(SIZES))


def test_permuted_is_another_clients_each_once_and_never_ones_own(everybody, read):
    found, _, _ = read(everybody, "permuted")
    clients = trained(everybody)
    whose = {own(everybody, [c]).numpy().tobytes(): c for c in clients}
    read_by = {client: whose[found[client].numpy().tobytes()] for client in SIZES}
    assert sorted(read_by[c] for c in clients) == sorted(clients)
    assert not [c for c in SIZES if read_by[c] == c]


def test_permuted_needs_somebody_else(make_problem, read):
    with pytest.raises(UserError, match=r"method\.conditional\.source: got permuted with one training client"):
        read(make_problem({"only": 8}), "permuted")


def test_client_id_names_those_who_train_and_nobody_else(everybody, read):
    found, _, _ = read(everybody, "client_id")
    clients = trained(everybody)
    assert torch.equal(torch.stack([found[c] for c in sorted(clients)]), torch.eye(len(clients)))
    assert not any(found[c].any() for c in SIZES if c not in clients)


def test_cluster_id_names_the_law_and_an_unknown_one_by_zeros(everybody, read):
    found, _, _ = read(everybody, "cluster_id")
    name = {"east": [1.0, 0.0], "west": [0.0, 1.0], "north": [0.0, 0.0]}
    assert {c: v.tolist() for c, v in found.items()} == {c: name[DOMAINS[c]] for c in SIZES}


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_client_reads_does_not_depend_on_who_is_there(source, everybody, read, make_problem):
    """A round of one client, of two others, then everybody: each reads what it read."""
    federated = replace(everybody, silos=everybody.silos.federated())
    first, second = trained(everybody)[0], trained(everybody)[1:3]
    early, known, _ = read(federated, source, [first])
    later, known, _ = read(federated, source, second, known)
    found, _, _ = read(everybody, source, known=known)
    for client, vector in {**early, **later}.items():
        assert torch.equal(found[client], vector)


@pytest.mark.parametrize("source", SOURCES)
def test_a_client_is_asked_once(source, everybody, read, make_round, monkeypatch):
    _, known, _ = read(everybody, source)
    monkeypatch.setattr(Conditioning, "_compute", lambda *_: pytest.fail("asked again"))
    again = Conditioning(ASKED, source).collect(make_round(everybody), None, everybody.silos.clients, known)
    assert again == known


def test_pooled_is_computed_once_for_those_who_come_later_too(everybody, read, make_round, monkeypatch):
    _, known, _ = read(everybody, "pooled", ["a"])
    monkeypatch.setattr(Conditioning, "_compute", lambda *_: pytest.fail("asked again"))
    later = Conditioning(ASKED, "pooled").collect(make_round(everybody), None, ["b", "c"], known)
    assert set(later.refs) == {"a", "b", "c"}


def test_whose_rows_are_too_few_is_known_or_refused(make_problem, read, make_round):
    setup = make_problem({"a": 9, "one": 1})
    found, known, _ = read(setup, "local")
    assert known.undetermined == ("one",)
    assert not found["one"][:15].any()
    page = FedAvg()
    strict = Conditioning(ASKED, "local", "refuse")
    with pytest.raises(
        UserError, match=r"client one of .* has 1 training row, expected 2 for the statistic covariance_xy"
    ):
        strict.collect(make_round(setup), page.model(page.init(setup), setup), ["a", "one"], StatisticsMatrix())


@pytest.mark.parametrize(("unsteady", "clients", "many"), [(0, 0, False), (0, 4, False), (1, 5, False), (1, 4, True)])
def test_a_quarter_of_the_clients_is_many(unsteady, clients, many):
    names = [f"c{number}" for number in range(clients)]
    assert StatisticsMatrix(dict.fromkeys(names, "hash"), {}, (), tuple(names[:unsteady])).mostly_noise == many


def test_a_statistic_of_classes_in_a_regression_names_the_key(make_problem):
    silos = {"rows_of": lambda _, n: (np.eye(n, 5), np.arange(n) / 2), "task": "regression"}
    setup = make_problem({"a": 9}, silos=silos)
    with pytest.raises(
        UserError, match=r"method\.conditional\.statistics: class_means: got a regression, expected classes, of which"
    ):
        Conditioning((make({"kind": "class_means"}),), "local").count(setup.silos)
