"""Start, describe and end the services of a project: Prefect's server, MLflow's server, and a worker."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flows.orchestration.servers import prefect_process
from flows.orchestration.servers.prefect_process import PORT, must_be_free
from flows.orchestration.servers.services_process import FOLDER, KEEPER, LOG, MODULE, STATE, end_runs
from silos.errors import UserError
from silos.io.locks import in_turn, is_locked
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.service_results import ServiceName, ServicesState, ServiceState

MLFLOW_PORT = 5000
_PATIENCE = 120.0  # seconds for the services to end
_PORTS = FOLDER / "ports.json"
_OWN = ("PREFECT_API_URL", "PREFECT_UI_URL", "MLFLOW_BACKEND_STORE_URI")  # variables that the services set themselves
_NAMES: tuple[ServiceName, ...] = ("prefect", "mlflow", "worker")


def is_up(root: Path) -> bool:
    """Return whether the services of this project run."""
    return is_locked(root / KEEPER)


def start(root: Path, store: str | None, page: str | None, prefect_port: int | None, mlflow_port: int | None) -> bool:
    """Start the services, unless they run; return whether they were started.

    Args:
        root: The project's folder.
        store: The database that MLflow serves; None if the store is a server elsewhere.
        page: The address of MLflow's page if it is elsewhere.
        prefect_port: The port of Prefect's server; None is the last one, or 4200.
        mlflow_port: The port of MLflow's server; None is the last one, or 5000.

    Raises:
        UserError: If a port is taken, if `siloflow ui` or `siloflow schedule` keeps a server here, or if a service does
            not start.
    """
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    with in_turn(root / FOLDER / "up.lock"):
        last = read_json(root / _PORTS) or {}
        if is_up(root):
            _refuse_other_ports(last, prefect_port, mlflow_port)
            return False
        _wait_for_end(root)
        ports = {
            "prefect": prefect_port or last.get("prefect", PORT),
            "mlflow": mlflow_port or last.get("mlflow", MLFLOW_PORT),
        }
        _check_free(root, ports, store)
        _run_keeper(root, store, ports)
        write_json(root / _PORTS, {**ports, "page": page})
        return True


def stop(root: Path) -> bool:
    """End the services and what a killed keeper left; return whether there were any.

    Raises:
        UserError: If the services do not end.
    """
    with in_turn(root / FOLDER / "up.lock"):
        was_up = is_up(root)
        if was_up:
            pid = int((root / KEEPER).read_text())
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + _PATIENCE
            while is_up(root):
                if time.monotonic() > end:
                    raise UserError(f"down: got a process {pid} that does not end. End it with `kill -9 {pid}`.")
                time.sleep(0.05)
        else:
            end_runs(root)
            was_up = _was_killed(root)
            _wait_for_end(root)
            (root / KEEPER).unlink(missing_ok=True)
        (root / STATE).unlink(missing_ok=True)
        return was_up


def describe(root: Path) -> ServicesState:
    """Return the services with their addresses, processes and memory, and why they ended, if they did."""
    services, problem = _saved(root), None
    up = is_up(root)
    if not up:
        saved = read_json(root / STATE) or {}
        if _was_killed(root):
            problem = "the process that keeps the services was killed"
        elif saved.get("error"):
            problem = saved["error"].rstrip(".")
    external = (read_json(root / _PORTS) or {}).get("page")
    records: list[ServiceState] = []
    for name in _NAMES:
        service = services.get(name, {}) if up else {}
        processes = _family(service)
        elsewhere = name == "mlflow" and up and external
        records.append(
            {
                "service": name,
                "state": "elsewhere" if elsewhere else "up" if processes else "starting" if up else "down",
                "address": external if elsewhere else service.get("address"),
                "pid": service.get("pid"),
                "memory": sum(_memory(process) for process in processes),
                "restarts": service.get("restarts", 0),
            }
        )
    return {"up": up, "problem": problem, "services": records}


def _saved(root: Path) -> dict[str, Any]:
    """Return what the keeper wrote last; empty for a folder that was copied from another project's."""
    saved = read_json(root / STATE) or {}
    return saved.get("services", {}) if saved.get("root") == str(root) else {}


def _was_killed(root: Path) -> bool:
    """Return whether a keeper of this project, not of the one from which the folder was copied, left its file."""
    return (root / KEEPER).exists() and (read_json(root / STATE) or {}).get("root") == str(root)


def _refuse_other_ports(last: dict[str, Any], prefect_port: int | None, mlflow_port: int | None) -> None:
    for name, port in (("prefect", prefect_port), ("mlflow", mlflow_port)):
        if port not in (None, last.get(name)):
            raise UserError(
                f"--{name}-port: got {port}, expected {last.get(name)}, since the services run there. Run "
                "`siloflow down` first."
            )


def _check_free(root: Path, ports: dict[str, int], store: str | None) -> None:
    running = prefect_process.join_server(root / ".prefect") if (root / ".prefect").is_dir() else None
    if running is not None:
        running.share.close()
        raise UserError(
            f"up: got Prefect's server at {running.url} of `siloflow ui` or `siloflow schedule`, expected none. End "
            "that command first."
        )
    if store is not None and ports["prefect"] == ports["mlflow"]:
        raise UserError(
            f"--prefect-port: got {ports['prefect']}, the same as --mlflow-port, expected another. Give each its own."
        )
    must_be_free(ports["prefect"], "--prefect-port")
    if store is not None:
        must_be_free(ports["mlflow"], "--mlflow-port")


def _wait_for_end(root: Path, patience: float = 10.0) -> None:
    """Wait until the services of a killed keeper have noticed its end, and released their ports."""
    processes = [process for service in _saved(root).values() for process in _family(service)]
    _, alive = psutil.wait_procs(processes, patience)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()


def _run_keeper(root: Path, store: str | None, ports: dict[str, int]) -> None:
    """Start the keeper in a session of its own, and wait until the services answer; UserError if they do not."""
    ours, theirs = os.pipe()
    environment = {name: value for name, value in os.environ.items() if name not in _OWN}
    environment |= {} if store is None else {"MLFLOW_BACKEND_STORE_URI": store}
    command = [sys.executable, "-P", "-m", MODULE, "keep", str(theirs), str(root)]
    with os.fdopen(ours) as report, (root / LOG).open("ab") as log:
        keeper = subprocess.Popen(
            [*command, str(ports["prefect"]), str(ports["mlflow"])],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=root,
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)
        try:
            text = report.read()
        except BaseException:  # the user does not wait for the services
            keeper.terminate()
            keeper.wait()
            raise
    answer = json.loads(text) if text else {"error": f"the services ended while they started. See {root / LOG}."}
    if "error" in answer:
        keeper.wait()
        raise UserError(answer["error"])


def _family(service: Mapping[str, Any]) -> list[psutil.Process]:
    """Return the service's process and its descendants; empty if it is gone."""
    try:
        process = psutil.Process(service["pid"]) if service.get("pid") else None
        if process is None or process.create_time() != service["began"] or process.status() == psutil.STATUS_ZOMBIE:
            return []
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
