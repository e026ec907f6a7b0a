"""Connect to MLflow's store, create it, and find runs and artifacts in it that no process uses any more.

This module is separate because a command that imports it has MLflow imported while its server starts.
"""

import contextlib
import logging
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from silos.errors import UserError
from silos.io.addresses import mask_passwords, must_be_reachable
from silos.io.memory_and_disk import file_system
from tasks.tracking.json_io import plain_path, read_json
from tasks.tracking.mlflow_logging.mlflow_records import SAVED_VIEW, Experiment

if TYPE_CHECKING:  # MLflow takes seconds to import
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.store.entities import PagedList
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

_Found = TypeVar("_Found")

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_LOG_UV_FILES": "false",
    "MLFLOW_MODEL_CATALOG_URI": "",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # of every run, if the store is a server
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
}


def tracking_uri(root: Path, configured: str | None) -> str:
    """Return the address of params.yaml, else of MLflow's own variable, else of the database in runs/."""
    return configured or os.environ.get("MLFLOW_TRACKING_URI") or own_store(root)


def is_server(uri: str) -> bool:
    """Return whether the store is a running MLflow server, which has a page."""
    return uri.startswith(("http://", "https://"))


def own_store(root: Path) -> str:
    """Return the address of the database in this folder's runs/."""
    return f"sqlite:///{plain_path(root / 'runs' / 'mlflow.db')}"


def database_stamp(uri: str) -> dict[str, list[int]] | None:
    """Return what a write to this SQLite database changes: size and time of its files; None for another store.

    Take it before a read: then a later write either changes the stamp, or the read has seen it.
    """
    if not uri.startswith("sqlite:///") or "?" in uri:
        return None
    file = uri.removeprefix("sqlite:///")
    found = {end: Path(f"{file}{end}") for end in ("", "-wal", "-journal")}
    states = {end: path.stat() for end, path in found.items() if path.is_file()}
    return {end: [state.st_size, state.st_mtime_ns] for end, state in states.items() if state.st_size}


_creating = threading.Lock()
_placed: set[Path] = set()  # databases whose artifacts were looked for
_changing_store = threading.Lock()


def import_mlflow() -> None:
    """Import quietly, at an idle moment, what logging to a database needs."""
    _set_quiet()
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def connect(uri: str) -> "MlflowClient":
    """Return a quiet MLflow client of this store."""
    _set_quiet()
    if is_server(uri):
        must_be_reachable(uri)
    import mlflow

    for logger in ("mlflow", "alembic", "urllib3"):  # a busy store is no news to the user
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    if uri.startswith("sqlite:///") and "?" not in uri:  # an address with options is the user's own database
        with _creating:
            path = Path(uri.removeprefix("sqlite:///"))
            _create_database(path)
            if (database := path.absolute()) not in _placed:
                with contextlib.suppress(sqlite3.Error):  # MLflow itself says what is wrong with its database
                    _follow_move(database)
                    _placed.add(database)
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)  # not that of MLFLOW_REGISTRY_URI


def make_database(uri: str) -> None:
    """Create MLflow's database unless it exists; UserError if MLflow cannot open it."""
    try:
        connect(uri)
    except UserError:
        raise
    except Exception as error:  # MLflow's own, of another version's database, or SQLAlchemy's
        raise UserError(
            f"{describe_problem(uri, error)}. Run `mlflow db upgrade`, or move the file away. MLflow then lacks earlier "
            "runs and registered models, but results stay in runs/."
        ) from None


@contextlib.contextmanager
def short_timeouts() -> Iterator[None]:
    """Give up soon on a server that does not answer, because the user waits at a terminal."""
    soon = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    before = {name: os.environ.get(name) for name in soon}
    os.environ.update(soon)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def check_server(uri: str) -> None:
    """Raise UserError within seconds if no MLflow server at this address grants access."""
    try:
        with short_timeouts():
            connect(uri).search_experiments(max_results=1)
    except UserError:
        raise
    except Exception as error:
        problem = _server_problem(error) or "does not respond"
        advice = "Start it, or change MLFLOW_TRACKING_URI, or tracking.uri in params.yaml"
        raise UserError(f"MLflow at {mask_passwords(uri)} {problem}. {advice}.") from None


def describe_problem(uri: str, error: Exception) -> str:
    """Describe a problem with the store as the start of a sentence: an absent server, denied access, or MLflow's message."""
    if isinstance(error, UserError):
        return f"MLflow at {mask_passwords(uri)} cannot be reached ({str(error).rstrip('.')})"
    if uri.startswith("sqlite:///") and "disk is full" in str(error):
        file = Path(uri.removeprefix("sqlite:///"))
        return f"MLflow cannot write {file}: the file system {file_system(file.parent)} is full"
    problem = _server_problem(error) if is_server(uri) else None
    if problem is None:
        first_line = (str(error).splitlines() or [""])[0].strip().removesuffix(".")
        message = (
            first_line
            if len(first_line) <= _MOST_CHARACTERS
            else f"{first_line[:_MOST_CHARACTERS].rpartition(' ')[0]} …"
        )
        problem = f"fails ({type(error).__name__}{': ' if message else ''}{message})"
    return mask_passwords(f"MLflow at {uri} {problem}")


def _server_problem(error: Exception) -> str | None:
    """Describe a server's error response or its absence; None for an error that is not the server's."""
    code = re.search(r"error code (\d+)", str(error))
    if code and code[1] in _DENIED:
        return "needs MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or other values of them"
    if code:
        return f"responds with code {code[1]}, unlike MLflow"
    return "does not respond" if any(map(_is_away, _causes(error))) else None


def _is_away(error: BaseException) -> bool:
    from requests.exceptions import ConnectionError, Timeout

    return isinstance(error, ConnectionError | Timeout) or "failed with exception" in str(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


OWNER = "siloflow.project"
"""The tag of an experiment with the random id of its project."""


def usable_experiment(client: "MlflowClient", wanted: Experiment) -> tuple[str, str | None]:
    """Find the experiment for runs: the first of `name`, `name-2`, ... that is not deleted or another project's.

    Returns:
        Its name and its id; the id is None if the experiment has to be created.
    """
    name, suffix = wanted.name, 1
    while (experiment := client.get_experiment_by_name(name)) is not None and (
        experiment.lifecycle_stage != "active" or wanted.owner not in ("", experiment.tags.get(OWNER))
    ):
        suffix += 1
        name = f"{wanted.name}-{suffix}"
    return name, None if experiment is None else str(experiment.experiment_id)


def find_run(client: "MlflowClient", experiment: str, tag: str) -> "Run | None":
    """Return the run that has this tag `siloflow.run`; None if there is none."""
    runs = client.search_runs([experiment], f"tags.`siloflow.run` = '{tag}'", max_results=1)
    return runs[0] if runs else None


def views(uri: str, wanted: Experiment) -> dict[str, str]:
    """Return for each saved view of the project's experiment the end of its address on MLflow's page.

    Empty if there is none, or the store does not answer soon. MLflow ignores a view if its address also has a filter.
    """
    try:
        with short_timeouts():
            client = connect(uri)
            _, number = usable_experiment(client, wanted)
            tags = client.get_experiment(number).tags if number else {}
    except Exception:
        return {}
    names = [tag.removeprefix(SAVED_VIEW) for tag in tags if tag.startswith(SAVED_VIEW)]
    return {name: f"#/experiments/{number}/runs?{TRAINING}&viewStateShareKey={name}" for name in names}


TRAINING = "workflowType=machine_learning"
"""The part of an address without which MLflow opens its pages for language models."""


_MOST_CHARACTERS = 200  # of MLflow's message
_DENIED = {"401", "403"}


def _set_quiet() -> None:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def _create_database(path: Path) -> None:
    """Create the database in a temporary file and link it into place, unless another process was faster.

    MLflow creates its tables one by one, and a process killed between two would leave a database that never opens
    again.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new, copy = (path.with_name(f".{path.name}.{os.getpid()}.{ending}") for ending in ("new", "copy"))
    new.unlink(missing_ok=True)
    # the artifact folder of the default experiment, as a URI: MLflow's SQL breaks with ' and " in a path
    SqlAlchemyStore(f"sqlite:///{new}", Path("mlruns").absolute().as_uri())
    shutil.copyfile(new, copy)
    with contextlib.suppress(FileExistsError):
        os.link(copy, path)
    new.unlink()
    copy.unlink()


_FOLDERS = {
    "experiments": ["artifact_location"],
    "runs": ["artifact_uri"],
    "logged_models": ["artifact_location"],
    "model_versions": ["source", "storage_location"],
}
"""The columns of MLflow's database with folders of artifacts, by table."""


def _follow_move(database: Path) -> None:
    """Correct the folders of artifacts, which MLflow stores as absolute ones, after a project was moved or copied.

    Only experiments of the project are changed, whose artifacts lie next to the database.
    """
    project, artifacts = read_json(database.with_name("mlflow.json")), database.parent / "artifacts"
    if project is None or not artifacts.is_dir():
        return
    columns = "artifact_location from experiments join experiment_tags using (experiment_id)"
    of_project = f"select {columns} where key = ? and value = ?"
    # opened to be written only if needed: closing it then may write what others left in its log
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=30)) as reading:
        known = [old for (old,) in reading.execute(of_project, (OWNER, project["id"]))]
    moved = {}
    for old in known:
        start, _, name = old.rpartition("/")
        folder = artifacts / unquote(name)
        if start.endswith("/artifacts") and folder.is_dir() and old != folder.as_uri() and not _is_same(old, folder):
            moved[old] = folder.as_uri()
    if not moved:
        return
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as writing, writing:
        for old, new in moved.items():
            for table, column in ((table, column) for table, columns in _FOLDERS.items() for column in columns):
                change = (
                    f"update {table} set {column} = ? || substr({column}, ?) where substr({column} || '/', 1, ?) = ?"
                )
                writing.execute(change, (new, len(old) + 1, len(old) + 1, f"{old}/"))


def _is_same(uri: str, folder: Path) -> bool:
    """Return whether a file:// address is this folder, perhaps by another path: runs/ may be a link."""
    try:
        return folder.samefile(unquote(uri.removeprefix("file://")))
    except OSError:  # there is no such folder, or another user's
        return False


def start_system_metrics(uri: str, run_id: str | None) -> "SystemMetricsMonitor":
    """Start the thread that logs processor, memory, disk, network and GPU of the machine to this run every 10 seconds."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=uri)
    monitor.start()
    return monitor


@contextlib.contextmanager
def as_current(uri: str, run_id: str) -> Iterator[None]:
    """Make this run the thread's current run, for parts of MLflow that need one."""
    import mlflow

    set_current_store(uri)
    with mlflow.start_run(run_id=run_id):
        yield


def set_current_store(uri: str) -> None:
    """Make this store MLflow's current one in this process; MLFLOW_TRACKING_URI keeps its value.

    MLflow itself sets the variable to this store, to which the next project without a `tracking.uri` would then log.
    """
    import mlflow

    with _changing_store:
        before = os.environ.get("MLFLOW_TRACKING_URI")
        try:
            mlflow.set_tracking_uri(uri)
        finally:
            if before is None:
                os.environ.pop("MLFLOW_TRACKING_URI", None)
            elif os.environ.get("MLFLOW_TRACKING_URI") != before:  # other threads read it
                os.environ["MLFLOW_TRACKING_URI"] = before


_DELETED, _ALL = 2, 3  # MLflow's ViewType


def mark_killed(uri: str, wanted: Experiment, ours: Mapping[str, Callable[[], bool]]) -> tuple[list[str], bool]:
    """Set the status KILLED for runs on which no process works.

    Args:
        uri: The address of MLflow's store.
        wanted: The project's experiment.
        ours: The tags `siloflow.run` of the project's runs, and whether a process works on the run.

    Returns:
        The names of these runs, and whether MLflow answered. Runs without such a tag are unchanged.
    """
    names = []
    try:
        with short_timeouts():
            client = connect(uri)
            _, number = usable_experiment(client, wanted)
            for run in client.search_runs([number], "attributes.status = 'RUNNING'") if number else []:
                is_active = ours.get(run.data.tags.get("siloflow.run", ""))
                if is_active is not None and not is_active():
                    client.set_terminated(run.info.run_id, "KILLED")
                    names.append(run.info.run_name)
    except Exception:  # from MLflow, its HTTP library or SQLAlchemy: the next command tries again
        return names, False
    return names, True


def artifacts_of_deleted_runs(root: Path) -> list[Path]:
    """Return the folders in runs/artifacts/ of runs that were deleted in this folder's own MLflow store."""
    folders = {folder.name: folder for folder in sorted((root / "runs" / "artifacts").glob("*/*")) if folder.is_dir()}
    if not folders or not (root / "runs" / "mlflow.db").is_file():
        return []
    client = connect(own_store(root))
    experiments = [experiment.experiment_id for experiment in client.search_experiments(view_type=_ALL)]
    if not experiments:
        return []
    deleted = all_pages(partial(client.search_runs, experiments, run_view_type=_DELETED, max_results=1000))
    return [folders[run.info.run_id] for run in deleted if run.info.run_id in folders]


def all_pages(search: "Callable[..., PagedList[_Found]]") -> "Iterator[_Found]":
    """Yield what a search of MLflow's client finds, of which each call returns one page."""
    page = search()
    yield from page
    while page.token:
        page = search(page_token=page.token)
        yield from page
