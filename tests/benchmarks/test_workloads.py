"""The bench on workloads so small that only its mechanics show; its figures decide no test."""

import json
import os
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import bench_clustering, bench_codebook, bench_diagnose, bench_population, bench_serving, run_benchmark
from benchmarks.baselines import bayes_by_backprop, reference_loop, uefl_author_code
from benchmarks.bench_tuning import tune
from benchmarks.workloads import WORKLOADS, Workload, chosen_workloads
from flows.methods.fedavg import FedAvg
from flows.methods.uefl import UEFL
from flows.methods.virtual import Virtual
from flows.project.project import Project
from models.gaussians import Natural
from models.networks.cnn import CNN
from models.networks.mlp import MLP
from models.networks.wrappers.codebook_network import SHARED
from models.training.optimizers import Adam
from silos.errors import UserError
from tests.end_to_end.conftest import FORKING

TINY = Workload(
    "W0",
    3,
    12,
    "a trifle",
    {"kind": "mlp", "hidden": []},
    4,
    {"kind": "sgd", "learning_rate": 0.05},
    objective={"kind": "squared_error"},
    rounds=5,
    shape=(),
    workers=1,
)


@pytest.fixture
def shared_servers(prefect, tmp_path, monkeypatch):
    """Commands of a bench use one Prefect server and one MLflow database, and work in the test's folder."""
    alone = run_benchmark.clean_environment
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_benchmark, "PAUSE", 0)

    def environment():
        shared = {"PREFECT_API_URL": prefect.url, "MLFLOW_TRACKING_URI": os.environ["MLFLOW_TRACKING_URI"]}
        return alone() | shared

    for module in (run_benchmark, bench_serving):
        monkeypatch.setattr(module, "clean_environment", environment)


@pytest.fixture(scope="module")
def forking():
    """See `forking.py` of the end-to-end tests."""
    yield FORKING
    FORKING.stop()


@pytest.fixture
def forked(forking, shared_servers, monkeypatch):
    """Commands of a bench share what they have imported."""

    def command(root, *arguments):
        (code, out, err), peak = forking.measure(arguments, root, run_benchmark.clean_environment())
        assert code == 0, err
        return json.loads(out.splitlines()[-1]), peak

    for module in (run_benchmark, bench_clustering, bench_population, bench_serving):
        monkeypatch.setattr(module, "command", command)


@pytest.fixture
def root(tmp_path, shared_servers):
    """A folder to compete in."""
    return tmp_path


@pytest.mark.slow
def test_every_contestant_does_the_rounds_and_says_what_they_took(root):
    """The workload is a regression, which has no accuracy; those below are classifications."""
    said: list[str] = []
    found = run_benchmark._contest(root, TINY, ["plain 1", "siloflow"], 1, said.append)
    assert found["accuracy"] == {}
    assert set(found["seconds_per_round"]) == {"plain 1", "siloflow"}
    assert found["better_plain"] == "plain 1"
    seconds = found["seconds_per_round"]
    assert found["ratio"] == pytest.approx(seconds["plain 1"] / seconds["siloflow"])
    assert 0 < found["local_train"] < seconds["siloflow"]
    assert 0 < found["orchestration_share"] < 1
    assert found["peak_bytes"]["siloflow"] > 50 * 2**20
    assert found["peak_bytes"]["siloflow"] > found["resident_bytes"][5] > 50 * 2**20
    assert said[1:3] == ["W0: plain 1, 1 of 1", "W0: siloflow, 1 of 1"]
    assert said[3].startswith(
        f"W0: plain 1 {seconds['plain 1']:.3f} s, siloflow {seconds['siloflow']:.3f} s a round; ratio"
    )


MODELS = {
    "mlp": ({"kind": "mlp", "hidden": [7]}, MLP(256, (7,), 10)),
    "cnn": ({"kind": "cnn", "channels": [3, 4], "kernel": 3, "hidden": [6]}, CNN((16, 16), (3, 4), (6,), 10, kernel=3)),
}
UNEQUAL = {"a": 13, "b": 5, "c": 1, "d": 10}


def pixels(client, rows):
    draw = np.random.default_rng(list(client.encode()))
    return draw.normal(size=(rows, 16, 16)), draw.integers(0, 3, rows)


def layers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Our names to the tensors of a plain network that stand for them, its dense weights turned round."""
    found, count = {}, {"conv": 0, "dense": 0}
    for layer in module.modules():
        kind = {torch.nn.Conv2d: "conv", torch.nn.Linear: "dense"}.get(type(layer))
        if kind:
            found[f"{kind}{count[kind]}.weight"] = layer.weight.data.T if kind == "dense" else layer.weight.data
            found[f"{kind}{count[kind]}.bias"] = layer.bias.data
            count[kind] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_contestants_have_the_same_weights_after_the_same_rounds(name, make_problem, play):
    """In full batches the order of rows is nothing, and the plain loop shares nothing with us but the start."""
    model, network = MODELS[name]
    setup = make_problem(UNEQUAL, network=network, epochs=1, batch=100, silos={"rows_of": pixels})
    training = {
        "batch": 100,
        "optimiser": {"kind": "sgd", "learning_rate": 0.1},
        "objective": {"kind": "cross_entropy"},
    }
    server = reference_loop.network(model, (16, 16), {"training": training})
    start = FedAvg().init(setup).tensors["weights"]
    for at, w in layers(server).items():
        w.copy_(start[at])
    clients = reference_loop.open_rows(setup.silos.folder, "train")
    assert sorted(len(y) for _, y in clients) == sorted(UNEQUAL.values())
    for _ in range(3):
        reference_loop._round(server, clients, training)
    ours = play(FedAvg(), setup, [1, 2, 3]).state.tensors["weights"]
    assert ours.keys() == layers(server).keys()
    for at, w in layers(server).items():
        torch.testing.assert_close(ours[at], w, rtol=0, atol=1e-5)
        assert (ours[at] - start[at]).abs().max() > 1e-3, "they have moved"


def test_contestants_with_words_have_the_same_weights_after_a_round(make_problem, play):
    """The authors' average counts clients, which is that by rows where all have as many, as in the workload."""
    model, network = MODELS["cnn"]
    rows = {"a": 12, "b": 12, "c": 12}
    setup = make_problem(rows, network=network, epochs=1, batch=100, optimiser=Adam(0.001), silos={"rows_of": pixels})
    training = {"batch": 100, "optimiser": {"learning_rate": 0.001}, "objective": {"kind": "cross_entropy"}}
    server = uefl_author_code.VectorQuantised(reference_loop.network(model, (16, 16), {"training": training}), 5, 4)
    page = UEFL(arm="paper", words=5, first_rounds=2)
    start = page.init(setup)
    for at, w in layers(server).items():
        w.copy_(start.tensors["weights"][at])
    server.words.data.copy_(start.tensors["weights"][SHARED])
    clients, checks = (reference_loop.open_rows(setup.silos.folder, split) for split in ("train", "validation"))
    uefl_author_code._round(server, clients, checks, training, {"words": 5, "passes": 2})
    ours = play(page, setup, [1]).state.tensors["weights"]
    for at, w in [*layers(server).items(), (SHARED, server.words.data)]:
        torch.testing.assert_close(ours[at], w, rtol=0, atol=2e-5)


def test_contestants_with_gaussian_weights_have_the_same_posterior_after_the_same_rounds(make_problem, play):
    """With deviations that hardly show in a layer, and full batches; a slope near 0 is noise to Adam, as large as any."""
    model, network = MODELS["mlp"]
    optimiser = Adam(0.01)
    setup = make_problem(UNEQUAL, network=network, epochs=2, batch=100, optimiser=optimiser, silos={"rows_of": pixels})
    training = {"batch": 100, "epochs": 2, "optimiser": {"learning_rate": 0.01}, "objective": {"kind": "cross_entropy"}}
    options = {"kl_weight": 1e-3, "deviation": 1e-4, "prior_precision": 1.0}
    drawn = reference_loop.network(model, (16, 16), {"training": training})
    for at, w in layers(drawn).items():
        w.copy_(FedAvg().init(setup).tensors["weights"][at])
    clients = reference_loop.open_rows(setup.silos.folder, "train")
    server = bayes_by_backprop.begin(drawn, options["prior_precision"])
    sites = bayes_by_backprop.nothing(server, len(clients))
    for number in range(3):
        server, sites = bayes_by_backprop.one_round(server, sites, clients, training, options, number > 0)
    ours = play(Virtual(**options), setup, [1, 2, 3]).state.tensors["known"]
    for layer, belief in enumerate(server):
        name, start = f"dense{layer}.weight", belief.drawn.T
        told, by_hand = Natural.of(ours, name), Natural(*(t.T for t in belief.weights))
        assert (told.mean - by_hand.mean).norm() < 0.15 * (by_hand.mean - start).norm()
        begun = torch.full_like(by_hand.precision, options["deviation"] ** -2).log()
        apart = told.precision.log() - by_hand.precision.log()
        assert apart.norm() < 0.15 * (by_hand.precision.log() - begun).norm()
        torch.testing.assert_close(ours[f"dense{layer}.bias"], belief.bias, rtol=0, atol=0.01)


@pytest.mark.slow
def test_a_contestant_that_fails_is_an_error_with_its_own_message(tmp_path):
    (tmp_path / "params.yaml").write_text("data: nothing")
    with pytest.raises(UserError, match=r"a contestant failed: .*params\.yaml"):
        run_benchmark.command(tmp_path, "partition", "--json")


def test_workloads_are_chosen_by_name():
    assert [w.name for w in chosen_workloads(["W4"])] == ["W4-1000", "W4-3000", "W4-10000"]
    assert [w.name for w in chosen_workloads([])] == list(WORKLOADS)
    with pytest.raises(UserError, match="no workload 'W9'; there are W1"):
        chosen_workloads(["W9"])


def test_the_workloads_are_those_of_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "speed.md").read_text(encoding="utf-8")
    for workload in WORKLOADS.values():
        name = workload.name.partition("-")[0]
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} "))
        assert f"{workload.rows:,}" in line
        assert f"{workload.clients:,}" in line


@pytest.mark.slow
def test_what_a_diagnosis_costs_is_measured_on_laws_that_are_found(monkeypatch):
    for name, value in {"CLIENTS": 20, "FEATURES": 10, "ROWS": 600, "CLASSES": 4}.items():
        monkeypatch.setattr(bench_diagnose, name, value)
    found = bench_diagnose.diagnose_cost(lambda _: None)
    assert found["laws_found"]
    assert found["pairs"] == 20 * 19 // 2
    assert found["bytes_of_a_client"] == {
        "told": 4 * (1 + 4 + 10 * (33 + 5) * 5 + 10 * 33) + 4 * (2 * 45 * 5 + 2 * 10),
        "rows": 4 * 600 * 11,
    }


@pytest.mark.slow
def test_what_regrouping_costs_is_measured_on_groups_that_are_found(root, forked, monkeypatch):
    monkeypatch.setattr(bench_clustering, "scratch", lambda: nullcontext(root))
    monkeypatch.setattr(bench_clustering, "CLIENTS", (20, 30))
    monkeypatch.setattr(bench_clustering, "ROWS", 200)
    monkeypatch.setattr(bench_clustering, "TRAINED", 10)
    monkeypatch.setattr(bench_clustering, "_ROUNDS", 3)
    monkeypatch.setattr(bench_clustering, "PAUSE", 0)
    found = bench_clustering.regroup_cost(1, lambda _: None)
    for line, clients in zip(found["server"], (20, 30), strict=True):
        assert (line["clients"], line["groups"]) == (clients, 10)
        assert 0 < line["seconds"]["least"] <= line["seconds"]["median"]
        assert line["peak_bytes"] > 8 * clients**2  # a table of all pairs is there at once
    measured = found["round"]
    assert measured["task_seconds"].keys() >= {"local_train", "regroup"}
    assert min(measured["task_seconds"].values()) > 0
    reference_loop, regrouping = measured["seconds"].values()
    assert measured["share_by_turn"] == [pytest.approx(regrouping / reference_loop - 1)]


@pytest.mark.slow
def test_what_those_cost_who_are_not_called_is_measured_on_runs_that_call_a_hundred(monkeypatch, forked):
    monkeypatch.setattr(bench_population, "ROUNDS", 4)
    monkeypatch.setattr(bench_population, "PAUSE", 0)
    found = bench_population.population_cost(1, lambda _: None, sizes=(132, 264))
    few, many = found["sizes"].values()
    assert [(line["clients"], line["times"] > 0) for line in (few, many)] == [(132, True), (264, True)]
    # it has those that were called, and nobody else
    assert many["journal_bytes"] == pytest.approx(few["journal_bytes"], rel=0.02)
    assert 1.5 < many["data_bytes"] / few["data_bytes"] < 2.2
    assert min(few["opened"], few["around"]) > 0


def test_a_codebook_adds_its_words_to_what_is_learned(monkeypatch):
    monkeypatch.setattr(bench_codebook, "_ENCODERS", {"residual": ((8, 8), {"widths": (4, 6)})})
    (line,) = bench_codebook.overhead(2, lambda _: None)["encoders"]
    learned = line["parameters"]
    assert learned["uefl"] - learned["fedavg"] == bench_codebook.WORDS * 6
    assert len(line["ratio_by_turn"]) == 2
    assert min(line["milliseconds"].values()) > 0


@pytest.mark.slow
def test_the_authors_way_does_the_rounds(root, forked):
    small = replace(WORKLOADS["W5"], clients=2, rows=20, rounds=3, checked=5, shape=(20, 20))
    found = run_benchmark._contest(root, small, ["authors 1", "siloflow"], 1, lambda _: None)
    assert found["better_plain"] == "authors 1"
    assert {"local_train", "uncertainty_check", "codebook_extend"} <= found["task_shares"].keys()
    assert found["limits"]["kernel_seconds"] > 0


@pytest.mark.slow
def test_rounds_of_gaussian_weights_are_told_beside_fedavgs_and_the_loops_by_hand(root, forked):
    small = replace(
        WORKLOADS["W7"],
        clients=2,
        rows=60,
        rounds=4,
        shape=(8, 8),
        model={"kind": "mlp", "hidden": [16]},
        optimiser={"kind": "adam", "learning_rate": 0.01},
    )
    found = run_benchmark._contest(root, small, ["bayes 1", "siloflow", "fedavg"], 1, lambda _: None)
    seconds = found["seconds_per_round"]
    assert found["better_plain"] == "bayes 1"
    assert found["times"] == {"fedavg": [pytest.approx(seconds["siloflow"] / seconds["fedavg"])]}
    assert "update_site" in found["task_shares"]
    assert found["accuracy"].keys() == {"bayes 1", "siloflow", "fedavg"}


def test_tuning_measures_each_form_and_proposes_a_block_that_params_accept(project):
    found = tune(Project.open([], project, derived=True), lambda _: None)
    assert {m["kind"] for m in found["measured"]} == {"batched", "vmap", "sequential"}
    best = min(found["measured"], key=lambda m: m["milliseconds"])
    chosen = [m for m in found["measured"] if {k: m[k] for k in ("kind", "stack")} == found["engine"]]
    assert chosen[0]["milliseconds"] <= 1.05 * best["milliseconds"]
    block = [f"engine.{key}={value}" for key, value in found["engine"].items()]
    assert Project.open(block, project).params.engine.stack == found["engine"]["stack"]


def test_on_a_gpu_one_plain_loop_competes_and_all_compute_there():
    workload = WORKLOADS["W7"]
    assert workload.contestants([], "cuda") == ["bayes 1", "siloflow", *workload.others]
    assert workload.contestants([])[:2] == ["bayes 1", "bayes 2"]
    params = workload.params("cuda")
    assert params["engine"] == {"device": "cuda"}
    assert params["runner"] == {"workers": 1}
    assert workload.params()["engine"] == {"device": "cpu"}


@pytest.mark.parametrize(
    ("device", "peers", "message"),
    [
        ("gpu", [], r"^--device: got gpu, expected cpu or cuda\. Use one of these\.$"),
        ("cuda", [], r"^--device: got cuda, expected cpu, since torch finds no GPU\. Use cpu\.$"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_anything_is_run(device, peers, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said: list[str] = []
    with pytest.raises(UserError, match=message):
        run_benchmark.bench(["W2"], 1, peers, said.append, device=device)
    assert said == []


def test_plain_loops_make_every_tensor_where_the_rows_are():
    """What is made without a device lands on `meta` here, and then meets the others in an error."""
    x, y = torch.rand(6, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    training = {"batch": 4, "epochs": 1, "optimiser": {"kind": "sgd", "learning_rate": 0.1}, "objective": {"kind": ""}}
    cnn = {"kind": "cnn", "channels": [3], "kernel": 3, "hidden": [4]}
    plain = reference_loop.network(cnn, (8, 8), {"training": training})
    words = uefl_author_code.VectorQuantised(plain, 5, 3)
    dense = reference_loop.network({"kind": "mlp", "hidden": [4]}, (8, 8), {"training": training})
    beliefs = bayes_by_backprop.begin(dense, 1.0)
    layers = [
        bayes_by_backprop.GaussianLayer(belief, site, 0.1, informed=False)
        for belief, site in zip(beliefs, bayes_by_backprop.nothing(beliefs, 1)[0], strict=True)
    ]
    with torch.device("meta"):
        reference_loop._round(plain, [(x, y)], training)
        logits, distance = words(x)
        out, nats = layers[0](x.flatten(1))
    for tensor in (*plain.state_dict().values(), logits, distance, out, nats):
        assert tensor.device.type == "cpu"


@pytest.mark.slow
def test_a_served_champion_answers_every_request_of_a_bench(forked):
    found = bench_serving.serving_cost(lambda _: None, requests=5)
    assert [line["rows"] for line in found["lines"]] == [1, 100]
    assert all(0 < line["p50"] <= line["p99"] for line in found["lines"])
    assert found["bytes_before"] > 10 * 2**20
