"""Forks a process for each command that it is asked for, from one that has imported what they import: forking.py DESCRIPTOR

Over the socket come a command's folder, arguments, environment and network namespace, with three descriptors: its stdout,
its stderr, and where its process number and then its exit code go. What a command does and leaves is its own; what is
shared is that Python has started and modules are imported. It ends when the socket's other end is closed.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from flows import quiet_prefect
from flows.cli import main

NETWORK = 0x40000000  # CLONE_NEWNET
LONGEST = 1 << 17  # bytes of what is asked
LATE = (  # what verbs import when they come to it: each command would pay for it anew
    "IPython",  # MLflow looks whether it is in a notebook
    "alembic.command",
    "anyio._backends._asyncio",
    "dvc.repo",
    "git",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow.pyfunc",
    "mlflow.store.tracking.sqlalchemy_store",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.utilities.visualization",
    "sqlalchemy.dialects.sqlite",
)


def serve(asked: socket.socket) -> None:
    """A process for each command, until the other end is closed."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not asked:
                    waiting.unregister(key.fileobj)
                    _tell(key.fd, *key.data)
                    continue
                message, given, *_ = socket.recv_fds(asked, LONGEST, 3)
                if not message:
                    return
                out, err, answer = given
                child = os.fork()
                if not child:
                    asked.close()
                    waiting.close()
                    _command(json.loads(message), out, err)
                os.close(out)
                os.close(err)
                os.write(answer, f"{child}\n".encode())
                waiting.register(os.pidfd_open(child), selectors.EVENT_READ, (child, answer))


def _tell(ended: int, child: int, answer: int) -> None:
    """Write a command's exit code and peak of memory for what still waits for it."""
    _, status, usage = os.wait4(child, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(answer, f"{os.waitstatus_to_exitcode(status)} {usage.ru_maxrss * 1024}\n".encode())
    os.close(answer)
    os.close(ended)


def _command(asked: dict[str, Any], out: int, err: int) -> None:
    """The rest of this process's life."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    for number in (out, err):
        os.close(number)
    if asked["network"]:
        _enter(asked["network"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["siloflow", *asked["arguments"]]
    _settle()
    code: Any = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    # as Python ends, but for taking down what was imported, which costs each command a second
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _enter(network: str) -> None:
    """Enter a network namespace, as `ip netns exec` does; `os.setns` is missing in Python 3.11."""
    namespace = os.open(f"/var/run/netns/{network}", os.O_RDONLY)
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, NETWORK):
        raise OSError(ctypes.get_errno(), f"setns: {network}")
    os.close(namespace)


def _settle() -> None:
    """Prefect has read its settings when it was imported: what it would read in this folder, it reads now."""
    from prefect.context import refresh_global_settings_context

    quiet_prefect()
    os.environ.setdefault("PREFECT_HOME", str(Path(".prefect").resolve()))
    refresh_global_settings_context()


def _import() -> None:
    """What the verbs import when they are typed."""
    for verb in (
        "flows.compare",
        "flows.partition",
        "flows.run",
        "flows.schedule",
        "flows.watch",
        "flows.diagnosis.describe_data",
        "flows.results.serving.open_model",
        "flows.results.serving.predict_file",
        "flows.core.console.progress_bar",
        "publications.reproduce",
    ):
        importlib.import_module(verb)
    for module in LATE:
        importlib.import_module(module)
    from tasks.tracking.mlflow_logging.connection import import_mlflow

    import_mlflow()
    _import_logged_code()


def _import_logged_code() -> None:
    """The code that is logged with every model: MLflow runs it once in each command, out of an archive without bytecode."""
    from tasks.tracking.mlflow_logging.logged_model import archived_code

    package, content = archived_code()
    archive = Path("code.zip").resolve()
    archive.write_bytes(content)
    sys.path.insert(0, str(archive))
    importlib.import_module(f"{package}.served_model")
    sys.path.remove(str(archive))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who typed it ends the tests, and this with them
    quiet_prefect()
    _import()
    assert threading.active_count() == 1, (
        "a thread would not be there after a fork, and its locks would be held for ever"
    )
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
