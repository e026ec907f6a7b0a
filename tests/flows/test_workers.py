"""Where rounds run makes no difference to what comes out, and leaves nothing behind."""

import pickle
import time
from pathlib import Path

import cloudpickle
import dask
import psutil
import pytest
from prefect.client.orchestration import get_client

import tasks.execution.worker_backends
from silos.cohort import make_stacks, open_stack
from silos.errors import UserError
from tasks.execution import task_runner
from tasks.execution.steps import OpaqueArgument
from tasks.execution.task_runner import assign_stacks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]  # MLflow's, of type hints

PLACES = [("threads", 1), ("threads", 2), ("processes", 2), ("dask", 2)]
FAR = ["processes", "dask"]
TABLE = [
    "data.source={kind: synthetic, task: linear, clusters: 1, clients_per_cluster: 6, rows: 60, features: 2}",
    "data.name=lines",
    "data.scheme=[{kind: column, column: client}]",
    "training.objective={kind: squared_error}",
]
EXAMPLES = {path.stem: path for path in (Path(__file__).parents[2] / "docs" / "examples").glob("*.py")}


@pytest.fixture(scope="module")
def weights() -> dict[str, str]:
    """The weights of an undisturbed run, once it is there."""
    return {}


@pytest.fixture
def undisturbed(play_run, weights):
    """Returns the weights of FedAvg in one thread, which is run once."""

    def played() -> str:
        if not weights:
            weights["fedavg"] = play_run("fedavg", "threads", 1)["weights_sha256"]
        return weights["fedavg"]

    return played


def test_the_weights_are_the_same_wherever_rounds_run(play_run, pools, prefect, workers_now):
    found = {}
    others = flow_runs()
    for kind, workers in PLACES:
        if kind in FAR:
            pools(kind)
        found[kind, workers] = play_run("fedavg", kind, workers)
    assert len({result["weights_sha256"] for result in found.values()}) == 1
    assert len({str(result["metrics"]) for result in found.values()}) == 1
    assert addresses() == {"127.0.0.1"}  # Dask, and its workers
    before = workers_now()
    for kind in FAR:
        play_run("local_only", kind, 2)
    assert workers_now() == before != set()  # started once for several runs
    prefect.settle(task_runner.started)
    expected = [*zip(["run fedavg-seed0"] * 4, [11, 19, 19, 19], strict=True), *[("run local_only-seed0", 16)] * 2]
    for _ in range(300):  # a busy server records the last ones later
        tasks = sorted((name, completed(run)) for run, name in flow_runs().items() if run not in others)
        if tasks == expected:
            break
        time.sleep(0.1)
    assert tasks == expected


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_page_with_steps_messages_and_networks_of_its_own_runs_in_worker_processes(name, play_run, pools):
    """They have no such module, and what they send back is what the page knows."""
    pools("processes")
    page = f"plugins=[{EXAMPLES[name]}, own.py]"
    here, there = (play_run(name, kind, 2, page) for kind in ("threads", "processes"))
    assert here["weights_sha256"] == there["weights_sha256"]
    assert here["mlflow_run_id"]
    assert here["bytes"] == there["bytes"]


@pytest.mark.parametrize("more", [("trees", *TABLE), ("fedavg", "aggregation={clip: 0.1, rule: median}")])
def test_steps_with_messages_for_each_client_run_in_worker_processes(more, play_run, pools):
    pools("processes")
    name, *settings = more
    here, there = (play_run(name, kind, 2, *settings) for kind in ("threads", "processes"))
    assert here["weights_sha256"] == there["weights_sha256"]
    assert here["bytes"] == there["bytes"]


@pytest.mark.parametrize("kind", FAR)
def test_a_round_whose_worker_dies_is_finished_with_the_same_bits(kind, play_run, pools, folder, told, undisturbed):
    pools(kind)
    found = play_run("own", kind, 2, "method.own.does=dies once")
    assert (folder / "marker").exists()
    (folder / "marker").unlink()
    assert found["weights_sha256"] == undisturbed()
    if kind == "processes":
        assert told.said == ["a worker process ended in train; the step runs again in a new one."]


@pytest.mark.parametrize("kind", FAR)
def test_a_run_whose_workers_keep_dying_says_so_and_resume_goes_on(
    kind, play_run, folder, monkeypatch, workers_now, undisturbed
):
    monkeypatch.setattr(tasks.execution.worker_backends, "NEW_POOLS", 0)
    expected = undisturbed()
    before = workers_now()
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), pytest.raises(UserError) as said:
        play_run("own", kind, 1, "method.own.does=dies once")
    assert "in train, most likely because memory ran out. Lower runner.workers; --resume continues" in str(said.value)
    assert workers_now() == before
    found = play_run("own", "threads", 1, "method.own.does=dies once", resume=True)
    (folder / "marker").unlink()
    assert found["resumed_from_round"] == 1
    assert found["weights_sha256"] == expected


def test_an_address_where_nobody_answers_is_told(play_run, monkeypatch):
    monkeypatch.setattr("tasks.execution.dask_workers.PATIENCE", 1.0)
    with pytest.raises(UserError) as said:
        play_run("fedavg", "dask", 1, "runner.address=tcp://127.0.0.1:1")
    assert str(said.value) == (
        "no Dask scheduler responds at runner.address tcp://127.0.0.1:1. "
        "Start one with `dask scheduler`, or set runner.address to null for a cluster on this machine."
    )


def test_what_is_sent_to_a_worker_holds_references_and_no_rows(make_problem, play):
    from flows.methods.fedavg import FedAvg

    setup = make_problem({"a": 4000, "b": 3000})
    played = play(FedAvg(), setup, [1])
    (cohort,) = assign_stacks(setup.silos, make_stacks(setup.silos, 2), 1)
    held = open_stack(setup.silos, cohort.stacks[0], "train").nbytes  # opened here, and so cached
    assert len(setup.silos.manifest.clients) == 2
    sent = cloudpickle.dumps([OpaqueArgument(a) for a in (cohort, setup.training, played.private)])
    assert held > 100_000
    assert len(sent) < 2000
    weights = sum(t.numel() * 4 for t in played.state.tensors["weights"].values())
    model = played.page.model(played.state, setup).select(cohort.clients)
    assert len(pickle.dumps(model)) < weights + 3000


def addresses() -> set[str]:
    """Where this process and those that it started listen."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [c for p in processes for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    return {c.laddr.ip for c in found}


def flow_runs() -> dict[str, str]:
    """The latest flow runs that Prefect knows, of which it returns at most 200, with their names."""
    latest = {"sort": "START_TIME_DESC"}
    with get_client(sync_client=True) as client:
        return {run["id"]: run["name"] for run in client.request("POST", "/flow_runs/filter", json=latest).json()}


def completed(run: str) -> int:
    """How many completed task runs Prefect puts down to a flow run."""
    asked = {"flow_runs": {"id": {"any_": [run]}}, "task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    with get_client(sync_client=True) as client:
        return int(client.request("POST", "/task_runs/count", json=asked).json())
