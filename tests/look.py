"""`make look`: what a person sees. Needs chromium; pictures go to runs/look. Not a part of `make test`.

`siloflow schedule` runs a small comparison by itself, a minute ahead; then `siloflow ui` shows it, and a headless browser
takes pictures of MLflow's and Prefect's pages. Both commands are ended as ctrl-C ends them.
"""

import base64
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from websockets.sync.client import connect

CHECKOUT = Path(__file__).resolve().parents[1]
SILOFLOW = str(Path(sys.executable).parent / "siloflow")
LOOK = CHECKOUT / "runs" / "look"
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--window-size=1800,1100",
]


def main() -> None:
    """Everything in order; an assertion fails where something is not as promised."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("make look needs chromium.")
    shutil.rmtree(LOOK, ignore_errors=True)
    LOOK.mkdir(parents=True)
    with TemporaryDirectory() as folder:
        project = Path(folder)
        params = (CHECKOUT / "params.yaml").read_text(encoding="utf-8").replace("rounds: 50", "rounds: 8")
        (project / "params.yaml").write_text(params, encoding="utf-8")
        subprocess.run([SILOFLOW, "partition"], cwd=project, check=True)
        look(chromium, project)


def look(chromium: str, project: Path) -> None:
    """A scheduled comparison, and the pages that show it."""
    comparison = scheduled_comparison(project)
    mlflow, prefect = free_ports()
    with serving(project, "ui", "--mlflow-port", str(mlflow), "--prefect-port", str(prefect), until="ctrl-C ends both"):
        for name, url, wanted in pages(mlflow, prefect, comparison):
            with Browser(chromium) as browser:
                seen = browser.look(url, wanted, LOOK / f"{name}.png")
            print(f"runs/look/{name}.png  {'' if seen else f'{wanted!r} did not appear on '}{url}", flush=True)


def scheduled_comparison(project: Path) -> dict[str, Any]:
    """The schedule is left alone until the comparison that it started is on disk."""
    due = datetime.now(UTC) + timedelta(minutes=1, seconds=15)
    with serving(project, "schedule", f"{due.minute} {due.hour} * * *", "--seeds", "0,1", until=" done. "):
        (found,) = project.glob("runs/compare-*/comparison.json")
    comparison: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    assert len(comparison["runs"]) == 8, "four methods with two seeds"
    assert not comparison["failed"], comparison["failed"]
    return comparison


@contextlib.contextmanager
def serving(project: Path, *command: str, until: str) -> Iterator[None]:
    """The command, once it has said `until`; ended by ctrl-C, after which nothing of it may be left."""
    print(f"$ siloflow {' '.join(command)}", flush=True)
    arguments = {"cwd": project, "text": True, "start_new_session": True}
    process = subprocess.Popen([SILOFLOW, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **arguments)
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            print(f"  {line}", end="", flush=True)
            said += line
            if until in line:
                break
        assert until in said, "the command ended by itself"
        yield
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
        assert process.returncode == 0, rest
        assert "Traceback" not in rest, rest
    finally:
        process.kill()
    time.sleep(1)
    assert not inside(project), f"left over: {inside(project)}"


def inside(folder: Path) -> list[str]:
    """The processes that work in this folder, the server's among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder.resolve():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def pages(mlflow: int, prefect: int, comparison: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name of the picture, address, and text that must appear on the page."""
    first = comparison["runs"][0]["mlflow_run_id"]
    at = f"http://127.0.0.1:{mlflow}"
    experiment = ask(f"{at}/api/2.0/mlflow/runs/get?run_id={first}")["run"]["info"]["experiment_id"]
    training = "workflowType=machine_learning"
    runs = f"{at}/#/experiments/{experiment}/runs?{training}"
    yield "mlflow-experiments", f"{at}/#/experiments?{training}", comparison["experiment"]
    yield "mlflow-runs", f"{runs}&viewStateShareKey=siloflow", "accuracy/worst"
    yield "mlflow-charts", f"{runs}&compareRunsMode=CHART", "accuracy/worst"
    chosen = json.dumps([r["mlflow_run_id"] for r in comparison["runs"]])
    yield "mlflow-compare", f'{at}/#/compare-runs?runs={chosen}&experiments=["{experiment}"]&{training}', "Comparing"
    yield "mlflow-run", f"{at}/#/experiments/{experiment}/runs/{first}?{training}", "data_version"
    yield "mlflow-models", f"{at}/#/experiments/{experiment}/models?{training}", "fedavg-seed0"
    named = {"experiment_ids": [experiment], "filter": "attributes.run_name = 'comparison'"}
    (whole,) = ask(f"{at}/api/2.0/mlflow/runs/search", named)["runs"]
    page = f"{at}/#/experiments/{experiment}/runs/{whole['info']['run_id']}"
    yield "mlflow-comparison", f"{page}?{training}", "Description"
    for name in ("comparison.png", "table.json", "runs.json"):
        yield f"mlflow-{name.partition('.')[0]}-of-comparison", f"{page}/artifacts/{name}?{training}", name

    at = f"http://127.0.0.1:{prefect}"
    found = ask(f"{at}/api/flow_runs/filter", {"sort": "START_TIME_ASC"})
    (compare,) = [run for run in found if run["deployment_id"]]
    single = next(run for run in found if run["name"].startswith("run fedavg"))
    yield "prefect-runs", f"{at}/runs", compare["name"]
    yield "prefect-compare", f"{at}/runs/flow-run/{compare['id']}", "MLflow"
    yield "prefect-run", f"{at}/runs/flow-run/{single['id']}", "Parent Run"
    yield "prefect-deployment", f"{at}/deployments", "siloflow-compare"
    yield "prefect-form", f"{at}/deployments/deployment/{compare['deployment_id']}/run", "if none is chosen"


class Browser:
    """A headless Chromium with a new, empty profile, spoken to in its DevTools protocol."""

    def __init__(self, chromium: str) -> None:
        self._profile = TemporaryDirectory()
        command = [chromium, *QUIET, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self._port()
        page = next(p for p in ask(f"http://127.0.0.1:{port}/json") if p["type"] == "page")
        self._socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        self._calls = 0

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(20)
        with contextlib.suppress(OSError):
            self._profile.cleanup()

    def look(self, url: str, wanted: str, path: Path, patience: float = 30.0) -> bool:
        """A picture of the page once it shows this text; whether it did."""
        self._call("Page.enable")
        self._call("Page.navigate", url=url)
        end, seen = time.monotonic() + patience, False
        while time.monotonic() < end and not seen:
            time.sleep(0.5)
            text = self._call("Runtime.evaluate", expression="document.body.innerText")["result"].get("value", "")
            seen = wanted in text
        time.sleep(4)  # charts are drawn after the text
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))
        return seen

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._calls:
                result: dict[str, Any] = answer["result"]
                return result

    def _port(self) -> str:
        told = Path(self._profile.name) / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (told.is_file() and told.read_text().strip()):
            assert time.monotonic() < end, "chromium does not start"
            time.sleep(0.1)
        return told.read_text().splitlines()[0]


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """A JSON answer."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def free_ports() -> list[int]:
    """Two ports of loopback that nobody listens on."""
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in (one, other)]


if __name__ == "__main__":
    main()
