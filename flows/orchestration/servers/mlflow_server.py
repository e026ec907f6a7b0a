"""Start MLflow's page for the project's store, or use the server that is the store.

A started server runs behind a guard process, which watches a pipe from this process and ends the server when the pipe
closes. So even a kill -9 leaves no orphan. Its output goes to a file.
"""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from silos.errors import UserError
from silos.io.addresses import without_login
from tasks.tracking.mlflow_logging.connection import check_server

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


class ExternalServer:
    """A running MLflow server that is the project's store; it is not stopped here."""

    def __init__(self, uri: str) -> None:
        """Connect to the server; UserError if it does not answer."""
        check_server(uri)
        self.log = Path()  # not available
        self.page = without_login(uri)

    def wait(self) -> None:
        """Return at once, because the server answered before."""

    def alive(self) -> bool:
        """Return True; the server is not watched."""
        return True

    def stop(self) -> None:
        """Leave the server running."""


class MlflowServer:
    """A started server over a database that exists, at this loopback port; its output goes to `log`."""

    def __init__(self, root: Path, uri: str, port: int, log: Path) -> None:
        self.page = f"http://127.0.0.1:{port}"
        self.log = log
        command = [sys.executable, "-c", _GUARD, sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        with log.open("wb") as output:
            self._guard = subprocess.Popen(
                [*command, "--port", str(port), "--workers", "1"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=server_environment(uri),
                cwd=root,
                start_new_session=True,
            )

    def wait(self, patience: float = 120.0) -> None:
        """Wait until the server answers; UserError if it does not."""
        start, url = time.monotonic(), f"{self.page}/health"
        while time.monotonic() - start < patience and self._guard.poll() is None:
            try:
                urllib.request.urlopen(url, timeout=2).close()
                return
            except OSError:
                time.sleep(0.1)
        raise UserError(f"MLflow's server at {url} does not respond. See {self.log}, or choose another --mlflow-port.")

    @property
    def pid(self) -> int:
        """Return the process that guards the server, its parent."""
        return self._guard.pid

    def alive(self) -> bool:
        """Return whether the server is still running."""
        return self._guard.poll() is None

    def kill(self) -> None:
        """End what is left of the server's process group if its guard was killed."""
        with suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and its children; a second ctrl-C does not interrupt this."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


def server_environment(uri: str) -> dict[str, str]:
    """Return the environment of the project's own server: of MLflow's variables, the user's reach its database only."""
    of_user = {name for name in os.environ if name.startswith("MLFLOW_") and not name.startswith(_OF_DATABASE)}
    return {
        **{name: value for name, value in os.environ.items() if name not in of_user},
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes for language models
        "MLFLOW_BACKEND_STORE_URI": uri,  # not on the command line, which all users see: it may have a password
    }


_OF_DATABASE = ("MLFLOW_MYSQL_", "MLFLOW_SQLALCHEMYSTORE_")
