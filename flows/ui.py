"""Implements `siloflow ui`: serves MLflow's and Prefect's own pages for this project's runs, on loopback."""

import signal
import time
from pathlib import Path

from flows.core.console.safe_text import say
from flows.orchestration.servers import services
from flows.orchestration.servers.mlflow_server import ExternalServer, MlflowServer
from flows.orchestration.servers.prefect_process import PORT, must_be_free, ui_address
from flows.orchestration.servers.prefect_server import PrefectServer
from flows.project.project import Project
from silos.errors import UserError
from tasks.tracking.mlflow_logging.connection import TRAINING, is_server, make_database, views
from tasks.tracking.mlflow_logging.mlflow_records import DIAGNOSES, TREND, VIEW


def serve(mlflow_port: int, prefect_port: int | None) -> None:
    """Serve both pages until ctrl-C; servers that other processes started keep running.

    Without a port, Prefect's page is that of a running schedule of this project, if there is one.

    Raises:
        UserError: If a port is taken, or if one of the servers does not respond.
    """
    project = Project.open()
    root, uri = project.root, project.store.tracking
    if services.is_up(root):
        addresses = {record["service"]: record["address"] for record in services.describe(root)["services"]}
        pages = (addresses["mlflow"], addresses["prefect"])
        if pages[0] is None or pages[1] is None:
            raise UserError("ui: got services that are still starting. Try again in a few seconds.")
        _say_pages(project, pages[0], pages[1])
        say("`siloflow up` serves both; `siloflow down` ends them.")
        return
    is_local = not is_server(uri)
    if is_local and mlflow_port == (prefect_port or PORT):
        raise UserError(
            f"--prefect-port: got {mlflow_port}, the same as --mlflow-port, expected another. Give "
            "each page its own port."
        )
    if is_local:
        must_be_free(mlflow_port, "--mlflow-port")
    prefect_address = ui_address(prefect_port, "--prefect-port")
    for signal_number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave a server behind
        signal.signal(signal_number, signal.default_int_handler)
    mlflow: MlflowServer | ExternalServer = (
        ExternalServer(uri) if not is_local else _mlflow_server(root, uri, mlflow_port)
    )
    prefect = PrefectServer(root, ui=True, **prefect_address)
    try:
        prefect.wait()
        mlflow.wait()
        from flows.results.run_history.abandoned_runs import (
            close_abandoned,  # imports Prefect, whose settings now name the server
        )

        close_abandoned(root, project)
        _say_pages(project, mlflow.page, prefect.url.removesuffix("/api"))
        say(
            "Press ctrl-C to end both."
            if is_local
            else "Press ctrl-C to end Prefect's page; MLflow's runs elsewhere and goes on."
        )
        while mlflow.alive() and prefect.alive():
            time.sleep(_POLL_SECONDS)
        ended = "MLflow's server" if prefect.alive() else "Prefect's server"
        raise UserError(f"{ended} ended unexpectedly. See {mlflow.log if prefect.alive() else prefect.log}.")
    except KeyboardInterrupt:
        pass
    finally:
        stopped = prefect.stop()
        mlflow.stop()
        if not stopped:
            say("Prefect's server keeps running until the command that uses it has ended.")


_POLL_SECONDS = 0.5


def _mlflow_server(root: Path, uri: str, port: int) -> MlflowServer:
    make_database(uri)
    return MlflowServer(root, uri, port, root / "runs" / "mlflow-ui.log")


def _say_pages(project: Project, mlflow: str, prefect: str) -> None:
    say(f"MLflow   {mlflow}/#/experiments?{TRAINING}")
    saved = views(project.store.tracking, project.store.mlflow_experiment)
    for view, shown in ((VIEW, "newest comparison"), (TREND, "all comparisons"), (DIAGNOSES, "diagnoses")):
        if view in saved:
            say(f"         {mlflow}/{saved[view]}  ({shown})")
    say(f"Prefect  {prefect}/runs")
