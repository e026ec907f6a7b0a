"""Log a run to MLflow in a thread that training never waits for.

Rounds are delivered from the journal, each once. MLflow drops a metric that is equal in key, step, time and value, and
the stored times make a repeated delivery equal. What cannot be delivered stays in the run's folder for the next
`--resume`.
"""

import json
import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from silos.errors import UserError
from silos.io.addresses import mask_passwords
from silos.io.locks import in_turn
from tasks.tracking.checkpoint import Journal
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.metric_names import metric_name_parts
from tasks.tracking.mlflow_logging.connection import (
    OWNER,
    connect,
    describe_problem,
    find_run,
    start_system_metrics,
    usable_experiment,
)
from tasks.tracking.mlflow_logging.mlflow_records import (
    PARENT,
    FinalArtifacts,
    RunSpec,
    TrainingData,
    run_source,
    view_tags,
)
from tasks.tracking.result_types.journal_record import TimedMetrics

if TYPE_CHECKING:  # MLflow takes seconds to import, and this module is imported before the first round
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric, Param, Run, RunTag
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor


class Delivered(TypedDict):
    """The content of delivered.json: the last round that this run of this store has received."""

    round: int
    store: str
    run: str | None
    metrics: NotRequired[int]
    """The number of metrics of that round."""


def metric_entities(record: TimedMetrics, **of: str) -> "list[Metric]":
    """Return a round's metrics with the journal's time; `of` names the model and the dataset that they belong to."""
    from mlflow.entities import Metric

    memory = {"memory/resident": record["memory"]["resident"]} if "memory" in record else {}
    values = {name: value for name, value in {**record["metrics"], **memory}.items() if value is not None}
    return [Metric(name, value, record["time_ms"], record["round"], **of) for name, value in values.items()]


def param_entities(params: Mapping[str, object]) -> "list[Param]":
    """Return params under names that MLflow accepts, because a key may contain a client's name."""
    from mlflow.entities import Param

    keys = metric_name_parts(params)
    return [Param(keys[key], str(value)[:6000]) for key, value in params.items()]


def tag_entities(tags: Mapping[str, str]) -> "list[RunTag]":
    """Return the tags as MLflow's entities."""
    from mlflow.entities import RunTag

    return [RunTag(key, value) for key, value in tags.items()]


def _set_running(client: "MlflowClient", run: "Run") -> None:
    """Let a run that ended run again, unless it was deleted."""
    if run.info.lifecycle_stage == "active" and run.info.status != "RUNNING":
        client.update_run(run.info.run_id, status="RUNNING")


def data_input(data: TrainingData) -> "DatasetInput":
    """Return the dataset with the data version as its digest."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name, digest = dataset_fields(data).values()
    dataset = Dataset(name, digest, "local", data["source"], profile=data["profile"])
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def dataset_fields(data: TrainingData) -> dict[str, str]:
    """Return the fields by which a metric names its dataset; MLflow accepts 36 characters of the data version."""
    return {"dataset_name": data["name"], "dataset_digest": data["version"][:36]}


RETRY = 15.0  # seconds until a failed delivery is tried again, even if no round ended meanwhile
GATHER = 1.0  # seconds in which rounds are collected into one delivery, because MLflow needs 5 ms for each
LONG = 30.0  # seconds after which a run is worth system metrics, whose first import takes longer than a short run
_BATCH = 900  # metrics; MLflow accepts at most 1000


class MLflowLogger:
    """Delivers one run's rounds to MLflow in the background."""

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self.spec = spec
        self.run_id: str | None = None
        self._parent: str | None = None  # the id of the run above this one
        self._monitor: SystemMetricsMonitor | None = None  # MLflow's, of system metrics
        self._began = int(time.time() * 1000)
        self._failure: str | None = None  # of the thread's last try; set by the thread only
        self._timeout: str | None = None  # set by `finish` if the thread did not end in time
        self.notice: str | None = None  # where the run is, if not in the experiment of the spec
        self._is_complete = False
        self._folder, self._journal = folder, Journal(folder / "journal")
        self._last_round = 0
        self._final_artifacts: FinalArtifacts | None = None
        self._started = time.monotonic()
        self._wake, self._is_stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow delivery", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Return why MLflow has not received everything; None if no problem is known."""
        return self._timeout or self._failure

    def round_done(self, round: int) -> None:
        """Deliver this round soon; its checkpoint is on disk."""
        self._last_round = round
        self._wake.set()

    def finish(self, artifacts: FinalArtifacts, patience: float = 60.0) -> str | None:
        """Deliver what is left and what is logged once; return the MLflow run's id, or None if MLflow is not reached."""
        self._final_artifacts = artifacts
        self._stop_thread(patience, artifacts.status)
        if self._is_complete:
            return self.run_id
        self._timeout = self._failure or (
            f"MLflow at {mask_passwords(self.spec.uri)} did not respond for {patience:g} s"
        )
        return None

    def mark_failed(self, status: str = "FAILED") -> None:
        """Deliver what there is, and end the run with MLflow's status FAILED, or KILLED if a signal stopped it."""
        # after a signal the user waits; the next command ends the run
        self._stop_thread(2.0 if status == "KILLED" else 10.0, status=status)

    def _stop_thread(self, patience: float, status: str = "FINISHED") -> None:
        self._status = status
        self._is_stopping.set()
        self._wake.set()
        self._thread.join(patience)

    def _work(self) -> None:
        was_repeated = False  # whether the last try was repeated after another search for the run
        while True:
            self._wake.wait(RETRY if self._failure else None)
            self._is_stopping.wait(GATHER if self.run_id else 0)
            self._wake.clear()
            last = self._is_stopping.is_set()
            try:
                self._deliver()
                if last:
                    self._end_run()
                    self._is_complete = True
                elif self._monitor is None and self.spec.system_metrics and time.monotonic() - self._started > LONG:
                    self._monitor = start_system_metrics(self.spec.uri, self.run_id)
                self._failure = None
            except Exception as error:
                self._failure = describe_problem(self.spec.uri, error)
                run_id, self.run_id = self.run_id, None  # perhaps deleted: the next try finds it, or creates another
                if last and run_id is not None and not was_repeated:
                    was_repeated = True
                    self._wake.set()
                    continue
                if last:
                    self.run_id = run_id
            if last:
                return

    def _deliver(self) -> None:
        """Deliver every checkpointed round that is not marked as delivered.

        The last round is delivered again at the end, if it has more metrics by then: it may be scored after training.
        """
        client, run_id = self._open_run()
        delivered = self._delivered()
        done = delivered["round"] if delivered and delivered["run"] == run_id else 0  # a new run has no round
        last = self._last_round
        if delivered and done and done == last and self._is_stopping.is_set():
            done -= len(metric_entities(self._journal.read(done))) != delivered.get("metrics")
        if done >= last:
            return
        rounds = [metric_entities(self._journal.read(number)) for number in range(done + 1, last + 1)]
        metrics = [metric for round_metrics in rounds for metric in round_metrics]
        for start in range(0, len(metrics), _BATCH):
            client.log_batch(run_id, metrics=metrics[start : start + _BATCH])
        mark: Delivered = {"round": last, "store": self._store, "run": run_id, "metrics": len(rounds[-1])}
        write_json(self._mark, mark)

    def _delivered(self) -> Delivered | None:
        """Read which round of which run was last delivered to this store; None if none was."""
        try:
            delivered: Delivered | None = read_json(self._mark, keys=("round", "store", "run"))
        except UserError:
            return None  # only costs time, because repeated deliveries are stored once
        return delivered if delivered is not None and delivered["store"] == self._store else None

    @property
    def _mark(self) -> Path:
        return self._folder / "delivered.json"

    @property
    def _store(self) -> str:
        return sha256(mask_passwords(self.spec.uri).encode()).hexdigest()[
            :16
        ]  # a password could be guessed from its hash

    def _end_run(self) -> None:
        """Log artifacts, model and dataset once, then end the run."""
        client, run_id = self._open_run()
        if self._monitor is not None:
            self._monitor.finish()
        if self._final_artifacts is not None:
            self._log_once(client, run_id, self._final_artifacts)
        client.set_terminated(run_id, self._status)
        if self._parent and self._status == "KILLED":  # the comparison was interrupted; the next run sets it RUNNING
            client.set_terminated(self._parent, self._status)

    def _log_once(self, client: "MlflowClient", run_id: str, artifacts: FinalArtifacts) -> None:
        """Log the final artifacts; existing ones are overwritten or kept, so nothing is logged twice."""
        if artifacts.data:
            client.log_inputs(run_id, [data_input(artifacts.data)])
        if artifacts.metrics:
            client.log_batch(run_id, metrics=metric_entities(artifacts.metrics))
        for file in artifacts.files:
            client.log_artifact(run_id, str(file))
        if artifacts.model:
            from tasks.tracking.mlflow_logging.logged_model import log_once

            model = log_once(client, run_id, artifacts.model)
            dataset = dataset_fields(artifacts.data) if artifacts.data else {}
            for record in artifacts.scores:
                client.log_batch(run_id, metrics=metric_entities(record, model_id=model, **dataset))
        tables = [{"path": name, "type": "table"} for name in artifacts.tables]
        tags = {"mlflow.note.content": artifacts.note, "mlflow.loggedArtifacts": json.dumps(tables) if tables else ""}
        tags = {**artifacts.tags, **{key: value for key, value in tags.items() if value}}
        client.log_batch(run_id, tags=tag_entities(tags))
        about = {"mlflow.note.content": artifacts.about} if artifacts.about else {}
        about |= view_tags(self.spec, run_id, artifacts.columns)
        for key, value in about.items():
            client.set_experiment_tag(client.get_run(run_id).info.experiment_id, key, value)

    def _open_run(self) -> "tuple[MlflowClient, str]":
        """Return a client of the store and the run's id; the run is found or created at first."""
        client = connect(self.spec.uri)
        if self.run_id is not None:
            return client, self.run_id
        found = self._find(client)
        if found is None:
            self.run_id = self._create(client)
        else:
            self.run_id, self._parent = str(found.info.run_id), found.data.tags.get(PARENT)
            _set_running(client, found)
            if self._parent:
                _set_running(client, client.get_run(self._parent))
        self._log_params(client, self.run_id)
        return client, self.run_id

    def _find(self, client: "MlflowClient") -> "Run | None":
        """Find the run, even if its experiment was renamed; None if there is none, or it was deleted."""
        from mlflow.exceptions import MlflowException

        delivered = self._delivered()
        run_id = delivered and delivered["run"]
        try:
            run = client.get_run(run_id) if run_id is not None else None
            if run and run.info.lifecycle_stage == "active" and run.data.tags.get("siloflow.run") == self.spec.tag:
                return run
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        _, experiment = self._experiment(client)
        return find_run(client, experiment, self.spec.tag) if experiment else None

    def _experiment(self, client: "MlflowClient") -> tuple[str, str | None]:
        """Return name and id of the experiment, and set `notice` if the one of the spec was deleted."""
        wanted = self.spec.experiment
        name, experiment = usable_experiment(client, wanted)
        refused = client.get_experiment_by_name(wanted.name) if name != wanted.name else None
        if refused is not None and refused.lifecycle_stage != "active":
            self.notice = f"MLflow's experiment {wanted.name} was deleted; the run is in the experiment {name}"
        return name, experiment

    def _create(self, client: "MlflowClient") -> str:
        """Create the run, and first its experiment and its parent if they do not exist; return the run's id."""
        spec, experiment = self.spec, self._experiment_id(client)
        tags = {}
        if spec.parent is not None:
            with in_turn(self._mark.parents[2] / "locks" / "mlflow"):  # several processes may start its first runs
                found = find_run(client, experiment, spec.parent.tag)
                if found is None:
                    self._parent = self._create_run(client, experiment, spec.parent)
                else:
                    self._parent = str(found.info.run_id)
                    _set_running(client, found)
            tags[PARENT] = str(self._parent)
        return self._create_run(client, experiment, spec, tags)

    def _experiment_id(self, client: "MlflowClient") -> str:
        """Return the id of the experiment, which is created if it does not exist."""
        from mlflow.exceptions import MlflowException

        wanted = self.spec.experiment
        location = wanted.artifacts if self.spec.uri.startswith("sqlite") else None
        tags = {"mlflow.experimentKind": "custom_model_development", **({OWNER: wanted.owner} if wanted.owner else {})}
        while True:
            name, experiment = self._experiment(client)
            try:
                return experiment or str(client.create_experiment(name, artifact_location=location, tags=tags))
            except MlflowException as error:  # another process was faster, perhaps one of another project
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise

    def _create_run(
        self, client: "MlflowClient", experiment: str, spec: RunSpec, more: Mapping[str, str] | None = None
    ) -> str:
        tags = {
            **run_source(spec.tags.get("git_commit", "none")),
            **spec.tags,
            "siloflow.run": spec.tag,
            **(more or {}),
        }
        tags |= {"mlflow.note.content": spec.note} if spec.note else {}
        run = client.create_run(experiment, start_time=self._began, tags=tags, run_name=spec.name)
        run_id = str(run.info.run_id)
        for key, value in view_tags(spec, run_id, list(spec.quantity.columns)).items():
            client.set_experiment_tag(experiment, key, value)
        return run_id

    def _log_params(self, client: "MlflowClient", run_id: str) -> None:
        """Log params and links, also for a found run, whose process may have been killed before this step."""
        params = param_entities(self.spec.params)
        for start in range(0, len(params), 100):
            client.log_batch(run_id, params=params[start : start + 100])
        client.log_batch(run_id, tags=tag_entities(self.spec.links))
