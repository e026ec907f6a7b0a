"""Prefect's page of a schedule stays where it is: for the next schedule, and for `siloflow ui` beside it."""

import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

NEVER_SOON = "0 0 29 2 *"


@pytest.fixture
def port() -> Callable[[], int]:
    def free() -> int:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            return int(listening.getsockname()[1])

    return free


@pytest.fixture
def served(partitioned: Any, tmp_path: Path, until: Any) -> Any:
    """Starts a command that serves, in one folder; the process, and the port of the Prefect that it names."""
    folder = partitioned[0].copy(tmp_path / "project")
    processes: list[subprocess.Popen] = []

    def start(*typed: str) -> tuple[subprocess.Popen, int]:
        with (tmp_path / f"screen{len(processes)}.txt").open("w+") as screen:
            processes.append(folder.start(*typed, out=screen))
            said = until(screen.name, "Press ctrl-C to end", processes[-1])
        return processes[-1], int(re.search(r"Prefect\S*\s+(?:page: )?http://127\.0\.0\.1:(\d+)", said)[1])

    yield start
    for process in processes:
        end(process)


def end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(200)


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=60).close()
    except OSError:
        return False
    return True


def test_pages_are_of_the_schedules_server_which_outlives_them_and_the_next_schedule_has_the_same_page(
    served: Any, port: Any
) -> None:
    asked = port()
    first, page = served("schedule", NEVER_SOON, "fedavg", "--port", str(asked))
    assert page == asked
    pages, shared = served("ui", "--mlflow-port", str(port()))
    assert shared == page
    end(pages)
    assert pages.returncode == 0
    assert answers(page)
    end(first)
    assert not answers(page)
    _, again = served("schedule", NEVER_SOON, "fedavg")
    assert again == page
    assert answers(page)
