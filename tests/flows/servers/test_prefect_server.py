"""Prefect's server starts beside others, and in any folder."""

import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from flows import quiet_prefect
from flows.servers.prefect_server import PrefectServer, _bind

pytestmark = pytest.mark.slow

START = """
from pathlib import Path
from flows.servers.prefect_server import PrefectServer
server = PrefectServer(Path("."))
try:
    server.wait()
finally:
    server.stop()
"""


def start(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", START]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def test_servers_that_start_at_once_in_a_new_project_all_answer_and_keep_their_database_there(tmp_path):
    folder = tmp_path / "50% more? #1; it's new"
    folder.mkdir()
    started = [start(folder) for _ in range(2)]
    said = [process.communicate(timeout=600)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert (folder / ".prefect" / "prefect.db").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert [path.name for path in folder.iterdir()] == [".prefect"]


def test_a_server_that_cannot_start_is_quoted(tmp_path):
    (tmp_path / ".prefect" / "prefect.db").mkdir(parents=True)
    process = start(tmp_path)
    said = process.communicate(timeout=600)[1].strip().splitlines()[-1]
    assert (
        "does not respond; the last line of its log is: (sqlite3.OperationalError) unable to open database file. See"
        in said
    )
    assert said.endswith(". See server.log there.")


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


def test_the_lock_holds_the_migration_that_the_database_has(databases):
    with closing(sqlite3.connect(databases / "prefect.db")) as connection:
        (revision,) = connection.execute("select version_num from alembic_version").fetchone()
    assert (databases / "tables.lock").read_text().split() == [version("prefect"), revision]


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
