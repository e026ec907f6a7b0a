"""MLflow's store: where it is, how it is made whole, and a quiet client of it.

Runs of MLflow's store whose process is gone, and the artifacts of runs that were deleted there.

A file of its own: a command that imports `connection` has MLflow imported while its server starts.
"""

import contextlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from silos.errors import UserError
from silos.io.proxies import must_be_reachable
from tasks.tracking.error_messages import file_system, masked
from tasks.tracking.json_io import plain_path

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
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # of every run, where the store is a server
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
}


def tracking_uri(root: Path, configured: str | None) -> str:
    """params.yaml first, then MLflow's own variable, then a database beside the runs."""
    return configured or os.environ.get("MLFLOW_TRACKING_URI") or own_store(root)


def is_server(uri: str) -> bool:
    """Whether the store is a server of MLflow that somebody has started, with a page of its own."""
    return uri.startswith(("http://", "https://"))


def own_store(root: Path) -> str:
    """The database beside the runs of this folder."""
    return f"sqlite:///{plain_path(root / 'runs' / 'mlflow.db')}"


_creating = threading.Lock()


def import_mlflow() -> None:
    """What a delivery to a database imports, quietly; for a moment at which there is nothing else to do."""
    _be_quiet()
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def connect(uri: str) -> Any:
    """A quiet MLflow client of this store."""
    _be_quiet()
    if is_server(uri):
        must_be_reachable(uri)
    import mlflow

    for logger in ("mlflow", "alembic", "urllib3"):  # a store that is only busy is no news to a person
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    if uri.startswith("sqlite:///") and "?" not in uri:  # with options, it is a user's own
        with _creating:
            _create_whole(Path(uri.removeprefix("sqlite:///")))
    return mlflow.MlflowClient(tracking_uri=uri)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Meanwhile a server that does not answer is given up soon: somebody waits at a terminal."""
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


def must_answer(uri: str) -> None:
    """UserError, within seconds, if there is no server of MLflow that lets us in."""
    try:
        with impatient():
            connect(uri).search_experiments(max_results=1)
    except UserError:
        raise
    except Exception as error:
        said = _of_server(error) or "does not answer"
        way_out = "start it, or change MLFLOW_TRACKING_URI, or tracking.uri in params.yaml"
        raise UserError(f"MLflow at {masked(uri)} {said}; {way_out}.") from None


def trouble(uri: str, error: Exception) -> str:
    """What is amiss with the store, as a sentence begins: a server is away, or lets nobody in, or what MLflow says."""
    if isinstance(error, UserError):
        return f"MLflow at {masked(uri)} is not reached ({str(error).rstrip('.')})"
    if uri.startswith("sqlite:///") and "disk is full" in str(error):
        file = Path(uri.removeprefix("sqlite:///"))
        return f"MLflow cannot write {file}: the file system {file_system(file.parent)} is full"
    said = _of_server(error) if is_server(uri) else None
    if said is None:
        line = (str(error).splitlines() or [""])[0].strip().removesuffix(".")
        words = line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS].rpartition(' ')[0]} …"
        said = f"fails ({type(error).__name__}{': ' if words else ''}{words})"
    return masked(f"MLflow at {uri} {said}")


def _of_server(error: Exception) -> str | None:
    """None where it is not the answer of a server, or the lack of one."""
    code = re.search(r"error code (\d+)", str(error))
    if code and code[1] in _SHUT:
        return "lets nobody in without MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or other ones"
    if code:
        return f"answers with code {code[1]}, and not as MLflow does"
    return "does not answer" if any(map(_is_away, _behind(error))) else None


def _is_away(error: BaseException) -> bool:
    from requests.exceptions import ConnectionError, Timeout

    return isinstance(error, ConnectionError | Timeout) or "failed with exception" in str(error)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def usable_experiment(client: Any, wanted: str) -> tuple[str, str | None]:
    """Find the experiment for runs: the first of `wanted`, `wanted-2`, ... that is not deleted in MLflow.

    Returns:
        Its name and its id; the id is None if the experiment is to be made.
    """
    name, at = wanted, 1
    while (found := client.get_experiment_by_name(name)) is not None and found.lifecycle_stage != "active":
        at += 1
        name = f"{wanted}-{at}"
    return name, found and str(found.experiment_id)


def experiment_id(uri: str, name: str) -> str | None:
    """Of the experiment of this name, a deleted one too; None where there is none, or the store does not answer soon."""
    try:
        with impatient():
            found = connect(uri).get_experiment_by_name(name)
    except Exception:
        return None
    return found and str(found.experiment_id)


_MOST_WORDS = 200  # characters of what MLflow says
_SHUT = {"401", "403"}


def _be_quiet() -> None:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)


def _create_whole(path: Path) -> None:
    """MLflow makes its tables one by one, and a process killed between two leaves a database that never opens again.

    So they are made in a file of another name; a copy of it appears whole, unless another process was faster.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new, copy = (path.with_name(f".{path.name}.{os.getpid()}.{ending}") for ending in ("new", "copy"))
    new.unlink(missing_ok=True)
    # where its own experiment would keep files; as a path with ' and " in it, it would be no SQL to MLflow
    SqlAlchemyStore(f"sqlite:///{new}", Path("mlruns").absolute().as_uri())
    shutil.copyfile(new, copy)
    with contextlib.suppress(FileExistsError):
        os.link(copy, path)
    new.unlink()
    copy.unlink()


@contextlib.contextmanager
def as_current(uri: str, run_id: str) -> Iterator[None]:
    """For the parts of MLflow that only know a current run of this thread."""
    import mlflow

    mlflow.set_tracking_uri(uri)
    with mlflow.start_run(run_id=run_id):
        yield


_DELETED, _ALL = 2, 3  # MLflow's ViewType


def mark_killed(uri: str, ours: Mapping[str, Mapping[str, Callable[[], bool]]]) -> tuple[list[str], bool]:
    """Give runs on which no process works the status KILLED.

    Args:
        uri: The address of MLflow's store.
        ours: The name of each experiment, to the tags `siloflow.run` of its runs, to whether a process works on the run.

    Returns:
        The names of these runs, and whether MLflow answered. Runs without such a tag are not touched.
    """
    names = []
    try:
        with impatient():
            client = connect(uri)
            for experiment, tags in ours.items():
                _, number = usable_experiment(client, experiment)
                runs = client.search_runs([number], "attributes.status = 'RUNNING'") if number else []
                for run in runs:
                    works = tags.get(run.data.tags.get("siloflow.run"))
                    if works is not None and not works():
                        client.set_terminated(run.info.run_id, "KILLED")
                        names.append(run.info.run_name)
    except Exception:  # MLflow's, its HTTP library's or SQLAlchemy's: the next command tries again
        return names, False
    return names, True


def artifacts_of_deleted_runs(root: Path) -> list[Path]:
    """Return the folders under runs/artifacts/ of runs that were deleted in MLflow, of this folder's own store."""
    folders = {place.name: place for place in sorted((root / "runs" / "artifacts").glob("*/*")) if place.is_dir()}
    if not folders or not (root / "runs" / "mlflow.db").is_file():
        return []
    client = connect(own_store(root))
    experiments = [one.experiment_id for one in client.search_experiments(view_type=_ALL)]
    found, token = [], None
    while experiments:
        page = client.search_runs(experiments, run_view_type=_DELETED, max_results=1000, page_token=token)
        found += [folders[run.info.run_id] for run in page if run.info.run_id in folders]
        token = page.token
        if not token:
            break
    return found
