"""Flows with Prefect inside, in a project of six small clients."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.core.console import progress
from flows.orchestration.servers.prefect_server import PrefectServer
from flows.run import run
from tasks.execution.open_workers import open_workers

OWN = """
import os
import signal
import torch
from pathlib import Path

from flows.methods.base import RoundReport
from flows.methods import fedavg
from flows.plugins import register_method
from silos.cohort import Cohort
from silos.errors import UserError
from tasks.aggregate import aggregate
from tasks.local_train import local_train
from tasks.execution.steps import step


@step
def train(cohort: Cohort, model, training, private, seed, round, device="cpu", does="", marker=""):
    act(cohort, round, does, Path(marker))
    return local_train.fn(cohort, model, training, private, seed, round, device)


def act(cohort, round, does, marker):
    assert torch.get_num_threads() == 1
    if does == "dies once" and round == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "raises" and round == 2 and "c03" in cohort.clients:
        raise ZeroDivisionError("no rows left")
    if does == "refuses" and round == 2 and "c03" in cohort.clients:
        raise UserError("client c03 has one row; give it two.")


@register_method("own")
class Own(fedavg.FedAvg):
    does: str = ""
    marker: str = ""

    def run_round(self, state, round):
        if self.does == "stumbles" and round.number == 2:
            raise KeyError("between two steps")
        if self.does == "gives up" and round.number == 2:
            raise UserError("the loss is no number; lower the learning rate.")
        model = self.model(state, round.setup)
        updates = round.train(train, model, does=self.does, marker=self.marker)
        weights = round.run_on_server(aggregate, updates, state.tensors["weights"])
        return state.with_tensors(weights=weights), RoundReport.from_updates(updates)
"""


class Told(progress.ProgressSink):
    """Keeps what a person would read, and does something after a round."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.after: dict[int, Callable[[], Any]] = {}

    def say(self, line: str) -> None:
        """Something that a person should know."""
        self.said.append(line)

    def round(self, run: str, number: int, accuracy: float | None) -> None:
        """A round is done."""
        self.after.pop(number, lambda: None)()


@pytest.fixture(scope="module")
def pools(prefect: PrefectServer) -> Iterator[Callable[[str], None]]:
    """Keeps two workers of a kind for the rest of the module: starting them costs seconds."""
    with ExitStack() as stack:
        started = set()

        def keep(kind: str) -> None:
            if kind not in started:
                stack.enter_context(open_workers(kind, 2, say=lambda line: progress.current().say(line)))
                started.add(kind)

        yield keep


@pytest.fixture
def told() -> Iterator[Told]:
    """The screen of the flows of a test."""
    before = progress.current()
    told = Told()
    progress.use(told)
    yield told
    progress.use(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, write_params: Callable[[Path], Any]) -> Path:
    """A project whose method `own` can be told to fail."""
    folder = tmp_path_factory.mktemp("flows") / "project"
    write_params(folder)
    (folder / "own.py").write_text(OWN)
    return folder


@pytest.fixture
def play_run(
    prefect: PrefectServer, folder: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """The flow `run`, in three stacks of two clients for three rounds."""
    monkeypatch.chdir(folder)
    small = ["engine.stack=2", "training.rounds=3", "plugins=[own.py]", f"method.own.marker={folder}/marker"]

    def play(method: str, kind: str, workers: int, *more: str, **options: Any) -> dict[str, Any]:
        where = [f"runner.kind={kind}", f"runner.workers={workers}"]
        return run(method, 0, [*small, *where, *more], derived=True, **options)

    return play


def worker_processes() -> set[int]:
    """Living worker processes of this one."""
    found = psutil.Process().children(recursive=True)
    return {p.pid for p in found if p.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(p.cmdline())}


@pytest.fixture(scope="session")
def workers_now() -> Callable[[], set[int]]:
    """See `worker_processes`."""
    return worker_processes


@pytest.fixture
def small_disk() -> Callable[..., AbstractContextManager[None]]:
    """Mounts a small disk, of four megabytes, in a place, with what was there aside; a skip where none may be mounted."""
    return _mounted


@pytest.fixture
def fill() -> Callable[[Path], None]:
    """Writes into a file until nothing more goes onto its disk."""

    def write(path: Path) -> None:
        with path.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"\0" * 4096):
                pass

    return write


@contextmanager
def _mounted(folder: Path, megabytes: int = 4) -> Iterator[None]:
    aside = folder.with_name("aside")
    if folder.exists():
        folder.rename(aside)
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", folder], check=True)
    finally:
        folder.rmdir()
        if aside.exists():
            aside.rename(folder)
