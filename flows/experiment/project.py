"""A project's folder: its params, its data checked against its record, and where runs are kept."""

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flows.config.load_config import ParamsFile
from flows.config.method_settings import check_names
from flows.config.params_schema import Params
from flows.console import progress
from flows.experiment.plugin_loader import PluginFiles, Plugins
from flows.plugins import FIGURES
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from silos.io import locks
from silos.io.atomic_io import write_bytes
from silos.plugin_registry import Registered, bound
from silos.sources.source_registry import content_hashes
from silos.standardizer import NO_STANDARDIZATION, Standardization
from silos.storage.manifest import Manifest
from silos.storage.partition_store import write
from silos.versioning import dvc_files, history
from silos.versioning.data_swap import recover
from silos.versioning.hashing import code_digest, file_hashes, listing_digest
from tasks.tracking.json_io import RESTORE_ADVICE, read_json, write_json

if TYPE_CHECKING:
    from flows.methods.context import TrainingSetup
    from flows.methods.samplers.client_sampler import Sampler
    from tasks.execution.worker_backends import Workers


UNNAMED = re.compile(r"([a-z]+)-(\d{8}-\d{6})-[0-9a-f]{4}")
"""What a set of runs is called that nobody has named: its kind, when it was started, and something random."""


Made = TypeVar("Made")


@dataclass
class _Checked:
    """What a command has computed of a project whose data cannot change meanwhile; shared by all that derive from it."""

    locks: int = 0
    results: dict[Hashable, Any] = field(default_factory=dict)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Drop what was computed before data/ was locked: the data may have changed since."""
        if not self.locks:
            self.results.clear()
        self.locks += 1
        try:
            yield
        finally:
            self.locks -= 1


@dataclass(frozen=True)
class Project:
    """The folder of params.yaml, opened once by a command: typed params, checked data, and the place of runs.

    A command opens it, and passes it on. A flow that runs inside another flow gets plain JSON, which Prefect shows as its
    parameters; the typed project reaches it through `shared`. What differs in a few overrides derives by `with_overrides`
    from the opened project, without reading params.yaml or checking the data again.

    Data are checked against data.dvc where they are first used, and again by the outermost `working`: before it, another
    process may have changed them. While it lasts, nothing is checked or made twice (`once`).

    Attributes:
        derived: Whether the data come from the cache of partitions, instead of data/.
        scratch: The folder that keeps what runs leave, instead of the project's own.
        scaling: What a run's clients agreed on.
        file: What params were read from; None if they come from elsewhere, such as an earlier run.
    """

    root: Path
    params: Params
    derived: bool = False
    scratch: Path | None = None
    scaling: Standardization = NO_STANDARDIZATION
    file: ParamsFile | None = field(default=None, repr=False)
    _checked: _Checked = field(default_factory=_Checked, repr=False, compare=False)

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
        """Check what was read from params.yaml of this folder; UserError says what to change."""
        check_names(file.params)
        return cls(root, file.params, derived, file=file)

    @property
    def overrides(self) -> list[str]:
        """The overrides that the project was opened with, and those of `with_overrides` after them."""
        return list(self._own_file().overrides)

    def with_overrides(self, overrides: Sequence[str]) -> "Project":
        """Derive the project with more overrides: the same object for the same overrides while data/ is locked."""
        return self.once(("with_overrides", *overrides), lambda: self._with_overrides(overrides)) if overrides else self

    def _with_overrides(self, overrides: Sequence[str]) -> "Project":
        file = self._own_file().with_overrides(overrides)
        return replace(self, params=Project.of(file, self.root).params, file=file)

    def _with_other_overrides(self, overrides: Sequence[str], derived: bool) -> "Project":
        """Derive the project that has `overrides` instead of its own; it has no standardization that clients agreed on."""
        file = self._own_file().as_read.with_overrides(overrides)
        return replace(Project.of(file, self.root, derived), scratch=self.scratch, _checked=self._checked)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what `make` returns for this project; makes it once, or again where data/ may have changed."""
        whole = (self._key, key)
        if whole not in self._checked.results:
            self._checked.results[whole] = make()
        made: Made = self._checked.results[whole]
        return made

    @cached_property
    def _key(self) -> Hashable:
        """What a project differs in from those that share its checked data."""
        own = self.file is not None and self.params is self.file.params
        return (
            tuple(self.overrides) if own else self.params.model_dump_json(),
            self.derived,
            self.scratch,
            self.scaling,
        )

    def _own_file(self) -> ParamsFile:
        assert self.file is not None, "the project was opened from its params.yaml"
        assert self.params is self.file.params, "its params are those of the file"
        return self.file

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let all that is called inside have this project, instead of opening it again: see `open_shared`."""
        token = _shared.set(self)
        try:
            yield
        finally:
            _shared.reset(token)

    @classmethod
    def open_shared(cls, overrides: Sequence[str] = (), root: Path | None = None, derived: bool = False) -> "Project":
        """Return the project that the enclosing command has opened in this folder; open it if there is none.

        If the command has other overrides, the project derives from what it read of params.yaml. See `open` for arguments.
        """
        project, root = _shared.get(), (root or Path()).resolve()
        if project is None or project.root != root:
            return cls.open(overrides, root, derived)
        if (project.overrides, project.derived) == (list(overrides), derived):
            return project
        return project.once(("open", derived, *overrides), lambda: project._with_other_overrides(overrides, derived))

    @property
    def plugins(self) -> Plugins:
        """What the plugin files of params.yaml registered when the command ran them."""
        return self.params.loaded

    @property
    def plugin_files(self) -> PluginFiles:
        """The plugin files that the command has run."""
        return self.file.plugin_files if self.file is not None else PluginFiles(self.root)

    @property
    def figures(self) -> list[Callable[..., Any]]:
        """What draws the figures that params name, each into a scene's folder."""
        chosen = self.params.figures
        return [bound(one) if isinstance(one, Registered) else FIGURES.find(one.kind) for one in chosen]

    @property
    def metrics(self) -> dict[str, Callable[..., Any]]:
        """The metrics of plugins that params name: logits and y to a number for each row."""
        return {one.kind: bound(one) for one in self.params.evaluation.metrics}

    @property
    def runs(self) -> Path:
        """Where runs are kept."""
        return (self.scratch or self.root) / "runs"

    @property
    def tracking(self) -> str:
        """The address of MLflow's store."""
        from tasks.tracking.mlflow_logging.connection import own_store, tracking_uri

        return tracking_uri(self.root, self.params.tracking.uri) if self.scratch is None else own_store(self.scratch)

    @property
    def silos(self) -> Silos:
        """The data, if they are what data.dvc records and what params.yaml describes; UserError otherwise."""
        return self.once("silos", lambda: replace(self._verified(), scaling=self.scaling))

    @property
    def scored(self) -> Silos:
        """Those on whose rows models are scored: all, or `evaluation.clients` of each role.

        They are drawn by the data's seed, so the same for every method and seed.
        """
        from flows.methods.samplers.client_sampler import evaluation_clients

        wanted = self.params.evaluation.clients
        if wanted == "all":
            return self.silos
        return self.once("scored", lambda: evaluation_clients(self.silos, wanted, self.params.data.seed))

    def _verified(self) -> Silos:
        """Check the data once for all projects that share them, whatever else they differ in."""
        key = ("verified", self.derived, tuple(self.params.plugins), self.params.data.model_dump_json())
        if key not in self._checked.results:
            self._checked.results[key] = self._derived() if self.derived else self._recorded()
        silos: Silos = self._checked.results[key]
        return silos

    def _recorded(self) -> Silos:
        name = self.params.data.name
        with locks.wait_for_writer(_locks(self.root), _say):
            recover(self.root)
            hashes = dvc_files.verify(self.root, name, self.root / "runs" / "hashes.json")
            silos = Silos.open(self.root / "data" / name, str(dvc_files.recorded_version(self.root)), hashes)
        dvc_files.must_match_params(silos.manifest, self.params.data)
        return silos

    def same_rows(self, one: str, other: str) -> bool:
        """Whether this project's partition is the same in two data versions, which may differ in other partitions."""
        return one == other or (not self.derived and history.same_rows(self.root, self.params.data.name, one, other))

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """data/ stays as it is meanwhile: who would change it is told that `name` works on it. May be nested."""
        lock = nullcontext() if self.derived else locks.read_lock(_locks(self.root), name, _say)
        with lock, self._checked.locked():
            yield

    def _derived(self) -> Silos:
        """A partition of a sweep, outside of data/ and its record: made once for its recipe, its source's files, our code.

        One that is no more as it was made is made again. Who needs it meanwhile waits.
        """
        data = self.params.data
        steps: list[Any] = [step for step in data.scheme if isinstance(step, Registered)]
        own = [step.entry.digest for step in steps]
        made_of = [data.recipe(), content_hashes(data.source, self.root), code_digest(), *own]
        described = json.dumps(made_of, sort_keys=True)
        folder = self.root / "cache" / "partitions" / hashlib.sha256(described.encode()).hexdigest()[:16]
        record = folder.with_name(f"{folder.name}.version")
        name = f"the making of {folder.relative_to(self.root)}"
        with locks.write_lock(folder.with_name(f"{folder.name}.lock"), name, _say):
            hashes = file_hashes(folder, None)
            if not record.is_file() or record.read_text() != listing_digest(hashes):
                write(folder, data, self.root)
                hashes = file_hashes(folder, None)
                write_bytes(record, listing_digest(hashes).encode())
        return Silos.open(folder, listing_digest(hashes), hashes)

    @property
    def manifest(self) -> Manifest:
        """What the data folder says of itself."""
        return self.silos.manifest

    def workers(self) -> AbstractContextManager["Workers"]:
        """Where params say that tasks run."""
        from tasks.execution.open_workers import open_workers

        where = self.params.runner
        return open_workers(where.kind, where.workers, where.address, _say)

    def training_setup(self, seed: int) -> "TrainingSetup":
        """What every method of a seed is given."""
        from flows.experiment.training_setup import training_setup

        return training_setup(self.params, self.silos, self.device, seed, self.root)

    @property
    def sampler(self) -> "Sampler":
        """Who is called in a round, as params say."""
        from flows.experiment.training_setup import client_sampler

        return client_sampler(self.params.clients)

    @property
    def quantity(self) -> TaskMetrics:
        """What runs are judged by; `setup` has checked that objective and data are of one task."""
        regression = self.params.training.objective.kind == "squared_error"
        quantity = TASK_METRICS["regression" if regression else "classification"]
        return quantity.with_metrics([metric.kind for metric in self.params.evaluation.metrics])

    def private(self, folder: Path) -> ClientStore:
        """Where clients keep what is theirs in this run: beside the rows, outside of data/, which is versioned."""
        return ClientStore(str(self._own / folder.relative_to(self.runs)))

    @property
    def ledgers(self) -> ClientStore:
        """Where clients remember what they told in all runs; of a sweep's partitions each has clients of its own."""
        return ClientStore(str(self._own / ".partitions" / self.silos.version if self.derived else self._own))

    @property
    def _own(self) -> Path:
        return (self.scratch or self.root) / "private" / self.params.data.name

    @property
    def device(self) -> str:
        """The device that clients are computed on; UserError if it is asked for and not there."""
        import torch

        asked = self.params.engine.device
        there = torch.cuda.is_available()
        if asked == "cuda" and not there:
            raise UserError("params.yaml: engine.device is cuda, and torch sees no GPU; use auto or cpu.")
        return "cuda" if asked == "cuda" or (asked == "auto" and there) else "cpu"


_shared: ContextVar[Project | None] = ContextVar("shared", default=None)
"""The project of the command, or of the flow, that is calling a flow: the flow's own parameters are plain JSON."""


@contextmanager
def exclusive_data_access(root: Path, name: str) -> Iterator[None]:
    """Nobody works on data/ of this project meanwhile; UserError, with its name, where somebody does."""
    with locks.write_lock(_locks(root), name, _say):
        recover(root)
        yield


def new_experiment(project: Project, kind: str, about: dict[str, Any], name: str | None = None) -> str:
    """A folder for a set of runs; if a person has not named it, its name has the time in it and cannot collide."""
    started = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    name = name or f"{kind}-{started}-{secrets.token_hex(2)}"
    write_json(project.runs / name / "experiment.json", {"kind": kind, "name": name, "started": started, **about})
    return name


def newest_experiment(project: Project, kind: str, inside: str = "") -> str | None:
    """The last started set of runs of this kind (that holds the run `inside`)."""
    started = {}
    for path in project.runs.glob("*/experiment.json"):
        if not inside or (path.parent / inside / "run.json").is_file():
            name = path.parent.name
            ours = UNNAMED.fullmatch(name)
            about = {"kind": ours[1], "started": ours[2]} if ours else experiment(project, name)
            if about["kind"] == kind:  # the second, and then the file's time: the random end of a name says nothing
                started[name] = (about["started"], path.stat().st_mtime_ns)
    return max(started, key=started.__getitem__, default=None)


def experiment(project: Project, name: str) -> dict[str, Any]:
    """What `new_experiment` wrote."""
    path = project.runs / name / "experiment.json"
    about: dict[str, Any] | None = read_json(path, RESTORE_ADVICE, ("kind", "name"))
    if about is None:
        raise UserError(f"{path} is missing; {RESTORE_ADVICE}.")
    return about


@contextmanager
def scratch_dir(folder: Path) -> Iterator[Path]:
    """The folder, empty, gone afterwards; a killed process leaves it until the next one comes. UserError beside another."""
    with locks.exclusive_lock(folder):
        try:
            _empty(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _locks(root: Path) -> Path:
    return root / "runs" / "locks"


def _say(line: str) -> None:
    progress.current().say(line)


def _empty(folder: Path) -> None:
    """But for the lock."""
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
