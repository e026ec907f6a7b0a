"""Other people's frameworks beside siloflow: how one is found, and that it does the same work as the plain loop."""

import os
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import run_benchmark
from benchmarks.run_benchmark import PEERS, interpreter, program, variable
from benchmarks.workloads import WORKLOADS, Workload
from silos.errors import UserError

FULL = Workload(
    "W0",
    3,
    12,
    "a trifle in full batches, in which no order of rows shows",
    {"kind": "cnn", "channels": [2], "kernel": 3, "hidden": [4]},
    12,
    {"kind": "sgd", "learning_rate": 0.5},
    rounds=5,
    shape=(8, 8),
    workers=1,
)
MOMENTS = replace(
    FULL,
    model={"kind": "mlp", "hidden": []},
    shape=(),
    optimiser={"kind": "adamw", "learning_rate": 0.1, "weight_decay": 0.01},
    objective={"kind": "squared_error"},
)


def test_an_unknown_peer_is_refused_before_anything_is_run():
    said: list[str] = []
    with pytest.raises(UserError, match=r"^there is no peer 'plain'; there are flower, pfl, fedlab\.$"):
        run_benchmark.bench(["W3"], 1, ["plain"], said.append)
    assert said == []


@pytest.mark.parametrize(
    ("peer", "needed", "package"),
    [
        ("flower", "flwr, ray, torch", r"'flwr\[simulation\]'"),
        ("pfl", "pfl, torch", "pfl"),
        ("fedlab", "fedlab, torch", "fedlab"),
    ],
)
def test_a_peer_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    peer, needed, package, tmp_path, monkeypatch
):
    said: list[str] = []
    named = f"SILOFLOW_{peer.upper()}_PYTHON"
    monkeypatch.setenv(named, _bare_python(tmp_path))
    install = (
        rf"{peer}/bin/pip install {package} torch==\d+\.\d+\.\d+ numpy psutil pydantic safetensors && export {named}="
    )
    with pytest.raises(UserError, match=rf"^{peer} needs {needed}, .* not installed for /.*{install}"):
        run_benchmark.bench(["W3"], 1, [peer], said.append)
    monkeypatch.setenv(named, str(tmp_path / "none"))
    with pytest.raises(UserError, match=rf"^{named} is '/.*none', which is no interpreter; make one with .*{install}"):
        run_benchmark.bench(["W3"], 1, [peer], said.append)
    assert said == []


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_alone_runs_with_the_interpreter_that_the_environment_names(peer, monkeypatch):
    monkeypatch.setenv(variable(peer), "/elsewhere/python")
    others = [name for name in ("plain", *PEERS) if name != peer]
    for name in others:
        monkeypatch.delenv(variable(name), raising=False)
    assert interpreter(peer) == "/elsewhere/python"
    assert {interpreter(name) for name in others} == {sys.executable}
    monkeypatch.delenv(variable(peer))
    assert interpreter(peer) == sys.executable


def test_every_contestant_is_a_module_that_there_is():
    for name in ("plain", "authors", "bayes", *PEERS):
        module = Path(*program(name)[-1].split(".")).with_suffix(".py")
        assert (Path(__file__).parents[2] / module).is_file()


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("workload", [FULL, MOMENTS], ids=["steps", "moments"])
def test_a_peer_does_the_plain_loops_rounds_and_leaves_the_first_out(peer, workload, tmp_path):
    """After full batches from the same start a weight apart would show in the loss: so would a client's moments kept."""
    if variable(peer) not in os.environ:
        pytest.skip(f"{variable(peer)} names no environment with {peer}")
    run_benchmark.check_peers([peer])
    run_benchmark._prepare(tmp_path, workload)
    plain, ours = (run_benchmark._other(tmp_path, workload, kind, "1") for kind in ("plain", peer))
    start = run_benchmark._other(tmp_path, replace(workload, rounds=1), "plain", "1")["loss"]
    assert len(ours["rounds"]) == len(plain["rounds"]) == workload.rounds - 1
    assert min(ours["rounds"]) > 0
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert ours["loss"] < 0.999 * start, "it has learned more than float tolerance"


def test_peers_take_part_where_the_method_is_fedavg():
    assert WORKLOADS["W1"].contestants(["flower", "pfl"]) == ["plain 1", "plain 2", "siloflow", "flower", "pfl"]
    assert WORKLOADS["W5"].contestants(["flower"]) == ["authors 1", "authors 2", "siloflow"]


def _bare_python(folder: Path) -> str:
    """An environment with nothing installed in it."""
    venv.create(folder / "bare", with_pip=False)
    return str(folder / "bare" / "bin" / "python")
