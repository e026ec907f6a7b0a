"""Kills and cuts at any moment: a request is answered as if nothing had happened, and nothing acknowledged is lost."""

import asyncio
import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.places.broker import _Store
from tasks.places.broker_access import COORDINATOR
from tasks.places.envelopes import Header, PrivateKey, unseal
from tasks.places.planes import CHUNK, FolderPlane, HttpsPlane
from tasks.places.sessions import CoordinatorSession, PlaceSessions
from tests.tasks.places.conftest import Broker, start

PREPARATION = """
import asyncio, hashlib
from pathlib import Path
from tasks.places.broker import _Store
from tasks.places.envelopes import PrivateKey
from tasks.places.planes import FolderPlane
from tasks.places.sessions import PlaceSessions

def handle(header, body):
    with open("calls", "a") as file:
        file.write(header.subject + "\\n")
    return body[::-1]
"""
SERVE_ONCE = """
own, coordinator = (PrivateKey.read(Path(f"keys/{name}.pem")) for name in ("north", "coordinator"))
place = PlaceSessions(FolderPlane("."), own, "north", coordinator.public, Path("place"), handle, "0.1.0")
assert place.serve_once(0)
"""
ADD = """
content, store = b"abcdefgh" * 100, _Store(Path("broker"), 1000, 100_000)
digest = hashlib.sha256(content).hexdigest()
for offset in (0, 300):
    chunk = content[offset : offset + 300 if not offset else None]
    asyncio.run(store.add("to/north/new", 800, digest, offset, chunk))
    with open("acknowledged", "a") as file:
        file.write(chunk.decode())
"""


class Recorder(FolderPlane):
    """A folder that keeps what was put last."""

    def put(self, key: str, content: bytes) -> None:
        self.last = (key, content)
        super().put(key, content)


@pytest.fixture
def template(tmp_path) -> Path:
    """A place before its first request."""
    home = tmp_path / "template"
    for name in ("north", COORDINATOR):
        PrivateKey.create(home / "keys" / f"{name}.pem")
    return home


def place_of(home: Path) -> PlaceSessions:
    def handle(header: Header, body: bytes) -> bytes:
        with (home / "calls").open("a", encoding="utf-8") as file:
            file.write(f"{header.subject}\n")
        return body[::-1]

    own, coordinator = (PrivateKey.read(home / "keys" / f"{name}.pem") for name in ("north", COORDINATOR))
    return PlaceSessions(FolderPlane(str(home)), own, "north", coordinator.public, home / "place", handle, "0.1.0")


def session_of(home: Path) -> tuple[CoordinatorSession, Recorder]:
    plane = Recorder(str(home))
    own, north = (PrivateKey.read(home / "keys" / f"{name}.pem") for name in (COORDINATOR, "north"))
    return CoordinatorSession(plane, own, "north", north.public, "0.1.0", home / "asking"), plane


def calls(home: Path) -> list[str]:
    path = home / "calls"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def ask_while_serving(session: CoordinatorSession, place: PlaceSessions, subject: str, body: bytes) -> bytes:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(session.ask, subject, body, 30)
        while not asked.done():
            place.serve_once(0.01)
        return asked.result()


@pytest.mark.slow
@pytest.mark.parametrize("earlier", [0, 2], ids=["the opening", "a later request"])
def test_a_place_that_is_killed_between_any_two_writes_answers_the_same(template, killed_at_each_step, earlier):
    session, plane = session_of(template)
    for number in range(earlier):
        ask_while_serving(session, place_of(template), f"earlier{number}", b"")
    asked = threading.Thread(target=lambda: session.ask("killed", b"abc"), daemon=True)
    asked.start()
    while not list(template.glob("to/north/*")):
        time.sleep(0.01)
    key, envelope = plane.last
    copies = killed_at_each_step(template, SERVE_ONCE, PREPARATION)
    assert len(copies) > 12
    ask_name = "killed" if earlier else "open"
    for copy in copies:
        place = place_of(copy)
        FolderPlane(str(copy)).put(key, envelope)  # the coordinator puts it again
        while place.serve_once(0):
            pass
        answer = key.replace("to/", "from/")
        found = FolderPlane(str(copy)).take(answer, 0)
        assert found is not None
        header, body = unseal(PrivateKey.read(copy / "keys" / "north.pem").public, found[1], 100)
        assert (header.number, header.subject, body) == (
            earlier and earlier + 1,
            "answered",
            b"cba" if earlier else b"",
        )
        made = [call for call in calls(copy) if call == "killed"]
        assert len(made) in ((1, 2) if earlier else (0,)), ask_name
        FolderPlane(str(copy)).put(key, envelope)  # and once more, late
        while place.serve_once(0):
            pass
        assert [call for call in calls(copy) if call == "killed"] == made
        assert FolderPlane(str(copy)).take(answer, 0) == found
        assert not list((copy / "place").rglob("*.tmp"))
    while asked.is_alive():
        place_of(template).serve_once(0.05)
    assert ask_while_serving(session, place_of(template), "next", b"xy") == b"yx"


@pytest.mark.slow
def test_a_place_that_is_killed_while_it_forgets_a_session_forgets_it(template, killed_at_each_step):
    session, plane = session_of(template)
    ask_while_serving(session, place_of(template), "earlier", b"")
    session.close()
    key, envelope = plane.last
    for copy in killed_at_each_step(template, SERVE_ONCE, PREPARATION):
        FolderPlane(str(copy)).put(key, envelope)
        place = place_of(copy)
        while place.serve_once(0):
            pass
        assert list((copy / "place").iterdir()) == []
        assert not [*copy.glob("from/north/*"), *copy.glob("to/north/*")]


@pytest.mark.slow
def test_a_broker_that_is_killed_between_any_two_writes_has_all_that_it_acknowledged(tmp_path, killed_at_each_step):
    template, content = tmp_path / "template", b"abcdefgh" * 100
    template.mkdir()
    store = _Store(template / "broker", 1000, 100_000)
    digest = hashlib.sha256(content).hexdigest()
    asyncio.run(store.add("to/north/old", 800, digest, 0, content))
    copies = killed_at_each_step(template, ADD, PREPARATION)
    assert len(copies) > 8
    for copy in copies:
        path = copy / "acknowledged"
        acknowledged = len(path.read_bytes()) if path.exists() else 0
        store = _Store(copy / "broker", 1000, 100_000)
        have = asyncio.run(store.have("to/north/new", 800, digest))
        assert have >= acknowledged
        assert asyncio.run(store.add("to/north/new", 800, digest, have, content[have:])) == (201, 800)
        for name in ("new", "old"):
            assert asyncio.run(store.first(f"to/north/{name}", 0)) == (f"to/north/{name}", 800)
            assert store.read(f"to/north/{name}", 0) == content
            store.drop(f"to/north/{name}")
        assert store._used["north"] == 0
        assert not [p for p in (copy / "broker").rglob("*") if p.is_file()]


# ---- processes


@pytest.fixture
def places(tmp_path) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(60)


def start_place(broker, home: Path, keys: dict[str, PrivateKey], keyfile: Path) -> subprocess.Popen[bytes]:
    home.mkdir(exist_ok=True)
    public, token = keys[COORDINATOR].public.text, broker.tokens["north"]
    return start("place", "north", keyfile, public, home, broker.address, broker.certificate, token)


@pytest.mark.slow
def test_kills_of_place_and_broker_in_the_middle_of_a_request(killable_broker, places, keys, key_files, tmp_path):
    home = tmp_path / "north"
    places.append(start_place(killable_broker, home, keys, key_files["north"]))
    plane = killable_broker.plane()
    session = CoordinatorSession(plane, keys[COORDINATOR], "north", keys["north"].public, "0.1.0", tmp_path / "asking")
    assert session.ask("step", b"ab", wait=60) == b"ba"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(session.ask, "die", b"abc")
        places[0].wait(60)  # killed in its handler
        assert not asked.done()
        killable_broker.kill()
        killable_broker.start()
        places.append(start_place(killable_broker, home, keys, key_files["north"]))
        assert asked.result(60) == b"cba"
    assert (home / "calls").read_text(encoding="utf-8").split() == ["step", "6162", "die", "616263", "die", "616263"]
    killable_broker.kill()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(session.ask, "step", b"no broker")
        time.sleep(0.3)
        killable_broker.start()
        assert asked.result(60) == b"rekorb on"


@dataclass
class Line:
    """A userspace line to an address, as a forwarder or as an HTTP proxy; cut after each `budget` bytes from the client."""

    target: int
    budget: float = float("inf")
    is_proxy: bool = False
    carried: int = 0
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> "Line":
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        if self.is_proxy:
            self.asked.append(client.recv(4096).split(b"\r\n")[0].decode())
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        server = socket.create_connection(("127.0.0.2" if self.is_proxy else "127.0.0.1", self.target))
        threading.Thread(target=self.pump, args=(server, client, float("inf")), daemon=True).start()
        self.pump(client, server, self.budget)

    def pump(self, source: socket.socket, sink: socket.socket, budget: float) -> None:
        passed = 0
        try:
            while passed < budget and (content := source.recv(65536)):
                sink.sendall(content)
                passed += len(content)
                self.carried += len(content)
        except OSError:
            pass
        for end in (source, sink):
            end.close()


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_message_over_a_line_that_is_cut_again_and_again_is_resumed(broker, way, monkeypatch):
    monkeypatch.setattr(HttpsPlane, "_first_pause", 0.01)
    content, key = os.urandom(6 * CHUNK), f"to/north/cut-{way}"
    budget = 2.5 * CHUNK if way == "up" else 1500  # a few requests from the client
    with Line(broker.port, budget) as line:
        through = HttpsPlane(f"https://127.0.0.1:{line.port}", broker.certificate, broker.tokens[COORDINATOR])
        if way == "up":
            through.put(key, content)
            assert 2.5 * CHUNK < line.carried < 10 * CHUNK  # each cut costs its chunk, never the whole
            assert broker.plane("north").take(key, 0) == (key, content)
        else:
            broker.plane().put(key, content)
            reader = HttpsPlane(f"https://127.0.0.1:{line.port}", broker.certificate, broker.tokens["north"])
            assert reader.take(key, 60) == (key, content)
            assert line.carried < 12 * CHUNK
        through.drop(key)


def test_the_proxy_of_the_environment_is_used(tmp_path, monkeypatch):
    broker = Broker(tmp_path, host="127.0.0.2")  # 127.0.0.1 is never reached through a proxy
    with broker.serving(), Line(broker.port, is_proxy=True) as line:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{line.port}")
        broker.plane().put("to/north/a", b"message")
        assert broker.plane("north").take("to/north/", 0) == ("to/north/a", b"message")
        assert set(line.asked) == {f"CONNECT 127.0.0.2:{broker.port} HTTP/1.1"}
