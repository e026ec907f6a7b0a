"""Connections to this machine bypass every proxy, no password of an address is shown, and wrong ports are found."""

import http.server
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from silos.errors import UserError
from silos.io import addresses
from silos.io.addresses import (
    has_password,
    has_wrong_port,
    keep_loopback_direct,
    loopback_direct,
    mask_passwords,
    must_be_reachable,
    without_login,
)

GET: dict[str, Callable[[str], object]] = {
    "urllib": lambda address: urllib.request.build_opener().open(address, timeout=60).close(),
    "httpx": lambda address: httpx.get(address, timeout=60),
    "requests": lambda address: requests.get(address, timeout=60).close(),
}


class Counting(http.server.ThreadingHTTPServer):
    """Answers whatever it is asked, as a proxy or a server, and counts the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.asked: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}"


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers with nothing."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[], Counting]]:
    servers: list[Counting] = []

    def start() -> Counting:
        servers.append(Counting())
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Replaces every proxy variable by these; afterwards the process has its own again, for its children, too."""
    before = {name: os.environ[name] for name in _set_proxies()}

    def replace(**variables: str) -> None:
        monkeypatch.setattr(addresses, "_removed", {})
        for name in _set_proxies():
            del os.environ[name]
        os.environ.update(variables)

    yield replace
    replace(**before)


def _set_proxies() -> list[str]:
    return [name for name in os.environ if name.lower().endswith("_proxy")]


@pytest.mark.slow
@pytest.mark.parametrize("library", GET)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    "before", [{}, {"NO_PROXY": "intern.example"}, {"no_proxy": "", "NO_PROXY": "[::1], fe80::/10"}]
)
def test_loopback_never_goes_through_a_proxy_and_another_host_still_does(library, name, before, serve, environment):
    proxy, server = serve(), serve()
    environment(**before, **{name: proxy.address})
    keep_loopback_direct()
    GET[library](f"{server.address}/direct")
    assert (server.asked, proxy.asked) == (["/direct"], [])
    if library == "urllib" and name.lower() == "all_proxy":
        return  # urllib does not know it
    GET[library]("http://mlflow.example/through")
    assert proxy.asked == ["http://mlflow.example/through"]


@pytest.mark.slow
@pytest.mark.parametrize("library", GET)
@pytest.mark.parametrize(
    ("name", "proxy"),
    [
        ("ALL_PROXY", "socks5://{}"),
        ("all_proxy", "SOCKS5H://{}"),
        ("http_proxy", "socks4://{}"),
        ("HTTPS_PROXY", "ftp://{}"),
        ("HTTP_PROXY", "http://{}:port"),
        ("HTTP_PROXY", "http://[::1"),
        ("http_proxy", "://"),
        ("ALL_PROXY", "proxy.example:99999"),
    ],
)
def test_a_proxy_that_no_library_here_speaks_to_does_not_end_direct_connections(
    library, name, proxy, serve, environment
):
    server = serve()
    environment(NO_PROXY="127.0.0.1", **{name: proxy.format("127.0.0.1:9")})
    keep_loopback_direct()
    GET[library](f"{server.address}/direct")
    assert server.asked == ["/direct"]


def test_what_is_to_go_through_such_a_proxy_is_refused_and_not_sent_past_it(environment):
    environment(ALL_PROXY="socks4://127.0.0.1:9", NO_PROXY="intern.example")
    with loopback_direct():
        assert "ALL_PROXY" not in os.environ
        must_be_reachable("http://intern.example:5000")
        must_be_reachable("http://127.0.0.1:5000")
        with pytest.raises(UserError, match=r"ALL_PROXY: got a proxy with the scheme socks4 for mlflow\.example"):
            must_be_reachable("https://user:secret@mlflow.example:5000")
        os.environ["https_proxy"] = "http://127.0.0.1:9"  # goes before it
        must_be_reachable("https://mlflow.example:5000")
        del os.environ["https_proxy"]
    assert os.environ["ALL_PROXY"] == "socks4://127.0.0.1:9"
    must_be_reachable("https://mlflow.example:5000")


def test_what_is_no_address_of_a_proxy_is_refused_where_it_is_needed(environment):
    environment(HTTP_PROXY="http://user:secret@proxy.example:port", NO_PROXY="ü.example, intern.example")
    with loopback_direct():
        must_be_reachable("http://intern.example:5000")
        httpx.Client().close()
        with pytest.raises(UserError) as error:
            must_be_reachable("http://mlflow.example:5000")
    assert str(error.value).startswith("HTTP_PROXY: got text that is no address, expected http://HOST:PORT.")


def test_called_twice_it_adds_nothing_and_a_star_stays_alone(environment):
    environment(NO_PROXY="a.example, *")
    keep_loopback_direct()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "*"
    environment(no_proxy="a.example")
    keep_loopback_direct()
    keep_loopback_direct()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "a.example,127.0.0.1,localhost,::1"


SECRET = "hunter2"
WITH_A_PASSWORD = [
    "https://me:hunter2@tracker:5000",
    "https://:hunter2@tracker",
    "https://hunter2@tracker:5000/api",
    "postgresql+psycopg2://me:hunter2@db:5432/runs",
    "postgresql://me:p@hunter2@db/runs",
    "postgresql://me:p/hunter2@db/runs",
    "mysql://db/runs?user=me&password=hunter2",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3Dhunter2",
    "postgresql:/me:hunter2@db/runs",
    "tls://me:hunter2@10.0.0.5:8786",
]
WITHOUT = [
    "https://tracker:5000",
    "sqlite:////srv/mlflow.db",
    "sqlite:///runs/a:b@c.db",
    "postgresql://me@db/runs",
    "tcp://10.0.0.5:8786",
    "databricks://profile",
    "mysql://db/runs?user=me",
    "a sentence: of words, me@example.org",
]


@pytest.mark.parametrize("address", WITH_A_PASSWORD)
def test_a_password_is_seen_and_hidden_wherever_an_address_has_it(address):
    assert has_password(address)
    for text in (address, f"MLflow at {address}: no answer", f"cannot open '{address}' (Errno 111)"):
        assert SECRET not in mask_passwords(text)
        assert not has_password(mask_passwords(text))


@pytest.mark.parametrize("text", WITHOUT)
def test_what_holds_no_password_is_shown_as_it_is(text):
    assert mask_passwords(text) == text


@given(st.text(st.characters(codec="ascii", exclude_categories=["C", "Z"]), min_size=1))
def test_no_password_is_shown_whatever_its_characters(password):
    address = f"https://me:<{password}>@tracker"
    assert mask_passwords(f"at {address}: gone").startswith("at https://me:***@tracker")


@pytest.mark.parametrize("port", [0, 65536, 99999, -1, "x"])
def test_a_port_that_cannot_be_is_seen_with_and_without_a_scheme(port):
    assert has_wrong_port(f"tcp://10.0.0.5:{port}")
    assert has_wrong_port(f"10.0.0.5:{port}")


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:1", "10.0.0.5:65535", "tcp://host", "tcp://[::1]:8786", "host"])
def test_other_ports_are_right(address):
    assert not has_wrong_port(address)


@pytest.mark.parametrize("address", [address for address in WITH_A_PASSWORD if "://" in address])
def test_a_browser_is_given_no_password(address):
    assert SECRET not in without_login(address)


def test_a_browser_is_given_the_place():
    assert without_login("https://me:hunter2@tracker:5000/mlflow/?token=hunter2") == "https://tracker:5000/mlflow"
    assert without_login("http://tracker") == "http://tracker"
