"""Define the commands on services that outlive the terminal: up, down, status."""

from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command_session import Json, Session

if TYPE_CHECKING:
    from flows.core.console.safe_text import PlainConsole
    from silos.versioning.dvc_files import RemoteStatus
    from tasks.tracking.result_types.service_results import ServiceState, StartedServices, Status, StoppedServices

_TITLES = {"prefect": "Prefect", "mlflow": "MLflow", "worker": "worker"}

commands = typer.Typer()


@commands.command()
def up(
    mlflow_port: Annotated[
        int | None, typer.Option(help="The local port of MLflow's server; by default the last one, or 5000.")
    ] = None,
    prefect_port: Annotated[
        int | None, typer.Option(help="The local port of Prefect's server; by default the last one, or 4200.")
    ] = None,
    json: Json = False,
) -> None:
    """Start Prefect's server, MLflow's server and a worker, which run until `siloflow down`.

    They outlive the terminal, and one that ends is started again. Other commands then start sooner.

    Example: siloflow up
    """
    with Session(json) as session:
        project = session.open_project(None, is_recorded=False)
        from flows.orchestration.servers import services
        from silos.io.addresses import without_login
        from tasks.tracking.mlflow_logging.connection import check_server, is_server, make_database

        uri = project.store.tracking
        if is_server(uri):
            check_server(uri)
            started = services.start(project.root, None, without_login(uri), prefect_port, mlflow_port)
        else:
            if not services.is_up(project.root):
                make_database(uri)
            started = services.start(project.root, uri, None, prefect_port, mlflow_port)
        answer: StartedServices = {**services.describe(project.root), "started": started}
        session.print_result(answer, print_up)


def print_up(answer: "StartedServices", console: "PlainConsole") -> None:
    """Print the services, and how to give the worker something to do."""
    if not answer["started"]:
        console.print("The services run already.")
    _print_services(answer["services"], console)
    prefect = next(service["address"] for service in answer["services"] if service["service"] == "prefect")
    console.print(f"next  PREFECT_API_URL={prefect}/api prefect deploy --all", soft_wrap=True)
    console.print("      gives the worker what prefect.yaml lists; `siloflow down` ends everything")


@commands.command()
def down(json: Json = False) -> None:
    """End what `siloflow up` started, and the runs of its worker.

    `--resume` continues these runs.

    Example: siloflow down
    """
    with Session(json) as session:
        from flows.orchestration.servers import prefect_process, services

        stopped = services.stop(session.root)
        in_use = stopped and prefect_process.in_use(session.root / ".prefect")
        answer: StoppedServices = {"stopped": stopped, "in_use": in_use}
        session.print_result(answer, print_down)


def print_down(answer: "StoppedServices", console: "PlainConsole") -> None:
    """Print what was ended."""
    console.print("The services have ended." if answer["stopped"] else "No services run here.")
    if answer["in_use"]:
        console.print("Prefect's server keeps running until the command that uses it has ended.")


@commands.command()
def status(json: Json = False) -> None:
    """Show the services with their addresses and memory, and what DVC's remote lacks.

    Example: siloflow status
    """
    with Session(json) as session:
        from flows.orchestration.servers import services
        from silos.versioning.dvc_files import remote_status

        answer: Status = {**services.describe(session.root), "remote": remote_status(session.root)}
        session.print_result(answer, print_status)


def print_status(answer: "Status", console: "PlainConsole") -> None:
    """Print a row for each service, and a line on DVC's remote."""
    if answer["up"]:
        _print_services(answer["services"], console)
    elif answer["problem"]:
        console.print(f"The services have ended: {answer['problem']}.")
        console.print("next  `siloflow up` starts them again")
    else:
        console.print("No services run here. `siloflow up` starts them.")
    if answer["remote"]:
        console.print(f"DVC remote {_remote_text(answer['remote'])}")


def _remote_text(remote: "RemoteStatus") -> str:
    name = remote["remote"]
    if remote["problem"]:
        return f"{name}: cannot be read ({remote['problem']})"
    needed = {
        "to push: run `dvc push`": remote["push"],
        "to fetch: run `dvc pull`": remote["pull"],
        "missing here and there": remote["missing"],
    }
    parts = [f"{files:,} files {text}" for text, files in needed.items() if files]
    return f"{name}: {'; '.join(parts) or 'holds the present version of data/'}"


def _print_services(services: "list[ServiceState]", console: "PlainConsole") -> None:
    table = console.table("service", "state", "address", "process", "memory", "restarts")
    for service in services:
        memory = f"{service['memory'] / 1e6:,.0f} MB" if service["memory"] else "-"
        cells = (service["state"], service["address"] or "-", str(service["pid"] or "-"), memory)
        table.add_row(_TITLES[service["service"]], *cells, str(service["restarts"]))
    console.print(table)
