"""A command where the environment names proxies: its own servers pass them by, an MLflow elsewhere does not."""

import http.server
import threading

import pytest

pytestmark = pytest.mark.slow


class Proxy(http.server.BaseHTTPRequestHandler):
    """Refuses everything, and remembers it."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.send_error(404)

    do_POST = do_CONNECT = do_GET  # noqa: N815

    def log_message(self, *words: object) -> None:
        pass


def test_prefects_own_server_is_reached_directly_and_mlflow_elsewhere_through_the_proxy(
    partitioned, tmp_path, monkeypatch, assert_quiet
):
    folder = partitioned[0].copy(tmp_path / "project")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{proxy.server_address[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        settings = ["--set", "training.rounds=1", "--set", "tracking.uri=http://mlflow.example"]
        answer = folder.type("run", "fedavg", "--json", *settings)
        proxy.shutdown()
    assert_quiet(answer.err)
    assert answer.json["rounds"] == 1
    assert {request.split("/api")[0] for request in Proxy.asked} == {"GET http://mlflow.example"}
