"""`siloflow cost`: what a network asks of a client's machine, of the params and data that are there."""

import json

import pytest
import torch
from safetensors.torch import save

from flows.methods.fedavg import FedAvg
from flows.project.project import Project
from flows.training import profile_model as page
from flows.training.profile_model import network_profile
from models.networks.network_factory import registered
from models.prng import server_stream
from silos.errors import UserError

OWN = """
from dataclasses import dataclass
from flows.methods import fedavg
from flows.plugins import register_method
from models.client_model import Model
from models.networks.wrapper import NetworkWrapper

@dataclass(frozen=True)
class Mine(NetworkWrapper):
    pass

@register_method("own")
class Own(fedavg.FedAvg):
    def model(self, state, setup):
        return Model(Mine(setup.network), state.tensors["weights"], clients=setup.silos.clients)
"""


@pytest.fixture
def ask(project):
    def answer(*overrides, method=None, memory=False, say=str):
        return network_profile(Project.open(list(overrides), project, derived=True), method, memory, say)

    return answer


def test_arithmetic_of_a_round_is_of_the_client_with_most_rows(ask, project):
    rows = Project.open([], project, derived=True).silos.federated().rows("train")
    found = ask("training.epochs=3", "model.hidden=[30]")
    both = 3 * (64 * 30 + 30 * 10) - 64 * 30
    assert found["macs"] == {
        "forward": 64 * 30 + 30 * 10,
        "forward_and_backward": both,
        "round": both * 3 * max(rows.values()),
    }
    assert found["largest_client"] == {"client": "c00", "rows": rows["c00"], "epochs": 3}
    assert (found["parameters"], found["buffers"]) == (64 * 30 + 30 + 300 + 10, 0)


def test_bytes_of_a_round_are_those_that_a_run_of_fedavg_counts(ask, make_problem, play):
    setup = make_problem({"a": 8})
    played = play(FedAvg(), setup, [1])
    weights = setup.network.init(server_stream(0, 0, "init"))
    tally = played.rounds[0].tally
    found = page._bytes(weights)
    assert (found["up"], found["down"]) == (tally.bytes_up, tally.bytes_down)
    assert found["file"] == len(save(weights))
    assert ask("model.hidden=[30]")["bytes"]["down"] == 4 * 2260


@pytest.mark.slow
def test_memory_is_measured_above_the_layer_for_batches_and_for_test_rows(ask):
    said = []
    memory = ask(memory=True, say=said.append)["memory"]
    assert memory["note"] is None
    assert [line["rows"] for line in memory["rows"]] == sorted({line["rows"] for line in memory["rows"]})
    by_what = {line["what"]: line for line in memory["rows"]}
    assert set(by_what) == {"one row", "a batch", "largest client", "most test rows"}
    assert by_what["a batch"]["largest_activation"] == 16 * 64 * 4
    for what, line in by_what.items():
        assert line["evaluation"] > 0
        assert (line["training"] is None) == (line["training_floor"] is None) == (what == "most test rows")
    assert len(said) == 3


def test_without_memory_nothing_is_started(ask, monkeypatch):
    monkeypatch.setattr(page, "peak_bytes", None)
    memory = ask()["memory"]
    assert memory["note"] == "not measured (--without-memory)"
    assert all(line["evaluation"] is line["training"] is None for line in memory["rows"])
    assert memory["rows"][0]["largest_activation"] == 256


def test_rows_for_which_there_is_no_memory_are_said_and_the_others_are_kept(ask, monkeypatch):
    monkeypatch.setattr(page, "peak_bytes", lambda asked, *_: [5, *[None] * (len(asked.rows) - 1)])
    said = []
    memory = ask(memory=True, say=said.append)["memory"]
    assert [line["training"] for line in memory["rows"]] == [5, None, None, None]
    assert said[-1].startswith("training: done, but not of 16, ")


@pytest.mark.parametrize(
    ("method", "network"), [("fedavg", "mlp"), ("ifca", "mlp"), ("conditional", "mlp"), ("fedsr", "represented")]
)
def test_a_method_is_asked_for_the_network_that_it_makes(ask, method, network):
    plain, found = ask(), ask(method=method)
    assert found["network"] == network
    assert network in registered()
    assert (found["parameters"] > plain["parameters"]) == (method in ("conditional", "fedsr"))
    json.dumps(found, allow_nan=False)


def test_a_network_of_a_users_own_page_is_counted_and_not_measured(ask, project):
    (project / "own.py").write_text(OWN)
    found = ask("plugins=[own.py]", method="own", memory=True)
    assert found["parameters"] == ask()["parameters"]
    assert "Mine is defined in a plugin file" in found["memory"]["note"]


def test_what_does_not_fit_together_is_refused(ask):
    with pytest.raises(UserError, match="model: got 2 convolutions of 7 x 7, each with pooling, expected fewer"):
        ask("model={kind: cnn, kernel: 7}")
    with pytest.raises(UserError, match="method: got 'fedavgg', expected a known method"):
        ask(method="fedavgg")


def test_a_row_is_timed_some_times_on_one_thread(ask):
    threads = torch.get_num_threads()
    latency = ask()["latency"]
    low, high = latency["quartiles"]
    assert 0 < low <= latency["milliseconds"] <= high
    assert latency["passes"] >= 2
    assert torch.get_num_threads() == threads


def test_memory_is_not_measured_where_the_system_does_not_tell_it(ask, monkeypatch, tmp_path):
    monkeypatch.setattr("flows.training.peak_memory._STATUS", tmp_path / "status")
    with pytest.raises(UserError, match="Add --without-memory"):
        ask(memory=True)
