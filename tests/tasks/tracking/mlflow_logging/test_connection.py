"""MLflow's database is there whole, or not at all."""

import contextlib
import multiprocessing
import os
import re
import shutil
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import mlflow
import pytest
from urllib3.util import connection

from silos.errors import UserError
from tasks.tracking.mlflow_logging.connection import (
    check_server,
    connect,
    database_stamp,
    describe_problem,
    make_database,
    own_store,
    set_current_store,
    tracking_uri,
)


@pytest.mark.slow
def test_a_process_killed_while_it_makes_the_database_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "mlflow.db"
    maker = multiprocessing.get_context("spawn").Process(target=connect, args=(f"sqlite:///{path}",))
    maker.start()
    while maker.is_alive() and not list(path.parent.glob(".mlflow.db.*.new")):
        maker.join(0.01)
    maker.join(0.3)  # MLflow makes its tables now
    maker.kill()
    maker.join()
    tables = _tables(path)
    assert tables == set() or "runs" in tables
    connect(f"sqlite:///{path}").search_experiments()
    assert "runs" in _tables(path)


@pytest.mark.slow
def test_two_that_make_the_database_at_once_end_with_one(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    threads = [threading.Thread(target=connect, args=(f"sqlite:///{path}",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connect(f"sqlite:///{path}").create_experiment("first")
    assert [p.name for p in tmp_path.glob(".*")] == []


def _tables(path: Path) -> set[str]:
    if not path.exists():
        return set()
    with sqlite3.connect(path) as database:
        return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}


@pytest.mark.slow
def test_in_a_folder_whose_name_means_something_in_an_address_the_database_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / '50%41 more? #1; it\'s "new"'
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = connect(tracking_uri(folder, None))
    number = client.create_experiment("e", artifact_location=(folder / "runs" / "artifacts").as_uri())
    run = client.create_run(number).info.run_id
    client.log_text(run, "hello", "hello.txt")
    assert "runs" in _tables(folder / "runs" / "mlflow.db")
    assert client.list_artifacts(run)[0].path == "hello.txt"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert {path.name for path in folder.rglob("*")} == {"runs", "mlflow.db", "artifacts", run, "hello.txt"}


def test_a_database_that_cannot_be_named_from_here_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "why?"
    with pytest.raises(UserError, match=r"why\?/runs/mlflow\.db: got a path with \?, # or %, expected none of these"):
        tracking_uri(folder, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_database_with_options_of_the_users_own_is_opened_where_it_is(tmp_path: Path) -> None:
    connect(f"sqlite:///{tmp_path}/own.db?timeout=30").search_experiments()
    assert [path.name for path in tmp_path.iterdir()] == ["own.db"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "does not respond. Start it, or change MLFLOW_TRACKING_URI, or tracking.uri in params.yaml."),
        (401, "needs MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or other values of them. "),
        (404, "responds with code 404, unlike MLflow. "),
    ],
)
def test_what_is_no_server_of_mlflow_is_told_soon_in_one_sentence_without_its_password(
    code: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "7")
    attempts: list[object] = []
    connect_to = connection.create_connection

    def counted(address: tuple[str, int], *more: Any, **options: Any) -> Any:
        attempts.append(address)
        return connect_to(address, *more, **options)

    monkeypatch.setattr(connection, "create_connection", counted)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(code or 500)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as there:
        place = f"127.0.0.1:{there.server_port}"
        if code:
            threading.Thread(target=there.serve_forever, daemon=True).start()
        else:
            there.server_close()
        with pytest.raises(UserError) as told:
            check_server(f"http://me:hunter2@{place}")
        assert 1 <= len(attempts) <= 2, "a check retries once at most, whatever a run may do"
        if code:
            there.shutdown()
    assert str(told.value).startswith(f"MLflow at http://me:***@{place} {said}")
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "7", "a run is more patient"


@pytest.mark.parametrize("found", ["another revision", "garbage"])
def test_a_database_that_mlflow_cannot_open_is_told_with_what_is_lost_without_it(
    tmp_path: Path, databases: Path, found: str
) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copy(databases / "mlflow.db", path)
    if found == "garbage":
        path.write_bytes(b"no database" * 999)
    else:
        with sqlite3.connect(path) as database:
            database.execute("update alembic_version set version_num = 'ffffffffffff'")
    said = {"garbage": "file is not a database", "another revision": "found version ffffffffffff, but expected "}[found]
    with pytest.raises(UserError, match=f"{said}.*move the file away. MLflow then lacks earlier runs and registered"):
        make_database(f"sqlite:///{path}")


def test_what_mlflow_says_is_told_in_whole_words_and_of_a_server_that_is_away_nothing_of_it() -> None:
    long = "no such experiment " * 40
    said = describe_problem("sqlite:///runs/mlflow.db", ValueError(f"{long}\nand more"))
    assert re.fullmatch(
        r"MLflow at sqlite:///runs/mlflow\.db fails \(ValueError: (no such experiment )+(no |no such )?…\)", said
    )
    assert len(said) < 280
    assert describe_problem("sqlite:///a.db", ValueError()) == "MLflow at sqlite:///a.db fails (ValueError)"
    away = OSError("failed with exception HTTPConnectionPool(host='127.0.0.1', port=5000): Max retries exceeded")
    assert (
        describe_problem("http://me:hunter2@localhost:5000", away)
        == "MLflow at http://me:***@localhost:5000 does not respond"
    )


def test_a_full_disk_is_named_with_its_file_system(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "full.db") as database:
        database.execute("pragma max_page_count = 1")  # SQLite's own error of a full disk
        with pytest.raises(sqlite3.OperationalError) as full:
            database.executescript("create table a (b); create table c (d);")
    mount = next(folder for folder in tmp_path.resolve().parents if os.path.ismount(folder))
    said = describe_problem(f"sqlite:///{tmp_path}/mlflow.db", full.value)
    assert said == f"MLflow cannot write {tmp_path}/mlflow.db: the file system {mount} is full"


@pytest.mark.parametrize("value", [None, "sqlite:///of-the-user.db"])
def test_the_store_of_a_run_does_not_become_that_of_the_next_project(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if value is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", value)
    for name in ("one", "two"):
        uri = f"sqlite:///{tmp_path}/{name}.db"
        set_current_store(uri)
        assert mlflow.get_tracking_uri() == uri
        assert os.environ.get("MLFLOW_TRACKING_URI") == value
    mlflow.set_tracking_uri(None)


@pytest.mark.parametrize(
    ("configured", "variable", "expected"),
    [
        ("http://params", "http://variable", "http://params"),
        ("http://params", None, "http://params"),
        (None, "http://variable", "http://variable"),
        (None, "", None),
        (None, None, None),
    ],
)
def test_the_store_is_that_of_params_and_then_that_of_mlflows_variable_and_then_the_projects_own(
    configured: str | None, variable: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if variable is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    assert tracking_uri(tmp_path, configured) == (expected or own_store(tmp_path))


def test_models_are_registered_in_the_store_of_the_project_and_not_where_a_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, databases: Path
) -> None:
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path}/other.db")
    shutil.copy(databases / "mlflow.db", tmp_path)
    connect(f"sqlite:///{tmp_path}/mlflow.db").create_registered_model("digits")
    assert not (tmp_path / "other.db").exists()
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select name from registered_models").fetchall() == [("digits",)]


def test_a_project_that_was_copied_finds_its_artifacts_beside_its_own_database(tmp_path: Path) -> None:
    own, other = tmp_path / "50 % of it" / "runs", tmp_path / "other" / "runs"
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    made = {}
    for runs, owner in ((own, "mine"), (other, "theirs")):
        folder = runs / "artifacts" / "digits"
        folder.mkdir(parents=True)
        tags = {"siloflow.project": owner}
        made[owner] = client.create_experiment(f"of {owner}", artifact_location=folder.as_uri(), tags=tags)
        run = client.create_run(made[owner]).info.run_id
        client.log_text(run, owner, "text.txt")
        client.create_registered_model(owner)
        client.create_model_version(owner, f"{folder.as_uri()}/models/m-1", run, await_creation_for=None)
    (own / "mlflow.json").write_text('{"id": "mine", "name": "digits"}')
    (own.parent / "runs" / "mlflow.db").write_bytes((tmp_path / "mlflow.db").read_bytes())
    shutil.copytree(own.parent, tmp_path / "copy")
    (tmp_path / "copy" / "runs" / "artifacts" / "other").mkdir()
    moved = tmp_path / "copy" / "runs"
    client = connect(f"sqlite:///{moved}/mlflow.db")
    for owner, runs in (("mine", moved), ("theirs", other)):
        expected = (runs / "artifacts" / "digits").as_uri()
        assert client.get_experiment(made[owner]).artifact_location == expected
        (run,) = client.search_runs([made[owner]])
        assert run.info.artifact_uri.startswith(f"{expected}/")
        assert client.get_model_version(owner, "1").source == f"{expected}/models/m-1"
    client.log_text(client.create_run(made["mine"]).info.run_id, "new", "new.txt")
    (tmp_path / "link").symlink_to(moved.parent)
    client = connect(f"sqlite:///{tmp_path}/link/runs/mlflow.db")  # the same folder by another path
    assert client.get_experiment(made["mine"]).artifact_location == (moved / "artifacts" / "digits").as_uri()
    assert len([*moved.rglob("new.txt")]) == 1
    assert not [*own.rglob("new.txt")]


def test_a_write_to_a_database_changes_its_stamp_also_where_only_its_log_has_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert database_stamp(uri) == {}
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table runs (name text)")
        database.commit()
        before = database_stamp(uri)
        assert before == database_stamp(uri)
        database.execute("insert into runs values ('first')")
        database.commit()
        after = database_stamp(uri)
        assert before is not None
        assert after is not None
        assert before[""] == after[""]
        assert before["-wal"] != after["-wal"]
    assert "-wal" not in (database_stamp(uri) or {})
    assert database_stamp("http://127.0.0.1:5000") is database_stamp(f"{uri}?mode=ro") is None
