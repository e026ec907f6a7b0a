"""Prefect's server starts beside others, and in any folder."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prefect.settings.legacy import _get_settings_fields
from prefect.settings.models.root import Settings

from flows import SETTINGS, quiet_prefect
from flows.orchestration.servers import prefect_process
from flows.orchestration.servers.prefect_server import PrefectServer, _bind, server_environment

START = """
from pathlib import Path
from flows.orchestration.servers.prefect_server import PrefectServer
server = PrefectServer(Path("."))
try:
    server.wait()
finally:
    server.stop()
"""


def start(folder: Path, **more: str) -> subprocess.Popen:
    command = [sys.executable, "-c", START]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return subprocess.Popen(command, cwd=folder, env=environment | more, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_server_of_the_project_writes_nothing_where_variables_profiles_and_files_of_prefects_say(tmp_path):
    folder, other = tmp_path / "project", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    there = {name: f"sqlite+aiosqlite:///{other}/{name}.db" for name in ("api", "server", "profile", "toml", "dotenv")}
    name = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
    (other / "profiles.toml").write_text(f'active = "mine"\n[profiles.mine]\n{name} = "{there["profile"]}"\n')
    (folder / "prefect.toml").write_text(f'[server.database]\nconnection_url = "{there["toml"]}"\n')
    (folder / ".env").write_text(f"{name}={there['dotenv']}\n")
    of_user = {"PREFECT_API_DATABASE_CONNECTION_URL": there["api"], name.lower(): there["server"]}
    of_user |= {"PREFECT_HOME": str(other), "PREFECT_PROFILE": "mine", "PREFECT_SERVER_API_BASE_PATH": "/base"}
    process = start(folder, **of_user)
    said = process.communicate(timeout=600)[1]
    assert (process.returncode, said) == (0, "")
    with closing(sqlite3.connect(folder / ".prefect" / "prefect.db")) as database:
        assert database.execute("select count(*) from flow_run").fetchone() == (0,)
    assert [path.name for path in other.iterdir()] == ["profiles.toml"]


@pytest.mark.parametrize("ui", [False, True])
def test_no_variable_of_prefects_that_the_user_has_set_reaches_the_projects_own_server(tmp_path, monkeypatch, ui):
    names = [name for name in _get_settings_fields(Settings) if name.startswith("PREFECT_")]
    assert len(names) > 250
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", **dict.fromkeys(names, "user"), "prefect_home": "user"})
    given = server_environment(tmp_path, "http://127.0.0.1:9/api", ui)
    assert "user" not in given.values()
    assert given.items() >= {"PATH": "/bin", "PREFECT_HOME": str(tmp_path), "PREFECT_PROFILES_PATH": os.devnull}.items()
    shown = ("PREFECT_SERVER_UI_ENABLED", "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED")
    assert {given[name] for name in shown} == {"true" if ui else "false"}
    changed = {*shown, "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED"}
    assert all(given[name] == value for name, value in SETTINGS.items() if name not in changed)


@pytest.mark.slow
def test_servers_that_start_at_once_in_a_new_project_all_answer_and_keep_their_database_there(tmp_path):
    folder = tmp_path / "50% more? #1; it's new"
    folder.mkdir()
    started = [start(folder) for _ in range(2)]
    said = [process.communicate(timeout=600)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert (folder / ".prefect" / "prefect.db").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert [path.name for path in folder.iterdir()] == [".prefect"]


@pytest.mark.slow
def test_a_server_that_cannot_start_is_quoted(tmp_path):
    (tmp_path / ".prefect" / "prefect.db").mkdir(parents=True)
    process = start(tmp_path)
    said = process.communicate(timeout=600)[1].strip().splitlines()[-1]
    assert (
        "does not respond; the last line of its log is: (sqlite3.OperationalError) unable to open database file. See"
        in said
    )
    assert said.endswith(". See server.log there.")


@pytest.mark.slow
@pytest.mark.parametrize("found", ["another revision", "garbage"])
def test_a_database_of_another_revision_or_garbage_is_named_with_what_is_lost_without_it(tmp_path, databases, found):
    home = tmp_path / ".prefect"
    home.mkdir()
    for file in ("prefect.db", "tables.lock"):
        shutil.copy(databases / file, home)
    if found == "garbage":
        (home / "prefect.db").write_bytes(b"no database" * 9_999)
    else:
        with closing(sqlite3.connect(home / "prefect.db")) as database, database:
            database.execute("update alembic_version set version_num = 'ffffffffffff'")
    why = {"garbage": "(sqlite3.DatabaseError) file is not a database"}
    why["another revision"] = "Can't locate revision identified by 'ffffffffffff'"
    process = start(tmp_path)
    said = process.communicate(timeout=600)[1].strip().splitlines()[-1]
    assert said.endswith(
        f": {home}/prefect.db: got a database that Prefect {version('prefect')} cannot read ({why[found]}), expected its "
        "own. Move `prefect.db*` out of that folder. Earlier runs then leave Prefect's page, but stay in runs/ and in "
        "MLflow."
    )
    for file in home.glob("prefect.db*"):
        file.rename(tmp_path / file.name)
    process = start(tmp_path)
    assert (process.communicate(timeout=600)[1], process.returncode) == ("", 0)


@pytest.mark.slow
@pytest.mark.parametrize("room", [4096, 500_000])
def test_a_server_without_room_for_its_tables_is_told(tmp_path, small_disk, fill, room):
    """Its log is cut off then, or empty."""
    with small_disk(tmp_path / "disk"):
        ballast = tmp_path / "disk" / "ballast"
        fill(ballast)
        os.truncate(ballast, ballast.stat().st_size - room)
        process = start(tmp_path / "disk")
        said = process.communicate(timeout=600)[1].strip().splitlines()[-1]
    assert said.endswith(f"/.prefect does not respond: the file system {tmp_path / 'disk'} is full. Free some space.")


def test_servers_that_start_at_the_same_time_do_not_share_a_port():
    with _bind(None, own=False) as first:
        port = first.getsockname()[1]
        with _bind(port, own=False) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(OSError, match="in use"):
            _bind(port, own=True)


@pytest.mark.slow
def test_the_port_is_the_servers_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")})
    server = PrefectServer(tmp_path)
    try:
        address = urlsplit(server.url)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((address.hostname, address.port))
        server.wait()
    finally:
        server.stop()


@pytest.mark.slow
def test_the_lock_holds_the_migration_that_the_database_has(databases):
    with closing(sqlite3.connect(databases / "prefect.db")) as connection:
        (revision,) = connection.execute("select version_num from alembic_version").fetchone()
    assert (databases / "tables.lock").read_text().split() == [version("prefect"), revision]


def test_what_is_known_of_tables_changes_with_prefects_version_and_with_the_last_migration(tmp_path, monkeypatch):
    file = str(tmp_path / "prefect.db")
    assert prefect_process._applied(file) == version("prefect")
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("create table alembic_version (version_num)")
        database.execute("insert into alembic_version values ('aaaa')")
    assert prefect_process._applied(file) == f"{version('prefect')} aaaa"
    monkeypatch.setattr(prefect_process, "version", lambda _: "99.9")
    assert prefect_process._applied(file) == "99.9 aaaa"


@pytest.mark.parametrize(
    ("given", "retries"),
    [
        ({}, ("3", None)),
        ({"PREFECT_API_URL": "http://prefect:4200/api"}, ("6", "500")),
        ({"PREFECT_API_URL": "http://prefect:4200/api", "PREFECT_CLIENT_MAX_RETRIES": "1"}, ("1", None)),
    ],
)
def test_calls_to_a_server_that_the_user_names_outlast_a_minute_without_its_database(monkeypatch, given, retries):
    monkeypatch.setattr(os, "environ", dict(given))
    quiet_prefect()
    names = ("PREFECT_CLIENT_MAX_RETRIES", "PREFECT_CLIENT_RETRY_EXTRA_CODES")
    assert tuple(os.environ.get(name) for name in names) == retries
