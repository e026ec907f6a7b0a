"""The command `siloflow reproduce`: published tables, and what came of them."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from flows.cli.options import Json, Overrides, Timings, open_session, seeds_of

_GOES_ON = "run it again, and it goes on where it stopped"


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="A page of publications/pages, or a .yaml file of your own; all if not given.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Which of its tables; if none is named, they are listed.")] = None,
    figure: Annotated[str | None, typer.Option(help="Which of its figures: --figure 3 is --table figure-3.")] = None,
    scale: Annotated[str, typer.Option(help="cpu, or paper for the published size.")] = "cpu",
    seeds: Annotated[str | None, typer.Option(help="Comma-separated; those of the scale if not given.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it would take.")] = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """List published tables and what came of them, or repeat one and print it beside ours.

    A table that was interrupted goes on where it stopped.

    Example: siloflow reproduce mcmahan --table 2NN --estimate
    """
    with open_session(json, timings, server=False, after=_GOES_ON) as session:
        numbers, table = seeds_of(seeds), _table(table, figure)
        if table is None and not (estimate or seeds or overrides):
            session.answer(_listing(paper), _print("listing"))
            return
        paper = _named(paper)
        project = session.project(overrides)
        asked: dict[str, Any] = {"paper": paper, "table": table, "scale": scale, "seeds": numbers}
        sweep = _sweep(**asked, overrides=project.overrides)
        if estimate or not sweep.finished:
            session.serve()
            answer = session.flow("publications.reproduce", "reproduce", project, **asked, estimate=estimate)
        else:
            answer = _recorded(sweep)
        session.answer(answer, _print("estimate" if estimate else "reproduce"))


def _table(table: str | None, figure: str | None) -> str | None:
    """The table that is asked for, by its name or by the number of a figure."""
    from silos.errors import UserError

    if figure is not None and table is not None:
        raise UserError("--table and --figure name two things to repeat; give one of them.")
    return table if figure is None else f"figure-{figure}"


def _listing(paper: str | None) -> dict[str, Any]:
    from publications.render.table_list import listing

    return listing(paper)


def _named(paper: str | None) -> str:
    from publications.published_tables import names
    from silos.errors import UserError

    if paper is None:
        raise UserError(f"say which paper: {', '.join(names())}, or a .yaml file of your own.")
    return paper


def _sweep(**asked: Any) -> Any:
    """The page and what is recorded of it are looked at before Prefect is started, which a finished table does without."""
    from publications.sweep import Sweep

    return Sweep(**asked)


def _recorded(sweep: Any) -> Any:
    from publications.compare_with_published import table_of_records

    return table_of_records(sweep)


def _print(name: str) -> Callable[[Any, Any], None]:
    """Return the function of publications/print_tables.py, which is imported only where a person reads the answer."""

    def printer(answer: Any, console: Any) -> None:
        from publications import print_tables

        getattr(print_tables, name)(answer, console)

    return printer
