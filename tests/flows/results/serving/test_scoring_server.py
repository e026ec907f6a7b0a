"""What the server answers to requests of every form, and the sentence with which it refuses others."""

import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import uvicorn

from flows.results.serving import scoring_server
from flows.results.serving.open_model import OpenModel
from flows.results.serving.row_predictor import RowPredictor
from flows.results.serving.scoring_request import parse_request
from flows.results.serving.scoring_server import VERSION_HEADER, scoring_app
from models.networks.mlp import MLP
from models.networks.network_factory import to_json
from models.prng import server_stream
from models.served_model import ServedModel, named_tensors
from silos.data_params import DataParams
from silos.io.addresses import listening_socket
from silos.sources.source_params import Table

COLUMNS = [
    {"name": "age", "kind": "number", "missing": -1.0, "range": [0, 120]},
    {"name": "smokes", "kind": "boolean", "missing": "refuse"},
    {"name": "ward", "kind": "text", "values": ["day", "eye"], "missing": False},
]
ROWS = [{"age": 34, "smokes": True, "ward": "eye"}, {"age": 7.5, "smokes": False, "ward": "day"}]
LIMIT = 20_000
SOURCE = Table(kind="table", path="visits.csv", label="outcome", client="site")
SCHEME = [{"kind": "column", "column": "client"}]
SPLIT = {"validation": 0, "test": 0.2}
DATA = DataParams(name="visits", seed=0, source=SOURCE, scheme=SCHEME, split=SPLIT)  # type: ignore[arg-type]
SILOS = SimpleNamespace(manifest=SimpleNamespace(names=("north", "south")))
VISITS = SimpleNamespace(params=SimpleNamespace(data=DATA), silos=SILOS)


def opened(width: int, **card: Any) -> OpenModel:
    network = MLP(width, (), 2)
    shared = network.init(server_stream(0, 0, "init"))
    personal = {name: torch.stack([t, 2 * t]) for name, t in shared.items()} if card.get("personal") else {}
    full = {"method": "FedAvg", "network": to_json(network), "task": "classification", "classes": ["ill", "well"]}
    full |= {"dtype": "float32", "columns": None, "personal": False, "clients": [], "context": [], "shape": [width]}
    full |= {"inputs": None, "targets": None, "statistics": None, "reading": {"ignored": ["outcome", "site"]}} | card
    served = ServedModel(full, named_tensors({} if personal else shared, personal))
    return OpenModel("visits version 3", "fedavg", "3", "runs/a/fedavg-seed0", served)


@pytest.fixture(scope="module")
def table() -> OpenModel:
    return opened(4, columns=COLUMNS)


class Answer:
    """A response: its status, its JSON and its headers."""

    def __init__(self, response: Any) -> None:
        self.status, self.headers, self.text = response.status, response.headers, response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


Ask = Callable[..., Answer]
ASKING = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def serving(model: OpenModel, project: Any = None) -> Iterator[Ask]:
    """Serves a model in a thread, and yields what sends a request there: a body, or none for GET."""
    listener = listening_socket(0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = scoring_app(SimpleNamespace(model=model, follows=False, project=project or VISITS), LIMIT)  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="critical"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()

    def ask(
        body: Any = None,
        path: str = "/invocations",
        kind: str = "application/json",
        method: str | None = None,
        **headers: str,
    ) -> Answer:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{address}{path}", content, fields, method=method)
        try:
            with ASKING.open(request, timeout=60) as response:
                return Answer(response)
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error)

    try:
        yield ask
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def ask(table: OpenModel) -> Iterator[Ask]:
    with serving(table) as ask:
        yield ask


def test_every_form_gives_the_models_predictions_with_columns_in_any_order(ask: Ask, table: OpenModel) -> None:
    expected = {"predictions": table.predict(pd.DataFrame(ROWS)).to_dict("records")}
    assert set(expected["predictions"][0]) == {"label", "probability", "entropy", "probability/ill", "probability/well"}
    turned = [dict(reversed(row.items())) for row in ROWS]
    names = ["ward", "age", "smokes"]
    for body in (
        {"dataframe_records": ROWS},
        {"dataframe_records": turned},
        {"instances": turned},
        {"dataframe_split": {"columns": names, "data": [[row[name] for name in names] for row in ROWS]}},
        {"inputs": {name: [row[name] for row in ROWS] for name in names}},
        {"dataframe_records": [{**row, "outcome": "ill"} for row in ROWS]},
        {"dataframe_records": ROWS, "params": {"client": "north"}},
    ):
        answer = ask(body)
        assert (answer.status, answer.json) == (200, expected), body
        assert answer.headers[VERSION_HEADER] == "3"
    for nothing in (split(names), records(), {"inputs": []}, {"instances": []}, split(None)):
        assert ask(nothing).json == {"predictions": []}, nothing
    filled = [ask(row(age=age)).json for age in (None, float("nan"))]
    assert filled[0] == filled[1]
    assert filled[0] != ask(row(age=0)).json


def row(**changed: Any) -> dict[str, Any]:
    """A request of one row, with a value changed."""
    return {"dataframe_records": [{**ROWS[0], **changed}]}


def records(*rows: dict[str, Any], **params: Any) -> dict[str, Any]:
    return {"dataframe_records": [*rows], "params": params}


def split(names: list[str] | None, *rows: list[Any]) -> dict[str, Any]:
    return {"dataframe_split": {"data": [*rows]} | ({} if names is None else {"columns": names})}


UNREADABLE = "dataframe_records: cannot be read as rows with columns"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (row(age="old"), "age: got 'old' in row 1, expected a finite float32 number. Correct the value"),
        (row(age=121), "age: got 121.0 in row 1, expected a number from 0 to 120. Correct the value"),
        (row(age=float("inf")), "age: got inf in row 1, expected a finite float32 number. Correct the value"),
        (row(smokes=None), "smokes: got no value in row 1, expected one, as in all rows that the model learned from."),
        (row(ward="skin"), "ward: got 'skin' in row 1, expected one of 'day', 'eye'. Correct the value"),
        (row(age="<0.5"), "age: got '<0.5' in row 1, expected plain numbers. Set `censored: limit`"),
        (row(age="old", outcome="ill"), "age: got 'old' in row 1, expected a finite float32 number. Correct the value"),
        (row(age="\ud800"), f"{UNREADABLE} ('utf-8' codec"),
        (records(ROWS[0], {**ROWS[0], "age": "\ud800"}), "rows: cannot be read as text ("),
        (row(Age=1), "columns: got unknown 'Age', expected each of"),
        (
            records(ROWS[0], {"smokes": True, "ward": "eye"}),
            f"{UNREADABLE} (got no 'age' in row 2, expected null if its",
        ),
        (
            b'{"dataframe_records": [{"age": 1, "age": 2}]}',
            f"{UNREADABLE} (got 'age' twice in row 1, expected it once)",
        ),
        (b'{"inputs": [], "inputs": [{}]}', "body: got the key 'inputs' twice, expected it once. Send one."),
        (
            b'{"inputs": {"age": [1], "age": [2]}}',
            "inputs: cannot be read as rows with columns (got 'age' twice, expected",
        ),
        (b'{"inputs": [], "params": {"client": "a", "client": "b"}}', "params: got 'client' twice, expected it once."),
        (
            {"inputs": {"age": {"0": 1}, "smokes": {"1": True}}},
            "inputs: cannot be read as rows with columns ('age' is no",
        ),
        (
            split(["age", "smokes", "ward"], [34, True]),
            "dataframe_split: cannot be read as rows with columns (got 2 values",
        ),
        (split(None, [34, True, "eye"]), "dataframe_split: got rows without names, expected the columns age, smokes"),
        ({"dataframe_records": [{"age": 1, "ward": "eye"}]}, "columns: got no 'smokes', expected each of"),
        ({"dataframe_records": {}}, "dataframe_records: cannot be read as rows with columns (it is not a list"),
        ({"dataframe_records": [3]}, "dataframe_records: cannot be read as rows with columns (it is not a list"),
        (
            split(["age"], [1, 2]),
            "dataframe_split: cannot be read as rows with columns (got 2 values in row 1, expected 1",
        ),
        ({"dataframe_split": {"columns": ["age"]}}, "dataframe_split: cannot be read as rows with columns (its `data`"),
        (
            {"dataframe_split": {"columns": [{"age": 1}], "data": [[1]]}},
            "dataframe_split: cannot be read as rows with columns (its `columns` are not a list of names",
        ),
        ({"dataframe_split": [1]}, "dataframe_split: cannot be read as rows with columns (it has no `columns`"),
        ({"inputs": {"age": 1}}, "inputs: cannot be read as rows with columns"),
        ({"inputs": [[1, 0, 1, 0]]}, "inputs: got rows without names, expected the columns age, smokes, ward."),
        ({"rows": []}, "body: got the keys rows, expected one of dataframe_split, dataframe_records, inputs"),
        ({}, "body: got the keys none, expected one of"),
        ({"inputs": [], "instances": []}, "body: got the keys inputs, instances, expected one of"),
        (b"[1]", "body: got a JSON list, expected an object with one of"),
        (b"{", "body: got no JSON ("),
        (b"\xff", "body: got no JSON ("),
        (b"[" * 10_000, "body: got no JSON ("),
        ({"inputs": [], "params": {"clinet": "a"}}, "params: got 'clinet', expected client, statistics, made_as."),
        ({"inputs": [], "params": {"client": 3}}, "params: client: got 3, expected text. Correct it."),
        ({"inputs": [], "params": {"statistics": ["a"]}}, "params: statistics: got ['a'], expected a list of"),
        (
            {"inputs": [], "params": {"statistics": [True]}},
            "params: statistics: got [True], expected a list of numbers.",
        ),
        ({"inputs": [], "params": {"statistics": [10**400]}}, "params: statistics: got [1000"),
        ({"inputs": [], "params": 3}, "params: got 3, expected an object with client, statistics, made_as."),
    ],
)
def test_what_the_model_cannot_answer_is_refused_in_a_sentence(ask: Ask, body: Any, message: str) -> None:
    refused = ask(body)
    assert refused.status == 400, refused.text
    assert refused.json["error_code"] == "BAD_REQUEST"
    assert refused.json["message"].startswith(message)
    assert refused.json["message"].endswith(".")
    assert "\n" not in refused.json["message"]
    assert ask({"dataframe_records": ROWS}).status == 200


def test_other_bodies_types_paths_and_methods_are_refused_and_health_is_as_in_mlflow(ask: Ask) -> None:
    assert [ask(path=path).status for path in ("/ping", "/health", "/version")] == [200, 200, 200]
    assert ask(json.dumps({"dataframe_records": ROWS}).encode().ljust(LIMIT)).status == 200
    for size in (LIMIT + 1, 20 * LIMIT):
        large = ask(b" " * size)
        assert (large.status, large.json["error_code"]) == (413, "CONTENT_TOO_LARGE")
        assert large.json["message"].startswith("body: got more than the 20,000 bytes allowed, expected fewer. Send")
    csv = ask(b"age", kind="text/csv")
    assert (csv.status, csv.json["message"]) == (
        415,
        "Content-Type: got text/csv, expected application/json in UTF-8. Send JSON.",
    )
    for kind in ('application/json; charset="utf-8"', "application/json ;charset=UTF-8", "Application/JSON; a=b"):
        assert ask({"dataframe_records": ROWS}, kind=kind).status == 200, kind
    assert ask({"dataframe_records": ROWS}, kind="application/json; charset=latin-1").status == 415
    packed = ask(gzip.compress(json.dumps({"dataframe_records": ROWS}).encode()), Content_Encoding="gzip")
    assert (packed.status, packed.json["message"]) == (
        415,
        "Content-Encoding: got gzip, expected a body that is not compressed. Send plain JSON.",
    )
    assert ask({"dataframe_records": ROWS}, Content_Encoding="identity").status == 200
    for path in ("/ping", "/health", "/version"):
        head = ask(path=path, method="HEAD")
        assert (head.status, head.text) == (200, b"")
    for refused, status in ((ask(path="/predict"), 404), (ask(path="/invocations"), 405)):
        assert refused.status == status
        assert "expected POST /invocations, or GET /ping, /health or /version." in refused.json["message"]


def test_requests_that_the_end_of_the_server_cuts_off_are_answered_with_503(table: OpenModel) -> None:
    listener = listening_socket(0)
    app = scoring_app(SimpleNamespace(model=table, follows=False, project=VISITS), LIMIT)  # type: ignore[arg-type]
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="critical", timeout_graceful_shutdown=0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    with socket.create_connection(listener.getsockname(), timeout=60) as connection:
        connection.sendall(b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
        connection.sendall(b"Content-Length: 100\r\n\r\n{")
        while not server.server_state.tasks:
            threading.Event().wait(0.01)
        server.should_exit = True
        thread.join()
        answer = connection.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"error_code": "TEMPORARILY_UNAVAILABLE"' in answer
    assert app.state.unanswered == 1


class Champion:
    """Where a server looks for the champion: its version, and how often it was opened."""

    def __init__(self, patch: pytest.MonkeyPatch, model: OpenModel) -> None:
        self.number: str | None = "3"
        self.opened: list[str | None] = []
        self.said: list[str] = []
        self.model, self.is_damaged = model, False
        patch.setattr(scoring_server, "ModelFinder", lambda _: self)
        patch.setattr(scoring_server, "open_version", lambda *_: self.open())
        patch.setattr(scoring_server.progress, "say", self.said.append)

    def champion_number(self) -> str | None:
        return self.number

    def champion(self) -> None:
        """Its version is known to `open`."""

    def open(self) -> OpenModel:
        self.opened.append(self.number)
        if self.is_damaged:
            raise OSError("the weights are damaged\nin a file")
        return replace(self.model, version=self.number)


def test_the_champion_is_opened_once_a_version_and_the_present_one_stays_if_there_is_none_or_it_is_damaged(
    table: OpenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion = Champion(monkeypatch, table)
    serving = scoring_server.Serving(VISITS, "champion")  # type: ignore[arg-type]
    for number in ("3", "3", None, "4", "4", None):
        champion.number = number
        serving.refresh()
    assert (champion.opened, serving.model.version) == (["3", "4"], "4")
    champion.number, champion.is_damaged = "5", True
    for _ in range(3):
        serving.refresh()
    assert serving.model.version == "4"
    champion.is_damaged = False
    serving.refresh()
    assert serving.model.version == "5"
    assert champion.said == [
        "now serving visits version 3",
        "still serving visits version 3: the weights are damaged",
        "now serving visits version 3",
    ]


def test_params_in_the_address_are_refused_and_others_are_ignored_as_in_mlflow(ask: Ask) -> None:
    refused = ask({"dataframe_records": ROWS}, path="/invocations?client=a")
    assert (refused.status, refused.json["message"]) == (
        400,
        'query: got \'client\' in the address, expected it in the body. Send it as params: {"params": {"client": …}}.',
    )
    assert ask({"dataframe_records": ROWS}, path="/invocations?trace=7").status == 200


def test_texts_among_numbers_are_read_as_those_of_a_file() -> None:
    columns = [
        {"name": "dose", "kind": "number", "missing": -1.0},
        {"name": "smokes", "kind": "boolean", "missing": 0.0},
    ]
    reading = {"ignored": [], "decimal": ",", "censored": "half", "na_values": ["n.k."]}
    with serving(opened(2, columns=columns, reading=reading)) as ask:

        def answers(*doses: Any, smokes: Any = True) -> Any:
            return ask(records(*({"dose": dose, "smokes": smokes} for dose in doses))).json["predictions"]

        assert answers("<0,5", "1.250,5", "n.k.", "NA", 3.125) == answers(0.25, 1250.5, None, None, 3.125)
        assert answers(1, smokes="NA") == answers(1, smokes=None)
        assert answers(1, smokes=" TRUE") == answers(1)
        refused = ask(records({"dose": "<0,5", "smokes": 1}, {"dose": "low", "smokes": 1}))
        assert refused.json["message"].startswith("dose: got 'low' in row 2, expected a finite float32 number.")


@pytest.mark.parametrize("text", ["1,5", "1.250,5"])
def test_a_decimal_comma_is_refused_without_advice_of_a_mark_since_a_model_knows_no_file(
    text: str,
) -> None:
    columns = [{"name": "dose", "kind": "number", "missing": -1.0}]
    reading = {"ignored": [], "decimal": None, "censored": "refuse", "na_values": None}
    with serving(opened(1, columns=columns, reading=reading)) as ask:
        refused = ask(records({"dose": text}))
        assert refused.status == 400
        assert refused.json["message"].startswith(
            f"dose: got '{text}' in row 1, expected a form such as 1234.5. To fix it, write them so (a model reads"
        )
        assert "decimal" not in refused.json["message"]


def test_an_empty_text_is_a_missing_value_as_in_a_file_also_of_the_client(ask: Ask) -> None:
    assert ask(row(age="")).json == ask(row(age=" ")).json == ask(row(age=None)).json
    for nothing in ("", " ", None):
        request = parse_request(json.dumps({"dataframe_records": [{"site": nothing}]}).encode())
        assert request.clients("site") == [None]


def test_an_answer_says_which_clients_are_unknown_and_which_values_were_filled_in(ask: Ask) -> None:
    answer = ask({"dataframe_records": [*ROWS, {**ROWS[0], "age": None}], "params": {"client": "nort"}}).json
    assert len(answer["predictions"]) == len(ROWS) + 1
    assert answer["unknown_clients"] == {"nort": {"rows": len(ROWS) + 1, "hint": "Did you mean north?"}}
    assert answer["filled_in"][-1] == {"column": "age", "client": None, "rows": 1 + missing_ages(), "value": -1.0}
    assert set(ask(records(client="nort")).json) == {"predictions"}


def test_a_clients_mean_fills_in_a_value_and_is_named_without_its_number() -> None:
    columns = [{"name": name, "kind": "number", "missing": rule} for name, rule in (("age", "mean"), ("dose", 7.5))]
    project: Any = SimpleNamespace(**vars(VISITS), once=lambda *_: {"age": 61.25})
    predictor = RowPredictor(project, opened(2, columns=columns), "params.client", of_data=False)
    body = json.dumps(
        records({"site": "north", "age": None, "dose": None}, {"site": "north", "age": 61.25, "dose": 7.5})
    )
    answer = json.loads(scoring_server._predict(predictor, body.encode()))
    assert answer["predictions"][0] == answer["predictions"][1]
    assert answer["filled_in"] == [
        {"column": "age", "client": "north", "rows": 1, "value": "as in data/"},
        {"column": "dose", "client": None, "rows": 1, "value": 7.5},
    ]


def missing_ages() -> int:
    return sum(each["age"] is None for each in ROWS)


def test_each_record_is_answered_for_the_client_that_it_names() -> None:
    columns = [{"name": "age", "kind": "number", "missing": "refuse"}]
    model = opened(1, columns=columns, personal=True, clients=["a", "b"], method="LocalOnly")
    ages = [1.0, 2.0, 3.0]
    with serving(model) as ask:
        of = {
            name: ask(records(*({"age": age} for age in ages), client=name)).json["predictions"] for name in ("a", "b")
        }
        mixed = records(*({"age": age, "site": site} for age, site in zip(ages, "aba", strict=True)))
        assert ask(mixed).json["predictions"] == [of["a"][0], of["b"][1], of["a"][2]]
        for body, message in (
            (
                records({"age": 1, "site": "b"}, client="a"),
                "params.client: got a, expected b, which the column 'site' names",
            ),
            (
                records({"age": 1, "site": "a"}, {"age": 1, "site": "c"}),
                "site: got 'c' in row 2, expected one of a, b, since",
            ),
            (records({"age": 1, "site": None}), "site: got no client in row 1, expected one of a, b, since"),
            (
                records({"age": 1, "site": "a"}, {"age": None, "site": "b"}),
                "age: got no value in row 2, expected one, as in",
            ),
        ):
            refused = ask(body)
            assert (refused.status, refused.json["message"][: len(message)]) == (400, message)


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_records": [{"site": 1, "age": 1.0}, {"site": None, "age": 2.0}]},
        {"dataframe_split": {"columns": ["age", "site"], "data": [[1.0, 1], [2.0, None]]}},
        {"inputs": {"age": [1.0, 2.0], "site": [1, None]}},
    ],
)
def test_a_client_that_is_a_number_beside_null_is_read_as_it_is_written(body: Any) -> None:
    request = parse_request(json.dumps(body).encode())
    assert request.clients("site") == ["1", None]
    assert request.clients("ward") is None


def test_personal_models_answer_for_their_clients_and_refuse_others() -> None:
    model = opened(2, personal=True, clients=["a", "b"], method="LocalOnly")
    rows = [[0.5, 2.0], [1.0, -1.0]]
    with serving(model) as ask:
        answers = [ask({"inputs": rows, "params": {"client": name}}).json["predictions"] for name in ("a", "b")]
        assert answers[0] != answers[1]
        assert answers[0] == model.predict(np.array(rows), "a").to_dict("records")
        for unknown in ({"client": "c"}, {}):
            refused = ask({"inputs": rows, "params": unknown})
            assert refused.status == 400
            assert "expected one of a, b, since LocalOnly has a model of its own" in refused.json["message"]
        shape = ask({"inputs": [[1.0, 2.0, 3.0]], "params": {"client": "a"}})
        assert (shape.status, shape.json["message"]) == (400, "rows: got shape (3,), expected (2,)")
