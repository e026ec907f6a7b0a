"""FLUX: against a float64 loop of the paper's algorithm, its reduction, and who is assigned by what."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from flows.methods.fedavg import FedAvg
from flows.methods.flux import Flux
from models.client_model import Model
from models.training.optimizers import SGD
from silos.storage.partition_store import open_client
from tasks.messages.round_messages import ABSENT
from tasks.report_evidence import report_descriptor, report_evidence

SIZES = {"a": 33, "b": 30, "c": 42, "d": 36, "e": 39, "f": 33}
LAWS = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1, "f": 0, "one": 1}
SHIFT = np.array([[0, 0, 0, 0, 0], [4, -4, 4, -4, 4]])
RATE = 0.1


def rows_of(client, total):
    """Two laws of the features; each client has every class."""
    rng = np.random.default_rng([*client.encode()])
    return rng.normal(size=(total, 5)) + SHIFT[LAWS[client]], np.arange(total) % 3


def problem(make_problem, sizes, **options):
    options = {"batch": 100, "epochs": 3, "optimiser": SGD(RATE), **options}
    return make_problem(sizes, silos={"rows_of": rows_of, "validation": 3, "test": 3}, **options)


def rows(setup, client):
    x, y = open_client(Path(setup.silos.folder), setup.silos.manifest.client(client), "train")
    return torch.from_numpy(x.copy()).double(), torch.from_numpy(y.copy())


def trained(w, x, y):
    for _ in range(3):
        leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
        hidden = torch.relu(x @ leaves["dense0.weight"] + leaves["dense0.bias"])
        logits = hidden @ leaves["dense1.weight"] + leaves["dense1.bias"]
        torch.nn.functional.cross_entropy(logits, y).backward()
        w = {name: (t - RATE * t.grad).detach() for name, t in leaves.items()}
    return w


def average(setup, w, clients):
    sent = {client: trained(w, *rows(setup, client)) for client in clients}
    total = sum(SIZES[client] for client in clients)
    return {n: sum(SIZES[c] * own[n] for c, own in sent.items()) / total for n in w}


def descriptor(setup, w, client, axes):
    """Rows of (component) for: mean, deviation of all rows, then of each class."""
    x, y = rows(setup, client)
    z = (torch.relu(x @ w["dense0.weight"] + w["dense0.bias"]).numpy()) @ axes
    chosen = [np.full(len(y), True), *(y.numpy() == label for label in range(3))]
    return np.array([moment for m in chosen for moment in (z[m].mean(0), z[m].std(0))])


def scaled(found, low, high):
    return np.array([(row - lo) / (hi - lo) for row, lo, hi in zip(found, low, high, strict=True)])


@pytest.mark.parametrize("engine", ["batched", "sequential"])
def test_it_is_the_papers_loop_with_a_late_client_and_one_that_never_trains(engine, make_problem, make_round, play):
    everyone = problem(make_problem, SIZES, engine=engine)
    setup = replace(everyone, silos=everyone.silos.select(["a", "b", "c", "d", "e"]))
    played = play(Flux(warm_up=2, components=4, radius=2.0), setup, [1, 2, 3, 4], absent={3: ["e"]})

    w = {name: value.double() for name, value in FedAvg().init(setup).tensors["weights"].items()}
    for _ in range(2):
        w = average(setup, w, ["a", "b", "c", "d", "e"])
    points = np.random.default_rng(1).uniform(size=(200, 6))
    _, vectors = np.linalg.eigh(np.cov(points.T))
    axes = np.array([v if v.max() > -v.min() else -v for v in vectors[:, ::-1][:, :4].T]).T
    np.testing.assert_allclose(played.state.tensors["descriptor"]["axes"], axes, atol=1e-9)
    parts = {client: descriptor(everyone, w, client, axes) for client in SIZES}
    present = ["a", "b", "c", "d"]
    low = np.min([parts[c].min(1) for c in present], 0)
    high = np.max([parts[c].max(1) for c in present], 0)
    parts = {client: scaled(found, low, high) for client, found in parts.items()}
    clusters = [["c", "d"], ["a", "b"]]  # more rows first
    centroids = [np.mean([parts[c] for c in members], 0) for members in clusters]
    np.testing.assert_allclose(
        played.state.tensors["descriptor"]["centroids"].flatten(1, 2), np.array(centroids), atol=1e-6
    )
    late, fresh = (
        min((0, 1), key=lambda k: np.linalg.norm((centroids[k] - parts[client])[:rows_read]))
        for client, rows_read in (("e", None), ("f", 2))  # f's labels are not read
    )
    assert (late, fresh) == (0, 1)
    assert played.state.numbers["cluster"] == {"a": 1, "b": 1, "c": 0, "d": 0, "e": 0}
    models = [average(setup, average(setup, w, clusters[0]), ["c", "d", "e"])]
    models.append(average(setup, average(setup, w, clusters[1]), clusters[1]))
    for name in w:
        own = played.state.tensors["weights"][name].double()
        torch.testing.assert_close(own, torch.stack([m[name] for m in models]), rtol=0, atol=1e-6)
    model = played.page.scored_model(played.state, make_round(everyone, 5))
    assert torch.equal(
        model.select(["f"]).personal["dense0.bias"][0], played.state.tensors["weights"]["dense0.bias"][1]
    )
    assert len(model.clients) == 6


def test_of_a_client_that_never_trained_leave_its_moments_of_all_rows_and_none_of_a_class(
    make_problem, make_round, play
):
    everyone = problem(make_problem, SIZES, epochs=1)
    played = play(
        Flux(warm_up=0, components=4, radius=2.0), replace(everyone, silos=everyone.silos.select("abcde")), [1]
    )
    scored = make_round(everyone, 2)
    played.page.scored_model(played.state, scored)
    assert scored.tally.bytes_up == 4 * (1 + 2 * 4)  # its number of rows, and mean and deviation of four components


@pytest.mark.parametrize("options", [{"warm_up": 9}, {"warm_up": 1, "radius": 1e9}])
def test_one_cluster_is_fedavg_to_the_bit(options, make_problem, play):
    setup, absent = problem(make_problem, {**SIZES, "one": 1}, batch=8), {2: ["b"], 3: ["e", "one"]}
    ours, theirs = (play(page, setup, [1, 2, 3, 4], absent=absent) for page in (Flux(**options), FedAvg()))
    for name, w in theirs.state.tensors["weights"].items():
        assert torch.equal(ours.state.tensors["weights"][name], w[None])
    for report, other in zip(ours.reports, theirs.reports, strict=True):
        assert report.metrics["clusters"] == 1
        assert report.metrics["loss/train"] == other.metrics["loss/train"]


def test_a_client_with_too_few_rows_is_silent_and_trains_in_the_cluster_with_most_rows(make_problem, play):
    setup = problem(make_problem, {**SIZES, "one": 1})
    played = play(Flux(warm_up=0, radius=2.0), setup, [1])
    cluster = played.state.numbers["cluster"]
    assert cluster["one"] == 0 == cluster["c"]
    assert {c for c, k in cluster.items() if k == 1} == {"a", "b", "f"}
    number, parts = 5 * 6 + 6 + 6 * 3 + 3, 2 * 4 * 6  # six components: the features have six numbers
    assert played.rounds[0].tally.bytes_down == 4 * 7 * number
    assert played.rounds[0].tally.bytes_up == 4 * (7 * (number + 2) + 7 + 6 * parts)


def test_alone_silent_clients_are_one_cluster(make_problem, play):
    setup = problem(make_problem, {"a": 3, "b": 2})
    played = play(Flux(warm_up=0), setup, [1, 2])
    assert played.state.numbers["cluster"] == {"a": 0, "b": 0}
    assert all(torch.isfinite(t).all() for section in played.state.tensors.values() for t in section.values())


@pytest.mark.parametrize(
    ("counts", "absent"),
    [
        ((12, 11, 10), []),
        ((12, 11, 9), [1, 2]),  # the nine rows would follow from all rows and the other two classes
        ((20, 5, 5), [1, 2]),
        ((9, 9, 9), [0, 1, 2]),
    ],
)
def test_no_moments_of_few_rows_leave_nor_follow_from_those_that_do(counts, absent, make_problem, make_round):
    labels = np.repeat(range(3), counts)

    def of_these(client, total):
        return np.random.default_rng(total).normal(size=(total, 5)), np.resize(labels, total)

    setup = make_problem({"a": len(labels)}, silos={"rows_of": of_these})
    start = FedAvg().init(setup).tensors["weights"]
    evidence = partial(report_descriptor, axes=torch.eye(6, dtype=torch.float64)[:, :2], classes=3)
    (sent,) = make_round(setup).map_clients(
        report_evidence, Model(setup.network, start, clients=("a",)), training=setup.training, evidence=evidence
    )
    assert sent.silent == ()
    assert [label for label in range(3) if (sent.moments[0, 1 + label] == ABSENT).all()] == absent
    x, _ = rows(setup, "a")
    z = torch.relu(x @ start["dense0.weight"].double() + start["dense0.bias"].double())[:, :2]
    torch.testing.assert_close(sent.moments[0, 0, 0].double(), z.mean(0), rtol=0, atol=1e-6)
