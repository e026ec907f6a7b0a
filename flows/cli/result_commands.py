"""Commands that train nothing: show, diagnose, methods, results, clean, stats, cost, export."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli.options import Json, Overrides, Timings, open_session
from silos.errors import UserError
from silos.io.free_memory import size

if TYPE_CHECKING:  # it imports numpy, which --help does without
    from flows.history.clean_runs import Leftover


def confirm(yes: bool, silent: bool) -> "Callable[[Leftover], bool]":
    """Asks for each kind; agrees to all with `yes`, and to nothing where it is silent or no terminal is there."""
    if yes or silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return lambda _: yes

    def ask(one: "Leftover") -> bool:
        return typer.confirm(f"{one.kind}, {size(one.size)}. Lost: {one.lost}. Delete?", default=False, err=True)

    return ask


def show(overrides: Overrides = None, json: Json = False) -> None:
    """Show how the silos differ: sizes, labels, features.

    Example: siloflow show --json
    """
    with open_session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.cli.describe_data import show as overview

        session.answer(overview(project), "show")


def diagnose(
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV", help="Each silo beside itself then: a git revision, or the start of a data version."
        ),
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --against: end with 1 if a silo moved and 0 if none did.")
    ] = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Name how the silos differ: in inputs, in labels, or in the rule between them.

    Example: siloflow diagnose --against HEAD~1
    """
    with open_session(json, timings, after="run it again, and silos tell the same bytes") as session:
        if exit_code and against is None:
            raise UserError("--exit-code: got no --against, expected a version. Add --against VERSION.")
        look = None if against is None else lambda project: _can_compare(project, against)
        project = session.project(overrides, look, works="diagnose")
        found = session.flow("flows.diagnose", "diagnose", project, against=against)
        session.answer(found, "diagnose", failed=exit_code and any(pair["types"] for pair in found["pairs"]))


def methods(
    method: Annotated[str | None, typer.Argument(help="With this one's options; all, in a line each, if none.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List the methods, or one method's options with what each takes and means.

    Example: siloflow methods uefl
    """
    with open_session(json, timings=False, server=False) as session:
        from flows.experiment.plugin_loader import NONE
        from flows.methods import base as pages

        plugins = session.project(overrides).plugins if Path("params.yaml").is_file() else NONE
        if method is None:
            full = (
                [pages.describe_method(name, plugins) for name in pages.method_names(plugins)]
                if json
                else pages.method_summaries(plugins)
            )
            session.answer({"methods": full}, "methods")
        else:
            from flows.config.method_settings import in_full

            session.answer(in_full(method, plugins), "method")


def results(
    name: Annotated[str | None, typer.Argument(help="What to print again, by its folder in runs/.")] = None,
    other: Annotated[str | None, typer.Argument(help="A comparison to hold beside the first.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List what was run here, print one result again, or hold two comparisons beside each other.

    A beginning of a name is enough where only one begins so.

    Example: siloflow results
    """
    with open_session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        if name is None:
            from flows.history.list_runs import list_runs

            session.answer(list_runs(project.root), "results")
        elif other is None:
            from flows.history.list_runs import load_result

            answer, printer = load_result(project, name)
            session.answer(answer, printer)
        else:
            from flows.history.compare_results import compare_results

            session.answer(compare_results(project, name, other), "beside")


def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Delete all that is listed, without asking.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List what piles up, with what is lost without it, and delete what you agree to.

    Finished runs, what silos told and what is in use stay. Where nobody can be asked nothing is deleted without --yes.

    Example: siloflow clean
    """
    with open_session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        pass
        from flows.history.clean_runs import clean_runs as thrown

        session.answer(thrown(project.root, confirm(yes, silent=json)), "clean")


def stats(
    client: Annotated[str, typer.Argument(help="A client of data/; its training rows are read, here.")],
    method: Annotated[str, typer.Option(help="Whose section of params.yaml names the statistics.")] = "conditional",
    output: Annotated[str | None, typer.Option(metavar="FILE", help="Write the JSON there too.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Compute one client's statistics, for a conditional model's params.

    Nothing is logged or written, unless --output names a file.

    Example: siloflow stats c03 --json
    """
    with open_session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.cli.describe_statistics import client_statistics

        session.answer(client_statistics(project, client, method, output), "stats")


def cost(
    method: Annotated[
        str | None, typer.Option(help="With the network that this method makes; params.yaml's own if not given.")
    ] = None,
    without_memory: Annotated[
        bool, typer.Option("--without-memory", help="Measure no memory, which takes some processes of seconds.")
    ] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Say what the network asks of a client's machine: arithmetic, memory, bytes, time.

    Example: siloflow cost --set "model.hidden=[30]"
    """
    with open_session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.cli.profile_model import cost as costs

        session.answer(costs(project, method, not without_memory, session.say), "cost")


def export(
    run: Annotated[str, typer.Argument(help="The folder that `siloflow run` prints after files.")],
    client: Annotated[str | None, typer.Option(help="Whose model; needed where each client has one.")] = None,
    format: Annotated[
        Literal["pt2", "onnx"], typer.Option(help="pt2 (torch), or onnx, which needs the extra onnx.")
    ] = "pt2",
    output: Annotated[str | None, typer.Option(metavar="FILE", help="In the run's folder if not given.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Write a run's model as a file for programs without siloflow.

    Example: siloflow export fedavg-seed0 --output digits.pt2
    """
    with open_session(json, timings=False, server=False) as session:
        project = session.project(overrides)
        from flows.cli.export_model import export as written

        session.answer(written(project, run, client, format, output), "export")


def _can_compare(project: Any, revision: str) -> None:
    """An unknown version, and one of another schema, is told before Prefect is started."""
    from flows.diagnosis.version_comparison import load_version

    with load_version(project, revision):
        pass
