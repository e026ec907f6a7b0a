"""Names a project's registered models, and finds the champion and logged models; promotion.py decides on the champion."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from flows.project.project import Project
from silos.errors import UserError
from tasks.tracking.mlflow_logging.connection import describe_problem, own_store, short_timeouts
from tasks.tracking.mlflow_logging.model_registry import CHAMPION, ModelVersion, Registry, is_store_failure, registries

_MOST = 200  # characters


def model_name(project: Project) -> str:
    """Return the registered model's name: that of the data; on a shared store preceded by that of the project's folder.

    A folder that moves takes its own store along, and so keeps its champion.
    """
    return _plain(f"{_start(project)}{project.params.data.name}")


def all_registries(project: Project) -> list[Registry]:
    """Return the registered models of all the project's data, not only of those that params.yaml names now."""
    return registries(project.store.tracking, _plain(_start(project)))


def _start(project: Project) -> str:
    return "" if project.store.tracking == own_store(project.root) else f"{project.root.name}-"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)[:_MOST]


class ModelFinder:
    """Looks up models of one project in MLflow; UserError if MLflow does not answer."""

    def __init__(self, project: Project) -> None:
        self._uri = project.store.tracking
        with self._explained():
            self._registry = Registry(self._uri, model_name(project))

    @property
    def registered(self) -> str:
        """Return the name of the registered model."""
        return self._registry.model

    def champion_number(self) -> str | None:
        """Return the number of the version that is the champion now; None if there is none."""
        with self._explained(), short_timeouts():
            return self._registry.aliases().get(CHAMPION)

    def find_champion(self) -> ModelVersion | None:
        """Return the version that is the champion now; None if there is none."""
        number = self.champion_number()
        with self._explained():
            return None if number is None else self._registry.find(number)

    def champion(self) -> ModelVersion:
        """Return the version that is the champion now; UserError if there is none."""
        version = self.find_champion()
        if version is None:
            raise UserError(
                f"champion: got no champion of {self.registered}, expected one. `siloflow promote` makes a model the "
                "champion; or name a run."
            )
        return version

    def logged_by(self, run_id: str) -> str | None:
        """Return the folder of the model that an MLflow run logged; None if it has logged none."""
        with self._explained():
            return self._registry.location_of(run_id)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not is_store_failure(error):
                raise
            raise UserError(f"{describe_problem(self._uri, error)}. Try again.") from error
