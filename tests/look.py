"""`make look` and `make pictures`: what a person sees. Needs chromium. Not a part of `make test`.

`make look`: `siloflow schedule` runs a small comparison by itself, a minute ahead; then `siloflow ui` shows it, and a
headless browser takes pictures of MLflow's and Prefect's pages into runs/look. Both commands are ended as ctrl-C ends
them.

`make pictures`: the comparison and the diagnosis of params.yaml run, and their figures and pages go to docs/pictures.
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
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from PIL.Image import Resampling
from websockets.sync.client import connect

CHECKOUT = Path(__file__).resolve().parents[1]
SILOFLOW = str(Path(sys.executable).parent / "siloflow")
LOOK = CHECKOUT / "runs" / "look"
PICTURES = CHECKOUT / "docs" / "pictures"
COMPARISON, METHODS = "five-methods", ["local_only", "fedavg", "ifca", "conditional", "uefl"]  # as `make run` has them
COLOURS = 128  # of a picture in docs/, to keep it small
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
    # a mouse: without one, Prefect's forms have lists that the system draws, outside of the page
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
]


def main() -> None:
    """Do everything in order; an assertion fails if something is not as promised."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome") or sys.exit("This needs chromium.")
    with TemporaryDirectory() as folder:
        project = Path(folder) / "digits"  # MLflow's pages show the name
        project.mkdir()
        if sys.argv[1:] == ["pictures"]:
            run_examples(project)
            draw_pictures(chromium, project)
        else:
            look_at_schedule(chromium, project)


def run_examples(project: Path) -> None:
    """Run what README shows."""
    shutil.copy(CHECKOUT / "params.yaml", project)
    for command in (["partition"], ["diagnose"], ["compare", *METHODS, "--name", COMPARISON]):
        subprocess.run([SILOFLOW, *command], cwd=project, check=True)


def draw_pictures(chromium: str, project: Path) -> None:
    """Write the pictures of docs/ from the project's diagnosis and comparison."""
    (pairs,) = project.glob("runs/diagnose-*/pairs.png")
    folder = project / "runs" / COMPARISON
    comparison = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    figures = {"diagnosis": pairs, "comparison": folder / "comparison.png"}
    mlflow, prefect = free_ports()
    with serving(project, "ui", "--mlflow-port", str(mlflow), "--prefect-port", str(prefect), until="ctrl-C to end"):
        experiment = experiment_of(f"http://127.0.0.1:{mlflow}", comparison)
        runs_page = f"http://127.0.0.1:{mlflow}/#/experiments/{experiment}/runs?workflowType=machine_learning"
        runs = ask(f"http://127.0.0.1:{prefect}/api/flow_runs/filter", {"sort": "START_TIME_ASC"})
        compare = [run["id"] for run in runs if run["name"].startswith("compare ") and COMPARISON in run["name"]][-1]
        for name, url, wanted in (
            ("mlflow", f"{runs_page}&viewStateShareKey=siloflow", "accuracy/worst"),
            ("prefect", f"http://127.0.0.1:{prefect}/runs/flow-run/{compare}", "MLflow"),
        ):
            figures[name] = folder / f"{name}-page.png"
            with Browser(chromium, "1800,900") as browser:
                assert browser.look(url, wanted, figures[name], patience=120), f"{wanted!r} did not appear on {url}"
    for name, path in figures.items():
        with Image.open(path) as opened:
            width = 1336 if name == "mlflow" else opened.width  # to the right of it is MLflow's assistant
            picture = opened.convert("RGB").crop((0, 0, width, opened.height))
        small = picture.resize([round(1400 / picture.width * side) for side in picture.size], Resampling.LANCZOS)
        small.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)
        print(f"docs/pictures/{name}.png  {(PICTURES / f'{name}.png').stat().st_size:,} bytes", flush=True)


def look_at_schedule(chromium: str, project: Path) -> None:
    """Look at the pages of a small comparison that a schedule started."""
    shutil.rmtree(LOOK, ignore_errors=True)
    LOOK.mkdir(parents=True)
    params = (CHECKOUT / "params.yaml").read_text(encoding="utf-8").replace("rounds: 50", "rounds: 8")
    (project / "params.yaml").write_text(params, encoding="utf-8")
    subprocess.run([SILOFLOW, "partition"], cwd=project, check=True)
    look(chromium, project)


def look(chromium: str, project: Path) -> None:
    """A scheduled comparison, and the pages that show it."""
    comparison = scheduled_comparison(project)
    mlflow, prefect = free_ports()
    with serving(
        project, "ui", "--mlflow-port", str(mlflow), "--prefect-port", str(prefect), until="Press ctrl-C to end both"
    ):
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
    """Start the command, wait until it prints `until`, and end it by ctrl-C; then none of its processes may be left."""
    print(f"$ siloflow {' '.join(command)}", flush=True)
    arguments = {"cwd": project, "text": True, "start_new_session": True}
    process = subprocess.Popen([SILOFLOW, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **arguments)
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            print(f"  {line}", end="", flush=True)
            printed += line
            if until in line:
                break
        assert until in printed, "the command ended by itself"
        yield
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=600)[0]
        assert process.returncode in (0, 130), rest  # 130: ctrl-C ended the schedule; to end `ui` so is no error
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


def experiment_of(mlflow: str, comparison: dict[str, Any]) -> str:
    """Return the id of the comparison's experiment in MLflow."""
    run = ask(f"{mlflow}/api/2.0/mlflow/runs/get?run_id={comparison['runs'][0]['mlflow_run_id']}")
    return str(run["run"]["info"]["experiment_id"])


def pages(mlflow: int, prefect: int, comparison: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name of the picture, address, and text that must appear on the page."""
    first = comparison["runs"][0]["mlflow_run_id"]
    at = f"http://127.0.0.1:{mlflow}"
    experiment = experiment_of(at, comparison)
    training = "workflowType=machine_learning"
    runs = f"{at}/#/experiments/{experiment}/runs?{training}"
    name = ask(f"{at}/api/2.0/mlflow/experiments/get?experiment_id={experiment}")["experiment"]["name"]
    yield "mlflow-experiments", f"{at}/#/experiments?{training}", name
    yield "mlflow-comparisons", f"{runs}&viewStateShareKey=comparisons", comparison["experiment"]
    yield "mlflow-runs", f"{runs}&viewStateShareKey=siloflow", "accuracy/worst"
    yield "mlflow-charts", f"{runs}&compareRunsMode=CHART", "accuracy/worst"
    chosen = json.dumps([r["mlflow_run_id"] for r in comparison["runs"]])
    yield "mlflow-compare", f'{at}/#/compare-runs?runs={chosen}&experiments=["{experiment}"]&{training}', "Comparing"
    yield "mlflow-run", f"{at}/#/experiments/{experiment}/runs/{first}?{training}", "data_version"
    yield "mlflow-models", f"{at}/#/experiments/{experiment}/models?{training}", "fedavg-seed0"
    named = {"experiment_ids": [experiment], "filter": "tags.kind = 'comparison'"}
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

    def __init__(self, chromium: str, size: str = "1800,1100") -> None:
        self._profile = TemporaryDirectory()
        command = [chromium, *QUIET, f"--window-size={size}", f"--user-data-dir={self._profile.name}", "about:blank"]
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
        self.go(url)
        seen = self.sees(f"document.body.innerText.includes({json.dumps(wanted)})", patience)
        time.sleep(4)  # charts are drawn after the text
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))
        return seen

    def go(self, url: str) -> None:
        """Open the page."""
        self._call("Page.enable")
        self._call("Page.navigate", url=url)

    def sees(self, condition: str, patience: float = 60.0) -> bool:
        """Wait until this JavaScript is true on the page; return whether it was in this time."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if self._evaluate(f"document.body !== null && Boolean({condition})"):
                return True
            time.sleep(0.2)
        return False

    def click(self, element: str) -> None:
        """Click with the mouse on the middle of what this JavaScript finds, once it is there and does not move."""
        assert self.sees(element), f"not on the page: {element}"
        middle = (
            f"(e => {{ e.scrollIntoView({{block: 'center', behavior: 'instant'}}); const at = e.getBoundingClientRect();"
            f" return [at.x + at.width / 2, at.y + at.height / 2] }})({element})"
        )
        before = None
        while (place := self._evaluate(middle)) != before:
            before = place
            time.sleep(0.2)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press_down(self, element: str) -> None:
        """Press the key with the arrow down on what this JavaScript finds, once it is there."""
        assert self.sees(element), f"not on the page: {element}"
        self._evaluate(f"{element}.focus()")
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key="ArrowDown", code="ArrowDown", windowsVirtualKeyCode=40)

    def write(self, element: str, text: str) -> None:
        """Write the text into the field that this JavaScript finds."""
        self._evaluate(f"{element}.focus()")
        self._call("Input.insertText", text=text)
        assert self.sees(f"{element}.value === {json.dumps(text)}"), f"the field has not taken {text}"

    def _evaluate(self, expression: str) -> Any:
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            if answer.get("id") == self._calls:
                result: dict[str, Any] = answer["result"]
                return result

    def _port(self) -> str:
        port_file = Path(self._profile.name) / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (port_file.is_file() and port_file.read_text().strip()):
            assert time.monotonic() < end, "chromium does not start"
            time.sleep(0.1)
        return port_file.read_text().splitlines()[0]


def ask(url: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
    """Return a JSON answer, None if it is empty.

    Prefect answers 503 while its SQLite file is locked; then its own client asks again too.
    """
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > end:
                raise
        time.sleep(0.5)


def free_ports(count: int = 2) -> list[int]:
    """Find unused ports of loopback."""
    with contextlib.ExitStack() as opened:
        probes = [opened.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


if __name__ == "__main__":
    main()
