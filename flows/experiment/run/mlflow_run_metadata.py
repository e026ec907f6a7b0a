"""What a run shows to the outside: its names in MLflow, and the model that is logged once."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flows.config.load_config import flatten_params
from flows.config.method_settings import method_of
from flows.console import progress
from flows.experiment import prefect_artifacts
from flows.experiment.project import Project, experiment
from flows.experiment.run.run_folder import RunFolder
from flows.methods.base import Method
from flows.methods.context import TrainingSetup
from models.client_model import Model, first_client
from models.networks.exported_network import ExportedNetwork
from models.networks.network_factory import Network, is_bundled, kind_of, to_json
from models.server_state import ClientStateRefs, Weights
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from silos.sources.tabular.table_reader import input_columns
from silos.versioning.git_commands import has_repository, run_git
from tasks.tracking.mlflow_logging.run_spec import FinalArtifacts, RunSpec
from tasks.tracking.result_tables import write_client_table


def run_spec(project: Project, method: Method, identity: dict[str, Any], folder: RunFolder) -> RunSpec:
    """The MLflow run's names, tags and parameters."""
    about = experiment(project, folder.path.parent.name)
    name = "single-runs" if about["kind"] == "run" else about["name"]
    method_name, seed = identity["method"], identity["seed"]
    return RunSpec(
        uri=project.tracking,
        artifacts=(project.runs / "artifacts" / name).as_uri(),
        experiment=name,
        name=folder.name,
        tag=identity["tag"],
        tags={
            "method": method_name,
            "seed": str(seed),
            "model tested": method.tested_model,
            "data_version": identity["data_version"],
            "git_commit": git_commit(project.root),
        },
        links=prefect_artifacts.link(),
        note=prefect_artifacts.sentence(),
        params={**_unused(project, about.get("methods", [])), **_params(identity)},
        about=about.get("about", ""),
        quantity=project.quantity,
    )


def _params(identity: dict[str, Any]) -> dict[str, Any]:
    """The keys of params.yaml, of `method` only the run's own section; and which method and seed it is."""
    params, method = dict(identity["params"]), identity["method"]
    options = {f"method.{method}.{key}": value for key, value in params.pop("method").items()}
    return {"method": method, "seed": identity["seed"], **options, **flatten_params(params)}


def _unused(project: Project, methods: Sequence[str]) -> dict[str, str]:
    """Options of all methods of a comparison, as text: MLflow's page draws a missing number next to the largest one."""
    pages = {method: method_of(project.params, method) for method in methods}
    return {
        f"method.{method}.{option}": "not used" for method, page in pages.items() for option in type(page).model_fields
    }


def final_artifacts(
    project: Project,
    method: Method,
    setup: TrainingSetup,
    private: ClientStore,
    model: Model,
    folder: RunFolder,
    result: Mapping[str, Any],
    final: dict[str, Any],
    pictures: tuple[Path, ...],
) -> FinalArtifacts:
    """The table of clients and rounds, pictures, the model, the data that it was trained on, and the last metrics.

    The model's own are those of its round that are in `result`, as they were delivered then, and the last.
    """
    clients = write_client_table(folder.path / "clients.csv", lambda: folder.journal.each(result["rounds"]))
    served = _model(project, method, setup, private, model)
    record = folder.journal.read(final["round"])
    own = {name: value for name, value in record["metrics"].items() if name in result["metrics"]}
    return FinalArtifacts(
        (clients, *pictures),
        model=served and {**served, "name": folder.name, "tags": {"weights_sha256": result["weights_sha256"]}},
        data=dataset(project, setup.silos),
        metrics=final,
        scores=({"round": record["round"], "time_ms": record["time_ms"], "metrics": own}, final),
        tags={"weights_sha256": result["weights_sha256"]},
    )


def dataset(project: Project, silos: Silos) -> dict[str, Any]:
    """The dataset input: named, with the data version as its digest."""
    name = project.params.data.name
    rows = {split: sum(silos.rows(split).values()) for split in ("train", "validation", "test")}
    return {
        "name": name,
        "version": silos.version,
        "source": json.dumps({"path": f"data/{name}", "dvc": silos.version}),
        "profile": json.dumps({"clients": len(silos.clients), "rows": rows}),
    }


def git_commit(root: Path) -> str:
    """Return the checkout's commit, with `+changes` if files differ from it; `none` where there is none.

    If there is a repository and git does not answer for it, the screen says why, once.
    """
    if not has_repository(root):
        return "none"
    try:
        head = run_git(root, "rev-parse", "--verify", "--quiet", "--short=12", "HEAD")
        if head.returncode == 0:
            changed = run_git(root, "status", "--porcelain", "-uno").stdout.strip()
            return head.stdout.strip() + ("+changes" if changed else "")
        reason = (head.stderr.strip().splitlines() or [""])[-1]  # nothing before the first commit
    except FileNotFoundError:
        reason = "git is not installed."
    except UserError as error:
        reason = str(error)
    if reason:
        progress.current().say_once(f"git_commit is none in MLflow: {reason}")
    return "none"


def _model(
    project: Project, method: Method, setup: TrainingSetup, private: ClientStore, model: Model
) -> dict[str, Any] | None:
    """What is logged as the model; None where that would be personal weights that nobody asked for."""
    manifest, personal, clients = setup.silos.manifest, model.personal, model.clients
    network, reads = model.network.served, method.conditioning()
    if not network.portable and not _is_of_page(network):
        try:
            one = {**model.shared, **first_client(model.personal)}
            network = ExportedNetwork.of(network, one, first_client(model.context), manifest.shape)
        except ValueError as error:
            progress.current().say(f"the model is not logged: {error}.")
            return None
    if not is_bundled(network):
        progress.current().say(
            f"the model is not logged: its network {kind_of(network)} is of your own page, and would not be there where it "
            "is loaded; let its property `served` name the network that answers without it."
        )
        return None
    beside: Weights = {}
    if isinstance(personal, ClientStateRefs):
        if not project.params.tracking.personal_models:
            return None
        clients = tuple(c for c in clients if c in personal.refs)
        opened = private.load_stack(personal.section, personal.refs, clients)
        personal = {name: torch.from_numpy(array) for name, array in opened.items()}
        context = model.select(clients).context
        beside = (
            {} if isinstance(context, ClientStateRefs) else context
        )  # what a client's model reads beside its weights
    card = {
        "method": method.__class__.__name__,
        "network": to_json(network),
        "task": manifest.task,
        "classes": list(manifest.classes),
        "shape": list(manifest.shape),
        "dtype": manifest.dtype,
        "columns": input_columns(manifest, project.params.data),
        **setup.silos.scaling.as_json(),
        "personal": bool(personal),
        "clients": list(clients) if personal else [],
        "context": sorted(beside),
        "statistics": reads.described(setup.silos) if reads and model.context else None,
    }
    return {
        "uri": project.tracking,
        "card": card,
        "shared": dict(model.shared),
        "personal": {**personal, **beside},
    }


def _is_of_page(network: Network) -> bool:
    """Whether a part of it, other than a module of torch, is of a page or a plugin."""
    parts = [one for one in vars(network).values() if isinstance(one, Network)]
    return type(network).__module__.split(".")[0] != "models" or any(map(_is_of_page, parts))
