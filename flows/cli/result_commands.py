"""Define the commands on earlier runs: results, clean."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.command_session import Json, Overrides, Session
from flows.cli.training_commands import print_compare, print_run
from silos.errors import UserError, shown

if TYPE_CHECKING:
    from flows.core.console.safe_text import PlainConsole
    from flows.project.project import Project
    from flows.results.run_history.clean_runs import Leftover
    from tasks.tracking.result_types.earlier_results import (
        Cleaned,
        ComparisonClients,
        ComparisonCost,
        ResultList,
        TwoComparisons,
    )

_MAX_RESULTS = 10  # of the newest
_MAX_PLACES = 3  # of a kind
_MAX_CLIENTS = 15  # of those that gain or lose most
_MAX_RARE = 5  # classes

commands = typer.Typer()


@commands.command()
def results(
    name: Annotated[
        str | None, typer.Argument(help="The folder in runs/ whose result to print; by default all results are listed.")
    ] = None,
    other: Annotated[str | None, typer.Argument(help="A second comparison, to compare with the first.")] = None,
    clients: Annotated[
        bool,
        typer.Option("--clients", help="Print each client of a comparison, and what it gains over training alone."),
    ] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="Print what each method of a comparison costs until it reaches a target.")
    ] = False,
    target: Annotated[
        float | None,
        typer.Option(
            help="The target of --cost; by default 90 % of the way from the constant baseline to the best method."
        ),
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List earlier results, print one of them, or compare two comparisons.

    The start of a name is enough if it is unique. With --clients, print each client of a comparison.

    Example: siloflow results
    """
    with Session(json) as session:
        project = session.open_project(overrides, is_recorded=clients or other is not None)
        if clients:
            session.print_result(_client_results(project, name, other), print_clients)
        elif cost or target is not None:
            # a branch imports its own module, so that a list of results starts without those that compare
            from flows.results.run_history.comparison_cost import cost_of_result

            session.print_result(cost_of_result(project, name, other, target), print_cost_to_target)
        elif name is None:
            from flows.results.run_history.list_runs import list_runs

            session.print_result(list_runs(project.root), print_results)
        elif other is None:
            from flows.results.run_history.list_runs import load_result

            found = load_result(project, name)
            if found[1] == "run":
                session.print_result(found[0], print_run)
            else:
                session.print_result(found[0], print_compare)
        else:
            from flows.results.run_history.compare_results import compare_results

            session.print_result(compare_results(project, name, other), print_two_results)


def _client_results(project: "Project", name: str | None, other: str | None) -> "ComparisonClients":
    """Return what a comparison records on its clients; UserError if the name is not that of one comparison."""
    from flows.results.run_history.list_runs import load_result

    if name is None or other is not None:
        raise UserError(
            f"results --clients: got {'no name' if name is None else 'two names'}, expected the name of one comparison. "
            "`siloflow results` lists them."
        )
    found = load_result(project, name)
    if found[1] != "compare":
        raise UserError(f"results --clients: got {shown(name)}, a run, expected a comparison. Name a comparison.")
    result = found[0]
    if "clients" not in result:
        raise UserError(
            f"results --clients: got {result['experiment']}, a comparison of an earlier version, expected one that "
            f"records its clients. Run its command with --resume --name {result['experiment']} to add them; nothing is "
            "trained again."
        )
    from models.metrics.client_metrics import recorded_metric

    quantity, methods = recorded_metric(result), [str(row["method"]) for row in result["table"]]
    answer: ComparisonClients = {
        "methods": methods,
        "reference": result["paired"][0]["reference"] if result["paired"] else methods[0] if methods else None,
        "experiment": result["experiment"],
        "task": quantity.task,
        "metric": quantity.name,
        "higher_is_better": quantity.higher_is_better,
        "clients": result["clients"],
        "gains": result["gains"],
    }
    if "classes" in result:  # a regression has none
        answer["classes"] = result["classes"]
    return answer


def print_clients(answer: "ComparisonClients", console: "PlainConsole") -> None:
    """Print a row for each client, with metric and gain by method, then the gains of each method, then classes."""
    from flows.experiments.comparison.comparison_text import (
        clients_of_role,
        clients_table,
        confusion_sentences,
        gains_table,
        interesting_clients,
        legend,
        recall_table,
    )
    from models.metrics.client_metrics import recorded_metric

    quantity, gains = recorded_metric(answer), answer["gains"]
    for role, clients in clients_of_role(answer["clients"]).items():
        chosen = interesting_clients(clients, gains, _MAX_CLIENTS)
        if role != "federated":
            console.print(f"{role} clients, which do not train and have no gain:")
        _print_table(clients_table(chosen, answer["methods"], gains, quantity), console)
        if len(chosen) < len(clients):
            console.print(f"{len(chosen)} of {len(clients):,} clients, those that gain or lose most; --json has all")
        if role == "federated" and gains["methods"]:
            console.print(legend(gains, quantity))
        console.print()
    # training alone is what gains are measured against, and a method may share no finished seed with it
    compared = [method for method in answer["methods"] if method in gains["methods"]]
    if compared:
        _print_table(gains_table(compared, gains, quantity), console)
        console.print()
    for method in compared:
        console.print(gains["methods"][method]["sentence"])
    if "why_not" in gains:
        console.print(gains["why_not"])
    classes, reference = answer.get("classes"), answer["reference"]
    if classes and reference:
        console.print()
        _print_table(recall_table(answer["methods"], classes, _MAX_CLIENTS), console)
        for sentence in confusion_sentences(reference, classes, _MAX_RARE):
            console.print(sentence)


def _print_table(lines: list[list[str]], console: "PlainConsole") -> None:
    titles, *rows = lines
    table = console.table(*titles)
    for cells in rows:
        table.add_row(*cells)
    console.print(table)


def print_results(answer: "ResultList", console: "PlainConsole") -> None:
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


def print_cost_to_target(answer: "ComparisonCost", console: "PlainConsole") -> None:
    """Print what each method costs until it reaches the target, and which methods do not reach it."""
    from flows.experiments.comparison.comparison_text import cost_sentences, cost_table
    from models.metrics.client_metrics import recorded_metric

    if answer["cost"]:
        _print_table(cost_table(answer["cost"]), console)
    for sentence in cost_sentences(answer["cost"], recorded_metric(answer)):
        console.print(sentence)
    if not answer["cost"]:
        console.print(
            "No method is better than the constant baseline. Name a target: `siloflow results NAME --target VALUE`."
        )


def print_two_results(answer: "TwoComparisons", console: "PlainConsole") -> None:
    """Print two rows for each method, then the differences between the comparisons, then those of params."""
    from flows.experiments.comparison.comparison_text import mean_and_sd
    from models.metrics.client_metrics import recorded_metric

    quantity = recorded_metric(answer)
    table = console.table("method", "", *quantity.columns.values())
    for row in answer["table"]:
        for side, method, cells in (("first", row["method"], row["first"]), ("second", "", row["second"])):
            table.add_row(method, side, *(mean_and_sd(cells, name, quantity) for name in quantity.columns))
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
        if "why_not" in pair:
            console.print(f"  {pair['method']}: no interval, since {pair['why_not'].rstrip('.')}")
        else:
            seeds = ", ".join(map(str, pair["seeds"]))
            console.print(f"  {pair['method']}: {pair['sentence']} (seed{'s' * (len(pair['seeds']) > 1)} {seeds})")
    console.print()
    old, new = answer["data_versions"]
    console.print(f"data version  {old}" if old == new else f"data version  {old} → {new}")
    console.print(f"params        {'differ in' if answer['params'] else 'the same'}")
    common = {row["method"] for row in answer["table"]}
    for line in answer["params"]:
        affected = "" if common == {*line["methods"]} else f"  ({', '.join(line['methods'])})"
        console.print(f"  {line['difference']}{affected}")


@commands.command()
def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Delete everything that is listed, without a question.")] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """List leftover files and what is lost with them, and delete those that you confirm.

    Finished comparisons, the ledgers of silos and files in use are kept; so are finished single runs, except if they are
    older than retention.days. Without a terminal nothing is deleted, except with --yes.

    Example: siloflow clean
    """
    with Session(json) as session:
        project = session.open_project(overrides, is_recorded=False)
        from flows.results.run_history.clean_runs import clean_runs

        session.print_result(clean_runs(project, _confirmation(yes, silent=json)), print_clean)


def _confirmation(yes: bool, silent: bool) -> "Callable[[Leftover], bool]":
    """Return the function that decides on each kind: by a question, or as `yes` says if there is no terminal."""
    if yes or silent or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return lambda _: yes
    from silos.io.memory_and_disk import size

    def confirm(kind: "Leftover") -> bool:
        return typer.confirm(f"{kind.kind}, {size(kind.size)}. Lost: {kind.lost}. Delete?", default=False, err=True)

    return confirm


def print_clean(answer: "Cleaned", console: "PlainConsole") -> None:
    """Print each kind of file with its size, what is lost without it, and some of its places."""
    from silos.io.memory_and_disk import size

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
