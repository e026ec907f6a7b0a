"""Define the commands that describe the silos and how they differ: show, diagnose, stats."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.command_session import Json, Overrides, Session, Timings
from flows.cli.data_commands import SPLITS, WITHHELD, share_bars
from flows.cli.training_commands import LOOK_CLOSER
from silos.errors import UserError

if TYPE_CHECKING:
    from flows.core.console.safe_text import PlainConsole
    from flows.project.project import Project
    from tasks.tracking.result_types.data_results import ShownOverview
    from tasks.tracking.result_types.diagnosis_result import DiagnosisResult

_MAX_CLIENTS = 15  # that `show` lists

commands = typer.Typer()


@commands.command()
def show(overrides: Overrides = None, json: Json = False) -> None:
    """Show how the silos differ: sizes, labels, features.

    Example: siloflow show --json
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.diagnosis.describe_data import overview_with_figure

        session.print_result(overview_with_figure(project), print_show)


def print_show(overview: "ShownOverview", console: "PlainConsole") -> None:
    """Print a row for each client, or for each domain and some clients if there are very many; then the spreads."""
    is_sample = overview["opened"] < overview["count"]
    if is_sample:
        _print_domains(overview, console)
    _print_clients(overview, console)
    if is_sample:
        console.print(
            f"showing {len(overview['clients'])} of {overview['count']:,} clients; the numbers below are of "
            f"{overview['opened']:,} clients"
        )
    elif len(overview["clients"]) > _MAX_CLIENTS:
        console.print(f"… and {len(overview['clients']) - _MAX_CLIENTS} more clients; --json lists them all")
    if overview["classes"]:
        console.print(f"classes         {', '.join(overview['classes'][:30])}")
    _print_spreads(overview, console)
    if overview["reported"]:
        printed = [*overview["clients"][:_MAX_CLIENTS], *(overview["laws"] if is_sample else [])]
        withheld = any(None in each["label_shares"].values() for each in printed)
        console.print(f"labels          as silos report them of training rows{f'; {WITHHELD}' if withheld else ''}")
    if overview["refused"]:
        more = len(overview["refused"]) - 1
        likewise = f" (and {more:,} more silo{'s' * (more > 1)})" if more else ""
        console.print(f"not reported    {overview['refused'][min(overview['refused'])]}{likewise}")
    console.print(f"data version    {overview['data_version']}")
    console.print(f"picture         {overview['figure'] or 'none was drawn: matplotlib is not installed'}")
    console.print("next            siloflow diagnose, or siloflow compare", soft_wrap=True)


def _print_clients(overview: "ShownOverview", console: "PlainConsole") -> None:
    from models.metrics.task_metrics import format_number

    labels = ["labels"] if overview["classes"] else ["y mean", "y sd"]
    # a mean over columns of different units has no meaning
    of_all_columns = [] if overview["mixed_units"] else ["x mean", "x sd"]
    table = console.table("client", "domain", "train", "validation", "test", *labels, *of_all_columns)
    for client in overview["clients"][:_MAX_CLIENTS]:
        rows, target = client["rows"], client["target"]
        table.add_row(
            client["name"],
            client["domain"] or "",
            *(str(rows[split]) for split in SPLITS),
            *(
                [format_number(value, 4) for value in (target["mean"], target["standard_deviation"])]
                if target
                else [share_bars(client["label_shares"]) or "-"] + ["-"] * (len(labels) - 1)
            ),
            *(_three_digits(client["mean"], client["standard_deviation"]) if of_all_columns else []),
        )
    console.print(table)


def _print_spreads(overview: "ShownOverview", console: "PlainConsole") -> None:
    if overview["label_spread"] is not None:
        console.print(
            f"label spread    {overview['label_spread']:.3f}  (0: equal shares everywhere, 1: no label in common)"
        )
    if overview["target_spread"] is not None:
        console.print(
            f"target spread   {overview['target_spread']:.3f}  (distance between clients / spread within them, of y)"
        )
    if overview["feature_spread"] is not None and not overview["mixed_units"]:
        console.print(
            f"feature spread  {overview['feature_spread']:.3f}  (distance between clients / spread within them)"
        )


def _three_digits(*values: float | None) -> list[str]:
    return ["-" if value is None else f"{value:.3f}" for value in values]


def _print_domains(overview: "ShownOverview", console: "PlainConsole") -> None:
    """Print a row for each domain, and how many rows clients have."""
    from models.metrics.task_metrics import format_number

    labels = "labels" if overview["classes"] else "y mean"
    table = console.table("domain", "clients", "train", "validation", "test", labels)
    for law in overview["laws"]:
        mean = "-" if law["target"] is None else format_number(law["target"], 4)
        table.add_row(
            law["domain"] or "-",
            f"{law['clients']:,}",
            *(f"{law['rows'][split]:,}" for split in SPLITS),
            share_bars(law["label_shares"]) if overview["classes"] else mean,
        )
    console.print(table)
    rest = overview["count"] - sum(law["clients"] for law in overview["laws"])
    if rest:
        console.print(f"… and {rest:,} clients of other domains")
    for split in SPLITS:
        sizes = overview["sizes"][split]
        console.print(
            f"{split + ' rows':16}{sizes['least']:,} to {sizes['most']:,} a client, median {sizes['median']:,.10g}; "
            f"{overview['rows'][split]:,} in total"
        )


@commands.command()
def diagnose(
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Compare each silo with itself in this version: a git revision, or the start of a data version.",
        ),
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="With --against: end with exit code 1 if a silo has changed, and 0 if none has."
        ),
    ] = False,
    overrides: Overrides = None,
    json: Json = False,
    timings: Timings = False,
) -> None:
    """Name how the silos differ: in inputs, in labels, or in the rule between them.

    Example: siloflow diagnose --against HEAD~1
    """
    hint = "run the command again; silos then report the same bytes"
    with Session(json, timings, server=True, retry_hint=hint) as session:
        if exit_code and against is None:
            raise UserError("--exit-code: got no --against, expected a version. Add --against VERSION.")
        check = None if against is None else lambda project: _check_version(project, against)
        project = session.open_project(overrides, check, lock_data_for="diagnose")
        from flows.diagnose import diagnose as diagnose_flow  # while the server starts

        diagnosis: DiagnosisResult = session.run_flow(diagnose_flow, project, against=against)
        has_changed = any(record["types"] for record in diagnosis["pairs"])
        if "against" in diagnosis:
            has_changed |= any(record["types"] for record in diagnosis["new_rows"]["silos"])
        session.print_result(diagnosis, print_diagnose, failed=exit_code and has_changed)


def _check_version(project: "Project", revision: str) -> None:
    """Raise UserError for an unknown version, and for one of another schema, before Prefect is started."""
    from flows.diagnosis.load_version import load_version

    with load_version(project, revision):
        pass


def print_diagnose(diagnosis: "DiagnosisResult", console: "PlainConsole") -> None:
    """Print what differs, what was not compared, what to do, and where to look; `since` is an earlier data version."""
    from rich.padding import Padding

    since = f", since {diagnosis['since']}" if "since" in diagnosis else ""
    for title, lines in (
        ("What differs", diagnosis["sentences"]),
        ("Limits", diagnosis["notes"]),
        ("What to do", diagnosis["next"]),
    ):
        if lines:
            console.print(title, style="bold")
            for line in lines:
                console.print(f"  {line}" if "`" in line else Padding(console.render_str(line), (0, 0, 0, 2)))
            console.print()
    console.print(f"data version  {diagnosis['data_version']}{since}")
    console.print(
        f"sent          at most {diagnosis['bytes']['up_of_a_client']:,} bytes by each silo: counts and moments, no rows"
    )
    console.print(f"files         {diagnosis['folder']}")
    if diagnosis["pictures"]:
        console.print(f"pictures      {', '.join(diagnosis['pictures'])}")
    console.print(f"look closer   {LOOK_CLOSER}")


@commands.command()
def stats(
    client: Annotated[str, typer.Argument(help="The client whose training rows to read.")],
    method: Annotated[
        str, typer.Option(help="The method whose statistics to compute, as set in its section of params.yaml.")
    ] = "conditional",
    output: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the JSON to this file.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Compute the statistics of one client, which a conditional model reads.

    Nothing is logged, and nothing is written unless --output names a file.

    Example: siloflow stats c03 --json
    """
    with Session(json) as session:
        project = session.open_project(overrides)
        from flows.results.serving.client_statistics import client_statistics

        session.print_result(client_statistics(project, client, method, output), print_stats)


def print_stats(answer: dict[str, Any], console: "PlainConsole") -> None:
    """Print a row for each statistic, and notes on the client's rows."""
    console.print(f"client {answer['client']}, {answer['rows']} training rows")
    table = console.table("statistic", "numbers", "determined", "eigenvalue gap", "halves agree", "first numbers")
    start = 0
    for kind in answer["kinds"]:
        numbers = answer["statistics"][start : start + kind["length"]]
        start += kind["length"]
        quality = ("-" if kind[name] is None else f"{kind[name]:.3f}" for name in ("gap", "agreement"))
        begins = ", ".join(f"{number:.3g}" for number in numbers[:3])
        table.add_row(kind["kind"], str(kind["length"]), "yes" if kind["ok"] else "no", *quality, begins)
    console.print(table)
    for note in answer["notes"]:
        console.print(f"  {note}")
    console.print("all numbers     --json" + (f", {answer['written']}" if answer["written"] else ""))
