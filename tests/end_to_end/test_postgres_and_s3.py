"""Prefect and MLflow on PostgreSQL with files in S3, as `init --ops` sets them up: same results, and no loss without it.

`make services` runs these tests. Commands and environments are those of ops/compose.yaml with addresses of loopback; moto's
server stands for MinIO.
"""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.init_project.create_project import operations_texts
from silos.errors import UserError
from tasks.tracking.mlflow_logging.connection import check_server
from tests.look import free_ports

NEEDED = ("psycopg2", "moto", "boto3", "s3fs", "flask_wtf")
LACKING = [program for program in ("postgres", "initdb") if not shutil.which(program)]
LACKING += [module for module in NEEDED if not find_spec(module)]
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(bool(LACKING), reason=f"needs {', '.join(LACKING)}"),
    pytest.mark.timeout(1200),
]

COMPOSE = yaml.safe_load(operations_texts()["ops/compose.yaml"])
PORTS = {"database": "5432", "store": "9000", "prefect": "4200", "mlflow": "5000"}
SECRETS = {
    "POSTGRES_PASSWORD": "of-the-database",
    "S3_ACCESS_KEY": "of-the-store",
    "S3_SECRET_KEY": "secret-of-the-store",
    "MLFLOW_ADMIN_PASSWORD": "of-the-admin-of-mlflow",
    "MLFLOW_SECRET_KEY": "of-mlflow",
    "PREFECT_AUTH_STRING": "admin:of-prefect",
}
BIN = Path(sys.executable).parent
PATIENCE = 180
AWAY = 60  # seconds


@dataclass
class Services:
    """The services of ops/compose.yaml as processes, in a temporary folder."""

    folder: Path
    plain: dict[str, str]
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(PORTS, free_ports(len(PORTS)), strict=True)))
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    def here(self, text: str) -> str:
        """The text with values for variables, and addresses of loopback."""
        text = re.sub(r"\$\{([A-Z0-9_]+)(?::-(\w+))?[^}]*\}", lambda found: found[2] or SECRETS[found[1]], text)
        for name, port in PORTS.items():
            text = re.sub(rf"(?<![\w.])({name}|localhost|127\.0\.0\.1):{port}\b", f"127.0.0.1:{self.ports[name]}", text)
        return text.replace("/users/", f"{self.folder}/")

    def environment(self, service: str) -> dict[str, str]:
        """What the service has in its container, and what a terminal has."""
        declared = {key: self.here(value) for key, value in COMPOSE["services"][service]["environment"].items()}
        home = self.folder / service
        home.mkdir(exist_ok=True)
        return {**self.plain, "PREFECT_HOME": str(home), **declared}

    def start(self, service: str) -> None:
        command = [self.here(word) for word in COMPOSE["services"][service]["command"]]
        command = ["127.0.0.1" if word == "0.0.0.0" else word for word in command]
        port = str(self.ports[service])
        command = [port if word == PORTS[service] else word for word in command]
        command += [] if port in command else ["--port", port]
        environment = self.environment(service)
        if "MLFLOW_AUTH_CONFIG_PATH" in environment:
            config = self.folder / "auth.ini"
            config.write_text(self.here(COMPOSE["configs"]["auth"]["content"]))
            environment["MLFLOW_AUTH_CONFIG_PATH"] = str(config)
        self.launch(service, [str(BIN / command[0]), *command[1:]], environment)

    def launch(self, name: str, command: list[str], environment: dict[str, str], **options: Any) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True, **options
            )

    def wait(self, name: str, path: str) -> None:
        """Until the server answers."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert self.processes[name].poll() is None, (self.folder / f"{name}.log").read_text()[-4000:]
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}{path}", timeout=2).close()
                return
            time.sleep(0.2)
        raise AssertionError(f"{name} does not answer")

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGINT)  # for PostgreSQL: end now, and whole
        try:
            process.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    # --- PostgreSQL, which refuses to run as root

    @property
    def _user(self) -> dict[str, Any]:
        if os.geteuid():
            return {}
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        user = names.get("postgres") or names["nobody"]
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def make_database(self) -> None:
        data, password = self.folder / "postgres", self.folder / "password"
        data.mkdir()
        password.write_text(SECRETS["POSTGRES_PASSWORD"])
        if "user" in self._user:
            for path in (self.folder, data, password):
                os.chown(path, self._user["user"], self._user["group"])
        options = ["--username", "siloflow", "--pwfile", str(password), "--auth", "scram-sha-256", "--no-sync"]
        command = ["initdb", "--pgdata", str(data), "--encoding", "UTF8", "--locale", "C", *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False, **self._user)
        assert done.returncode == 0, done.stderr
        self.start_database()
        self.query("postgres", "create database prefect")
        self.query("prefect", COMPOSE["configs"]["databases"]["content"])

    def start_database(self) -> None:
        port, data = str(self.ports["database"]), str(self.folder / "postgres")
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={data}", "-c", "fsync=off"]
        self.launch("database", ["postgres", "-D", data, "-p", port, *options], self.plain, **self._user)
        end = time.monotonic() + PATIENCE
        import psycopg2

        while True:
            try:
                self.query("postgres", "select 1")
                return
            except psycopg2.OperationalError:
                assert self.processes["database"].poll() is None, (self.folder / "database.log").read_text()
                assert time.monotonic() < end
                time.sleep(0.2)

    def query(self, database: str, query: str) -> list[tuple[Any, ...]]:
        import psycopg2

        login = {"user": "siloflow", "password": SECRETS["POSTGRES_PASSWORD"], "dbname": database}
        with closing(psycopg2.connect(host="127.0.0.1", port=self.ports["database"], **login)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetchall() if cursor.description else []

    # --- S3

    def make_buckets(self) -> None:
        server = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(self.ports["store"])]
        self.launch("store", server, self.plain)
        self.wait("store", "/moto-api/")
        for path in COMPOSE["services"]["buckets"]["command"][2:]:
            self.s3().create_bucket(Bucket=path.removeprefix("store/"))

    def s3(self) -> Any:
        import boto3

        keys = {"aws_access_key_id": SECRETS["S3_ACCESS_KEY"], "aws_secret_access_key": SECRETS["S3_SECRET_KEY"]}
        return boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.ports['store']}", **keys, region_name="us-east-1"
        )

    def objects(self, bucket: str) -> set[str]:
        """The keys of the bucket's objects."""
        pages = self.s3().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {found["Key"] for page in pages for found in page.get("Contents", [])}


@pytest.fixture(scope="module")
def services(environment: dict[str, str]) -> Iterator[Services]:
    """All services but the worker."""
    folder = Path(tempfile.mkdtemp(prefix="siloflow-services-"))  # pytest's folders are closed to PostgreSQL's user
    made = Services(folder, {key: value for key, value in environment.items() if not key.startswith("AWS_")})
    try:
        made.make_database()
        made.make_buckets()
        for name in ("prefect", "mlflow"):
            made.start(name)
        made.wait("prefect", "/api/health")
        made.wait("mlflow", "/health")
        yield made
    finally:
        for name in reversed(PORTS):
            if name in made.processes:
                made.stop(name)
        shutil.rmtree(folder)


def typed(services: Services, folder: Path, program: str, *words: str) -> str:
    """What the program prints in the folder, with the worker's environment."""
    environment = services.environment("worker")
    done = subprocess.run(
        [BIN / program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights(comparison: dict[str, Any]) -> dict[tuple[str, int], str]:
    return {(run["method"], run["seed"]): run["weights_sha256"] for run in comparison["runs"]}


def steps(services: Services, run: str, metric: str = "accuracy/mean") -> list[int]:
    """The rounds of which MLflow's database has the metric."""
    query = f"select distinct step from metrics where run_uuid = '{run}' and key = '{metric}' order by step"
    return [step for (step,) in services.query("mlflow", query)]


def status(services: Services, address: str, login: str = "") -> int:
    request = urllib.request.Request(address)
    if login:
        request.add_header("Authorization", f"Basic {b64encode(login.encode()).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_same_comparison_gives_the_same_weights_and_leaves_its_files_in_the_store(
    finished: Any, partitioned: Any, services: Services, tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project").path
    words = ("fedavg", "local_only", "--seeds", "0,1", "--set", "training.rounds=4", "--json")
    comparison = json.loads(typed(services, folder, "siloflow", "compare", *words))
    assert weights(comparison) == weights(finished.compare.json)
    keys = services.objects("mlflow")
    for run in comparison["runs"]:
        assert steps(services, run["mlflow_run_id"]) == [1, 2, 3, 4]
        assert any(f"/{run['mlflow_run_id']}/" in key and key.endswith("clients.csv") for key in keys)
    assert any(key.endswith("comparison.png") for key in keys)
    champion = "select count(*) from registered_model_aliases where alias = 'challenger'"
    assert services.query("mlflow", champion) == [(1,)]
    states = "select distinct state_type from flow_run where name like 'run %' or name like 'compare %'"
    assert services.query("prefect", states) == [("COMPLETED",)]


def test_both_servers_refuse_a_request_without_the_password(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, prefect = (f"http://127.0.0.1:{services.ports[name]}" for name in ("mlflow", "prefect"))
    logins = {
        f"{mlflow}/api/2.0/mlflow/experiments/get?experiment_id=0": f"admin:{SECRETS['MLFLOW_ADMIN_PASSWORD']}",
        f"{prefect}/api/admin/version": SECRETS["PREFECT_AUTH_STRING"],
    }
    for address, login in logins.items():
        answers = [status(services, address, one) for one in ("", "admin:wrong", login)]
        assert answers == [401, 401, 200]
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="needs MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"):
        check_server(mlflow)


def test_dvc_pushes_data_to_the_store_and_pulls_it(partitioned: Any, services: Services, tmp_path: Path) -> None:
    folder, answer = partitioned[0].copy(tmp_path / "project").path, partitioned[1].json
    typed(services, folder, "dvc", "remote", "add", "--default", "store", "s3://dvc")
    assert "run `dvc push`" in typed(services, folder, "siloflow", "status")
    typed(services, folder, "dvc", "push")
    version = answer["data_version"].removesuffix(".dir")
    assert any(key.endswith(f"{version[:2]}/{version[2:]}.dir") for key in services.objects("dvc"))
    for lost in (folder / "data", folder / ".dvc" / "cache"):
        shutil.rmtree(lost)
    typed(services, folder, "dvc", "pull")
    shown = json.loads(typed(services, folder, "siloflow", "show", "--json"))
    assert shown["data_version"] == answer["data_version"]
    assert "holds the present version" in typed(services, folder, "siloflow", "status")


def test_a_comparison_whose_database_is_away_for_a_minute_ends_and_loses_nothing(
    partitioned: Any, services: Services, tmp_path: Path
) -> None:
    folder = partitioned[0].copy(tmp_path / "project")
    environment = services.environment("worker")
    words = ("local_only", "--reference", "local_only", "--seeds", "0", "--set", "training.rounds=6", "--json")
    with (tmp_path / "out.json").open("w+") as out:
        process = folder.start_waiting(*words, verb="compare", out=out, **environment)  # after round 1
        services.stop("database")
        folder.go_on()
        time.sleep(AWAY)
        assert process.poll() is None
        services.start_database()
        _, screen = process.communicate(timeout=600)
    assert process.returncode == 0, screen
    assert "MLflow at http://127.0.0.1" in screen, "it was away when the first run ended"
    comparison = json.loads((tmp_path / "out.json").read_text())
    assert [(run["method"], run["rounds"]) for run in comparison["runs"]] == [("waits", 6), ("local_only", 6)]
    for run in comparison["runs"]:
        assert steps(services, run["mlflow_run_id"]) == [1, 2, 3, 4, 5, 6]
    assert services.query("mlflow", "select distinct status from runs") == [("FINISHED",)]
    assert services.query("prefect", "select distinct state_type from flow_run") == [("COMPLETED",)]
