"""`siloflow ui`: MLflow's and Prefect's own pages over this project's runs, on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from flows.console.page_ports import PORT, at, must_be_free
from flows.console.prefect_server import PrefectServer
from flows.console.printing.literal_text import say
from flows.params_file import read
from silos.errors import UserError
from tasks.recording.track import VIEW, connect, tracking_uri


def serve(mlflow_port: int, prefect_port: int | None) -> None:
    """Both servers until ctrl-C; UserError if one of them does not start.

    Without a port of its own Prefect's page is the one that a schedule of this project has, if there is one.
    """
    if mlflow_port == (prefect_port or PORT):
        raise UserError(f"--mlflow-port and --prefect-port are both {mlflow_port}; give each page a port of its own.")
    must_be_free(mlflow_port, "--mlflow-port")
    root = Path().resolve()
    uri = tracking_uri(root, read(root).tracking.uri)
    (root / "runs").mkdir(exist_ok=True)
    connect(uri)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave a server behind
        signal.signal(number, signal.default_int_handler)
    prefect = PrefectServer(root, ui=True, **at(prefect_port, "--prefect-port"))
    mlflow = _mlflow(root, uri, mlflow_port)
    page = f"http://127.0.0.1:{mlflow_port}"
    try:
        prefect.wait()
        _wait(mlflow, f"{page}/health", root / "runs" / "mlflow-ui.log")
        say(f"MLflow   {page}/#/experiments?{_TRAINING}")
        newest = _newest_comparison(root, page)
        if newest:
            say(f"         {newest}  (newest comparison)")
        say(f"Prefect  {prefect.url.removesuffix('/api')}/runs")
        say("ctrl-C ends both.")
        mlflow.wait()
    except KeyboardInterrupt:
        pass
    finally:
        gone = prefect.stop()
        _stop(mlflow)
        if not gone:
            say("Prefect's server stays until the command that uses it has ended.")


_TRAINING = "workflowType=machine_learning"  # else MLflow opens on its pages for language models


def _newest_comparison(root: Path, page: str) -> str | None:
    """The address of its runs, with the columns of `tasks.recording.track.VIEW`; None if MLflow does not know it."""
    name = max((p.parent.name for p in root.glob("runs/compare-*/experiment.json")), default=None)
    if name is None:
        return None
    try:
        asked = f"{page}/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}"
        with urllib.request.urlopen(asked, timeout=10) as answer:
            experiment = json.load(answer)["experiment"]["experiment_id"]
    except (OSError, ValueError, KeyError):
        return None
    return f"{page}/#/experiments/{experiment}/runs?{_TRAINING}&viewStateShareKey={VIEW}"


# between us and MLflow's server: ends it and its children when the pipe from us closes, as a kill -9 does
_GUARD = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def watch():
    while sys.stdin.buffer.read(4096): pass
    os.killpg(0, signal.SIGTERM)
    try: server.wait(10)
    finally: os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch).start()
server.wait()
os.killpg(0, signal.SIGKILL)
"""


def _mlflow(root: Path, uri: str, port: int) -> subprocess.Popen:
    """MLflow's server behind its guard, in a process group of their own."""
    settings = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes that judge language models
        "MLFLOW_BACKEND_STORE_URI": uri,  # everybody on the machine sees a command line, and there may be a password
    }
    command = [sys.executable, "-c", _GUARD, sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    with (root / "runs" / "mlflow-ui.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--port", str(port), "--workers", "1"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **settings},
            cwd=root,
            start_new_session=True,
        )


def _wait(server: subprocess.Popen, url: str, log: Path, patience: float = 120.0) -> None:
    start = time.monotonic()
    while time.monotonic() - start < patience and server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise UserError(f"MLflow's page does not answer at {url}; see {log}, or choose another --mlflow-port.")


def _stop(guard: subprocess.Popen) -> None:
    """The server and its children; a second ctrl-C does not interrupt it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert guard.stdin is not None
    guard.stdin.close()
    guard.wait()
