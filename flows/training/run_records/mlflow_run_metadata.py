"""Describes a run for MLflow: its names, tags and parameters, and the model that is logged once."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from flows.core.config.load_config import flatten_params
from flows.core.console import progress
from flows.methods.base import Method
from flows.methods.method_settings import method_of
from flows.methods.round_context import TrainingSetup
from flows.project.project import Project
from flows.project.run_sets import experiment
from flows.training.run_records.run_folder import RunFolder
from models.client_model import Model, first_client
from models.model_card import ModelCard
from models.networks.exported_network import ExportedNetwork
from models.networks.network_factory import Network, is_bundled, kind_of, to_json
from models.preprocessing import INPUTS_MEAN, INPUTS_SCALE, INPUTS_SEGMENTS
from models.server_state import ClientStateRefs, Weights
from silos.client_store import ClientStore
from silos.cohort import Silos, inputs_standardizer
from silos.errors import UserError
from silos.versioning.git_commands import failure_reason, has_repository, run_git
from tasks.tracking.mlflow_logging.mlflow_records import (
    COMPARISON,
    RUN,
    FinalArtifacts,
    LoggedModel,
    ModelContent,
    RunSpec,
    TrainingData,
)
from tasks.tracking.raw_columns import input_columns, reading_rules
from tasks.tracking.result_tables import write_client_table
from tasks.tracking.result_types.journal_record import TimedMetrics
from tasks.tracking.result_types.run_files import ExperimentRecord, Fingerprint, RunIdentity
from tasks.tracking.result_types.run_result import RunResult


def run_spec(project: Project, method: Method, identity: RunIdentity, folder: RunFolder) -> RunSpec:
    """Build the names, tags and parameters of the MLflow run."""
    from tasks.tracking import prefect_artifacts  # imported here: a place opens models without Prefect

    info = experiment(project, folder.path.parent.name)
    method_name, seed = identity["method"], identity["seed"]
    return RunSpec(
        uri=project.store.tracking,
        experiment=project.store.mlflow_experiment,
        name=folder.name,
        tag=identity["tag"],
        tags={
            "kind": RUN,
            "folder": str(folder.path.relative_to(project.root)),
            "method": method_name,
            "seed": str(seed),
            "model tested": method.tested_model,
            "data_version": identity["data_version"],
            "git_commit": git_commit(project.root),
        },
        links=prefect_artifacts.flow_run_tags(),
        note=prefect_artifacts.flow_run_markdown(),
        params={**_unused(project, info.get("methods", [])), **_params(identity)},
        quantity=project.quantity,
        parent=comparison_spec(project, info) if info["kind"] in ("compare", "advise") else None,
        system_metrics=project.params.tracking.system_metrics,
    )


def comparison_spec(project: Project, info: ExperimentRecord) -> RunSpec:
    """Build the spec of a comparison's own run, above its runs, from the record that its first command wrote."""
    return RunSpec(
        uri=project.store.tracking,
        experiment=project.store.mlflow_experiment,
        name=info["name"],
        tag=info.get("tag", info["name"]),  # earlier versions wrote no tag
        tags={
            "kind": COMPARISON,
            "data_version": info.get("data_version") or project.silos.version,
            "git_commit": git_commit(project.root),
        },
        params={},
        note=info.get("about", ""),
        quantity=project.quantity,
    )


def _params(identity: Fingerprint) -> dict[str, object]:
    """Return the keys of params.yaml, with the run's own section of `method`, and the method and seed."""
    params, method = {**identity["params"]}, identity["method"]
    options = {f"method.{method}.{key}": value for key, value in params.pop("method").items()}
    return {"method": method, "seed": identity["seed"], **options, **flatten_params(params)}


def _unused(project: Project, methods: Sequence[str]) -> dict[str, str]:
    """Return the text "not used" for all methods' options: MLflow draws a missing number next to the largest one."""
    options = {method: type(method_of(project.params, method)).model_fields for method in methods}
    return {f"method.{method}.{option}": "not used" for method, names in options.items() for option in names}


def final_artifacts(
    project: Project,
    method: Method,
    setup: TrainingSetup,
    private: ClientStore,
    model: Model,
    folder: RunFolder,
    result: RunResult,
    final: TimedMetrics,
    pictures: tuple[Path, ...],
) -> FinalArtifacts:
    """Collect what MLflow receives at the end: table of clients, figures, model, training data, and the last metrics.

    The model's metrics are those of its round, as they were logged then, and the final ones. `result` is the content of
    result.json, `final` the record of the last metrics, and `pictures` the files of figures.
    """
    client_table = write_client_table(folder.path / "clients.csv", lambda: folder.journal.each(result["rounds"]))
    of_clients = project.params.tracking.personal_models
    content = model_spec(project, method, setup.silos, private, model, of_clients)
    if content is None and of_clients and not setup.silos.is_here:
        # once, since it holds for every run of a comparison
        progress.current().say_once("no model of single clients is logged: what they keep stays at their places.")
    tags = {"weights_sha256": result["weights_sha256"]}
    logged: LoggedModel | None = None if content is None else {**content, "name": folder.name, "tags": tags}
    record = folder.journal.read(final["round"])
    scores: TimedMetrics = {
        "round": record["round"],
        "time_ms": record["time_ms"],
        "metrics": {name: value for name, value in record["metrics"].items() if name in result["metrics"]},
    }
    return FinalArtifacts(
        (client_table, *pictures),
        model=logged,
        data=dataset(project, setup.silos),
        metrics=final,
        scores=(scores, final),
        tags=tags,
    )


def dataset(project: Project, silos: Silos) -> TrainingData:
    """Describe the dataset input of an MLflow run, with the data version as its digest."""
    name = project.params.data.name
    rows = {split: sum(silos.rows(split).values()) for split in ("train", "validation", "test")}
    return {
        "name": name,
        "version": silos.version,
        "source": json.dumps({"path": f"data/{name}", "dvc": silos.version}),
        "profile": json.dumps({"clients": len(silos.clients), "rows": rows}),
    }


def git_commit(root: Path, *paths: str) -> str:
    """Return the checkout's commit, with `+changes` if files differ from it; `none` without a repository.

    Only files that match `paths` are compared, or all. If there is a repository and git fails, the reason is shown on the
    screen once.
    """
    if not has_repository(root):
        return "none"
    try:
        head = run_git(root, "rev-parse", "--verify", "--quiet", "--short=12", "HEAD")
        if head.returncode == 0:
            changed = run_git(root, "status", "--porcelain", "-uno", "--", *paths).stdout.strip()
            return head.stdout.strip() + ("+changes" if changed else "")
        reason = failure_reason(head)  # empty before the first commit
    except FileNotFoundError:
        reason = "git is not installed."
    except UserError as error:
        reason = str(error)
    if reason:
        progress.current().say_once(f"git_commit is none in MLflow: {reason}")
    return "none"


def model_spec(
    project: Project, method: Method, silos: Silos, private: ClientStore, model: Model, of_clients: bool
) -> ModelContent | None:
    """Return what is logged as the model: its card and its weights.

    Args:
        project: The project of the run.
        method: The method that trained the model.
        silos: The clients, with rows scaled as in training.
        private: The clients' store, of which private weights are read.
        model: The model of these clients.
        of_clients: Whether private weights may be part of it.

    Returns:
        None if the model has private weights and they may not, or if it cannot be logged, which the screen says.
    """
    manifest, personal, clients = silos.manifest, model.personal, model.clients
    network, conditioning = _logged_network(model, manifest.shape), method.conditioning()
    if network is None:
        return None
    context_inputs: Weights = {}  # what a client's model reads besides its weights
    scaling = silos.scaling
    is_private = isinstance(personal, ClientStateRefs) or bool(scaling.own_columns)
    if is_private and not (of_clients and silos.is_here):  # what clients keep stays at their places
        return None
    if not model.is_personal:
        clients = silos.clients
    if isinstance(personal, ClientStateRefs):
        clients = tuple(c for c in clients if c in personal.refs)
        arrays = private.load_stack(personal.section, personal.refs, clients)
        personal = {name: torch.from_numpy(array) for name, array in arrays.items()}
        context = model.select(clients).context
        context_inputs = {} if isinstance(context, ClientStateRefs) else context
    card: ModelCard = {
        "method": method.__class__.__name__,
        "network": to_json(network),
        "task": manifest.task,
        "classes": list(manifest.classes),
        "shape": list(manifest.shape),
        "dtype": manifest.dtype,
        "columns": input_columns(manifest, project.params.data),
        "reading": reading_rules(project.params.data),
        **scaling.as_json(),
        "personal": bool(personal) or bool(scaling.own_columns),
        "clients": list(clients) if personal or scaling.own_columns else [],
        "context": sorted(context_inputs),
        "statistics": conditioning.described(silos) if conditioning and model.context else None,
    }
    return {
        "uri": project.store.tracking,
        "card": card,
        "shared": dict(model.shared),
        "personal": {**personal, **context_inputs, **_own_scaling(silos, clients)},
    }


def _logged_network(model: Model, shape: Sequence[int]) -> Network | None:
    """Return the network that a card describes; None if there is none, which the screen says."""
    network = model.network.served
    if not network.portable and not _is_user_code(network):
        try:
            weights_of_one = {**model.shared, **first_client(model.personal)}
            network = ExportedNetwork.of(network, weights_of_one, first_client(model.context), shape)
        except ValueError as error:
            progress.say(f"the model is not logged: {error}.")
            return None
    if not is_bundled(network):
        progress.say(
            f"the model is not logged: its network {kind_of(network)} is defined in a plugin file, which MLflow "
            "would not have. Let its property `served` return a built-in network that computes the same."
        )
        return None
    return network


def _own_scaling(silos: Silos, clients: Sequence[str]) -> Weights:
    """Return the scale of the inputs that each client computes from its own rows: (clients, columns, …) float64."""
    if not silos.scaling.own_columns:
        return {}
    silos.check(clients)
    each = [inputs_standardizer(silos, silos.manifest.client(client)) for client in clients]
    parts = [fitted.as_json() for fitted in each if fitted is not None]
    numbers = {INPUTS_MEAN: [part["mean"] for part in parts], INPUTS_SCALE: [part["scale"] for part in parts]}
    scales = {name: torch.tensor(of_clients, dtype=torch.float64) for name, of_clients in numbers.items()}
    if "segments" in parts[0]:
        scales[INPUTS_SEGMENTS] = torch.tensor([part["segments"] for part in parts], dtype=torch.float64)
    return scales


def _is_user_code(network: Network) -> bool:
    """Return whether the network or a part of it is defined by a plugin; torch modules do not count."""
    parts = [part for part in vars(network).values() if isinstance(part, Network)]
    return type(network).__module__.split(".")[0] != "models" or any(map(_is_user_code, parts))
