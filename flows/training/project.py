"""Opens a project's folder: its params, its data checked against data.dvc, and the folders of its runs."""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flows.core.config.load_config import ParamsFile, quantity_of
from flows.core.config.params_schema import Params
from flows.core.console import progress
from flows.core.plugin_loader import PluginFiles, Plugins
from flows.methods.method_settings import check_names
from flows.plugins import FIGURES
from models.metrics.base_metrics import TaskMetrics
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import UserError
from silos.io import locks
from silos.io.atomic_io import write_bytes
from silos.plugin_registry import Registered, bind_options
from silos.sources.source_registry import content_hashes
from silos.standardizer import NO_STANDARDIZATION, Standardization
from silos.storage.manifest import Manifest
from silos.storage.partition_store import write
from silos.versioning import data_versions, dvc_files
from silos.versioning.data_versions import recover
from silos.versioning.hashing import code_digest, file_hashes, listing_digest
from tasks.tracking.json_io import RESTORE_ADVICE, read_json, write_json
from tasks.tracking.mlflow_logging.mlflow_records import Experiment
from tasks.tracking.result_types.run_files import ExperimentRecord

if TYPE_CHECKING:
    from flows.methods.client_sampler import Sampler
    from flows.methods.round_context import TrainingSetup
    from tasks.execution.worker_backends import Workers


_MOST_OF_NAME = 200  # characters
SOURCE_HASHES = Path("runs") / "sources.json"
"""The hashes of the files that each partition was made from."""
UNNAMED = re.compile(r"([a-z]+)-(\d{8}-\d{6})-[0-9a-f]{4}")
"""The name of a set of runs that the user did not name: its kind, its start time, and a random suffix."""


Value = TypeVar("Value")


@dataclass
class _Checked:
    """Caches what a command has computed of a project while its data cannot change; derived projects share it."""

    locks: int = 0
    results: dict[Hashable, Any] = field(default_factory=dict)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Drop results from before data/ was locked: the data may have changed since."""
        if not self.locks:
            self.results.clear()
        self.locks += 1
        try:
            yield
        finally:
            self.locks -= 1


@dataclass(frozen=True)
class Project:
    """Holds the folder of params.yaml as one command opened it: typed params, checked data, and the folder of runs.

    A command opens it, and passes it on, also to flows that run inside others. A project that differs in a few overrides
    is derived by `with_overrides` or `derive`, without reading params.yaml or checking the data again.

    Data are checked against data.dvc at their first use, and again by the outermost `working`, since another process
    may have changed them before. Inside `working`, nothing is checked or computed twice (`once`).

    Attributes:
        derived: Whether the data come from the cache of partitions, instead of data/.
        scratch: The folder that stores what runs leave, instead of the project's own.
        scaling: The standardization that a run's clients agreed on.
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
        """Check the content of params.yaml of this folder; UserError says what to change."""
        check_names(file.params)
        return cls(root, file.params, derived, file=file)

    @property
    def overrides(self) -> list[str]:
        """Return the overrides that the project was opened with, and then those of `with_overrides`."""
        return list(self._own_file().overrides)

    @property
    def params_as_read(self) -> dict[str, Any]:
        """Return the plain content of params.yaml as the command read it, without overrides."""
        return self._own_file().as_read.raw

    def with_overrides(self, overrides: Sequence[str]) -> "Project":
        """Derive the project with more overrides: the same object for the same overrides while data/ is locked."""
        if not overrides:
            return self

        def derive() -> "Project":
            file = self._own_file().with_overrides(overrides)
            return replace(self, params=Project.of(file, self.root).params, file=file)

        return self.once(("with_overrides", *overrides), derive)

    def derive(self, overrides: Sequence[str], derived: bool) -> "Project":
        """Derive the project with `overrides` instead of its own, and without a standardization; see `open`.

        It comes from the same reading of params.yaml, and is the same object for the same overrides while data/ is locked.
        """

        def make() -> "Project":
            file = self._own_file().as_read.with_overrides(overrides)
            return replace(Project.of(file, self.root, derived), scratch=self.scratch, _checked=self._checked)

        return self if self._is_like(overrides, derived) else self.once(("derive", derived, *overrides), make)

    def _is_like(self, overrides: Sequence[str], derived: bool) -> bool:
        return (self.overrides, self.derived, self.scaling) == (list(overrides), derived, NO_STANDARDIZATION)

    def with_data_seed(self, seed: int) -> "Project":
        """Derive the project with the partition of another data seed, from the cache of partitions."""
        return self.derive([*self.overrides, f"data.seed={seed}"], derived=True)

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
        return params, self.derived, self.scratch, self.scaling

    def _own_file(self) -> ParamsFile:
        assert self.file is not None, "the project was opened from its params.yaml"
        assert self.params is self.file.params, "its params are those of the file"
        return self.file

    @property
    def plugins(self) -> Plugins:
        """Return what the plugin files of params.yaml registered when the command ran them."""
        return self.params.loaded

    @property
    def plugin_files(self) -> PluginFiles:
        """Return the plugin files that the command has run."""
        return self.file.plugin_files if self.file is not None else PluginFiles(self.root)

    @property
    def figures(self) -> list[Callable[..., Any]]:
        """Return the functions that draw the figures that params name."""
        sections = self.params.figures
        return [
            bind_options(section) if isinstance(section, Registered) else FIGURES.find(section.kind)
            for section in sections
        ]

    @property
    def metrics(self) -> dict[str, Callable[..., Any]]:
        """Return the plugin metrics of rows that params name: each maps logits and y to a value for each row."""
        sections = self.params.evaluation.metrics
        return {s.kind: bind_options(s) for s in sections if not isinstance(s.entry.target, type)}

    @property
    def runs(self) -> Path:
        """Return the folder of all runs."""
        return (self.scratch or self.root) / "runs"

    @property
    def tracking(self) -> str:
        """Return the address of MLflow's store."""
        from tasks.tracking.mlflow_logging.connection import own_store, tracking_uri

        return tracking_uri(self.root, self.params.tracking.uri) if self.scratch is None else own_store(self.scratch)

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

    @property
    def silos(self) -> Silos:
        """Return the data; UserError unless they are what data.dvc records and params.yaml describes."""
        return self.once("silos", lambda: replace(self._verified(), scaling=self.scaling))

    @property
    def scored(self) -> Silos:
        """Return the clients whose rows models are scored on: all, or `evaluation.clients` of each role.

        They are sampled by the data's seed, so they are the same for every method and seed.
        """
        from flows.methods.client_sampler import evaluation_clients

        clients = self.params.evaluation.clients
        if clients == "all":
            return self.silos
        return self.once("scored", lambda: evaluation_clients(self.silos, clients, self.params.data.seed))

    def _verified(self) -> Silos:
        """Check the data once for all projects that share them, whatever else they differ in."""
        key = ("verified", self.derived, tuple(self.params.plugins), self.params.data.model_dump_json())
        if key not in self._checked.results:
            self._checked.results[key] = self._derived() if self.derived else self._recorded()
        silos: Silos = self._checked.results[key]
        return silos

    def _recorded(self) -> Silos:
        name = self.params.data.name
        with locks.wait_for_writer(_locks(self.root), _print):
            recover(self.root)
            hashes = dvc_files.verify(self.root, name, self.root / "runs" / "hashes.json")
            silos = Silos.open(self.root / "data" / name, str(dvc_files.recorded_version(self.root)), hashes)
        dvc_files.must_match_params(silos.manifest, self.params.data)
        return silos

    def is_source_changed(self) -> bool:
        """Return whether a file of the source differs from what data/ was made from, or whether that is unknown."""
        data = self.params.data
        made_from = (read_json(self.root / SOURCE_HASHES) or {}).get(data.name, {})
        return bool(content_hashes(data.source, self.root) != made_from)

    def same_rows(self, first: str, second: str) -> bool:
        """Return whether this project's partition is equal in two data versions; other partitions may differ."""
        return first == second or (
            not self.derived and data_versions.same_rows(self.root, self.params.data.name, first, second)
        )

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Protect data/ from changes; a process that would change it is refused with `name`. May be nested."""
        lock = nullcontext() if self.derived else locks.read_lock(_locks(self.root), name, _print)
        with lock, self._checked.locked():
            yield

    def _derived(self) -> Silos:
        """Return a partition of a sweep, outside of data/: made once for its recipe, the source's files, and our code.

        A changed partition is made again. Other processes that need it wait meanwhile.
        """
        data = self.params.data
        steps: list[Any] = [step for step in data.scheme if isinstance(step, Registered)]
        digests = [step.entry.digest for step in steps]
        recipe = json.dumps(
            [data.recipe(), content_hashes(data.source, self.root), code_digest(), *digests], sort_keys=True
        )
        folder = self.root / "cache" / "partitions" / hashlib.sha256(recipe.encode()).hexdigest()[:16]
        record = folder.with_name(f"{folder.name}.version")
        name = f"the making of {folder.relative_to(self.root)}"
        with locks.write_lock(folder.with_name(f"{folder.name}.lock"), name, _print):
            hashes = file_hashes(folder, None)
            if not record.is_file() or record.read_text() != listing_digest(hashes):
                write(folder, data, self.root)
                hashes = file_hashes(folder, None)
                write_bytes(record, listing_digest(hashes).encode())
        return Silos.open(folder, listing_digest(hashes), hashes)

    @property
    def manifest(self) -> Manifest:
        """Return the manifest of the data folder."""
        return self.silos.manifest

    def workers(self) -> AbstractContextManager["Workers"]:
        """Open the workers that params name."""
        from tasks.execution.open_workers import open_workers

        runner = self.params.runner
        return open_workers(runner.kind, runner.workers, runner.address, _print)

    def training_setup(self, seed: int) -> "TrainingSetup":
        """Return what every method of a seed trains with."""
        from flows.training.training_setup import check_metric, training_setup

        self.once("metric is defined", lambda: check_metric(self.params, self.quantity, self.scored))
        return training_setup(self.params, self.silos, self.device, seed, self.root)

    @property
    def sampler(self) -> "Sampler":
        """Return the sampler of a round's clients that params name."""
        from flows.training.training_setup import client_sampler

        return client_sampler(self.params.clients)

    @property
    def quantity(self) -> TaskMetrics:
        """Return the metric that params choose; `training_setup` checks that objective and data have the same task."""
        return self.once("quantity", lambda: quantity_of(self.params))

    def private(self, folder: Path) -> ClientStore:
        """Return the store of clients' private state in this run; it is outside of data/, which is versioned."""
        return ClientStore(str(self._client_folder / folder.relative_to(self.runs)))

    @property
    def ledgers(self) -> ClientStore:
        """Return where clients record what they reported in all runs; each partition of a sweep has its own ledgers."""
        return ClientStore(
            str(self._client_folder / ".partitions" / self.silos.version if self.derived else self._client_folder)
        )

    @property
    def _client_folder(self) -> Path:
        return (self.scratch or self.root) / "private" / self.params.data.name

    @property
    def device(self) -> str:
        """Return the device that computes clients; UserError if params name a missing one."""
        import torch

        device = self.params.engine.device
        is_available = torch.cuda.is_available()
        if device == "cuda" and not is_available:
            raise UserError(
                "params.yaml: engine.device: got cuda, expected auto or cpu, since torch finds no "
                "GPU. Use one of these."
            )
        return "cuda" if device == "cuda" or (device == "auto" and is_available) else "cpu"


@contextmanager
def exclusive_data_access(root: Path, name: str) -> Iterator[None]:
    """Lock data/ of this project for writing; UserError if another process works on it, with that process's name."""
    with locks.write_lock(_locks(root), name, _print):
        recover(root)
        yield


def new_experiment(project: Project, kind: str, about: dict[str, Any], name: str | None = None) -> str:
    """Create the folder of a set of runs; without a name from the user, a unique one with the time is generated.

    A random tag, written before MLflow's run of the set exists, lets a killed process find that run again.
    """
    from prefect.runtime import flow_run  # here: `siloflow show` and `data` need no Prefect

    started = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    name = name or f"{kind}-{started}-{secrets.token_hex(2)}"
    tag = secrets.token_hex(8)
    record = {"kind": kind, "name": name, "started": started, "tag": tag, "flow_run": flow_run.id}
    record |= {"overrides": project.overrides, **about}
    write_json(project.runs / name / "experiment.json", record)
    return name


def newest_experiment(project: Project, kind: str, inside: str = "") -> str | None:
    """Return the set of runs of this kind that was started last.

    With `inside`, it is the last of those that hold such a run unfinished, begun with the same overrides, or else of those
    that hold it.
    """
    started = {}
    for path in project.runs.glob("*/experiment.json"):
        if not inside or (path.parent / inside / "run.json").is_file():
            name = path.parent.name
            unnamed = UNNAMED.fullmatch(name)
            info = {"kind": unnamed[1], "started": unnamed[2]} if unnamed else experiment(project, name)
            if info["kind"] == kind:  # by second, then by the file's time: a name ends randomly
                continues = bool(inside) and _continues(project, path, inside)
                started[name] = (continues, info["started"], path.stat().st_mtime_ns)
    return max(started, key=started.__getitem__, default=None)


NOT_OF_RUN = frozenset(
    ("advise", "callbacks", "comparison", "diagnose", "figures", "plugins", "retention", "runner", "tracking", "watch")
)
"""Sections of params.yaml that may change when a run is resumed: they change no weight, and no metric in its journal."""


def _of_run(overrides: Sequence[str]) -> set[str]:
    """Return the overrides that a resumed run must have again."""
    return {override for override in overrides if override.partition("=")[0].partition(".")[0] not in NOT_OF_RUN}


def _continues(project: Project, experiment: Path, run: str) -> bool:
    """Return whether this run is not finished, and was begun with the project's overrides, or by an earlier version."""
    files = (experiment, experiment.parent / run / "result.json")
    try:
        begun, result = (read_json(file) for file in files)
    except UserError:  # a damaged file: if it is of the newest, who opens the run gets the way out
        return False
    now = _of_run(project.overrides)
    same = begun is None or "overrides" not in begun or _of_run(begun["overrides"]) == now
    return same and (result is None or result.get("mlflow_run_id") is None)


def begun_before(project: Project, kind: str) -> str | None:
    """Return the set of runs that this flow run of Prefect began before its Retry; None if it began none."""
    from prefect.runtime import flow_run

    if flow_run.run_count < 2:
        return None
    for path in project.runs.glob("*/experiment.json"):
        info = read_json(path) or {}
        if (info.get("kind"), info.get("flow_run")) == (kind, flow_run.id):
            return path.parent.name
    return None


def experiment(project: Project, name: str) -> ExperimentRecord:
    """Read what `new_experiment` wrote."""
    path = project.runs / name / "experiment.json"
    info: ExperimentRecord | None = read_json(path, RESTORE_ADVICE, ("kind", "name"))
    if info is None:
        raise UserError(f"{path} is missing. {RESTORE_ADVICE}.")
    return info


def is_of_other_partition(project: Project, run: Path, version: str) -> bool:
    """Return whether a run in this folder was trained on a partition of the cache with this version, not on data/."""
    about = experiment(project, run.parent.name)
    return about["kind"] == "reproduce" or not project.same_rows(about.get("data_version", version), version)


@contextmanager
def scratch_dir(folder: Path) -> Iterator[Path]:
    """Provide an empty folder, which is deleted afterwards; the next call empties what a killed process left.

    Raises:
        UserError: If another process uses the folder.
    """
    with locks.exclusive_lock(folder):
        try:
            _empty(folder)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _locks(root: Path) -> Path:
    return root / "runs" / "locks"


def _print(line: str) -> None:
    progress.current().say(line)


def _empty(folder: Path) -> None:
    """Delete all folders inside, and so keep the lock file."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
