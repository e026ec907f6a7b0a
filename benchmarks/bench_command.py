"""Define the command `siloflow bench`: time whole rounds against a plain loop, and measure single parts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.command_session import Json, Overrides, Session


def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1 to W5, W7 and W8; all if none is named.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Turns of every contestant; 3 by default.")] = None,
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
    intervals: Annotated[
        bool, typer.Option("--intervals", help="How often the intervals of a comparison cover a known truth.")
    ] = False,
    cells: Annotated[
        bool, typer.Option("--cells", help="What least rows of a cell cost a diagnosis: 20 minutes.")
    ] = False,
    privacy: Annotated[
        bool, typer.Option("--privacy", help="What private training adds to a step: clipping and noise.")
    ] = False,
    serving: Annotated[bool, typer.Option("--serving", help="How long requests to a served model take.")] = False,
    advice: Annotated[
        bool,
        typer.Option("--advice", help="What methods gain by shift, and the regret of advise: two hours of a core."),
    ] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Whether races of advise agree with their replays in --advice: 17 minutes."),
    ] = False,
    device: Annotated[str, typer.Option(help="Where workloads are computed: cpu or cuda.")] = "cpu",
    record: Annotated[bool, typer.Option("--record", help="Keep what is measured in docs/results/bench.json.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Time whole rounds against a plain loop, or tune the engine.

    Example: siloflow bench W1 --repeats 3
    """
    parts = {"--tune": tune, "--codebook": codebook, "--regroup": regroup, "--diagnose": diagnose}
    parts |= {"--population": population, "--intervals": intervals, "--serving": serving}
    parts |= {"--cells": cells, "--privacy": privacy}
    parts |= {"--advice": advice, "--live": live}
    with Session(json) as session:
        given = {"--set": bool(overrides), "--device": device != "cpu", "--peer": bool(peer)}
        given |= {"--repeats": repeats is not None, "--record": record}
        part = _named_part(workloads or [], [name for name, wanted in parts.items() if wanted])
        _check_options(part or _WORKLOADS, [option for option, is_given in given.items() if is_given])
        keep, turns = _keeper(session.root, record), repeats or 3
        if tune:
            from benchmarks.bench_tuning import tune as measure

            session.print_result(measure(session.open_project(overrides), session.print_progress), _print("tune"))
        elif codebook:
            from benchmarks.bench_codebook import overhead

            session.print_result(
                keep("codebook", overhead(turns, session.print_progress), f" --repeats {turns}"), _print("overhead")
            )
        elif regroup:
            from benchmarks.bench_clustering import regroup_cost

            session.print_result(
                keep("regroup", regroup_cost(turns, session.print_progress), f" --repeats {turns}"),
                _print("regroup"),
            )
        elif intervals:
            from benchmarks.bench_intervals import interval_coverage

            session.print_result(keep("intervals", interval_coverage(session.print_progress)), _print("intervals"))
        elif cells:
            from benchmarks.bench_cells import cells_cost

            session.print_result(keep("cells", cells_cost(session.print_progress)), _print("cells"))
        elif privacy:
            from benchmarks.bench_privacy import privacy_cost

            measured = privacy_cost(turns, session.print_progress)
            session.print_result(keep("privacy", measured, f" --repeats {turns}"), _print("privacy_cost"))
        elif serving:
            from benchmarks.bench_serving import serving_cost

            session.print_result(keep("serving", serving_cost(session.print_progress)), _print("serving"))
        elif advice:
            from benchmarks.bench_advice import study

            session.print_result(keep("advice", study(session.root, session.print_progress, record)), _print("regret"))
        elif live:
            from benchmarks.bench_advice import live_races

            session.print_result(keep("live", live_races(session.root, session.print_progress)), _print("races"))
        elif population:
            from benchmarks.bench_population import population_cost

            measured = population_cost(turns, session.print_progress)
            session.print_result(keep("population", measured, f" --repeats {turns}"), _print("population"))
        elif diagnose:
            from benchmarks.bench_diagnose import diagnose_cost

            session.print_result(keep("diagnose", diagnose_cost(session.print_progress)), _print("diagnose_cost"))
        else:
            from benchmarks.run_benchmark import bench as contest

            options = "".join([f" --repeats {turns}", *(f" --peer {name}" for name in peer or [])])
            options, suffix = (options, "") if device == "cpu" else (f"{options} --device {device}", f"-{device}")
            measured = contest(
                workloads or [],
                turns,
                peer or [],
                session.print_progress,
                lambda one: keep(one["workload"], one, options, suffix),
                device,
            )
            session.print_result(measured, _print("bench"))


def _named_part(workloads: Sequence[str], parts: Sequence[str]) -> str | None:
    """Return the part that is named, or None for workloads.

    Raises:
        UserError: If more is named than one part, or than workloads: the others would not be measured.
    """
    named = [*parts, *workloads]
    if parts and len(named) > 1:
        from silos.errors import UserError

        raise UserError(
            f"bench: got {', '.join(named)}, expected one of them, or workloads alone. Run the others after it."
        )
    return parts[0] if parts else None


_WORKLOADS = "workloads"
_ACCEPTED_BY = {
    "--set": ("--tune",),
    "--device": (_WORKLOADS,),
    "--peer": (_WORKLOADS,),
    "--repeats": (_WORKLOADS, "--codebook", "--regroup", "--population", "--privacy"),
    "--record": (
        *(_WORKLOADS, "--codebook", "--regroup", "--diagnose", "--population"),
        *("--intervals", "--cells", "--privacy", "--serving", "--advice", "--live"),
    ),
}
"""The parts that read an option, in which `workloads` stands for a call without a part."""


def _check_options(part: str, options: Sequence[str]) -> None:
    """Raise a UserError for an option that the part ignores."""
    for option in options:
        accepted_by = _ACCEPTED_BY[option]
        if part not in accepted_by:
            from silos.errors import UserError

            raise UserError(
                f"bench: got {option} with {part}, expected it only with {' or '.join(accepted_by)}. Leave out {option}."
            )


def _keeper(root: Path, wanted: bool) -> Any:
    """Return a function that records a measurement, if that is wanted, and returns it.

    The load of the machine is measured, and the records are read, before the benchmark starts.
    """
    from benchmarks.bench_results import BenchRecords, busy_cores

    records = BenchRecords(root, busy_cores() if wanted else 0.0)
    if wanted:
        records.all()

    def keep(name: str, measured: Any, options: str = "", suffix: str = "") -> Any:
        if wanted:
            argument = f"--{name}" if name.islower() else name
            records.keep(f"{name}{suffix}", f"siloflow bench {argument}{options}", measured)
        return measured

    return keep


def _print(name: str) -> Callable[[Any, Any], None]:
    """Return the function of benchmarks/print_benchmark.py, which is imported only where a person reads the answer."""

    def printer(answer: Any, console: Any) -> None:
        from benchmarks import print_benchmark

        getattr(print_benchmark, name)(answer, console)

    return printer
