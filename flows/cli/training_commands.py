"""Verbs that train, and the pages that show it: run, compare, schedule, ui."""

from typing import Annotated, Any

import typer

from flows.cli.options import Json, Overrides, Resume, Timings, open_session, seeds_of
from silos import param_types

_RESUMED = "--resume goes on after the last whole round"
_SCHEDULED = (
    "`siloflow compare --resume` goes on with a comparison that was running, and missed runs are not made up for"
)


def run(
    method: Annotated[str, typer.Argument(help="One of `siloflow methods`.")],
    seed: Annotated[
        int, typer.Option(min=0, max=param_types.SEED, help="Of training; the partition has its own in params.yaml.")
    ] = 0,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train one method with one seed.

    Example: siloflow run fedavg --seed 1 --set training.rounds=20
    """
    with open_session(json, timings, begun=_RESUMED) as session:
        project = session.project(overrides, _has_data, works="run")
        _start(project, method, seed)
        _ready(project)
        if resume:
            _check_run(project, method, seed)
        result = session.flow("flows.run", "run", project, method=method, seed=seed, resume=resume)
        session.answer(result, "run")


def compare(
    methods: Annotated[list[str] | None, typer.Argument(help="Those of params.yaml if none is named.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated, for example 0,1,2.")] = None,
    reference: Annotated[str | None, typer.Option(help="The method that the others are compared with.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="First choose each method's best of 8 settings, on validation rows.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            help="Of the comparison, in runs/ and MLflow; with --resume which goes on, or its name's beginning."
        ),
    ] = None,
    resume: Resume = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Train several methods and say which differences are real.

    All train on the same seeds and rows.

    Example: siloflow compare fedavg fedprox --seeds 0,1,2 --set method.fedprox.proximal=1
    """
    with open_session(json, timings, begun=_RESUMED) as session:
        numbers = seeds_of(seeds)
        project = session.project(overrides, _has_data, works="compare")
        if tune and not project.params.comparison.tune:
            project = project.with_overrides(["comparison.tune=8"])
        wanted = _plan(project, methods, numbers, reference)
        _ready(project)
        if resume:
            _check_comparison(project, wanted, name)
        elif name is not None:
            _check_name(project, name)
        asked: dict[str, Any] = {"methods": methods, "seeds": numbers, "reference": reference, "name": name}
        comparison = session.flow("flows.compare", "compare", project, **asked, resume=resume)
        session.answer(comparison, "compare", failed=bool(comparison["failed"]))


def schedule(
    cron: Annotated[str, typer.Argument(help='Minute hour day month weekday, as in "0 6 * * 1", or @daily.')],
    methods: Annotated[list[str] | None, typer.Argument(help="Those of params.yaml if none is named.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated, for example 0,1,2.")] = None,
    port: Annotated[int | None, typer.Option(help="Loopback port of Prefect's page; the last one's, or 4200.")] = None,
    overrides: Overrides = None,
) -> None:
    """Run `compare` on a cron schedule (UTC) until ctrl-C.

    Example: siloflow schedule "0 6 * * 1" fedavg local_only
    """
    with open_session(json=False, timings=False, server=False, after=_SCHEDULED) as session:
        numbers = seeds_of(seeds)
        project = session.project(overrides)
        from flows.servers.server_process import last_port, save_port

        session.serve(ui=True, **last_port(project.root, port))
        from flows.schedule import cron_schedule, serve

        when = cron_schedule(cron)
        _plan(project, methods, numbers, None)
        save_port(project.root, session.server_url())
        from flows.history.abandoned_runs import close_abandoned

        with project.shared():
            close_abandoned(project.root)
        # no null: what stands in the fields of a form must be of their types
        parameters = {"methods": methods or [], "seeds": numbers or []}
        serve(project.root, when, session.server_url(), parameters, overrides or [])


def ui(
    mlflow_port: Annotated[int, typer.Option(help="Loopback port of MLflow's page.")] = 5000,
    prefect_port: Annotated[
        int | None, typer.Option(help="Loopback port of Prefect's page; 4200, or where a schedule has it.")
    ] = None,
) -> None:
    """Open MLflow's and Prefect's pages until ctrl-C.

    Example: siloflow ui --mlflow-port 5001
    """
    with open_session(json=False, timings=False, server=False):
        from flows.ui import serve

        serve(mlflow_port, prefect_port)


def _has_data(project: Any) -> None:
    """Data that are missing, or not those that are recorded, are told before anything heavy is imported."""
    project.silos  # noqa: B018


def _start(project: Any, method: str, seed: int) -> None:
    from flows.config.method_settings import method_of
    from flows.methods.base import start_method

    start_method(method_of(project.params, method), project.training_setup(seed))


def _ready(project: Any) -> None:
    from tasks.execution.open_workers import check

    check(project.params.runner.kind)


def _check_run(project: Any, method: str, seed: int) -> None:
    from flows.experiment.project import newest_experiment
    from flows.experiment.run.run_folder import run_name
    from flows.experiment.run_identity import check_resume

    check_resume(project, method, seed, newest_experiment(project, "run", inside=run_name(method, seed)))


def _plan(project: Any, methods: list[str] | None, seeds: list[int] | None, reference: str | None) -> Any:
    from flows.compare import plan

    return plan(project, methods, seeds, reference)


def _check_comparison(project: Any, wanted: Any, name: str | None) -> None:
    from flows.compare import check_resume

    check_resume(project, wanted, name)


def _check_name(project: Any, name: str) -> None:
    from flows.experiment.run_identity import unused_name

    unused_name(project, name)
