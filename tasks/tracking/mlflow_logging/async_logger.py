"""What MLflow is told, by a thread that training never waits for.

Rounds are delivered from the journal, each once: MLflow drops a metric that is equal in key, step, time and value, and the
stored times make a repeated delivery equal. What cannot be delivered stays in the run's folder for the next `--resume`.

Numbers, settings and data as MLflow takes them.
"""

import json
import threading
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from silos.errors import UserError
from tasks.tracking.checkpoint import Journal
from tasks.tracking.error_messages import masked
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.metric_names import parts
from tasks.tracking.mlflow_logging.connection import connect, trouble, usable_experiment
from tasks.tracking.mlflow_logging.run_spec import VIEW, FinalArtifacts, RunSpec, note, run_source


def metric_entities(record: Mapping[str, Any], **of: str) -> list[Any]:
    """A round's numbers with the time that the journal gave them; `of`: the model and the data whose numbers they are."""
    from mlflow.entities import Metric

    memory = {f"memory/{name}": value for name, value in record.get("memory", {}).items()}
    values = {k: v for k, v in {**record["metrics"], **memory}.items() if v is not None}
    return [Metric(k, v, record["time_ms"], record["round"], **of) for k, v in values.items()]


def param_entities(given: Mapping[str, Any]) -> list[Any]:
    """Under names that MLflow takes: a client's name may be in one."""
    from mlflow.entities import Param

    keys = parts(given)
    return [Param(keys[key], str(value)[:6000]) for key, value in given.items()]


def tag_entities(given: Mapping[str, str]) -> list[Any]:
    """As they are."""
    from mlflow.entities import RunTag

    return [RunTag(key, value) for key, value in given.items()]


def data_input(data: Mapping[str, Any]) -> Any:
    """The dataset, named and with the data version as its digest."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name, digest = measured_on(data).values()
    dataset = Dataset(name, digest, "local", data["source"], profile=data["profile"])
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def measured_on(data: Mapping[str, Any]) -> dict[str, str]:
    """By what a metric names its dataset: as much of the data version as MLflow takes."""
    return {"dataset_name": data["name"], "dataset_digest": data["version"][:36]}


RETRY = 15.0  # seconds after which a delivery that failed is tried again, also if no round ended meanwhile
GATHER = 1.0  # seconds in which rounds are gathered into one delivery: MLflow takes 5 ms for each
_BATCH = 900  # metrics; MLflow takes 1000 at most


class MLflowLogger:
    """Brings one run's rounds to MLflow, in the background."""

    def __init__(self, folder: Path, ticket: RunSpec) -> None:
        self.ticket = ticket
        self.run_id: str | None = None
        self._began = int(time.time() * 1000)
        self._failed: str | None = None  # what the last try of the thread ended with, which only the thread says
        self._late: str | None = None  # and what whoever waited for it was told
        self.notice: str | None = None  # where the run is, if not in the experiment of the ticket
        self._whole = False
        self._folder, self._journal = folder, Journal(folder / "journal")
        self._wanted = 0
        self._finish: FinalArtifacts | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow delivery", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why MLflow has not heard of everything; None as long as nothing is known to be amiss."""
        return self._late or self._failed

    def round_done(self, round: int) -> None:
        """The checkpoint of this round is on disk: it may be delivered."""
        self._wanted = round
        self._wake.set()

    def finish(self, finish: FinalArtifacts, patience: float = 60.0) -> str | None:
        """Deliver the rest and what is logged once; the MLflow run's id, or None if MLflow could not be reached."""
        self._finish = finish
        self._close(patience, finish.status)
        if self._whole:
            return self.run_id
        self._late = self._failed or f"MLflow at {masked(self.ticket.uri)} did not answer for {patience:g} s"
        return None

    def mark_failed(self, status: str = "FAILED") -> None:
        """Deliver what there is, and end the run with this status of MLflow: FAILED, or KILLED if a signal stopped it."""
        self._close(2.0 if status == "KILLED" else 10.0, status=status)  # else a person waits; the next command ends it

    def _close(self, patience: float, status: str = "FINISHED") -> None:
        self._status = status
        self._stop.set()
        self._wake.set()
        self._thread.join(patience)

    def _work(self) -> None:
        again = False  # whether the last try is repeated after another search for the run
        while True:
            self._wake.wait(RETRY if self._failed else None)
            self._stop.wait(GATHER if self.run_id else 0)
            self._wake.clear()
            last = self._stop.is_set()
            try:
                self._deliver()
                if last:
                    self._conclude()
                    self._whole = True
                self._failed = None
            except Exception as error:
                self._failed = trouble(self.ticket.uri, error)
                lost, self.run_id = self.run_id, None  # deleted there, perhaps: the next try finds it, or makes another
                if last and lost is not None and not again:
                    again = True
                    self._wake.set()
                    continue
                if last:
                    self.run_id = lost
            if last:
                return

    def _deliver(self) -> None:
        """Deliver every round on disk that has no delivered mark yet.

        The last round is delivered again at the end, if it has more metrics by then: it may be scored after training.
        """
        client = self._client()
        known = self._delivered()
        done = known["round"] if known.get("run") == self.run_id else 0  # the run is new there, and knows no round
        wanted = self._wanted
        if done and done == wanted and self._stop.is_set():
            done -= len(metric_entities(self._journal.read(done))) != known.get("metrics")
        if done >= wanted:
            return
        rounds = [metric_entities(self._journal.read(number)) for number in range(done + 1, wanted + 1)]
        metrics = [metric for of_round in rounds for metric in of_round]
        for at in range(0, len(metrics), _BATCH):
            client.log_batch(self.run_id, metrics=metrics[at : at + _BATCH])
        mark = {"round": wanted, "store": self._store, "run": self.run_id, "metrics": len(rounds[-1])}
        write_json(self._mark, mark)

    def _delivered(self) -> dict[str, Any]:
        """Read which round of which run was delivered last to this store; empty if none was."""
        try:
            known = read_json(self._mark, keys=("round", "store", "run")) or {}
        except UserError:
            return {}  # it only saves time: what is delivered twice is there once
        return known if known.get("store") == self._store else {}

    @property
    def _mark(self) -> Path:
        return self._folder / "delivered.json"

    @property
    def _store(self) -> str:
        return sha256(masked(self.ticket.uri).encode()).hexdigest()[:16]  # a password could be guessed from its hash

    def _conclude(self) -> None:
        """Artifacts, model and dataset, once each; then the run's end."""
        client = self._client()
        assert self.run_id is not None
        if self._finish is not None:
            self._log_once(client, self.run_id, self._finish)
        client.set_terminated(self.run_id, self._status)

    def _log_once(self, client: Any, run_id: str, finish: FinalArtifacts) -> None:
        """What is there already is written over, or found to be there: nothing is there twice."""
        if finish.data:
            client.log_inputs(run_id, [data_input(finish.data)])
        if finish.metrics:
            client.log_batch(run_id, metrics=metric_entities(finish.metrics))
        for file in finish.files:
            client.log_artifact(run_id, str(file))
        if finish.model:
            from tasks.tracking.mlflow_logging.logged_model import log_once

            model = log_once(client, run_id, finish.model)
            on = measured_on(finish.data) if finish.data else {}
            for record in finish.scores:
                client.log_batch(run_id, metrics=metric_entities(record, model_id=model, **on))
        shown = [{"path": name, "type": "table"} for name in finish.tables]
        tags = {"mlflow.note.content": finish.note, "mlflow.loggedArtifacts": json.dumps(shown) if shown else ""}
        client.log_batch(run_id, tags=tag_entities({**finish.tags, **{k: v for k, v in tags.items() if v}}))
        if finish.about:
            client.set_experiment_tag(client.get_run(run_id).info.experiment_id, "mlflow.note.content", finish.about)

    def _client(self) -> Any:
        client = connect(self.ticket.uri)
        if self.run_id is None:
            self.run_id = self._find(client) or self._create(client)
            client.update_run(self.run_id, status="RUNNING")
            self._log_known(client)
        return client

    def _find(self, client: Any) -> str | None:
        """Find the run, also where its experiment was renamed; None if there is none, or it was deleted."""
        from mlflow.exceptions import MlflowException

        known = self._delivered().get("run")
        try:
            run = client.get_run(known) if known is not None else None
            if run and run.info.lifecycle_stage == "active" and run.data.tags.get("siloflow.run") == self.ticket.tag:
                return str(known)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        _, number = self._experiment(client)
        runs = client.search_runs([number], f"tags.`siloflow.run` = '{self.ticket.tag}'") if number else []
        return runs[0].info.run_id if runs else None

    def _experiment(self, client: Any) -> tuple[str, str | None]:
        """Return name and id of the experiment, and note it if that is not the one of the ticket."""
        name, number = usable_experiment(client, self.ticket.experiment)
        if name != self.ticket.experiment:
            self.notice = (
                f"MLflow's experiment {self.ticket.experiment} is deleted; the run is in the experiment {name}"
            )
        return name, number

    def _create(self, client: Any) -> str:
        ticket = self.ticket
        name, number = self._experiment(client)
        if number is None:
            about = {
                "mlflow.experimentKind": "custom_model_development",
                f"mlflow.sharedViewState.{VIEW}": json.dumps(note(ticket)),
                **({"mlflow.note.content": ticket.about} if ticket.about else {}),
            }
            place = ticket.artifacts if ticket.uri.startswith("sqlite") else None
            number = client.create_experiment(name, artifact_location=place, tags=about)
        tags = {**run_source(ticket.tags.get("git_commit", "none")), **ticket.tags, "siloflow.run": ticket.tag}
        tags |= {"mlflow.note.content": ticket.note} if ticket.note else {}
        run = client.create_run(number, start_time=self._began, tags=tags, run_name=ticket.name)
        return str(run.info.run_id)

    def _log_known(self, client: Any) -> None:
        """Also for a run that was found: its process may have been killed before this."""
        params = param_entities(self.ticket.params)
        for at in range(0, len(params), 100):
            client.log_batch(self.run_id, params=params[at : at + 100])
        client.log_batch(self.run_id, tags=tag_entities(self.ticket.links))
