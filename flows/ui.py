"""`siloflow ui`: MLflow's and Prefect's own pages over this project's runs, on loopback."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from flows.params import read
from flows.server import PrefectServer
from silos.errors import UserError
from tasks.track import tracking_uri


def serve(mlflow_port: int, prefect_port: int) -> None:
    """Both servers until ctrl-C."""
    root = Path().resolve()
    uri = tracking_uri(root, read(root).tracking.uri)
    (root / "runs").mkdir(exist_ok=True)
    prefect = PrefectServer(root, ui=True, port=prefect_port)
    mlflow = _mlflow(root, uri, mlflow_port)
    try:
        prefect.wait()
        _wait(mlflow, f"http://127.0.0.1:{mlflow_port}/health", root / "runs" / "mlflow-ui.log")
        print(f"MLflow   http://127.0.0.1:{mlflow_port}", flush=True)
        print(f"Prefect  http://127.0.0.1:{prefect_port}", flush=True)
        print("ctrl-C ends both.", flush=True)
        mlflow.wait()
    except KeyboardInterrupt:
        pass
    finally:
        mlflow.terminate()
        prefect.stop()
        mlflow.wait(10)


def _mlflow(root: Path, uri: str, port: int) -> subprocess.Popen:
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    with (root / "runs" / "mlflow-ui.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--backend-store-uri", uri],
            stdout=log,
            stderr=log,
            env={**os.environ, **quiet},
            cwd=root,
        )


def _wait(server: subprocess.Popen, url: str, log: Path, patience: float = 120.0) -> None:
    start = time.monotonic()
    while time.monotonic() - start < patience and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise UserError(f"MLflow's page does not answer at {url}; see {log}, or choose another --mlflow-port.")
