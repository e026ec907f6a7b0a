"""MLflow hears of every round once, whatever its server does meanwhile, and nobody waits for it."""

import json
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest

from models.networks.mlp import MLP
from models.networks.network_factory import to_json
from models.prng import server_stream
from silos.io.atomic_io import write_bytes
from tasks.tracking.checkpoint import Journal
from tasks.tracking.json_io import read_json
from tasks.tracking.mlflow_logging import async_logger as module
from tasks.tracking.mlflow_logging.async_logger import MLflowLogger
from tasks.tracking.mlflow_logging.connection import connect
from tasks.tracking.mlflow_logging.mlflow_records import COMPARISON, PARENT, Experiment, FinalArtifacts, RunSpec

HANDED_OVER = threading.Event()
HANDED_OVER.set()
PARAMS = {"a": 1, "clients.join.|": 2}  # a client's name may be anything
METRICS = {"accuracy/mean", "loss/train", "memory/resident"}


def held_back(uri: str) -> Any:
    """Connects to MLflow once the rounds are handed over."""
    HANDED_OVER.wait()
    return connect(uri)


@pytest.fixture
def deliver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, databases: Path) -> Callable[..., MLflowLogger]:
    """A delivery from this test's run folder; tests of one run call it again, as `--resume` does."""
    shutil.copy(databases / "mlflow.db", tmp_path)
    monkeypatch.setattr(module, "RETRY", 0.3)
    monkeypatch.setattr(module, "connect", held_back)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    def build(uri: str, name: str, **more: Any) -> MLflowLogger:
        experiment = Experiment(name, (tmp_path / "artifacts").as_uri())
        ticket = RunSpec(uri, experiment, "fedavg-seed0", name, {"method": "fedavg"}, PARAMS, **more)
        return MLflowLogger(tmp_path, ticket)

    return build


@pytest.fixture
def play(tmp_path: Path) -> Callable[[MLflowLogger, range], None]:
    """Rounds as the loop plays them: journal, then the delivery is told.

    MLflow answers only when all rounds are handed over: training would never end here if it waited for MLflow.
    """

    def rounds(delivery: MLflowLogger, numbers: range) -> None:
        HANDED_OVER.clear()
        for number in numbers:
            metrics = {"accuracy/mean": number / 100, "loss/train": None if number == 2 else 1 / number}
            record = {
                "round": number,
                "time_ms": 1_000_000 + number,
                "metrics": metrics,
                "memory": {"resident": number},
            }
            write_bytes(*Journal(tmp_path / "journal").file(record))
            delivery.round_done(number)
        HANDED_OVER.set()

    return rounds


@pytest.mark.slow
def test_a_server_that_is_away_from_start_to_end_hears_of_every_round_later(mlflow_server, deliver, play):
    mlflow_server.stop()
    away = deliver(mlflow_server.url, "away")
    play(away, range(1, 6))
    assert away.finish(FinalArtifacts(), patience=60) is None
    assert away.problem == f"MLflow at {mlflow_server.url} does not respond"
    mlflow_server.start()
    resumed = deliver(mlflow_server.url, "away")
    resumed.round_done(5)
    assert resumed.finish(FinalArtifacts()) is not None
    assert_whole(mlflow_server.url, "away", resumed.run_id, 5, without={("loss/train", 2)})


@pytest.mark.slow
def test_a_server_that_stops_for_ten_rounds_hears_of_them_when_it_is_back(mlflow_server, deliver, play, tmp_path):
    mlflow_server.start()
    delivery = deliver(mlflow_server.url, "stopped")
    play(delivery, range(1, 6))
    wait_for(lambda: (read_json(tmp_path / "delivered.json") or {}).get("round") == 5)
    mlflow_server.stop()
    play(delivery, range(6, 16))
    wait_for(lambda: delivery.problem is not None)
    assert delivery.problem == f"MLflow at {mlflow_server.url} does not respond"
    mlflow_server.start()
    wait_for(lambda: read_json(tmp_path / "delivered.json")["round"] == 15)  # without another round
    play(delivery, range(16, 21))
    assert delivery.finish(FinalArtifacts()) is not None
    assert_whole(mlflow_server.url, "stopped", delivery.run_id, 20, without={("loss/train", 2)})


@pytest.mark.parametrize("before_the_rounds_end", [False, True])
def test_a_run_whose_experiment_was_deleted_is_logged_in_one_of_a_free_name(
    before_the_rounds_end, deliver, play, tmp_path
):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = connect(uri)
    number = client.create_experiment("gone")
    first = deliver(uri, "gone")
    play(first, range(1, 4))
    wait_for(lambda: (read_json(tmp_path / "delivered.json") or {}).get("round") == 3)
    if before_the_rounds_end:
        client.delete_experiment(number)
        assert first.finish(FinalArtifacts()) is not None
    else:
        assert first.finish(FinalArtifacts()) is not None
        client.delete_experiment(number)
    second = deliver(uri, "gone")
    second.round_done(3)
    assert second.finish(FinalArtifacts()) is not None
    assert (second.run_id == first.run_id) == before_the_rounds_end
    told = first if before_the_rounds_end else second
    assert told.notice == "MLflow's experiment gone was deleted; the run is in the experiment gone-2"
    assert_whole(uri, "gone-2", second.run_id, 3, without={("loss/train", 2)})
    assert client.get_experiment(number).lifecycle_stage == "deleted"


def test_a_run_that_was_deleted_while_it_trained_is_logged_whole_in_a_new_one(deliver, play, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    delivery = deliver(uri, "deleted")
    play(delivery, range(1, 4))
    wait_for(lambda: (read_json(tmp_path / "delivered.json") or {}).get("round") == 3)
    deleted = delivery.run_id
    connect(uri).delete_run(deleted)
    play(delivery, range(4, 6))
    assert delivery.finish(FinalArtifacts()) not in (None, deleted)
    assert delivery.notice is None
    assert_whole(uri, "deleted", delivery.run_id, 5, without={("loss/train", 2)})


def test_a_run_whose_experiment_was_renamed_goes_on_there(deliver, play, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = connect(uri)
    first = deliver(uri, "renamed")
    play(first, range(1, 4))
    assert first.finish(FinalArtifacts()) is not None
    client.rename_experiment(client.get_experiment_by_name("renamed").experiment_id, "other")
    second = deliver(uri, "renamed")
    play(second, range(4, 6))
    assert second.finish(FinalArtifacts()) == first.run_id
    assert_whole(uri, "other", second.run_id, 5, without={("loss/train", 2)})


def test_a_store_that_was_made_anew_hears_of_the_rounds_that_the_old_one_knew(deliver, play, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    first = deliver(uri, "anew")
    play(first, range(1, 4))
    assert first.finish(FinalArtifacts()) is not None
    connect(uri).delete_run(first.run_id)
    mark = tmp_path / "delivered.json"
    mark.write_text(mark.read_text()[:9])  # and half of what was written down is no obstacle
    second = deliver(uri, "anew")
    second.round_done(3)
    assert second.finish(FinalArtifacts()) not in (None, first.run_id)
    assert_whole(uri, "anew", second.run_id, 3, without={("loss/train", 2)})


@pytest.mark.parametrize("spoilt", ["run", "store"])
def test_a_mark_of_another_run_or_store_is_not_taken_for_this_ones(spoilt, deliver, play, tmp_path):
    """A copied run folder, or a store that was moved, brings such a mark along: every round must still arrive."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    first = deliver(uri, "first")
    play(first, range(1, 4))
    assert first.finish(FinalArtifacts()) is not None
    mark = tmp_path / "delivered.json"
    whole = read_json(mark)
    assert (whole["round"], whole["run"]) == (3, first.run_id)
    if spoilt == "store":
        mark.write_text(json.dumps({**whole, "store": "another", "round": 3}))
        for metric in METRICS:
            drop(tmp_path / "mlflow.db", first.run_id, metric)
    second = deliver(uri, "first" if spoilt == "store" else "second")
    second.round_done(3)
    assert second.finish(FinalArtifacts()) is not None
    assert (second.run_id == first.run_id) == (spoilt == "store")
    assert_whole(uri, second.spec.experiment.name, second.run_id, 3, without={("loss/train", 2)})
    assert read_json(mark)["run"] == second.run_id


def test_metrics_that_the_last_round_gets_after_its_delivery_are_delivered_at_the_end(deliver, play, tmp_path):
    uri, journal = f"sqlite:///{tmp_path}/mlflow.db", Journal(tmp_path / "journal")
    delivery = deliver(uri, "late")
    play(delivery, range(1, 4))
    wait_for(lambda: (read_json(tmp_path / "delivered.json") or {}).get("round") == 3)
    record = journal.read(3)
    write_bytes(*journal.file({**record, "metrics": {**record["metrics"], "loss/mean": 0.5}}))
    assert delivery.finish(FinalArtifacts()) is not None
    assert [metric.value for metric in connect(uri).get_metric_history(delivery.run_id, "loss/mean")] == [0.5]
    assert_whole(uri, "late", delivery.run_id, 3, without={("loss/train", 2)}, also={"loss/mean"})


def test_metrics_that_do_not_fit_into_one_delivery_arrive_whole(deliver, play, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BATCH", 3)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    delivery = deliver(uri, "many")
    play(delivery, range(1, 6))
    assert delivery.finish(FinalArtifacts()) is not None
    assert_whole(uri, "many", delivery.run_id, 5, without={("loss/train", 2)})


def test_a_comparisons_run_is_above_its_runs_and_projects_of_one_name_do_not_mix(deliver, tmp_path):
    """Two projects on one store, whose runs name the same parent: each has its own experiment, parent and views."""
    uri, found = f"sqlite:///{tmp_path}/mlflow.db", {}
    client = connect(uri)
    for owner in ("one", "other"):
        experiment = Experiment("shared", (tmp_path / "artifacts").as_uri(), owner)
        parent = RunSpec(uri, experiment, "autumn", "autumn", {"kind": COMPARISON}, {}, note="running or stopped")
        for name in ("fedavg-seed0", "fedavg-seed1"):
            (tmp_path / "delivered.json").unlink(missing_ok=True)
            spec = RunSpec(uri, experiment, name, f"{owner}-{name}", {"kind": "run"}, {}, parent=parent)
            child = MLflowLogger(tmp_path, spec)
            child.mark_failed("KILLED") if name.endswith("1") else child.finish(FinalArtifacts())
            found[owner, name] = client.get_run(child.run_id)
            status = client.get_run(found[owner, name].data.tags[PARENT]).info.status
            assert status == ("KILLED" if name.endswith("1") else "RUNNING")
        ids = {run.data.tags[PARENT] for (of, _), run in found.items() if of == owner}
        (above,) = [client.get_run(number) for number in ids]
        assert (above.info.run_name, above.info.status) == ("autumn", "KILLED"), "as the run that was interrupted"
        whole = MLflowLogger(tmp_path / owner, parent)
        metrics = {"round": 0, "time_ms": 1, "metrics": {"accuracy/mean/fedavg": 0.5}}
        artifacts = FinalArtifacts(metrics=metrics, about="better", columns=("accuracy/mean/fedavg",))
        assert whole.finish(artifacts) == above.info.run_id
        views = client.get_experiment(above.info.experiment_id).tags
        newest = json.loads(views["mlflow.sharedViewState.siloflow"])
        ours = client.search_runs([above.info.experiment_id], newest["searchFilter"])
        assert {run.info.run_name for run in ours} == {"fedavg-seed0", "fedavg-seed1"}
        assert newest["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "method"}]
        trend = json.loads(views["mlflow.sharedViewState.comparisons"])
        (listed,) = client.search_runs([above.info.experiment_id], trend["searchFilter"])
        assert (listed.info.status, listed.data.metrics) == ("FINISHED", {"accuracy/mean/fedavg": 0.5})
        assert trend["selectedColumns"][-1] == "metrics.`accuracy/mean/fedavg`"
    names = {client.get_experiment(run.info.experiment_id).name for run in found.values()}
    assert names == {"shared", "shared-2"}


def test_a_long_run_has_the_machines_load_and_a_short_one_has_not(deliver, play, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")

    def logged(delivery: MLflowLogger) -> set[str]:
        return {*client.get_run(delivery.run_id).data.metrics} if delivery.run_id else set()

    for enough, expected in ((1e9, METRICS), (0.0, METRICS | {"system/cpu_utilization_percentage"})):
        monkeypatch.setattr(module, "LONG", enough)
        delivery = deliver(f"sqlite:///{tmp_path}/mlflow.db", f"after {enough:g} s", system_metrics=True)
        play(delivery, range(1, 3))
        wait_for(lambda delivery=delivery, expected=expected: expected <= logged(delivery))
        assert delivery.finish(FinalArtifacts()) is not None
        assert client.get_run(delivery.run_id).info.status == "FINISHED"
        system = {name for name in logged(delivery) if name.startswith("system/")}
        assert bool(system) == (enough == 0), system


def drop(database: Path, run_id: str | None, metric: str) -> None:
    """Makes the store forget a metric of a run."""
    with sqlite3.connect(database) as opened:
        for table in ("metrics", "latest_metrics"):
            opened.execute(f"delete from {table} where run_uuid = ? and key = ?", (run_id, metric))


@pytest.mark.slow
def test_a_locked_database_stops_nobody_and_hears_of_every_round_once(deliver, play, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    connect(uri)
    lock = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    lock.execute("begin exclusive")
    locked = deliver(uri, "locked")
    play(locked, range(1, 11))
    assert locked.finish(FinalArtifacts(), patience=1) is None
    assert locked.problem == f"MLflow at {uri} did not respond for 1 s"
    lock.execute("rollback")
    lock.close()
    locked._thread.join()  # it still tried; a run's folder has one process at a time, and so one delivery
    (tmp_path / "delivered.json").unlink(missing_ok=True)  # as if it had been killed before it wrote that down
    resumed = deliver(uri, "locked")
    resumed.round_done(10)
    assert resumed.finish(FinalArtifacts()) is not None
    assert_whole(uri, "locked", resumed.run_id, 10, without={("loss/train", 2)})


@pytest.mark.slow
def test_a_store_that_never_answers_stops_nobody(deliver, play):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        delivery = deliver(uri, "silent")
        play(delivery, range(1, 11))
        assert delivery.finish(FinalArtifacts(), patience=1) is None
        assert delivery.problem == f"MLflow at {uri} did not respond for 1 s"
        wait_for(lambda: silent.accept() is not None)  # it was asked


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints
def test_what_is_logged_at_the_end_is_there_whole_after_it_was_cut_and_once(deliver, play, tmp_path):
    """The model's place is a file at first, so that its upload breaks off half way."""
    uri, finish = f"sqlite:///{tmp_path}/mlflow.db", everything(tmp_path)
    (tmp_path / "artifacts").mkdir()
    in_the_way = tmp_path / "artifacts" / "models"
    in_the_way.touch()
    cut = deliver(uri, "cut")
    play(cut, range(1, 4))
    assert cut.finish(finish) is None
    assert "models" in cut.problem
    in_the_way.unlink()
    for _ in range(2):  # and whoever asks once more changes nothing
        resumed = deliver(uri, "cut")
        resumed.round_done(3)
        assert resumed.finish(finish) == cut.run_id
    client = connect(uri)
    run = client.get_run(cut.run_id)
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert model.status == "READY"
    assert (Path(model.artifact_location.removeprefix("file://")) / "artifacts" / "weights.safetensors").is_file()
    assert [a.path for a in client.list_artifacts(cut.run_id)] == ["clients.csv"]
    assert len(run.inputs.dataset_inputs) == 1
    assert model.name == "new_fedavg-seed0"  # MLflow takes no dot in it
    told = [(m.key, m.step, m.value, m.dataset_name, m.dataset_digest) for m in model.metrics]
    assert sorted(told) == [
        ("accuracy/mean", 3, 0.03, "small", "0" * 32),
        ("uncertainty/entropy", 3, 0.5, "small", "0" * 32),
    ]
    assert run.data.tags["weights_sha256"] == "ab"
    assert run.data.tags["mlflow.note.content"] == "Looks good."
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "clients.csv", "type": "table"}]
    assert client.get_experiment(run.info.experiment_id).tags["mlflow.note.content"] == "The experiment looks good."
    assert [m.step for m in client.get_metric_history(cut.run_id, "uncertainty/entropy")] == [3]
    assert_whole(uri, "cut", cut.run_id, 3, without={("loss/train", 2)}, also={"uncertainty/entropy"})


def test_a_description_that_somebody_has_changed_stays_and_links_are_said_anew(deliver, play, tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    first = deliver(uri, "described", note="as it began", links={"prefect.flow_run_id": "1"})
    play(first, range(1, 2))
    first.mark_failed()
    connect(uri).set_tag(first.run_id, "mlflow.note.content", "mine")
    second = deliver(uri, "described", note="as it began", links={"prefect.flow_run_id": "2"})
    assert second.finish(FinalArtifacts()) == first.run_id
    tags = connect(uri).get_run(first.run_id).data.tags
    assert (tags["mlflow.note.content"], tags["prefect.flow_run_id"]) == ("mine", "2")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow's, of type hints
def test_an_upload_that_outlasts_patience_is_not_taken_for_a_done_one(deliver, play, tmp_path):
    """What was said stands, also if the upload ends well after it: the next resume finds nothing left to do."""
    uri, gate = f"sqlite:///{tmp_path}/mlflow.db", threading.Event()
    slow = deliver(uri, "slow")
    play(slow, range(1, 4))
    wait_for(lambda: (tmp_path / "delivered.json").is_file())
    assert slow.finish(Waiting(everything(tmp_path), gate), patience=1) is None
    assert slow.problem == f"MLflow at {uri} did not respond for 1 s"
    gate.set()
    slow._thread.join()
    assert slow.problem == f"MLflow at {uri} did not respond for 1 s"
    resumed = deliver(uri, "slow")
    resumed.round_done(3)
    assert resumed.finish(everything(tmp_path)) == slow.run_id
    experiment = connect(uri).get_run(slow.run_id).info.experiment_id
    assert len(connect(uri).search_logged_models([experiment])) == 1
    assert_whole(uri, "slow", slow.run_id, 3, without={("loss/train", 2)}, also={"uncertainty/entropy"})


class Waiting(FinalArtifacts):
    """What is logged once, whose model is not there before the gate opens."""

    def __init__(self, whole: FinalArtifacts, gate: threading.Event) -> None:
        self.__dict__.update(whole.__dict__)
        self.__dict__["gate"] = gate

    def __getattribute__(self, name: str) -> Any:
        if name == "model":
            assert super().__getattribute__("gate").wait(60)
        return super().__getattribute__(name)


def everything(folder: Path) -> FinalArtifacts:
    """A table, a model, a dataset and a last metric."""
    (folder / "clients.csv").write_text("round,client,dropped\n")
    network = MLP(5, (), 3)
    card = {"method": "FedAvg", "network": to_json(network), "task": "classification", "classes": list("abc")}
    card |= {"shape": [5], "personal": False, "clients": [], "statistics": None, "inputs": None, "targets": None}
    card |= {"columns": None, "dtype": "float32", "context": []}
    weights = network.init(server_stream(0, 0, "init"))
    model = {"uri": f"sqlite:///{folder}/mlflow.db", "name": "new.fedavg-seed0", "card": card, "shared": weights}
    model |= {"personal": {}, "tags": {"weights_sha256": "ab"}}
    last = {"round": 3, "time_ms": 2_000_000, "metrics": {"uncertainty/entropy": 0.5}}
    own = {"round": 3, "time_ms": 1_000_003, "metrics": {"accuracy/mean": 0.03}}  # as it was delivered
    return FinalArtifacts(
        (folder / "clients.csv",),
        model,
        {"name": "small", "version": "0" * 32, "source": "{}", "profile": "{}"},
        last,
        (own, last),
        {"weights_sha256": "ab"},
        "Looks good.",
        "The experiment looks good.",
        ("clients.csv",),
    )


def assert_whole(
    uri: str, name: str, run_id: Any, rounds: int, without: set[tuple[str, int]], also: Set[str] = frozenset()
) -> None:
    """One finished run with every step of every metric once, but for those that had no number."""
    client = connect(uri)
    (run,) = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    assert (run.info.run_id, run.info.status, run.data.params) == (
        run_id,
        "FINISHED",
        {"a": "1", "clients.join._": "2"},
    )
    assert set(run.data.metrics) == METRICS | also
    for metric in METRICS:
        found = [m.step for m in client.get_metric_history(run_id, metric)]
        assert found == [n for n in range(1, rounds + 1) if (metric, n) not in without], metric


def wait_for(true: Callable[[], bool], patience: float = 60.0) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
