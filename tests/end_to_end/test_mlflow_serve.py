"""A logged model behind MLflow's own server, asked over HTTP; its folder was copied, as to another machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.slow

ASKING = urllib.request.build_opener(urllib.request.ProxyHandler({}))
OWN = (
    "data.name=visits",
    "data.source={kind: table, path: visits.csv, label: outcome, client: hospital}",
    "data.scheme=[{kind: column, column: client}]",
    "data.features=[{name: age, missing: {fill: 0}}]",
)
QUICK = ("training.rounds=2", "training.optimiser.learning_rate=0.1")
SET = tuple(part for each in (*OWN, *QUICK) for part in ("--set", each))
ROWS = [
    {"age": 1.5, "visits": 3, "smokes": True, "ward": "eye"},
    {"age": -0.5, "visits": 0, "smokes": False, "ward": "day"},
]

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Callable[..., Ask]]:
    """Serves the model of a run, and returns what sends a request there: its status and its JSON."""
    started = []
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"  # where MLflow looks for uvicorn

    def serve(folder: Any, run: dict[str, Any]) -> Ask:
        client = folder.mlflow()
        experiment = client.get_run(run["mlflow_run_id"]).info.experiment_id
        (logged,) = client.search_logged_models([experiment], filter_string=f"source_run_id = '{run['mlflow_run_id']}'")
        place = tmp_path_factory.mktemp("machine") / "model"
        shutil.copytree(logged.artifact_location.removeprefix("file://"), place)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(place), "--env-manager", "local"]
        with (place.parent / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                cwd=place.parent,
                env={**environment, "MLFLOW_DISABLE_TELEMETRY": "true", "PATH": path},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started.append(process)
        while True:
            try:
                ASKING.open(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, (place.parent / "server.log").read_text()
                time.sleep(0.1)

        def ask(body: Any) -> tuple[int, Any]:
            text = body if isinstance(body, str) else json.dumps(body)
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/invocations", text.encode(), {"Content-Type": "application/json"}
            )
            try:
                with ASKING.open(request, timeout=60) as response:
                    return response.status, strict(response.read())
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, strict(error.read())

        return ask

    yield serve
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def strict(text: bytes) -> Any:
    """Parse JSON; NaN and Infinity are none."""

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no JSON: {text!r}")

    return json.loads(text, parse_constant=refused)


@pytest.fixture(scope="module")
def table(partitioned: Any, server: str, serving: Callable[..., Ask], tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """The model of a table in which some ages are missing."""
    folder = partitioned[0].copy(tmp_path_factory.mktemp("served") / "project", server)
    rng = np.random.default_rng(0)
    visits = pd.DataFrame(
        {
            "hospital": np.repeat(["a", "b", "c"], 40),
            "age": rng.normal(size=120).round(2),
            "visits": rng.integers(0, 5, 120),
            "smokes": rng.random(120) < 0.5,
            "ward": rng.choice(["day", "eye"], 120),
        }
    )
    visits["outcome"] = np.where(visits["age"] + visits["smokes"] > 0.5, "ill", "well")
    visits.loc[::9, "age"] = np.nan
    visits.to_csv(folder.path / "visits.csv", index=False)
    folder.type("partition", *SET)
    return serving(folder, folder.type("run", "fedavg", *SET, "--json").json)


@pytest.fixture(scope="module")
def pixels(finished: Any, serving: Callable[..., Ask]) -> Ask:
    """The model of pictures of 8 x 8 pixels."""
    return serving(finished.folder, finished.run("fedavg", 0))


def split(rows: list[dict[str, Any]], *names: str) -> dict[str, Any]:
    return {"dataframe_split": {"columns": names, "data": [[row[name] for name in names] for row in rows]}}


def test_every_form_gives_the_same_answers_with_columns_in_any_order(table: Ask) -> None:
    code, expected = table({"dataframe_records": ROWS})
    assert code == 200
    assert [set(row) for row in expected["predictions"]] == 2 * [
        {"label", "probability", "entropy", "probability/ill", "probability/well"}
    ]
    assert expected["predictions"][0] != expected["predictions"][1]
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    for body in (
        {"dataframe_records": [dict(reversed(row.items())) for row in ROWS]},
        split(ROWS, "age", "visits", "smokes", "ward"),
        split(ROWS, "ward", "smokes", "visits", "age"),
        {"inputs": columns},
        {"inputs": dict(reversed(columns.items()))},
        {"instances": ROWS},
        {"dataframe_records": [{**row, "hospital": "a", "outcome": "ill"} for row in ROWS]},  # a line of the file
    ):
        assert table(body) == (200, expected), body


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (split(ROWS, "age", "visits", "smokes"), "Model is missing inputs ['ward']"),
        (
            {"dataframe_records": [{"Age": 1, "visits": 1, "smokes": True, "ward": "eye"}]},
            "Model is missing inputs ['age']",
        ),
        ({"inputs": [[0.5, 1, 1, 0]]}, "Model is missing inputs ['age', 'visits', 'smokes', 'ward']"),
    ],
)
def test_names_that_are_wrong_or_missing_are_refused(table: Ask, body: Any, said: str) -> None:
    code, answer = table(body)
    assert code == 400
    assert said in answer["message"]


@pytest.mark.parametrize("form", ["dataframe_records", "dataframe_split", "inputs", "instances"])
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (
            "age",
            "1e300",
            "age: got 1e+300 in row 2, expected a finite float32 number. Correct the value, or drop the row.",
        ),
        ("age", "Infinity", "age: got inf in row 2, expected a finite float32 number."),
        ("smokes", "null", "smokes: got no value in row 2, expected one, as in all rows that the model learned from."),
        ("smokes", "2", "smokes: got 2 in row 2, expected true or false."),
        ("ward", '"skin"', "ward: got 'skin' in row 2, expected one of 'day', 'eye'."),
        ("ward", "null", "in row 2, expected one of 'day', 'eye'."),
        ("age", "null", None),
        ("age", "NaN", None),
    ],
)
def test_a_value_is_filled_in_or_refused_with_its_row(
    table: Ask, form: str, column: str, value: str, said: str | None
) -> None:
    rows = [ROWS[0], {**ROWS[1], column: "@"}]
    body = {
        "dataframe_split": split(rows, *ROWS[0]),
        "inputs": {"inputs": {name: [row[name] for row in rows] for name in ROWS[0]}},
    }.get(form, {form: rows})
    code, answer = table(json.dumps(body).replace('"@"', value))
    if said is None:
        assert (code, answer) == table({"dataframe_records": [ROWS[0], {**ROWS[1], column: 0}]})
        assert code == 200
    else:
        assert code == 400
        assert said in answer["message"]


def test_pictures_are_answered_and_what_are_no_pixels_is_refused(pixels: Ask) -> None:
    picture = np.arange(64).reshape(8, 8)
    code, answer = pixels({"inputs": [picture.tolist()]})
    assert (code, len(answer["predictions"])) == (200, 1)
    assert pixels({"instances": [picture.tolist()]}) == (200, answer)
    for rows, said in (
        (picture / 64, "rows: got float64, expected pixels as whole numbers from 0 to 255 (uint8). Undo any scaling"),
        (picture * 5, "rows: got 260 in row 1, expected whole numbers from 0 to 255."),
        (picture - 1, "rows: got -1 in row 1"),
    ):
        code, answer = pixels({"inputs": [rows.tolist()]})
        assert (code, said in answer["message"]) == (400, True), answer["message"]
    code, answer = pixels({"inputs": [picture.tolist()], "params": {"client": "c03"}})
    assert code == 400
    assert "client: got 'c03', expected none, since FedAvg has one model for all clients." in answer["message"]
