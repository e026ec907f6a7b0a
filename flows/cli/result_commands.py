"""Define the commands on earlier runs: results, clean."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command_session import Json, Overrides, Session
from flows.cli.training_commands import print_compare, print_run

if TYPE_CHECKING:
    from flows.console.safe_text import PlainConsole
    from flows.history.clean_runs import Leftover

_MAX_RESULTS = 10  # of the newest
_MAX_PLACES = 3  # of a kind

commands = typer.Typer()


@commands.command()
def results(
    name: Annotated[
        str | None, typer.Argument(help="The folder in runs/ whose result to print; by default all results are listed.")
    ] = None,
    other: Annotated[str | None, typer.Argument(help="A second comparison, to compare with the first.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List earlier results, print one of them, or compare two comparisons.

    The start of a name is enough if it is unique.

    Example: siloflow results
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        if name is None:
            from flows.history.list_runs import list_runs

            session.print_result(list_runs(project.root), print_results)
        elif other is None:
            from flows.history.list_runs import load_result

            result, kind = load_result(project, name)
            session.print_result(result, {"run": print_run, "compare": print_compare}[kind])
        else:
            from flows.history.compare_results import compare_results

            session.print_result(compare_results(project, name, other), print_two_results)


def print_results(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print two lines for each result, since names are long: its name, state and headline, then what it is."""
    if not answer["results"]:
        console.print("no results yet. Next: `siloflow compare` trains and compares methods.")
        return
    for result in answer["results"][:_MAX_RESULTS]:
        state = ", ".join(filter(None, (result["state"], result["headline"])))
        console.print(f"{result['name']}  {state}", style="bold" if result["state"] == "finished" else None)
        data = f"; data {result['data_version']}" if result["data_version"] else ""
        console.print(f"  {result['started'][:16].replace('T', ' ')} UTC  {result['what']}{data}")
    more = len(answer["results"]) - _MAX_RESULTS
    if more > 0:
        console.print(f"… and {more} more; --json lists them all")
    console.print("Next: `siloflow results NAME` prints a result, `siloflow results A B` compares two comparisons.")


def print_two_results(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print two rows for each method, then the differences between the comparisons, then those of params."""
    from flows.experiment.comparison.comparison_text import mean_and_sd
    from models.metrics.client_metrics import recorded_metric

    quantity = recorded_metric(answer)
    table = console.table("method", "", *quantity.columns.values())
    for row in answer["table"]:
        for side, method in (("first", row["method"]), ("second", "")):
            table.add_row(method, side, *(mean_and_sd(row[side], name, quantity) for name in quantity.columns))
    console.print(f"first   {answer['first']}")
    console.print(f"second  {answer['second']}")
    console.print()
    if answer["table"]:
        console.print(table)
    else:
        console.print("the two comparisons have no method in common")
    for side, methods in zip(("first", "second"), answer["only"], strict=True):
        if methods:
            console.print(f"only in the {side}: {', '.join(methods)}")
    for pair in answer["paired"]:
        if "sentence" in pair:
            seeds = ", ".join(map(str, pair["seeds"]))
            console.print(f"  {pair['method']}: {pair['sentence']} (seed{'s' * (len(pair['seeds']) > 1)} {seeds})")
        else:
            console.print(f"  {pair['method']}: no interval, since {pair['why_not'].rstrip('.')}")
    console.print()
    old, new = answer["data_versions"]
    console.print(f"data version  {old}" if old == new else f"data version  {old} → {new}")
    console.print(f"params        {'differ in' if answer['params'] else 'the same'}")
    common = {row["method"] for row in answer["table"]}
    for line in answer["params"]:
        methods = "" if common == {*line["methods"]} else f"  ({', '.join(line['methods'])})"
        console.print(f"  {line['difference']}{methods}")


@commands.command()
def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Delete everything that is listed, without a question.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List leftover files and what is lost with them, and delete those that you confirm.

    Finished runs, the ledgers of silos and files in use are kept. Without a terminal nothing is deleted, except with --yes.

    Example: siloflow clean
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.history.clean_runs import clean_runs

        session.print_result(clean_runs(project.root, _confirmation(yes, silent=json)), print_clean)


def _confirmation(yes: bool, silent: bool) -> "Callable[[Leftover], bool]":
    """Return the function that decides on each kind: by a question, or as `yes` says if there is no terminal."""
    if yes or silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return lambda _: yes
    from silos.io.free_memory import size

    def confirm(kind: "Leftover") -> bool:
        return typer.confirm(f"{kind.kind}, {size(kind.size)}. Lost: {kind.lost}. Delete?", default=False, err=True)

    return confirm


def print_clean(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print each kind of file with its size, what is lost without it, and some of its places."""
    from silos.io.free_memory import size

    if not answer["kinds"]:
        console.print("nothing to delete.")
        return
    for kind in answer["kinds"]:
        console.print(f"{kind['kind']}  {size(kind['bytes'])}  {'deleted' if kind['deleted'] else 'there'}")
        console.print(f"  lost if deleted: {kind['lost']}")
        for place in kind["places"][:_MAX_PLACES]:
            console.print(f"  {place}" + ("  kept, since it is in use" if place in kind["kept"] else ""))
        if len(kind["places"]) > _MAX_PLACES:
            console.print(f"  … and {len(kind['places']) - _MAX_PLACES} more; --json lists them all")
    if not any(kind["deleted"] for kind in answer["kinds"]):
        total = size(sum(kind["bytes"] for kind in answer["kinds"]))
        console.print(f"{total} in total; nothing was deleted. Next: `siloflow clean --yes` deletes all of it.")
