"""MLflow's store: where it is, how it is made whole, and a quiet client of it."""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.recording.json_files import plain_path

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
    "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
}


def tracking_uri(root: Path, configured: str | None) -> str:
    """params.yaml first, then MLflow's own variable, then a database beside the runs."""
    return configured or os.environ.get("MLFLOW_TRACKING_URI") or own_store(root)


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
    import mlflow

    for logger in ("mlflow", "alembic"):  # a store that is only busy is no news to a person
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    if uri.startswith("sqlite:///") and "?" not in uri:  # with options, it is a user's own
        with _creating:
            _create_whole(Path(uri.removeprefix("sqlite:///")))
    return mlflow.MlflowClient(tracking_uri=uri)


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
