"""A real broker on loopback with TLS, and keys of a coordinator and two places."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.places.broker import broker_server
from tasks.places.broker_access import COORDINATOR, add_token, make_certificate
from tasks.places.envelopes import PrivateKey
from tasks.places.planes import HttpsPlane

SERVE = Path(__file__).with_name("serve_loopback.py")
CHECKOUT = Path(__file__).parents[3]
LIMIT = 64 * 2**20


def start(*arguments: object) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen([sys.executable, str(SERVE), *map(str, arguments)], env=env)


@dataclass
class Broker:
    """A broker that may be ended and started again at the same address."""

    home: Path
    host: str = "127.0.0.1"
    port: int = 0
    limit: int = LIMIT
    tokens: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind((self.host, 0))
            self.port = free.getsockname()[1]
        make_certificate(self.certificate, self.home / "tls.key", self.host)
        self.tokens = {name: add_token(self.folder, name) for name in (COORDINATOR, "north", "south")}

    @property
    def folder(self) -> Path:
        return self.home / "broker"

    @property
    def address(self) -> str:
        return f"https://{self.host}:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.home / "tls.pem"

    @property
    def arguments(self) -> tuple[Path, str, int, Path, Path, int]:
        return self.folder, self.host, self.port, self.certificate, self.home / "tls.key", self.limit

    def start(self) -> None:
        """Start it as a process, which may be killed; its imports take a second."""
        self.process = start("broker", *self.arguments)
        self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve in a thread meanwhile."""
        server = broker_server(*self.arguments)
        thread = threading.Thread(target=server.run)
        thread.start()
        self.wait()
        yield
        server.should_exit = True
        thread.join(30)

    def wait(self) -> None:
        for _ in range(2000):
            with socket.socket() as tried:
                if tried.connect_ex((self.host, self.port)) == 0:
                    return
            time.sleep(0.03)
        raise AssertionError("the broker does not listen")

    def plane(self, name: str = COORDINATOR, limit_bytes: int = LIMIT, patience: float = 30) -> HttpsPlane:
        return HttpsPlane(self.address, self.certificate, self.tokens[name], limit_bytes, patience)


@pytest.fixture(scope="package")
def broker(tmp_path_factory) -> Iterator[Broker]:
    """A broker that tests share; each uses keys of its own."""
    broker = Broker(tmp_path_factory.mktemp("broker"))
    with broker.serving():
        yield broker


@pytest.fixture
def killable_broker(tmp_path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def key_files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    files = {name: folder / f"{name}.pem" for name in (COORDINATOR, "north", "south")}
    for path in files.values():
        PrivateKey.create(path)
    return files


@pytest.fixture(scope="session")
def keys(key_files) -> dict[str, PrivateKey]:
    return {name: PrivateKey.read(path) for name, path in key_files.items()}
