"""Gives the places of what a project's runs leave: their folders, clients' private state, and MLflow's experiment."""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from flows.core.config.params_schema import Params
from silos.client_store import ClientStore
from silos.errors import RefusalError
from silos.io import locks
from silos.privacy.owner_file import OWNER_FILE
from silos.sources.source_params import is_public
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.mlflow_logging.mlflow_records import Experiment

_MOST_OF_NAME = 200  # characters


@dataclass(frozen=True)
class RunStore:
    """The places of runs in a project's folder, or in a scratch folder.

    Attributes:
        root: The project's folder.
        store_name: The name of the store of its silos under private/; the silos of other data have other stores.
        uri: The address of MLflow's store that params name; None for the project's own.
        scratch: The folder that stores what runs leave, instead of the project's own.
    """

    root: Path
    store_name: str
    uri: str | None
    scratch: Path | None = None

    @property
    def runs(self) -> Path:
        """Return the folder of all runs."""
        return (self.scratch or self.root) / "runs"

    @property
    def client_folder(self) -> Path:
        """Return the folder that holds what each client keeps to itself."""
        return (self.scratch or self.root) / "private" / self.store_name

    def private(self, folder: Path) -> ClientStore:
        """Return the store of clients' private state in this run; it is outside of data/, which is versioned."""
        return ClientStore(str(self.client_folder / folder.relative_to(self.runs)))

    @property
    def tracking(self) -> str:
        """Return the address of MLflow's store."""
        from tasks.tracking.mlflow_logging.connection import own_store, tracking_uri

        return tracking_uri(self.root, self.uri) if self.scratch is None else own_store(self.scratch)

    @property
    def mlflow_experiment(self) -> Experiment:
        """Return the MLflow experiment of the project: MLFLOW_EXPERIMENT_NAME, or its folder's name at the first use.

        The name and the project's random id are kept, so that a folder that moves keeps its experiment.
        """
        file = self.runs / "mlflow.json"
        with locks.in_turn(self.runs / "locks" / "mlflow"):
            saved = read_json(file, keys=("name", "id"))
            if saved is None:
                name = re.sub(r"[^\w.\- ]", "_", self.root.name)[:_MOST_OF_NAME] or "siloflow"
                saved = {"name": name, "id": secrets.token_hex(8)}
                write_json(file, saved)
        chosen = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        name = chosen or saved["name"]
        folder = self.runs / "artifacts" / re.sub(r"[^\w.-]", "_", name)
        return Experiment(name, folder.as_uri(), "" if chosen else saved["id"])


def open_store(root: Path, store_name: str, params: Params, scratch: Path | None) -> RunStore:
    """Return the places of what runs with these params leave; RefusalError if a scratch folder got a silo's own data."""
    is_own = scratch is not None and not is_public(params.data.source)
    if is_own and (root / "private" / store_name / OWNER_FILE).exists():
        raise RefusalError(
            f"data.source: got data of private/{store_name}/{OWNER_FILE}, expected public or simulated data, since a "
            "scratch folder has no ledgers. Run it in the project."
        )
    return RunStore(root, store_name, params.tracking.uri, scratch)
