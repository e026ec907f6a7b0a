"""Small silos, problems and rounds that the tests of every room may use; `conftest.py` registers them as a plugin."""

import asyncio
import fcntl
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# NumPy reads it when it is imported; threads of several workers would wait for each other's, at twice the time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
import yaml
from prefect.context import refresh_global_settings_context
from prefect.events.clients import PrefectEventSubscriber
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.events.schemas.events import Event
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.core.console import progress
from flows.methods.base import Method, RoundReport
from flows.methods.round_context import RoundContext, TrainingSetup
from flows.orchestration.servers.prefect_server import PrefectServer
from flows.project.project import Project
from flows.training.trainer import play_method_round as play_round
from models.gaussians import DEVIATION
from models.networks.mlp import MLP
from models.networks.wrappers.posterior_update import RAW, WEIGHT, Tilted
from models.server_state import ServerState, Weights
from models.training.engine import Training
from models.training.objectives import ClientBatch, CrossEntropy, Objective
from models.training.optimizers import SGD
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.data_params import DataParams
from silos.privacy.owner_file import OWNER_FILE, make_store
from silos.storage.partition_store import write
from silos.versioning.dvc_files import record
from tasks.execution.task_runner import PlainRunner
from tasks.tracking.mlflow_logging.connection import connect

torch.set_num_threads(1)

CLASSES = 3
FEATURES = 5
PARAMS = (Path(__file__).parents[1] / "params.yaml").read_bytes()
SPLITS = ("train", "validation", "test")
MAKE_PREFECTS_TABLES = """
import os
from flows import quiet_prefect
quiet_prefect()
os.environ["PREFECT_HOME"] = os.getcwd()
from flows.orchestration.servers.prefect_process import make_tables
make_tables("tables.lock")
"""


@pytest.fixture(scope="session", autouse=True)
def _dvc(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps what DVC remembers of every repository in a folder of the session, and not in /var/tmp for good."""
    os.environ["DVC_SITE_CACHE_DIR"] = str(tmp_path_factory.mktemp("dvc"))


@pytest.fixture(autouse=True)
def _progress_of_before() -> Iterator[None]:
    """Restores the progress of before a test: a command that a test runs in this process writes to that test's screen."""
    before = progress.current()
    yield
    progress.use(before)


@dataclass
class Played:
    """A method that has played some rounds: where it is, and what happened on the way."""

    page: Method
    setup: TrainingSetup
    state: ServerState
    private: ClientStore
    rounds: list[RoundContext]
    reports: list[RoundReport]


@pytest.fixture
def killed_at_each_step(tmp_path: Path) -> Callable[..., list[Path]]:
    """Runs a program in copies of a folder, each killed at one change of a file; the last copy is of a whole run.

    `preparation` is what the program may import beforehand. See `kill_steps.py`, which does it.
    """

    def killed(template: Path, program: str, preparation: str) -> list[Path]:
        home, work = Path(__file__).parent, tmp_path / "killed"
        command = [sys.executable, home / "kill_steps.py", template, work, preparation, program]
        setting = {**os.environ, "PYTHONPATH": str(home.parent)}
        done = subprocess.run(command, env=setting, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(work.iterdir(), key=lambda copy: int(copy.name))

    return killed


@pytest.fixture
def write_silos(tmp_path: Path) -> Callable[..., Silos]:
    """Writes clients with so many training rows each (and as many validation and test rows as asked).

    Rows are three clouds in five dimensions, drawn for each client from its own name; `one_class` names a client whose
    rows all have label 0. `rows_of` replaces the rows by ones of the test's own, of this `task`; `domains` names each
    client's law, and `roles` are the scheme's steps that keep clients out of training. `common` splits belong to no client.
    `features` describe the columns of a table.
    """

    def build(
        train: Mapping[str, int],
        validation: int = 3,
        test: int | Mapping[str, int] = 4,
        one_class: str | None = None,
        rows_of: Callable[[str, int], tuple[np.ndarray, np.ndarray]] | None = None,
        name: str = "small",
        domains: Mapping[str, str] | None = None,
        roles: Sequence[Mapping[str, Any]] = (),
        task: str = "classification",
        common: Sequence[str] = (),
        features: Sequence[Mapping[str, Any]] = (),
    ) -> Silos:
        parts = []
        for client, count in train.items():
            own_test = test if isinstance(test, int) else test[client]
            sizes = dict(zip(SPLITS, (count, validation, own_test), strict=True))
            total = sum(sizes.values())
            x, y = rows_of(client, total) if rows_of else _clouds(client, total, client == one_class)
            split = np.repeat(list(sizes), list(sizes.values()))
            parts.append((x.astype(np.float32), y, np.repeat(client, total), split))
        x, y, clients, split = (np.concatenate(p) for p in zip(*parts, strict=True))
        named = {"domain": np.array([domains[c] for c in clients])} if domains else {}
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, client=clients, split=split, **named)
        data = DataParams.model_validate(
            {
                "name": name,
                "seed": 0,
                "source": {"kind": "npz", "path": f"{name}.npz", "task": task},
                "scheme": [{"kind": "column", "column": "client"}, *roles],
                "split": {"validation": 0.0, "test": 0.0, **{f"{split}_rows": "common" for split in common}},
                "features": features,
            }
        )
        folder = tmp_path / "data" / name
        write(folder, data, tmp_path)
        return Silos.open(folder, f"{tmp_path.name}-{name}-{len(x)}")

    return build


@pytest.fixture
def make_problem(write_silos: Callable[..., Silos]) -> Callable[..., TrainingSetup]:
    """A problem on fresh silos, given as client to training rows: two local epochs of SGD in batches of 4."""

    def build(
        train: Mapping[str, int],
        seed: int = 0,
        network: Any = None,
        silos: dict[str, Any] | None = None,
        **training: Any,
    ) -> TrainingSetup:
        opened = write_silos(train, **(silos or {}))
        network = network or MLP(FEATURES, (6,), CLASSES)
        engine = "batched" if network.stacked else "vmap"
        usual = {"objective": CrossEntropy(), "optimiser": SGD(0.1), "epochs": 2, "batch": 4, "engine": engine}
        return TrainingSetup(opened, network, Training(**{**usual, **training}), seed)

    return build


@pytest.fixture
def make_round(tmp_path: Path) -> Callable[..., RoundContext]:
    """A round of a problem without Prefect; every client takes part unless `clients` says otherwise; `validate` asks."""

    def build(
        setup: TrainingSetup,
        number: int = 1,
        clients: Sequence[str] | None = None,
        workers: int = 1,
        stack: int = 2,
        private: ClientStore | None = None,
        validate: bool = False,
        leaving: Sequence[str] = (),
    ) -> RoundContext:
        clients = setup.silos.clients if clients is None else tuple(clients)
        dropped = tuple(c for c in setup.silos.clients if c not in clients)
        private = private or ClientStore(str(tmp_path / "private"))
        make_store(Path(private.folder))
        setup = replace(setup, stack=stack)
        asked: dict[str, tuple[float, float]] | None = {} if validate else None
        here = PlainRunner(workers)
        return RoundContext(number, setup, clients, dropped, here, private, validation=asked, leaving=tuple(leaving))

    return build


@pytest.fixture
def play(make_round: Callable[..., RoundContext]) -> Callable[..., Played]:
    """Plays the rounds with these numbers, from the method's own start or from `state`.

    `absent`: round to clients; `leave`: round to those that leave before it, and are absent from then on.
    """

    def run(
        page: Method,
        setup: TrainingSetup,
        numbers: Sequence[int],
        state: ServerState | None = None,
        absent: Mapping[int, Sequence[str]] | None = None,
        leave: Mapping[int, Sequence[str]] | None = None,
        **options: Any,
    ) -> Played:
        state = page.init(setup) if state is None else state
        rounds, reports = [], []
        for number in numbers:
            gone = {*(absent or {}).get(number, ()), *(c for at in leave or {} if at <= number for c in leave[at])}
            there = [c for c in setup.silos.clients if c not in gone]
            leaving = (leave or {}).get(number, ())
            rounds.append(make_round(setup, number, there, leaving=leaving, **options))
            state, report = play_round(page, state, rounds[-1])
            reports.append(report)
        return Played(page, setup, state, rounds[-1].private, rounds, reports)

    return run


@pytest.fixture
def sequential() -> Callable[[TrainingSetup], TrainingSetup]:
    """The same problem on the reference engine."""
    return lambda setup: replace(setup, training=replace(setup.training, engine="sequential"))


@pytest.fixture
def solved() -> type[Tilted]:
    """Replaces `Tilted` for a linear regression: its problem is solved, and not estimated."""
    return _Solved


@pytest.fixture(scope="session")
def write_params() -> Callable[[Path], dict[str, Any]]:
    """Makes a folder with a small copy of the repository's params.yaml."""

    def write_there(folder: Path) -> dict[str, Any]:
        raw = yaml.load(PARAMS, yaml.CSafeLoader)
        raw["data"]["scheme"][0]["clients"] = 6
        raw["model"]["hidden"] = [8]
        raw["training"] |= {"rounds": 3, "epochs": 1}
        raw["comparison"] |= {"methods": ["local_only", "fedavg"], "seeds": [0, 1]}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "params.yaml").write_text(yaml.dump(raw, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8")
        return raw

    return write_there


@pytest.fixture(scope="session")
def _small_project(tmp_path_factory: pytest.TempPathFactory, write_params: Callable[[Path], dict[str, Any]]) -> Path:
    """The folder that `project` copies: to partition the digits takes longer than most of its tests."""
    folder = tmp_path_factory.mktemp("small") / "project"
    data = DataParams.model_validate(write_params(folder)["data"])
    write(folder / "data" / data.name, data, folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, _small_project: Path) -> Path:
    """A folder with a small copy of the repository's params.yaml, and the data it describes; DVC has not seen it."""
    return shutil.copytree(_small_project, tmp_path / "project")


class World:
    """A folder with params.yaml; `write` makes a version of data/ of these rows by client, all of them to train on."""

    def __init__(self, folder: Path, repositories: Path) -> None:
        self.folder = folder
        self.raw = yaml.load(PARAMS, yaml.CSafeLoader)
        shutil.copytree(repositories, folder, dirs_exist_ok=True)
        (folder / ".gitignore").write_text("/data\n/runs/\n/private/\n/cache/\n*.npz\n")

    def write(
        self,
        rows: Mapping[str, tuple[np.ndarray, np.ndarray]],
        task: str = "classification",
        features: Any = None,
        test: float = 0.0,
        **arrays: Any,
    ) -> str:
        """The version's revision in git; with `test`, this share of each client's rows is drawn for testing."""
        client = np.repeat(list(rows), [len(y) for _, y in rows.values()])
        x, y = (np.concatenate([own[at] for own in rows.values()]) for at in (0, 1))
        x = x.astype(np.float32)
        if not test:
            arrays["split"] = np.repeat("train", len(y))
        np.savez(self.folder / "own.npz", x=x, y=y, client=client, **arrays)
        data: dict[str, Any] = {
            "name": "own",
            "seed": 0,
            "source": {"kind": "npz", "path": "own.npz", "task": task}
            | ({"unit": "patient"} if "patient" in arrays else {}),
            "scheme": [{"kind": "column", "column": "client"}],
            "split": {"validation": 0.0, "test": test},
        }
        self.raw["data"] = data | ({"features": features} if features else {})
        if task == "regression":
            self.raw["training"]["objective"] = {"kind": "squared_error"}
            self.raw["comparison"]["methods"] = ["local_only", "fedavg"]
        (self.folder / "params.yaml").write_text(
            yaml.dump(self.raw, Dumper=yaml.CSafeDumper, sort_keys=False), encoding="utf-8"
        )
        project = self.open()
        if not (self.folder / "data").exists():
            make_store(self.folder / "private" / "own")
        write(self.folder / "data" / "own", project.params.data, self.folder)
        record(self.folder)
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-qm", "a version", "--allow-empty")
        return git(self.folder, "rev-parse", "--short", "HEAD").strip()

    def allow_cells_of_one_row(self) -> None:
        """As the owner of the silos does, in their policy."""
        policy = self.folder / "private" / "own" / OWNER_FILE
        policy.write_text(policy.read_text().replace("least_cell: 10", "least_cell: 1"))

    def open(self, *overrides: str) -> Project:
        """As a command opens it now."""
        return Project.open(overrides, self.folder)


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with git's and DVC's repositories, as the first `siloflow partition` makes them; to be copied."""
    folder = tmp_path_factory.mktemp("repositories")
    git(folder, "init", "-q", "--template=")
    (folder / "data").mkdir()
    record(folder)
    for made in ("data", ".dvc/cache"):
        shutil.rmtree(folder / made)
    for made in ("data.dvc", ".gitignore"):
        (folder / made).unlink()
    return folder


@pytest.fixture(scope="session")
def world_at(repositories: Path) -> Callable[[Path], World]:
    """See `World`."""
    return lambda folder: World(folder, repositories)


@pytest.fixture
def world(world_at: Callable[[Path], World], tmp_path: Path) -> Callable[[], World]:
    """Makes worlds."""
    return lambda: world_at(tmp_path / "project")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=n@localhost"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `mlflow.db` and `prefect.db` as they are at first: to make their tables takes seconds.

    Made by the first of pytest's processes that asks.
    """
    home = tmp_path_factory.getbasetemp()
    folder = (home.parent if "PYTEST_XDIST_WORKER" in os.environ else home) / "databases"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
            with subprocess.Popen([sys.executable, "-c", MAKE_PREFECTS_TABLES], cwd=folder, env=environment) as making:
                connect(f"sqlite:///{folder}/mlflow.db")
            assert making.returncode == 0
            for file in ("mlflow.db", "prefect.db"):
                with closing(sqlite3.connect(folder / file)) as database:
                    database.execute("pragma wal_checkpoint(truncate)")
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory, databases: Path) -> Iterator[PrefectServer]:
    """Prefect's API, and one MLflow database for all."""
    before = dict(os.environ)
    home = tmp_path_factory.mktemp("services")
    (home / ".prefect").mkdir()
    shutil.copy(databases / "prefect.db", home / ".prefect")
    shutil.copy(databases / "mlflow.db", home)
    server = PrefectServer(home)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{home}/mlflow.db"
    try:
        server.wait()
        refresh_global_settings_context()  # threads of Prefect's own look there
        with temporary_settings({PREFECT_API_URL: server.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield server
    finally:
        EventsWorker.drain_all(timeout=5)
        server.stop()
        os.environ.clear()
        os.environ.update(before)
        refresh_global_settings_context()


@pytest.fixture(scope="session")
def heard() -> "type[Hearing]":
    """Return the class `Hearing`, which test files cannot import from here."""
    return Hearing


class Hearing(threading.Thread):
    """Collects siloflow's events at a server of Prefect, until there are `expected` of them."""

    def __init__(self, api: str, expected: int) -> None:
        super().__init__(daemon=True)
        self.events: list[Event] = []
        self._api, self._expected, self._connected = api, expected, threading.Event()
        self.start()
        assert self._connected.wait(60)

    def run(self) -> None:
        asyncio.run(self._hear())

    async def _hear(self) -> None:
        wanted = EventFilter(event=EventNameFilter(prefix=["siloflow."]))
        async with PrefectEventSubscriber(api_url=self._api, filter=wanted) as subscriber:
            self._connected.set()
            async for event in subscriber:
                self.events.append(event)
                if len(self.events) == self._expected:
                    return


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, databases: Path) -> "Iterator[MlflowServer]":
    """Not started yet."""
    server = MlflowServer(Path(shutil.copy(databases / "mlflow.db", tmp_path_factory.mktemp("server"))).parent)
    yield server
    server.stop()


class MlflowServer:
    """A real `mlflow server` on loopback, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Answers when it answers; one that was started before goes on."""
        if self._process is not None:
            return
        store = f"sqlite:///{self._folder}/mlflow.db"
        connect(store)
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--workers", "1", "--backend-store-uri", store, "--artifacts-destination", str(self._folder)]
        with (self._folder / "server.log").open("ab") as log:
            # the rest of it are eight processes that judge language models
            env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=2).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "server.log").read_text()
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        """With its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


@dataclass(frozen=True)
class _Solved(Tilted):
    """Its expected squared error is known, so that no weights are drawn."""

    lr_multipliers = {"dense0.weight" + RAW: 40.0}  # noqa: RUF012

    def cost(
        self, weights: Weights, context: Weights, batch: ClientBatch, objective: Objective
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        posterior, nats = self.posterior(weights, context)
        mean, deviation = (posterior["dense0.weight" + part] for part in ("", DEVIATION))
        x = batch.x.flatten(1)
        expected = ((x @ mean)[:, 0] - batch.y) ** 2 + (x**2 @ deviation**2)[:, 0]
        return batch.mean(expected) + context[WEIGHT] * nats, {}


def _clouds(client: str, rows: int, one_class: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(list(client.encode()))
    y = np.zeros(rows, np.int64) if one_class else rng.integers(0, CLASSES, rows)
    if not one_class:
        y[: min(rows, CLASSES)] = np.arange(min(rows, CLASSES))
    centres = np.eye(CLASSES, FEATURES) * 2
    return centres[y] + rng.normal(size=(rows, FEATURES)), y
