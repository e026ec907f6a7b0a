"""The command `siloflow`: a thin face on the flows. Nothing heavy is imported before a subcommand needs it."""

from typing import Annotated, Any

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated learning over silos that are not alike: partition, run, compare, schedule.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one value of params.yaml; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Timings = Annotated[bool, typer.Option("--timings", help="Print what the command's fixed costs were.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the last whole round of the newest such run.")]


@app.command()
def partition(overrides: Overrides = None, json: Json = False, timings: Timings = False) -> None:
    """Make silos under data/ from a source and record their version.

    Example: siloflow partition --set data.seed=1
    """
    with _session(json, timings) as session:
        project = session.project(overrides)
        session.check(lambda: project.params.data)
        made = session.flow("partition", "partition", overrides=overrides or [])
        session.answer(made, "partition")


@app.command()
def run(
    method: Annotated[str, typer.Argument(help="One of `siloflow methods`.")],
    seed: Annotated[int, typer.Option(min=0, help="Of training; the partition has its own in params.yaml.")] = 0,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train one method with one seed.

    Example: siloflow run fedavg --seed 1 --set training.rounds=20
    """
    with _session(json, timings) as session:
        project = session.project(overrides)
        session.check(lambda: project.params.page(method, project.root))
        session.check(lambda: project.silos)
        result = session.flow("run", "run", method=method, seed=seed, overrides=overrides or [], resume=resume)
        session.answer(result, "run")


@app.command()
def compare(
    methods: Annotated[list[str] | None, typer.Argument(help="Those of params.yaml if none is named.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated, for example 0,1,2.")] = None,
    reference: Annotated[str | None, typer.Option(help="The method that the others are compared with.")] = None,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train several methods and say which differences are real.

    All train on the same seeds and rows.

    Example: siloflow compare fedavg fedprox --seeds 0,1,2 --set method.fedprox.proximal=1
    """
    with _session(json, timings) as session:
        numbers = session.check(lambda: _seeds(seeds))
        project = session.project(overrides)
        session.check(lambda: _plan(project, methods, numbers, reference))
        asked: dict[str, Any] = {"methods": methods, "seeds": numbers, "reference": reference}
        found = session.flow("compare", "compare", **asked, overrides=overrides or [], resume=resume)
        session.answer(found, "compare", failed=bool(found["failed"]))


@app.command()
def schedule(
    cron: Annotated[str, typer.Argument(help='Five fields: minute hour day month weekday, as in "0 6 * * 1".')],
    methods: Annotated[list[str] | None, typer.Argument(help="Those of params.yaml if none is named.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated, for example 0,1,2.")] = None,
    overrides: Overrides = None,
) -> None:
    """Run `compare` on a cron schedule (UTC) until ctrl-C.

    Example: siloflow schedule "0 6 * * 1" fedavg local_only
    """
    with _session(json=False, timings=False, ui=True) as session:
        from flows.schedule import cron_schedule, serve

        when = session.check(lambda: cron_schedule(cron))
        numbers = session.check(lambda: _seeds(seeds))
        project = session.project(overrides)
        session.check(lambda: _plan(project, methods, numbers, None))
        serve(when, session.server_url(), {"methods": methods, "seeds": numbers, "overrides": overrides or []})


@app.command()
def ui(
    mlflow_port: Annotated[int, typer.Option(help="Loopback port of MLflow's page.")] = 5000,
    prefect_port: Annotated[int, typer.Option(help="Loopback port of Prefect's page.")] = 4200,
) -> None:
    """Open MLflow's and Prefect's pages until ctrl-C.

    Example: siloflow ui --mlflow-port 5001
    """
    with _session(json=False, timings=False, server=False):
        from flows.ui import serve

        serve(mlflow_port, prefect_port)


@app.command()
def show(overrides: Overrides = None, json: Json = False) -> None:
    """Show how the silos differ: sizes, labels, features.

    Example: siloflow show --json
    """
    with _session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.show import show as overview

        session.answer(session.check(lambda: overview(project)), "show")


@app.command()
def methods(overrides: Overrides = None, json: Json = False) -> None:
    """List the methods and their options.

    Example: siloflow methods
    """
    with _session(json, timings=False, server=False) as session:
        from pathlib import Path

        from flows import method as pages

        extra = session.project(overrides).params.extra_methods if Path("params.yaml").is_file() else {}
        found = session.check(lambda: [pages.describe(name, extra) for name in pages.names(extra)])
        session.answer({"methods": found}, "methods")


def main() -> None:
    """Entry point of the console script."""
    app()


def _session(json: bool, timings: bool, server: bool = True, ui: bool = False) -> Any:
    from flows.session import Session

    return Session(json=json, timings=timings, server=server, ui=ui)


def _plan(project: Any, methods: list[str] | None, seeds: list[int] | None, reference: str | None) -> Any:
    from flows.compare import plan

    return plan(project, methods, seeds, reference)


def _seeds(text: str | None) -> list[int] | None:
    from silos.errors import UserError

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UserError(f"--seeds {text}: write whole numbers with commas between, for example 0,1,2.")
    return [int(part) for part in parts]
