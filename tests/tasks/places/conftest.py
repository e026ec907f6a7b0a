"""A real broker on loopback with TLS, and keys of a coordinator and two places."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.places.broker import COORDINATOR, add_token, make_certificate
from tasks.places.envelopes import PrivateKey
from tasks.places.planes import HttpsPlane

SERVE = Path(__file__).with_name("serve_loopback.py")
CHECKOUT = Path(__file__).parents[3]
LIMIT = 64 * 2**20


def start(*arguments: object, **environment: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environment}
    return subprocess.Popen([sys.executable, str(SERVE), *map(str, arguments)], env=env)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)


@dataclass
class Broker:
    """A process that may be killed and started again at the same address."""

    home: Path
    port: int
    limit: int = LIMIT
    tokens: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        return self.home / "broker"

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.home / "tls.pem"

    def start(self) -> None:
        self.process = start("broker", self.folder, self.port, self.certificate, self.home / "tls.key", self.limit)
        ends = time.monotonic() + 60
        while time.monotonic() < ends and self.process.poll() is None:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the broker does not listen")

    def kill(self) -> None:
        assert self.process is not None
        end(self.process)

    def plane(self, name: str = COORDINATOR, limit_bytes: int = LIMIT, patience: float = 30) -> HttpsPlane:
        return HttpsPlane(self.address, self.certificate, self.tokens[name], limit_bytes, patience)


def make_broker(home: Path) -> Broker:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        broker = Broker(home, free.getsockname()[1])
    make_certificate(broker.certificate, home / "tls.key", "127.0.0.1")
    broker.tokens = {name: add_token(broker.folder, name) for name in (COORDINATOR, "north", "south")}
    broker.start()
    return broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Broker]:
    broker = make_broker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.kill()


@pytest.fixture
def own_broker(tmp_path) -> Iterator[Broker]:
    """A broker that a test may kill."""
    broker = make_broker(tmp_path)
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def keys(tmp_path_factory) -> dict[str, PrivateKey]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: PrivateKey.create(folder / f"{name}.pem") for name in (COORDINATOR, "north", "south")}
