"""What a user types, in a folder of its own, and what it answers; one finished comparison serves many tests.

What they share: in a folder with `server`, commands use one Prefect server, and each is a process forked from one that has
imported what commands import (see `forking`). Everywhere else, and where a test starts or kills a command, it is the console
script in an interpreter of its own, with a Prefect server of its own.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import yaml

from flows.orchestration.servers.prefect_server import PrefectServer
from tests.look import free_ports

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "siloflow"
PATIENCE = 600.0  # seconds in which a command must end, also on a busy machine
WAITS = """
import time
from pathlib import Path

from flows.methods import fedavg
from flows.plugins import register_method


@register_method("waits")
class Waits(fedavg.FedAvg):
    def run_round(self, state, round):
        if round.number == 2:
            Path("waits").touch()
            while not Path("goes-on").exists():
                time.sleep(0.01)
        return super().run_round(state, round)
"""
PROGRESS = re.compile(r"\S+: round \d+ of \d+(; .*)?")
NOISE = re.compile(r"warning|traceback|exception|\bINFO\b|\berror\b", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """Lines on stderr, but for those of a round that took long: a busy machine has some."""
        return [line for line in self.err.splitlines() if not PROGRESS.fullmatch(line)]


class Forking:
    """See `forking`; started with the first command that is forked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._starting = threading.Lock()

    def run(
        self, arguments: Sequence[str], folder: Path, environment: dict[str, str], network: str | None = None
    ) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr of `siloflow WORDS`, in a network namespace if it is named."""
        return self.measure(arguments, folder, environment, network)[0]

    def measure(
        self, arguments: Sequence[str], folder: Path, environment: dict[str, str], network: str | None = None
    ) -> tuple[tuple[int, str, str], int]:
        """Return what `run` does, and the command's peak of memory in bytes."""
        command = {"arguments": arguments, "folder": str(folder), "environment": environment, "network": network}
        asked = json.dumps(command).encode()
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            ours, theirs = socket.socketpair()
            with ours, ours.makefile() as answer:
                with theirs:
                    with self._starting:
                        asking = self._asking()
                    socket.send_fds(asking, [asked], [f.fileno() for f in (out, err, theirs)])
                ours.settimeout(PATIENCE)
                child = int(answer.readline())
                try:
                    code, peak = map(int, answer.readline().split())
                except TimeoutError:
                    os.kill(child, signal.SIGKILL)
                    raise
            for file in (out, err):
                file.seek(0)
            return (code, out.read(), err.read()), peak

    def _asking(self) -> socket.socket:
        if self._process is None:
            self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            self._home = tempfile.TemporaryDirectory()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, Path(__file__).with_name("forking.py"), str(theirs.fileno())],
                    cwd=self._home.name,
                    env={**plain_environment(), "PREFECT_HOME": self._home.name},
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        return self._socket

    def stop(self) -> None:
        """It ends when nobody can ask it any more."""
        if self._process is not None:
            self._socket.close()
            self._process.wait(10)
            self._home.cleanup()
            self._process = None


FORKING = Forking()


@dataclass(frozen=True)
class Folder:
    """A user's folder with a params.yaml; with `server` its commands use a Prefect server that is already running.

    `is_forked`: commands share what they have imported also without `server`.
    """

    path: Path
    server: str | None = None
    variables: dict[str, str] = field(default_factory=dict)  # more of its commands' environment
    is_forked: bool = False

    def type(self, *arguments: str, code: int = 0, alone: bool = False) -> Answer:
        """`siloflow WORDS`, to its end; it must end with this code, and leave no process.

        `alone`: as the console script also where commands may share what they have imported.
        """
        start = time.perf_counter()
        ended, out, err = self.run(arguments, alone)
        assert ended == code, f"siloflow {' '.join(arguments)} ended with {ended}:\n{err}"
        assert processes(self.path) == []
        return Answer(ended, out, err, time.perf_counter() - start)

    def run(self, arguments: Sequence[str], alone: bool = False) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `siloflow WORDS`, however it ends and whatever else is at work there."""
        is_alone = alone or (self.server is None and not self.is_forked)
        return self._typed(arguments) if is_alone else self._forked(arguments)

    def _typed(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=self.path,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def _forked(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        return FORKING.run(arguments, self.path, self._environment())

    def start(self, *arguments: str, out: int | IO[str] = subprocess.DEVNULL, **more: str) -> subprocess.Popen:
        """The same, without waiting; `more` are variables of its environment."""
        return subprocess.Popen(
            [COMMAND, *arguments],
            cwd=self.path,
            env={**plain_environment(), **more},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a process group, as a terminal gives it
        )

    def start_waiting(self, *arguments: str, verb: str = "run", **options: Any) -> subprocess.Popen:
        """Starts FedAvg as the method `waits`, and returns the process when round 1 is over and round 2 waits.

        `waiting` are the arguments that start it, and `go_on` lets it go on.
        """
        self.write_waits()
        process = self.start(*self.waiting(*arguments, verb=verb), **options)
        while not (self.path / "waits").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        return process

    def write_waits(self) -> None:
        """The plugin file of the method `waits`."""
        (self.path / "waits.py").write_text(WAITS)

    def waiting(self, *arguments: str, verb: str = "run") -> tuple[str, ...]:
        """`siloflow run waits` or another verb, with more arguments."""
        return (verb, "waits", "--set", "plugins=[waits.py]", *arguments)

    def go_on(self) -> None:
        """Lets a run that waits go on."""
        (self.path / "goes-on").touch()

    def copy(self, to: Path, server: str | None = None) -> "Folder":
        """This folder as it is, at another place."""
        return Folder(Path(shutil.copytree(self.path, to, symlinks=True)), server)

    def in_prefect(self, query: str) -> list[tuple[Any, ...]]:
        """Return what a query gives of Prefect's database."""
        with closing(sqlite3.connect(self.path / ".prefect" / "prefect.db")) as database:
            return database.execute(query).fetchall()

    def flow_runs(self) -> list[tuple[str, str]]:
        """Return name and state of every flow run in Prefect, in the order in which they began."""
        return self.in_prefect("select name, state_type from flow_run order by created")

    def not_over(self) -> list[tuple[str, str]]:
        """Return name and state of the flow runs and task runs that are not over in Prefect."""
        over = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        runs = [*self.flow_runs(), *self.in_prefect("select name, state_type from task_run")]
        return [(name, state) for name, state in runs if state not in over]

    def mlflow_runs(self) -> dict[str, str]:
        """Return the status of every run in MLflow, by its id."""
        with closing(sqlite3.connect(self.path / "runs" / "mlflow.db")) as database:
            return dict(database.execute("select run_uuid, status from runs").fetchall())

    def mlflow(self) -> Any:
        """A client of the folder's own MLflow store."""
        from tasks.tracking.mlflow_logging.connection import connect

        return connect(f"sqlite:///{self.path / 'runs' / 'mlflow.db'}")

    def in_mlflow(self, search: str = "", **options: Any) -> list[Any]:
        """Return the runs in the folder's MLflow store that match this filter."""
        client = self.mlflow()
        return list(client.search_runs([one.experiment_id for one in client.search_experiments()], search, **options))

    def _environment(self) -> dict[str, str]:
        return {**plain_environment(), **({"PREFECT_API_URL": self.server} if self.server else {}), **self.variables}


def plain_environment() -> dict[str, str]:
    """What a new terminal has; other tests may have set up servers of their own."""
    ours = ("PREFECT_", "MLFLOW_", "DVC_", "PYTEST_")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "DVC_SITE_CACHE_DIR"}


def processes(folder: Path) -> list[str]:
    """Commands of living processes that work in the folder or were told of it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = str(folder).encode() in (process / "environ").read_bytes()
            inside = (process / "cwd").resolve().is_relative_to(folder)
            if (told or inside) and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
        except OSError:
            continue  # it ended, or is not ours
    return found


@pytest.fixture(scope="session", autouse=True)
def _forking() -> Iterator[None]:
    """Ends the process that forks commands, if one was started."""
    yield
    FORKING.stop()


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """See `plain_environment`."""
    return plain_environment()


@pytest.fixture(scope="session")
def living() -> Callable[[Path], list[str]]:
    """See `processes`; those that are about to end have some seconds, on a machine with other load."""

    def left(folder: Path) -> list[str]:
        for _ in range(30):
            if not processes(folder):
                return []
            time.sleep(0.1)
        return processes(folder)

    return left


@pytest.fixture(scope="session")
def assert_quiet() -> Callable[[str], None]:
    """Fails if there is anything on a screen that a user does not need."""

    def check(screen: str) -> None:
        assert NOISE.search(screen) is None, screen

    return check


@pytest.fixture(scope="session")
def folder_at() -> Callable[..., Folder]:
    """See `Folder`."""
    return Folder


@dataclass(frozen=True)
class Finished:
    """A folder in which somebody typed `partition`, then `compare`."""

    folder: Folder
    partition: Answer
    compare: Answer

    def run(self, method: str, seed: int) -> dict[str, Any]:
        """The JSON of one of the comparison's runs."""
        (found,) = [r for r in self.compare.json["runs"] if (r["method"], r["seed"]) == (method, seed)]
        return found


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Folder], Answer]], Any]:
    """A folder of this name and what was typed there, made by the first of pytest's processes that asks for it."""
    home = tmp_path_factory.getbasetemp()
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home

    def folder_and_answer(name: str, make: Callable[[Folder], Answer]) -> tuple[Folder, Answer]:
        folder, answer = Folder(home / name), home / f"{name}.json"
        with (home / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not answer.exists():
                shutil.rmtree(folder.path, ignore_errors=True)  # another process may have failed at it
                answer.write_text(json.dumps(asdict(make(folder))))
        return folder, Answer(**json.loads(answer.read_text()))

    return folder_and_answer


@pytest.fixture(scope="session")
def partitioned(made_once: Callable[..., Any], databases: Path) -> tuple[Folder, Answer]:
    """The embedded default, partitioned, with the tables of MLflow and Prefect; to be copied, not to be worked in."""

    def make(folder: Folder) -> Answer:
        folder.path.mkdir()
        shutil.copy(ROOT / "params.yaml", folder.path)
        for database, place in (("mlflow.db", "runs"), ("prefect.db", ".prefect")):
            (folder.path / place).mkdir()
            shutil.copy(databases / database, folder.path / place)
        return folder.type("partition", "--json")

    return made_once("partitioned", make)


@pytest.fixture(scope="session")
def server(prefect: PrefectServer) -> str:
    """The address of the Prefect server of all tests, for commands of which no test asks what their own server does."""
    return prefect.url


@pytest.fixture(scope="session")
def finished(
    partitioned: tuple[Folder, Answer], made_once: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    """Two methods with two seeds for four rounds, in a copy that tests may work in."""
    template, answer = partitioned
    typed = ("fedavg", "local_only", "--seeds", "0,1", "--set", "training.rounds=4")

    def make(folder: Folder) -> Answer:
        return template.copy(folder.path).type("compare", *typed, "--json")

    folder, compare = made_once("compared", make)
    return Finished(folder.copy(tmp_path_factory.mktemp("end_to_end") / "finished"), answer, compare)


@pytest.fixture(scope="session")
def write_rows() -> Callable[..., None]:
    """Writes the source of three silos into a folder; a feature of the silos in `shifts` is moved by so much."""

    def write(folder: Path, shifts: dict[str, float] | None = None) -> None:
        names, rows = ("north", "south", "west"), 240
        rng = np.random.default_rng(0)
        x = rng.normal(size=(len(names) * rows, 3)).astype(np.float32)
        y = (x[:, 0] + 0.3 * x[:, 1] > 0).astype(np.int64)
        client = np.repeat(names, rows)
        for name, shift in (shifts or {}).items():
            x[client == name, 2] += shift
        np.savez(folder / "own.npz", x=x, y=y, client=client, features=["age", "height", "weight"])

    return write


@pytest.fixture(scope="session")
def watched(
    partitioned: tuple[Folder, Answer], made_once: Callable[..., Any], server: str, write_rows: Callable[..., None]
) -> Folder:
    """A project of three silos whose champion was trained for one round; params.yaml has eight. To be copied."""

    def make(place: Folder) -> Answer:
        folder = partitioned[0].copy(place.path, server)
        path = folder.path / "params.yaml"
        params = yaml.safe_load(path.read_text())
        source, scheme = {"kind": "npz", "path": "own.npz"}, [{"kind": "column", "column": "client"}]
        params["data"] |= {"name": "own", "source": source, "scheme": scheme}
        params["training"] |= {"rounds": 8}
        params["comparison"] |= {"seeds": [0], "methods": ["fedavg"]}
        path.write_text(yaml.safe_dump(params))
        write_rows(folder.path)
        folder.type("partition")
        code, _, err = folder.run(["watch", "--once"])
        assert code == 2
        assert "watch: got no champion, expected one whose data can be compared. Run `siloflow compare`, then" in err
        folder.type("compare", "--set", "training.rounds=1")
        return folder.type("promote", "--force")

    folder: Folder = made_once("watched", make)[0]
    return folder


@pytest.fixture
def ports() -> list[int]:
    """Two free ports of loopback."""
    return free_ports()


@dataclass(frozen=True)
class Unusual:
    """A folder with two methods on stacks of two clients, some of which drop out; computed by one worker, then by two."""

    folder: Folder
    one: Answer
    two: Answer


@pytest.fixture(scope="session")
def unusual(finished: Finished, made_once: Callable[..., Any], server: str) -> Unusual:
    """The best round is reported, personal models are logged."""
    settings = {
        "training.rounds": 6,
        "engine.stack": 2,
        "clients.dropout": 0.2,
        "evaluation.report": "best",
        "tracking.personal_models": "true",
    }
    typed = ["compare", "fedavg", "local_only", "--seeds", "0", "--json", "--timings"]
    typed += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]

    def computed(before: Folder, workers: int) -> tuple[Folder, Answer]:
        def make(folder: Folder) -> Answer:
            return before.copy(folder.path, server).type(*typed, "--set", f"runner.workers={workers}")

        return made_once(f"unusual{workers}", make)

    first, one = computed(finished.folder, 1)
    both, two = computed(first, 2)
    return Unusual(both, one, two)


@pytest.fixture
def until() -> Callable[[str, str, Any], str]:
    """What is on the screen, a file, once it has this text; the process must not end before."""

    def waited(screen: str, text: str, process: Any) -> str:
        while process.poll() is None:
            said = Path(screen).read_text()
            if text in said:
                return said
            time.sleep(0.1)
        raise AssertionError(process.stderr.read())

    return waited
