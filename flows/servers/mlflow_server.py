"""MLflow's page: a server of our own over the project's store, or the one that the store is.

Our own is behind a guard that watches a pipe from us and ends it when the pipe closes, so that even a kill -9 leaves no
orphan. Its output goes to a file.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from silos.errors import UserError
from tasks.tracking.error_messages import without_login
from tasks.tracking.mlflow_logging.connection import connect, must_answer

# ends the server and its children; they are one process group
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


class ServerElsewhere:
    """The server that the store is; it is not ours to end."""

    def __init__(self, uri: str) -> None:
        """UserError if it does not answer."""
        must_answer(uri)
        self.log = Path()  # it is not ours
        self.page = without_login(uri)

    def wait(self) -> None:
        """It answers."""

    def alive(self) -> bool:
        """Return True: whether it goes on is for others to see."""
        return True

    def stop(self) -> None:
        """It goes on."""


class MlflowServer:
    """A server over a database, at this port of loopback."""

    def __init__(self, root: Path, uri: str, port: int) -> None:
        self.page = f"http://127.0.0.1:{port}"
        self.log = root / "runs" / "mlflow-ui.log"
        self.log.parent.mkdir(exist_ok=True)
        connect(uri)
        settings = {
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes that judge language models
            "MLFLOW_BACKEND_STORE_URI": uri,  # everybody on the machine sees a command line, and there may be a password
        }
        command = [sys.executable, "-c", _GUARD, sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        with self.log.open("wb") as log:
            self._guard = subprocess.Popen(
                [*command, "--port", str(port), "--workers", "1"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **settings},
                cwd=root,
                start_new_session=True,
            )

    def wait(self, patience: float = 120.0) -> None:
        """Until it answers; UserError if it does not."""
        start, url = time.monotonic(), f"{self.page}/health"
        while time.monotonic() - start < patience and self._guard.poll() is None:
            try:
                urllib.request.urlopen(url, timeout=2).close()
                return
            except OSError:
                time.sleep(0.1)
        raise UserError(f"MLflow's page does not answer at {url}; see {self.log}, or choose another --mlflow-port.")

    def alive(self) -> bool:
        """Return whether it has not ended by itself."""
        return self._guard.poll() is None

    def stop(self) -> None:
        """Ends it and its children; a second ctrl-C does not interrupt that."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
