"""`siloflow ui`: MLflow's and Prefect's own pages over this project's runs, on loopback."""

import signal
import time

from flows.console.safe_text import say
from flows.experiment.project import Project, newest_experiment
from flows.servers.mlflow_server import ExternalServer, MlflowServer
from flows.servers.prefect_server import PrefectServer
from flows.servers.server_process import PORT, must_be_free, ui_address
from silos.errors import UserError
from tasks.tracking.mlflow_logging.connection import experiment_id, is_server
from tasks.tracking.mlflow_logging.run_spec import VIEW


def serve(mlflow_port: int, prefect_port: int | None) -> None:
    """Both pages until ctrl-C, of which those that others serve go on; UserError if one of them does not answer.

    Without a port of its own Prefect's page is the one that a schedule of this project has, if there is one.
    """
    project = Project.open()
    root, uri = project.root, project.tracking
    ours = not is_server(uri)
    if ours and mlflow_port == (prefect_port or PORT):
        raise UserError(f"--mlflow-port and --prefect-port are both {mlflow_port}; give each page a port of its own.")
    if ours:
        must_be_free(mlflow_port, "--mlflow-port")
    where = ui_address(prefect_port, "--prefect-port")
    for number in (signal.SIGTERM, signal.SIGHUP):  # a closed terminal must not leave a server behind
        signal.signal(number, signal.default_int_handler)
    mlflow = MlflowServer(root, uri, mlflow_port) if ours else ExternalServer(uri)
    prefect = PrefectServer(root, ui=True, **where)
    try:
        prefect.wait()
        mlflow.wait()
        from flows.history.abandoned_runs import close_abandoned  # and Prefect with it, whose settings name the server

        with project.shared():
            close_abandoned(root)
        say(f"MLflow   {mlflow.page}/#/experiments?{_TRAINING}")
        newest = _newest_comparison(project, mlflow.page)
        if newest:
            say(f"         {newest}  (newest comparison)")
        say(f"Prefect  {prefect.url.removesuffix('/api')}/runs")
        say("ctrl-C ends both." if ours else "ctrl-C ends Prefect's page; MLflow's is served elsewhere, and goes on.")
        while mlflow.alive() and prefect.alive():
            time.sleep(_LOOK)
        gone = "MLflow's server" if prefect.alive() else "Prefect's server"
        raise UserError(f"{gone} ended by itself; see {mlflow.log if prefect.alive() else prefect.log}.")
    except KeyboardInterrupt:
        pass
    finally:
        stopped = prefect.stop()
        mlflow.stop()
        if not stopped:
            say("Prefect's server stays until the command that uses it has ended.")


_LOOK = 0.5  # seconds between two looks at whether both servers live
_TRAINING = "workflowType=machine_learning"  # else MLflow opens on its pages for language models


def _newest_comparison(project: Project, page: str) -> str | None:
    """The address of its runs, with the columns of the view `VIEW`; None if MLflow does not know it."""
    name = newest_experiment(project, "compare")
    number = name and experiment_id(project.tracking, name)
    return f"{page}/#/experiments/{number}/runs?{_TRAINING}&viewStateShareKey={VIEW}" if number else None
