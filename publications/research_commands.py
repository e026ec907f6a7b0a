"""Verbs that hold this project beside others: reproduce, whose tables are published, and bench, which takes the time."""

from pathlib import Path
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
            session.answer(_listing(paper), "listing")
            return
        paper = _named(paper)
        project = session.project(overrides)
        asked: dict[str, Any] = {"paper": paper, "table": table, "scale": scale, "seeds": numbers}
        sweep = _sweep(**asked, overrides=project.overrides)
        if estimate or not sweep.finished:
            session.serve()
            answer = session.flow("reproduce", "reproduce", project, **asked, estimate=estimate)
        else:
            answer = _recorded(sweep)
        session.answer(answer, "estimate" if estimate else "reproduce")


def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1 to W5, and W7; all if none is named.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of every contestant.")] = 3,
    peer: Annotated[list[str] | None, typer.Option(help="flower, pfl or fedlab, if it is installed.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Measure this project's engine, and propose its settings.")
    ] = False,
    codebook: Annotated[bool, typer.Option("--codebook", help="What a codebook adds to a training step.")] = False,
    regroup: Annotated[bool, typer.Option("--regroup", help="What making groups adds to a round.")] = False,
    diagnose: Annotated[bool, typer.Option("--diagnose", help="What comparing 1,000 silos costs.")] = False,
    population: Annotated[
        bool, typer.Option("--population", help="W6: rounds of 100 clients of a thousand, and of up to a million.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Keep what is measured in docs/results/bench.json.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Time whole rounds beside a plain loop, or tune the engine.

    Example: siloflow bench W1 --repeats 3
    """
    with open_session(json, timings=False, server=False) as session:
        keep = _keeper(session.root, record and not tune)
        if tune:
            from benchmarks.bench_tuning import tune as measure

            session.answer(measure(session.project(overrides), session.say), "tune")
        elif codebook:
            from benchmarks.bench_codebook import overhead

            session.answer(keep("codebook", overhead(repeats, session.say), f" --repeats {repeats}"), "overhead")
        elif regroup:
            from benchmarks.bench_clustering import regroup_cost

            session.answer(keep("regroup", regroup_cost(repeats, session.say), f" --repeats {repeats}"), "regroup")
        elif population:
            from benchmarks.bench_population import population_cost

            measured = population_cost(repeats, session.say)
            session.answer(keep("population", measured, f" --repeats {repeats}"), "population")
        elif diagnose:
            from benchmarks.bench_diagnose import diagnose_cost

            session.answer(keep("diagnose", diagnose_cost(session.say)), "diagnose_cost")
        else:
            from benchmarks.run_benchmark import bench as contest

            asked = "".join([f" --repeats {repeats}", *(f" --peer {name}" for name in peer or [])])
            measured = contest(
                workloads or [], repeats, peer or [], session.say, lambda one: keep(one["workload"], one, asked)
            )
            session.answer(measured, "bench")


def _table(table: str | None, figure: str | None) -> str | None:
    """The table that is asked for, by its name or by the number of a figure."""
    from silos.errors import UserError

    if figure is not None and table is not None:
        raise UserError("--table and --figure name two things to repeat; give one of them.")
    return table if figure is None else f"figure-{figure}"


def _listing(paper: str | None) -> dict[str, Any]:
    from publications.render.catalogue import listing

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
    from publications.fill_table import table_of_records

    return table_of_records(sweep)


def _keeper(root: Path, wanted: bool) -> Any:
    """Keeps what a benchmark measured, if that is wanted, and answers it.

    How busy the machine is, and whether the records are whole, is seen before.
    """
    from benchmarks.bench_results import BenchRecords, busy_cores

    records = BenchRecords(root, busy_cores() if wanted else 0.0)
    if wanted:
        records.all()

    def keep(name: str, measured: Any, options: str = "") -> Any:
        if wanted:
            asked = f"--{name}" if name.islower() else name
            records.keep(name, f"siloflow bench {asked}{options}", measured)
        return measured

    return keep
