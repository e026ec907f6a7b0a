"""The broker knows who may use which key, keeps what it acknowledged, and refuses the rest in a sentence."""

import asyncio
import contextlib
import hashlib
import json
import os
import ssl
import stat
import threading
import time

import httpx
import pytest
from cryptography import x509

from silos.errors import UserError
from silos.io.locks import exclusive_lock
from tasks.places.broker import _RefusedError, _Store, serve_broker
from tasks.places.broker_access import COORDINATOR, add_token, hash_token, make_certificate, remove_token
from tasks.places.planes import CHUNK, HttpsPlane, PlaneAwayError, PlaneRefusalError
from tests.tasks.places.conftest import Broker


@pytest.fixture(scope="module")
def raw(broker):
    """A client that checks nothing itself."""
    context = ssl.create_default_context(cafile=broker.certificate)
    with httpx.Client(base_url=broker.address, verify=context, trust_env=False, timeout=30) as client:
        yield lambda who, method, key, content=b"", **query: client.request(
            method,
            f"/messages/{key}",
            headers={"authorization": f"Bearer {broker.tokens.get(who, who)}"},
            content=content,
            params=query or None,
        )


def sent(content: bytes, **changes: object) -> dict[str, object]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "offset": 0} | changes


@pytest.mark.parametrize(
    ("who", "method", "key", "allowed"),
    [
        (COORDINATOR, "PUT", "to/north/r1", True),
        (COORDINATOR, "PUT", "from/north/r1", False),
        (COORDINATOR, "GET", "from/north/r1", True),
        (COORDINATOR, "GET", "from/north/", True),
        (COORDINATOR, "GET", "to/north/", False),
        (COORDINATOR, "DELETE", "to/north/r1", True),
        (COORDINATOR, "DELETE", "from/north/r1", True),
        ("north", "PUT", "from/north/r2", True),
        ("north", "PUT", "to/north/r2", False),
        ("north", "PUT", "from/south/r2", False),
        ("north", "PUT", "to/south/r2", False),
        ("north", "GET", "to/north/", True),
        ("north", "GET", "to/south/", False),
        ("north", "GET", "from/north/", False),
        ("north", "GET", "from/south/", False),
        ("north", "DELETE", "to/north/r2", True),
        ("north", "DELETE", "from/north/r2", True),
        ("north", "DELETE", "to/south/r2", False),
        ("north", "DELETE", "from/south/r2", False),
    ],
)
def test_each_side_reaches_its_own_boxes_alone(raw, who, method, key, allowed):
    query = {"GET": {}, "DELETE": {}}.get(method, sent(b"x"))
    answer = raw(who, method, key, b"x" if method == "PUT" else b"", **query)
    assert (answer.status_code in (200, 201, 204)) == allowed
    if not allowed:
        assert answer.status_code == 403
        assert f"got the token of {who}" in answer.json()["refused"]


@pytest.mark.parametrize("token", ["wrong", "Bearer", "Bearer x", hash_token("wrong")])
def test_who_has_no_token_is_refused_whatever_is_sent(raw, broker, token):
    hashed = json.loads((broker.folder / "tokens.json").read_text(encoding="utf-8"))
    for refused in (token, *hashed.values()):  # the hashes open nothing
        for method in ("PUT", "GET", "DELETE"):
            answer = raw(refused, method, "to/north/a", **sent(b""))
            assert answer.status_code == 401
            assert "unknown" in answer.json()["refused"]


@pytest.mark.parametrize(
    "key",
    [
        "..%2f..%2ftokens.json",
        "to/north/..%2f..%2f..%2ftokens.json",
        "to/north/%2e%2e",
        "to/../tokens.json",
        "%2fetc%2fpasswd",
        "to/north/a%00",
        "to/north/a~b",
        "to/north/.a",
        "to/north/a/b",
        "to/north",
        "to//a",
        "tokens.json",
        "to/north/" + "a" * 151,
        "to/north/" + "a" * 5000,
        "to/n%2a/a",
    ],
)
def test_keys_that_leave_their_box_are_refused(raw, broker, key):
    before = sorted(broker.folder.rglob("*"))
    for method in ("PUT", "GET", "DELETE"):
        answer = raw(COORDINATOR, method, key, b"x" if method == "PUT" else b"", **sent(b"x"))
        assert answer.status_code in (400, 404), answer.text
        assert "root" not in answer.text
    assert sorted(broker.folder.rglob("*")) == before


def test_what_is_too_large_is_refused_before_it_is_there(raw, broker):
    answer = raw("north", "PUT", "from/north/bomb", b"x", **sent(b"x", size=10 * 2**30))
    assert (answer.status_code, answer.json()["refused"]) == (
        413,
        f"message: got 10,737,418,240 bytes, expected at most {broker.limit:,}. Send less.",
    )
    long = bytes(CHUNK + 1)
    answer = raw("north", "PUT", "from/north/bomb", long, **sent(long))
    assert (answer.status_code, "chunk: got over" in answer.text) == (413, True)
    with pytest.raises(PlaneRefusalError, match="message: got 67,108,865 bytes"):
        broker.plane("north").put("from/north/bomb", bytes(broker.limit + 1))
    assert not list(broker.folder.rglob("*bomb*"))


def test_wrong_queries_are_refused(raw):
    for changes in (
        {"sha256": "x"},
        {"sha256": "../" * 20},
        {"size": -1},
        {"offset": -1},
        {"offset": 2},
        {"size": "a"},
    ):
        assert raw("north", "PUT", "from/north/wrong", b"x", **sent(b"x", **changes)).status_code in (400, 422)
    for query in ({"wait": 26}, {"wait": -1}, {"wait": "nan"}, {"offset": -1}, {"wait": "inf"}):
        assert raw("north", "GET", "to/north/", **query).status_code in (400, 422)
    for path in ("/docs", "/openapi.json", "/redoc", "/"):
        assert raw(COORDINATOR, "GET", f"..{path}").status_code == 404


def test_other_bytes_than_were_announced_are_not_kept(raw, broker):
    answer = raw("north", "PUT", "from/north/other", b"abc", **sent(b"abd"))
    assert (answer.status_code, answer.headers["x-have"]) == (409, "0")
    answer = raw("north", "PUT", "from/north/other", b"abcd", **sent(b"abc"))
    assert (answer.status_code, answer.headers["x-have"]) == (409, "0")
    assert raw(COORDINATOR, "GET", "from/north/other").status_code == 204
    assert not list(broker.folder.rglob("*other*"))


def test_uploads_go_on_where_they_were_cut_also_after_a_restart(tmp_path):
    broker, content = Broker(tmp_path), os.urandom(2 * CHUNK + 5)
    plane = broker.plane("north")
    query = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    with broker.serving():
        plane._request("PUT", "from/north/part", {**query, "offset": 0}, content[:CHUNK])
        assert broker.plane().take("from/north/", 0) is None  # not before it is whole
    with broker.serving():
        for offset in (0, 7, len(content)):
            status, headers, _ = plane._request("PUT", "from/north/part", {**query, "offset": offset}, b"")
            assert (status, headers["x-have"]) == (409, str(CHUNK))
        plane.put("from/north/part", content)
    with broker.serving():
        assert broker.plane().take("from/north/", 0) == ("from/north/part", content)
        plane.put("from/north/part", content)
        with pytest.raises(PlaneRefusalError, match="written once"):
            plane.put("from/north/part", content[:-1] + b"x")
    assert not list((broker.folder / "incoming").rglob("*~*"))


def test_a_full_box_refuses_and_takes_again_when_there_is_room(tmp_path):
    store = _Store(tmp_path, 10_000, 20_000)

    def add(key: str, content: bytes, size: int | None = None) -> tuple[int, int]:
        digest = hashlib.sha256(content).hexdigest()
        return asyncio.run(store.add(key, size or len(content), digest, 0, content))

    assert add("to/north/a", b"a" * 10_000) == (201, 10_000)
    assert add("from/north/unfinished", b"u" * 6000, 8000) == (200, 6000)
    assert add("from/north/b", b"b" * 8000) == (201, 8000)  # what is not whole makes room
    with pytest.raises(_RefusedError, match="north: got a full box, expected at most 20,000 bytes"):
        add("from/north/c", b"c")  # a file counts a block
    assert add("to/south/a", b"a" * 10_000) == (201, 10_000)  # another place has its own
    store = _Store(tmp_path, 10_000, 20_000)  # as after a restart
    with pytest.raises(_RefusedError, match="full box"):
        add("from/north/c", b"c")
    store.drop("to/north/a")
    assert add("from/north/c", b"c") == (201, 1)


def test_a_place_has_a_bounded_number_of_messages(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.places.broker._MOST_FILES", 3)
    store = _Store(tmp_path, 100, 2**30)

    def add(key: str, size: int = 1) -> int:
        status, _ = asyncio.run(store.add(key, size, hashlib.sha256(b"a" * size).hexdigest(), 0, b"a"))
        return status

    assert [add(f"from/north/{name}", size) for name, size in (("a", 1), ("b", 1), ("unfinished", 2))] == [
        201,
        201,
        200,
    ]
    assert add("from/north/c") == 201  # what is not whole makes room
    store = _Store(tmp_path, 100, 2**30)  # as after a restart
    with pytest.raises(_RefusedError, match=r"north: got a full box, .* in 3 messages"):
        add("from/north/d")
    assert add("to/south/a") == 201
    store.drop("from/north/a")
    assert add("from/north/d") == 201


def test_a_token_is_stored_as_its_hash_and_may_be_revoked_meanwhile(broker):
    stored = (broker.folder / "tokens.json").read_text(encoding="utf-8")
    assert not [token for token in broker.tokens.values() if token in stored]
    west = HttpsPlane(broker.address, broker.certificate, add_token(broker.folder, "west"))
    west.put("from/west/a", b"a")
    remove_token(broker.folder, "west")
    with pytest.raises(PlaneRefusalError, match="token: got an unknown one"):
        west.put("from/west/b", b"b")
    again = HttpsPlane(broker.address, broker.certificate, add_token(broker.folder, "west"))
    again.put("from/west/b", b"b")
    broker.plane("north").put("from/north/revoked", b"a")


def test_only_the_pinned_certificate_is_accepted(broker, tmp_path):
    make_certificate(tmp_path / "other.pem", tmp_path / "other.key", "127.0.0.1")
    for certificate, address in (
        (tmp_path / "other.pem", broker.address),
        (broker.certificate, broker.address.replace("127.0.0.1", "localhost")),  # another host than it names
    ):
        plane = HttpsPlane(address, certificate, broker.tokens["north"], patience=0)
        with pytest.raises(PlaneAwayError, match="certificate verify failed"):
            plane.put("from/north/a", b"a")


def test_a_certificate_names_a_host_or_an_address_at_any_time(tmp_path):
    for host, kind in (
        ("coordinator.example.org", x509.DNSName),
        ("10.0.0.7", x509.IPAddress),
        ("::1", x509.IPAddress),
    ):
        path, key = tmp_path / f"{len(host)}.pem", tmp_path / f"{len(host)}.key"
        make_certificate(path, key, host)
        read = x509.load_pem_x509_certificate(path.read_bytes())
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(n) for n in names.get_values_for_type(kind)] == [host]
        assert (read.not_valid_before_utc.year, read.not_valid_after_utc.year) == (2000, 9999)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        with pytest.raises(UserError, match="expected none"):
            make_certificate(path, key, host)


def test_a_broker_ends_at_once_and_is_alone_in_its_folder(tmp_path):
    """An open long poll would hold it."""
    broker = Broker(tmp_path)
    with broker.serving():
        waiting = threading.Thread(target=lambda: suppressed(broker.plane("north").take, "to/north/", 2))
        waiting.start()
        time.sleep(0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 15  # of the 25 s of a poll
    waiting.join(30)
    with exclusive_lock(broker.folder), pytest.raises(UserError, match="a second process"):
        serve_broker(*broker.arguments)


def suppressed(call, *arguments) -> None:
    with contextlib.suppress(PlaneAwayError):
        call(*arguments)
