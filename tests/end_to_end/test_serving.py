"""The champion in use: served over HTTP while the alias moves, and raw files through `predict` and `evaluate`."""

import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from flows.project.project import Project
from flows.training.load_finished_run import finished_run
from models.preprocessing import RawInputModel
from silos.cohort import Stack
from silos.storage.partition_store import open_client
from tasks.execution.load_client_data import load_weights

pytestmark = pytest.mark.slow

ASKING = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CLIENTS = ["a", "b", "c"]
OWN = (
    "data.name=visits",
    "data.source={kind: table, path: visits.csv, label: outcome, client: hospital, split: part}",
    "data.scheme=[{kind: column, column: client}]",
    "data.features=[{name: age, missing: {fill: 0}, low: -9, high: 9}, {name: visits, missing: {fill: mean}}]",
    "training.rounds=3",
    "training.optimiser.learning_rate=0.1",
    "tracking.personal_models=true",
)
SET = tuple(part for each in OWN for part in ("--set", each))
INPUTS = ["age", "visits", "smokes", "ward"]


@dataclass(frozen=True)
class Served:
    """A folder with versions 1, of fedavg, and 2, of local_only, in which version 1 is served."""

    folder: Any
    rows: pd.DataFrame
    port: int
    process: Any
    runs: dict[str, dict[str, Any]]

    def ask(self, body: Any) -> tuple[int, Any, str]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        address = f"http://127.0.0.1:{self.port}/invocations"
        request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
        try:
            with ASKING.open(request, timeout=60) as response:
                return response.status, json.loads(response.read()), response.headers["siloflow-version"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read()), ""

    def test_rows(self, client: str) -> pd.DataFrame:
        """The test rows of a client, as they are in the file."""
        return self.rows[(self.rows["hospital"] == client) & (self.rows["part"] == "test")]

    def body(self, client: str, *names: str) -> dict[str, Any]:
        """A request with these rows, for the client."""
        rows = json.loads(self.test_rows(client)[list(names or INPUTS)].to_json(orient="records"))
        return {"dataframe_records": rows, "params": {"client": client}}

    def expected(self, method: str, client: str) -> np.ndarray:
        """The probabilities of the run's own model on the client's test rows as they were partitioned."""
        project = Project.open(OWN, self.folder.path)
        opened = finished_run(project, self.runs[method]["folder"])
        x, _ = open_client(Path(project.silos.folder), project.silos.manifest.client(client), "test")
        parts = load_weights(opened.model.select([client]), Stack((client,), 1), opened.round.private, "cpu")
        weights, context = ({name: tensor[0] for name, tensor in part.items()} for part in parts)
        raw = RawInputModel(**opened.scorer.silos.scaling.agreed_as_json())
        with torch.no_grad():
            logits = opened.model.network.served.apply(
                {**opened.model.shared, **weights}, context, raw(torch.from_numpy(np.array(x))), None
            )
        return torch.softmax(logits, -1).numpy()

    def typed(self, *arguments: str) -> Any:
        """The JSON of a command that succeeds while the server runs in the same folder."""
        code, out, err = self.folder.run([*arguments, *SET, "--json"])
        assert code == 0, err
        return json.loads(out)

    def wait_for(self, version: str) -> None:
        """Wait until this version answers."""
        while self.ask(self.body("a"))[2] != version:
            time.sleep(0.05)


def visits() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "hospital": np.repeat(CLIENTS, 60),
            "part": np.tile(["train", "train", "test"], 60),
            "age": rng.normal(size=180).round(2),
            "visits": rng.integers(0, 5, 180).astype(float),
            "smokes": rng.random(180) < 0.5,
            "ward": rng.choice(["day", "eye"], 180),
        }
    )
    rows["outcome"] = np.where(rows["age"] + rows["smokes"] > 0.5, "ill", "well")
    rows.loc[::7, "age"] = np.nan
    return rows


@pytest.fixture(scope="module")
def served(
    partitioned: Any, server: str, tmp_path_factory: pytest.TempPathFactory, assert_quiet: Any
) -> Iterator[Served]:
    folder = partitioned[0].copy(tmp_path_factory.mktemp("serving") / "project", server)
    rows = visits()
    rows.to_csv(folder.path / "visits.csv", index=False)
    folder.type("partition", *SET)
    owner = folder.path / "private" / "visits" / "owner.yaml"
    owner.write_text(owner.read_text().replace("own_models: false", "own_models: true "))
    compared = folder.type("compare", "fedavg", "local_only", "--seeds", "0", *SET, "--json").json
    assert [each["version"] for each in compared["registry"]["candidates"]] == ["1", "2"]
    folder.type("promote", "1", "--force", *SET)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder.path / "screen").open("w") as screen:
        process = folder.start("serve", "--port", str(port), *SET, out=screen)
    try:
        while "Press ctrl-C" not in (folder.path / "screen").read_text():
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        yield Served(folder, rows, port, process, {run["method"]: run for run in compared["runs"]})
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
        assert_quiet(said)
        assert "Traceback" not in said
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_answers_are_the_runs_own_predictions_also_while_the_alias_moves(served: Served) -> None:
    expected = {
        (version, client): served.expected(method, client)
        for version, method in (("1", "fedavg"), ("2", "local_only"))
        for client in CLIENTS
    }

    def check(client: str, answer: tuple[int, Any, str]) -> str:
        status, content, version = answer
        assert status == 200, content
        rows = pd.DataFrame(content["predictions"])
        found = rows[["probability/ill", "probability/well"]].to_numpy()
        np.testing.assert_allclose(found, expected[version, client], atol=1e-6)
        assert rows["label"].tolist() == [("ill", "well")[i] for i in expected[version, client].argmax(1)]
        entropy = -(found * np.log(found)).sum(1)
        np.testing.assert_allclose(rows["entropy"], entropy, atol=1e-5)
        return version

    for client in CLIENTS:
        assert check(client, served.ask(served.body(client))) == "1"
        assert check(client, served.ask(served.body(client, *reversed(INPUTS), "outcome"))) == "1"
    fresh = {**served.body("b"), "params": {"client": "a hospital that took no part"}}
    check("b", served.ask(fresh))

    seen: list[str] = []
    failures: list[BaseException] = []
    ends = threading.Event()

    def keep_asking(client: str) -> None:
        try:
            while not ends.is_set():
                seen.append(check(client, served.ask(served.body(client))))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=keep_asking, args=(client,)) for client in CLIENTS]
    for thread in threads:
        thread.start()
    try:
        served.typed("promote", "2", "--force")
        served.wait_for("2")
        refused = served.ask(fresh)
        served.typed("rollback")
        served.wait_for("1")
        while len(seen) < 200 and not failures:
            time.sleep(0.05)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert set(seen) == {"1", "2"}
    assert refused[0] == 400
    assert "client: got 'a hospital that took no part', expected one of a, b, c, since" in refused[1]["message"]


def test_a_body_of_a_hundred_megabytes_is_refused_and_the_server_answers_on(served: Served) -> None:
    status, answer, _ = served.ask(b"[" + b"1," * 50_000_000 + b"1]")
    assert (status, answer["error_code"]) == (413, "CONTENT_TOO_LARGE")
    assert served.ask(served.body("a"))[0] == 200
    for port, said in (
        (str(served.port), "which cannot be used (Address already in use)"),
        ("0", "expected a port from 1"),
    ):
        code, out, err = served.folder.run(["serve", "--port", port, *SET])
        assert (code, out) == (2, "")
        assert f"--port: got {port}, " in err
        assert said in err
    assert served.folder.run(["serve", "--host", "here", *SET])[2].startswith(
        "error: --host: got here, expected an IPv4"
    )


def test_a_raw_file_is_predicted_as_the_run_does_and_evaluate_agrees_with_the_run(served: Served) -> None:
    folder = served.folder.path
    for client in ("a", "c"):
        served.test_rows(client)[[*reversed(INPUTS), "hospital"]].to_csv(folder / "new.csv", index=False)
        for method, client_needed in (("fedavg", False), ("local_only", True)):
            run = ["--model", served.runs[method]["folder"]] + (["--client", client] if client_needed else [])
            answer = served.typed("predict", "new.csv", "--output", "out/labels.parquet", *run)
            rows = pd.read_parquet(folder / "out" / "labels.parquet")
            found = rows[["probability/ill", "probability/well"]].to_numpy()
            np.testing.assert_allclose(found, served.expected(method, client), atol=1e-6)
            assert answer["labels"] == rows["label"].value_counts().reindex(["ill", "well"], fill_value=0).to_dict()
    lacking = served.test_rows("a")[INPUTS].assign(visits=None)
    lacking.to_parquet(folder / "lacking.parquet")
    lacking.assign(visits=[None] + 19 * ["old"]).to_parquet(folder / "text.parquet")
    filled = served.typed("predict", "lacking.parquet", "--output", "labels.csv", "--client", "a")
    assert (filled["version"], filled["rows"]) == ("1", 20)
    manifest = Project.open(OWN, folder).silos.manifest
    x, _ = open_client(folder / "data" / "visits", manifest.client("a"), "train")
    mean = float(x[:, [feature.name for feature in manifest.features].index("visits")].mean())
    expected = served.ask({"dataframe_records": json.loads(lacking.assign(visits=mean).to_json(orient="records"))})[1]
    found = pd.read_csv(folder / "labels.csv")
    np.testing.assert_allclose(found["probability"], [row["probability"] for row in expected["predictions"]], atol=1e-6)
    for arguments, said in (
        (
            ("lacking.parquet", "--output", "labels.csv"),
            "lacking.parquet: visits: got no value in row 1, expected one, since",
        ),
        (
            ("text.parquet", "--output", "labels.csv", "--client", "a"),
            "text.parquet: visits: got 'old' in row 2, expected a finite float32 number.",
        ),
        (("none.csv", "--output", "labels.csv"), "input: got 'none.csv', expected a file with rows."),
        (("new.csv", "--output", "labels.txt"), "--output: got 'labels.txt', expected .csv or .parquet."),
        (
            ("lacking.parquet", "--output", "labels.csv", "--model", served.runs["local_only"]["folder"]),
            "--client: got none, expected one of a, b, c, since",
        ),
    ):
        code, _, err = served.folder.run(["predict", *arguments, *SET])
        assert code == 2
        assert said in err
    for method, run in served.runs.items():
        scored = served.typed("evaluate", run["folder"])
        assert {name: scored["metrics"][name] for name in ("accuracy/mean", "accuracy/worst", "loss/mean")} == {
            name: pytest.approx(run["metrics"][name]) for name in ("accuracy/mean", "accuracy/worst", "loss/mean")
        }
        assert [(row["client"], row["rows"]) for row in scored["clients"]] == [(client, 20) for client in CLIENTS]
        assert (scored["method"], scored["version"]) == (method, None)
    assert served.typed("evaluate")["version"] == "1"
