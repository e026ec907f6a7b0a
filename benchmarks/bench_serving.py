"""Measure `siloflow serve`: how long requests on loopback take, and whether its memory stays."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import yaml

from benchmarks.run_benchmark import clean_environment, command, scratch
from silos.errors import UserError

REQUESTS = 1_000
ROWS = (1, 100)  # of a request
CLIENTS, ROWS_OF_CLIENT, FEATURES = 6, 200, 10
_SIGNAL = {f"value{index}": 1.0 / (1 + index) for index in range(FEATURES)}
_WARM_UP = 20  # requests, the first of which imports
_PATIENCE = 120.0  # seconds until the server answers


def serving_cost(say: Callable[[str], None], requests: int = REQUESTS) -> dict[str, Any]:
    """Train a small comparison, serve its champion, and send requests one after another over one connection.

    Args:
        say: Reports progress.
        requests: The number of requests of each size.
    """
    with scratch() as root:
        say(f"{CLIENTS} clients of {ROWS_OF_CLIENT} rows: partition and compare")
        table = _write_table(root)
        for words in (["partition"], ["compare"], ["promote", "--force"]):
            command(root, *words, "--json")
        with _server(root) as (process, port):
            connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
            bodies = {rows: _body(table, rows) for rows in ROWS}
            for body in bodies.values():
                _send(connection, body, _WARM_UP)
            before = process.memory_info().rss
            lines = []
            for rows, body in bodies.items():
                say(f"{requests:,} requests, rows in each: {rows}")
                p50, p99 = np.quantile(_send(connection, body, requests), [0.5, 0.99])
                lines.append({"rows": rows, "p50": float(p50), "p99": float(p99)})
            connection.close()
            after = process.memory_info().rss
    return {"requests": requests, "columns": FEATURES + 1, "lines": lines, "bytes_before": before, "bytes_after": after}


def _write_table(root: Path) -> pd.DataFrame:
    """Write params.yaml and a table of numbers and a category; return the table."""
    draw = np.random.default_rng(0)
    count = CLIENTS * ROWS_OF_CLIENT
    table = pd.DataFrame({name: draw.normal(size=count).round(3) for name in _SIGNAL})
    table["ward"] = draw.choice(["day", "eye", "lab"], count)
    score = sum(weight * table[name] for name, weight in _SIGNAL.items()) + draw.normal(size=count)
    labelled = table.assign(
        label=np.where(score > 0, "ill", "well"),
        client=np.repeat([f"c{index}" for index in range(CLIENTS)], ROWS_OF_CLIENT),
    )
    labelled.to_csv(root / "rows.csv", index=False)
    params = {
        "data": {
            "name": "rows",
            "seed": 0,
            "source": {"kind": "table", "path": "rows.csv", "label": "label", "client": "client"},
            "scheme": [{"kind": "column", "column": "client"}],
            "split": {"validation": 0.15, "test": 0.25},
        },
        "model": {"kind": "mlp", "hidden": [20]},
        "training": {
            "rounds": 5,
            "epochs": 1,
            "batch": 20,
            "optimiser": {"kind": "sgd", "learning_rate": 0.1},
            "objective": {"kind": "cross_entropy"},
        },
        "clients": {},
        "evaluation": {},
        "comparison": {"methods": ["fedavg", "local_only"], "reference": "local_only", "seeds": [0]},
        "method": {},
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    return table


def _body(table: pd.DataFrame, rows: int) -> bytes:
    return json.dumps({"dataframe_records": table[:rows].to_dict("records")}).encode()


@contextmanager
def _server(root: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Serve the project's champion; yield the server's process and its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = [sys.executable, "-c", "from flows.cli import main; main()", "serve", "--port", str(port)]
    with (root / "serve.log").open("wb") as log:
        process = subprocess.Popen(program, cwd=root, stdout=log, stderr=log, env=clean_environment())
    try:
        end = time.monotonic() + _PATIENCE
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > end:
                raise UserError(f"the server does not answer: {(root / 'serve.log').read_text().strip()[-1500:]}")
            time.sleep(0.1)
        yield psutil.Process(process.pid), port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _send(connection: HTTPConnection, body: bytes, times: int) -> list[float]:
    """Send a request this many times; return the seconds that each took. UserError if one is refused."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        seconds.append(time.perf_counter() - start)
        if response.status != 200:
            raise UserError(f"the server refused a request: {content.decode(errors='replace')[:500]}")
    return seconds
