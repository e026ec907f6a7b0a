"""Register models in MLflow's registry, and move the aliases that say which version is in use."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tasks.tracking.mlflow_logging.connection import all_pages, connect

if TYPE_CHECKING:  # MLflow takes seconds to import
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion as RegisteredVersion

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"


@dataclass(frozen=True)
class ModelVersion:
    """A registered version: its number, its MLflow run, the folder of its model, and its tags."""

    number: str
    run_id: str
    location: str
    tags: Mapping[str, str] = field(default_factory=dict)


class Registry:
    """One registered model of a store."""

    def __init__(self, uri: str, model: str) -> None:
        self.model, self._client = model, connect(uri)

    def register(self, run_id: str, tags: Mapping[str, str], description: str) -> ModelVersion | None:
        """Register the model that the run logged, once, and set its tags; None if the run has logged none.

        The commit is that of the run, which may have been trained from an earlier one than the present.
        """
        version = next((v for v in self.versions() if v.run_id == run_id), None)
        if version is None:
            logged = self._logged_model(run_id)
            if logged is None:
                return None
            self._create_model(description)
            # its folder: `models:/m-...` would be looked up in the process's own store, not in the client's
            created = self._client.create_model_version(
                self.model, logged.artifact_location, run_id, await_creation_for=0, model_id=logged.model_id
            )
            version = _version(created)
            tags = {**tags, **self._commit(run_id)}
        elif "git_commit" in version.tags:
            tags = {key: value for key, value in tags.items() if key != "git_commit"}
        self.tag(version.number, tags)
        return replace(version, tags={**version.tags, **tags})

    def versions(self) -> list[ModelVersion]:
        """Return all versions, newest first."""
        about, newest_first = f"name = '{self.model}'", ["version_number DESC"]
        found = all_pages(partial(self._client.search_model_versions, about, max_results=1000, order_by=newest_first))
        return sorted(map(_version, found), key=lambda version: int(version.number), reverse=True)

    def find(self, number: str) -> ModelVersion | None:
        """Return the version with this number."""
        return next((version for version in self.versions() if version.number == number), None)

    def aliases(self) -> dict[str, str]:
        """Return the version's number by alias; empty if nothing is registered."""
        from mlflow.exceptions import MlflowException

        try:
            aliases = self._client.get_registered_model(self.model).aliases
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return {}
        return {str(alias): str(number) for alias, number in aliases.items()}

    def set_aliases(self, aliases: Mapping[str, str | None]) -> None:
        """Move each alias to its version, or delete it."""
        present = self.aliases()
        for alias, number in aliases.items():
            if number is not None:
                self._client.set_registered_model_alias(self.model, alias, number)
            elif alias in present:
                self._client.delete_registered_model_alias(self.model, alias)

    def tag(self, number: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        for key, value in tags.items():
            self._client.set_model_version_tag(self.model, number, key, value)

    def location_of(self, run_id: str) -> str | None:
        """Return the folder of the model that the run logged; None if it has logged none."""
        logged = self._logged_model(run_id)
        return None if logged is None else str(logged.artifact_location)

    def log_decision(self, run_id: str, decision: Mapping[str, object]) -> None:
        """Log the decision as an artifact of the run whose model it is about, if there is such a run."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_dict(run_id, dict(decision), f"decisions/{decision['id']}.json")
        except MlflowException as error:  # a version can be registered without a run, and a run be deleted for good
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise

    def _commit(self, run_id: str) -> dict[str, str]:
        """Return the tag with the commit that the run was trained from, if it has one."""
        commit = self._client.get_run(run_id).data.tags.get("git_commit")
        return {"git_commit": commit} if commit else {}

    def _logged_model(self, run_id: str) -> "LoggedModel | None":
        experiment = self._client.get_run(run_id).info.experiment_id
        models = self._client.search_logged_models([experiment], filter_string=f"source_run_id = '{run_id}'")
        return next((model for model in models if model.status == "READY"), None)

    def _create_model(self, description: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(self.model, description=description)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


def registries(uri: str, start: str) -> list[Registry]:
    """Return the registered models of a store whose names begin with `start`."""
    models = all_pages(connect(uri).search_registered_models)
    return [Registry(uri, model.name) for model in models if model.name.startswith(start)]


def is_store_failure(error: BaseException) -> bool:
    """Return whether the error comes from the store: it does not answer, or refuses a request."""
    return type(error).__module__.partition(".")[0] in ("mlflow", "requests", "sqlalchemy", "urllib3")


def _version(found: "RegisteredVersion") -> ModelVersion:
    return ModelVersion(str(found.version), str(found.run_id), str(found.source), dict(found.tags))
