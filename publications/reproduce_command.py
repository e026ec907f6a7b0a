"""Define the command `siloflow reproduce`: list published tables, or repeat one."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from flows.cli.command_session import Json, Overrides, Session, Timings
from flows.cli.training_commands import parse_seeds

_GOES_ON = "run it again, and it continues where it stopped"
_SIGNED = "records of runs that came out the same are signed; type it again for others"


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="A page of publications/pages, or a .yaml file of your own; all if not given.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Which of its tables; if none is named, they are listed.")] = None,
    figure: Annotated[str | None, typer.Option(help="Which of its figures: --figure 3 is --table figure-3.")] = None,
    scale: Annotated[str, typer.Option(help="cpu, or paper for the published size.")] = "cpu",
    seeds: Annotated[str | None, typer.Option(help="Comma-separated; those of the scale if not given.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it would take.")] = False,
    again: Annotated[
        int | None, typer.Option(min=1, help="Run this many recorded runs again, and compare them with their records.")
    ] = None,
    stale: Annotated[bool, typer.Option("--stale", help="List records that other code made.")] = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """List published tables with our outcomes, or repeat one and compare it with ours.

    An interrupted table continues where it stopped.

    Example: siloflow reproduce mcmahan --table 2NN --estimate
    """
    with Session(json, timings, retry_hint=_SIGNED if again else _GOES_ON) as session:
        from publications.compare_with_published import table_of_records
        from publications.published_tables import names
        from publications.render.table_list import listing, stale_records
        from publications.sweep import Sweep
        from silos.errors import UserError

        numbers = parse_seeds(seeds)
        if figure is not None and table is not None:
            raise UserError("--table and --figure name two things to repeat; give one of them.")
        table = table if figure is None else f"figure-{figure}"
        if stale:
            if table is not None or estimate or again or seeds or overrides:
                raise UserError("--stale: got an option of one table, expected none. Name a paper, or nothing for all.")
            session.print_result(stale_records(paper), _print("stale"))
            return
        if estimate and again:
            raise UserError("--estimate and --again ask for two things; give one of them.")
        if table is None and not (estimate or again or seeds or overrides):
            session.print_result(listing(paper), _print("listing"))
            return
        if paper is None:
            raise UserError(f"say which paper: {', '.join(names())}, or a .yaml file of your own.")
        project = session.open_project(overrides)
        parameters: dict[str, Any] = {"paper": paper, "table": table, "scale": scale, "seeds": numbers}
        sweep = Sweep(**parameters, overrides=project.overrides, project=project)
        if estimate or again or not sweep.finished:
            session.start_server()  # a finished table does without Prefect
            parameters |= {"estimate": estimate, "again": again or 0}
            from publications.reproduce import reproduce as reproduce_flow  # while the server starts

            answer = session.run_flow(reproduce_flow, project, **parameters)
        else:
            answer = table_of_records(sweep)
        session.print_result(answer, _print("estimate" if estimate else "again" if again else "reproduce"))


def _print(name: str) -> Callable[[Any, Any], None]:
    """Return the function of publications/print_tables.py, which is imported only where a person reads the answer."""

    def printer(answer: Any, console: Any) -> None:
        from publications import print_tables

        getattr(print_tables, name)(answer, console)

    return printer
