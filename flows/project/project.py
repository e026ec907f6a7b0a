"""Opens a project's folder: its params, its data checked against data.dvc, and the folders of its runs."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from flows.core.config.load_config import ParamsFile, quantity_of
from flows.core.config.params_schema import Params
from flows.methods.method_settings import check_names
from flows.project.project_data import Checked, ProjectData
from flows.project.run_store import RunStore, open_store
from models.metrics.task_metrics import TaskMetrics
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.privacy.owned_source import find_store
from silos.privacy.owner_file import answering

Value = TypeVar("Value")


@dataclass(frozen=True)
class Project:
    """Holds the folder of params.yaml as one command opened it: typed params, the checked `data`, and the `store` of runs.

    A command opens it, and passes it on, also to flows that run inside others. A project that differs in a few overrides
    is derived by `with_overrides` or `derive`, without reading params.yaml or checking the data again.

    Data are checked against data.dvc at their first use, and again by the outermost `data.working`, since another process
    may have changed them before. Inside `data.working`, nothing is checked or computed twice (`once`).

    Attributes:
        derived: Whether the data come from the cache of partitions, instead of data/.
        scratch: The folder that stores what runs leave, instead of the project's own.
        file: What params were read from; None if they come from elsewhere, such as an earlier run.
    """

    root: Path
    params: Params
    derived: bool = False
    scratch: Path | None = None
    file: ParamsFile | None = field(default=None, repr=False)
    _checked: Checked = field(default_factory=Checked, repr=False, compare=False)

    @classmethod
    def open(cls, overrides: Sequence[str] = (), root: Path | None = None, derived: bool = False) -> "Project":
        """Read and check the project in this folder.

        Args:
            overrides: Each as section.key=value.
            root: The folder; the current one if not given.
            derived: Take the data from the cache of partitions.

        Raises:
            UserError: If there is no params.yaml, or if it cannot be used; says what to change.
        """
        root = (root or Path()).resolve()
        return cls.of(ParamsFile.read(root).with_overrides(overrides), root, derived)

    @classmethod
    def of(cls, file: ParamsFile, root: Path, derived: bool = False) -> "Project":
        """Check the content of params.yaml of this folder; UserError says what to change."""
        check_names(file.params, root)
        return cls(root, file.params, derived, file=file)

    @property
    def overrides(self) -> list[str]:
        """Return the overrides that the project was opened with, and then those of `with_overrides`."""
        return list(self.own_file.overrides)

    def with_overrides(self, overrides: Sequence[str]) -> "Project":
        """Derive the project with more overrides: the same object for the same overrides while data/ is locked."""
        if not overrides:
            return self

        def make() -> "Project":
            file = self.own_file.with_overrides(overrides)  # the project's own are not read again
            return replace(self, params=Project.of(file, self.root).params, file=file)

        return self.once(("with_overrides", *overrides), make)

    def derive(self, overrides: Sequence[str], derived: bool) -> "Project":
        """Derive the project with `overrides` instead of its own; see `open`.

        It comes from the same reading of params.yaml, and is the same object for the same overrides while data/ is locked.
        """

        def make() -> "Project":
            file = self.own_file.as_read.with_overrides(overrides)
            return replace(Project.of(file, self.root, derived), scratch=self.scratch, _checked=self._checked)

        is_like_this = (self.overrides, self.derived) == (list(overrides), derived)
        return self if is_like_this else self.once(("derive", derived, *overrides), make)

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what `make` returns for this project; calls it once, or again if data/ may have changed."""
        cache_key = (self._key, key)
        if cache_key not in self._checked.results:
            self._checked.results[cache_key] = make()
        result: Value = self._checked.results[cache_key]
        return result

    @cached_property
    def _key(self) -> Hashable:
        """Return what distinguishes this project from others that share its checked data."""
        is_from_file = self.file is not None and self.params is self.file.params
        params = tuple(self.overrides) if is_from_file else self.params.model_dump_json()
        return params, self.derived, self.scratch

    @property
    def own_file(self) -> ParamsFile:
        """Return the params.yaml that the project was opened from, with its overrides."""
        assert self.file is not None, "the project was opened from its params.yaml"
        assert self.params is self.file.params, "its params are those of the file"
        return self.file

    @property
    def store(self) -> RunStore:
        """Return the places of what runs leave."""
        name = self.once("store", lambda: find_store(self.root, self.params.data).name)
        return open_store(self.root, name, self.params, self.scratch)

    @property
    def data(self) -> ProjectData:
        """Return the data, which are checked when they are opened."""
        return ProjectData(self.root, self.params.data, tuple(self.params.plugins), self.derived, self._checked)

    @property
    def silos(self) -> Silos:
        """Return the data; UserError unless they are what data.dvc records and params.yaml describes."""
        return self.once("silos", self.data.silos)

    @property
    def scored(self) -> Silos:
        """Return the clients whose rows models are scored on: all, or `evaluation.clients` of each role.

        They are sampled by the data's seed, so they are the same for every method and seed. Those that their owner lets
        answer neither `run` nor `evaluate` are left out: `clients.leave` alone keeps a client from training only.
        """

        def select() -> Silos:
            from flows.methods.client_sampler import evaluation_clients

            silos, clients = self.silos, self.params.evaluation.clients
            names = answering(Path(self.ledgers.folder), silos.clients, "run", "evaluate")
            if len(names) < len(silos.clients):
                silos = silos.select(names)
            return silos if clients == "all" else evaluation_clients(silos, clients, self.params.data.seed)

        return self.once("scored", select)

    @property
    def ledgers(self) -> ClientStore:
        """Return where clients record what they reported in all runs; each partition of a sweep has its own ledgers."""
        folder = self.store.client_folder
        return ClientStore(str(folder / ".partitions" / self.silos.version if self.derived else folder))

    @property
    def quantity(self) -> TaskMetrics:
        """Return the metric that params choose; `training_setup` checks that objective and data have the same task."""
        return self.once("quantity", lambda: quantity_of(self.params))
