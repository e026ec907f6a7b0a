"""Opens the champion or the model of a run, and evaluates it on the test rows that are in data/ now."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.methods.base import Method
from flows.project.project import Project
from flows.results.registry.model_finder import ModelFinder
from flows.training.evaluation import other_metrics
from flows.training.load_finished_run import check_same_data, find_run, finished_run, score_on_present_rows
from flows.training.run_records.mlflow_run_metadata import model_spec
from flows.training.run_records.round_record import metrics_of
from models.client_model import Model
from models.metrics.client_metrics import metric_record
from models.model_card import ModelCard
from models.served_model import ServedModel, named_tensors
from models.server_state import ClientStateRefs
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError, some
from silos.privacy.owner_file import check_command, check_own_models
from silos.standardizer import Standardization
from tasks.tracking.mlflow_logging.model_registry import CHAMPION, ModelVersion
from tasks.tracking.result_tables import by_client
from tasks.tracking.result_types.model_results import ModelScores

if TYPE_CHECKING:  # pandas takes long to import
    import pandas as pd

_TEST = "test/"


@dataclass(frozen=True)
class OpenModel:
    """A model in memory.

    Attributes:
        name: What the user knows it by.
        method: The name of the method that trained it.
        version: The number of its version in the registry; None if it was opened as a run.
        run: The folder of its run, relative to the project; None if its version does not name it.
        served: What predicts: preprocessing, weights and classes, as they were logged.
    """

    name: str
    method: str
    version: str | None
    run: str | None
    served: ServedModel

    @property
    def card(self) -> ModelCard:
        """Return what describes the model's inputs and outputs."""
        return self.served.card

    @property
    def scaling(self) -> Standardization:
        """Return how rows were scaled in training."""
        return Standardization.from_json(self.served.card)

    def predict(
        self, rows: Any, client: str = "", statistics: Sequence[float] = (), made_as: str = ""
    ) -> "pd.DataFrame":
        """Return one prediction per row; ValueError for rows, a client or statistics that the model does not take.

        A model that all clients share answers for any client, also for one that took no part.

        Args:
            rows: A data frame with the columns of the table, or an array of rows.
            client: The client whose model to use, if each has its own.
            statistics: What a conditional model reads of the client.
            made_as: How the statistics were computed.
        """
        params = {"client": client if self.card["personal"] else "", "statistics": statistics, "made_as": made_as}
        return self.served.predict(rows, params)


def open_model(project: Project, model: str, clients: Sequence[str] = ()) -> OpenModel:
    """Open the champion, or the model that a finished run reports.

    The logged model is opened, which needs no data. If a run logged none because its models are private, those of
    `clients` are opened from the clients' stores, so call this on their machine.

    Args:
        project: The project.
        model: `champion`, or the run's folder or name.
        clients: The clients that will use it.

    Raises:
        UserError: If there is no such model, or if it has no weights for the client.
    """
    finder = ModelFinder(project)
    if model == CHAMPION:
        return open_version(project, finder, finder.champion())
    folder = find_run(project, model)
    result = folder.finished()
    if result is None:
        raise UserError(f"{model}: got an unfinished run, expected a finished one. Finish it with --resume.")
    location = finder.logged_by(result["mlflow_run_id"]) if result["mlflow_run_id"] is not None else None
    run = str(folder.path.relative_to(project.root))
    served = _load(project, location) if location is not None else _from_run_folder(project, run, clients)
    return OpenModel(run, result["method"], None, run, served)


def open_version(project: Project, finder: ModelFinder, version: ModelVersion) -> OpenModel:
    """Open a registered version."""
    run = version.tags.get("run")
    name = f"{finder.registered} version {version.number}" + (f" ({run})" if run else "")
    return OpenModel(name, version.tags.get("method", ""), version.number, run, _load(project, version.location))


def _load(project: Project, location: str) -> ServedModel:
    from tasks.tracking.mlflow_logging.logged_model import load_logged

    served: ServedModel = load_logged(project.store.tracking, location)
    return served


def _from_run_folder(project: Project, run: str, clients: Sequence[str]) -> ServedModel:
    """Return the model that would have been logged, with the private weights of these clients only."""
    opened = finished_run(project, run)
    silos, private, method = opened.scorer.silos, opened.round.private, opened.scorer.method
    return served_model(opened.project, run, opened.method, method, silos, private, opened.model, clients)


def served_model(
    project: Project,
    name: str,
    method_name: str,
    method: Method,
    silos: Silos,
    private: ClientStore,
    model: Model,
    clients: Sequence[str],
    of_owner: bool = False,
) -> ServedModel:
    """Return what predicts with a model, with the private weights of these clients only.

    Args:
        project: The project, which says how rows are read.
        name: What the user knows the model by.
        method_name: The name of the method that trained it.
        method: The method.
        silos: The clients, with rows scaled as in training.
        private: Where clients keep private weights.
        model: The model of all clients.
        clients: The clients that will use it.
        of_owner: Whether the owner of the clients uses it, so that no private weight leaves them.

    Raises:
        UserError: If a client has no model, or if the model cannot be served.
    """
    silos, model = _select_clients(name, method_name, silos, model, clients)
    is_kept = isinstance(model.personal, ClientStateRefs) or bool(silos.scaling.own_columns)
    if is_kept and not silos.is_here:
        raise UserError(
            f"{name}: got a model of which clients keep parts at their places, expected one that all clients share. Use it "
            "at a place: `siloflow place send`, then `siloflow place predict` there."
        )
    # an owner who predicts at home sends nothing away; all others would read what clients keep
    if is_kept and not of_owner:
        kept = silos.clients if silos.scaling.own_columns else model.clients
        check_command(Path(private.folder), "predict", kept)
        check_own_models(Path(private.folder), kept, f"{name}: got weights or scales")
    spec = model_spec(project, method, silos, private, model, of_clients=True)
    if spec is None:
        raise UserError(
            f"{name}: got a model that cannot be served, expected one of built-in networks. Use another run."
        )
    return ServedModel(spec["card"], named_tensors(spec["shared"], spec["personal"]))


def _select_clients(
    name: str, method_name: str, silos: Silos, model: Model, clients: Sequence[str]
) -> tuple[Silos, Model]:
    """Select the clients that keep weights, or scales of their own columns; UserError if none of `clients` does."""
    if isinstance(model.personal, ClientStateRefs):
        known = [client for client in model.clients if client in model.personal.refs]
        if not clients:
            raise UserError(
                f"{name}: got a model for each client that MLflow does not have, expected a logged one or --client. Name "
                "one client for `siloflow predict`, or train with `--set tracking.personal_models=true`."
            )
        with_model = [client for client in clients if client in known]
        if not with_model:
            raise UserError(
                f"--client: got {some(clients, 5)}, which has no model in {name}, expected one of {some(known, 5)}, since "
                f"{method_name} has a model for each client. Choose another client, or a run with a common model."
            )
        model = model.select(with_model)
    if silos.scaling.own_columns:
        if not clients:
            raise UserError(
                f"{name}: got a model whose clients align features by their own rows, expected --client. Name one "
                "client for `siloflow predict`, or train with `--set tracking.personal_models=true`."
            )
        manifest = silos.manifest
        # if none of the clients is in the data, `manifest.client` raises the error that lists those that are
        own = [client for client in clients if client in manifest.names] or [manifest.client(clients[0]).name]
        silos = silos.select(own)
        model = model.select(own) if model.is_personal else model
    return silos, model


def run_of_champion(version: ModelVersion) -> str:
    """Return the run that the champion's tag names; UserError without one."""
    run = version.tags.get("run") or ""
    if not run:
        raise UserError(
            f"champion: got version {version.number} without the tag `run`, expected one that siloflow registered. Name "
            "a run."
        )
    return run


def evaluate_model(project: Project, model: str) -> ModelScores:
    """Return a model's test metrics on the present data version, and those of each client.

    They are computed as at the end of a run, from the run's folder, so private weights stay with their clients.

    Args:
        project: The project.
        model: `champion`, or the run's folder or name.

    Raises:
        UserError: If there is no such model, or if it cannot be scored on the present rows.
    """
    check_command(Path(project.ledgers.folder), "evaluate", project.silos.clients)
    version = None
    if model == CHAMPION:
        version = ModelFinder(project).champion()
        model = run_of_champion(version)
    with project.data.working("evaluate"):
        folder = find_run(project, model).path
        # `final` scores by all metrics of the task, as the end of a run does, and not only by those of a round
        run, scores = score_on_present_rows(project, folder, final=True)
        quantity, silos = run.scorer.quantity, run.scorer.scored
        others = other_metrics(quantity)
        table = by_client(scores, quantity.with_metrics((), others))
        return {
            "run": str(folder.relative_to(project.root)),
            "version": None if version is None else version.number,
            "method": run.method,
            "seed": run.round.setup.seed,
            "round": run.round.number,
            "data_version": project.silos.version,
            "trained_on": check_same_data(project, folder)["data_version"],
            **metric_record(quantity),
            "metrics": {**metrics_of(table, silos, quantity, others)},
            "clients": [
                {
                    "client": client,
                    "role": silos.role(client),
                    **{name.removeprefix(_TEST): value for name, value in table[client].items()},
                }
                for client in silos.clients
                if client in table
            ],
        }
