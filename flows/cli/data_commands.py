"""Define the commands that make a project and its data, and that list, compare and restore versions of data/."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli.command_session import Json, Overrides, Session, Timings
from silos import param_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flows.core.console.safe_text import PlainConsole
    from flows.project.project import Project
    from silos.versioning.data_versions import ClientSide
    from tasks.tracking.result_types.data_results import LedgersResult, RestoredVersion, VersionDiff, VersionLog
    from tasks.tracking.result_types.project_results import ChosenNetwork, CreatedProject, PartitionResult, RowsRead

SPLITS = ("train", "validation", "test")
_MAX_LEFT_OUT = 10  # columns that `init` names
_MAX_LISTED = 10  # versions or silos in a table
_MAX_LOGGED = 100  # lines of the log

commands = typer.Typer()
versions = typer.Typer(no_args_is_help=True, help="List, compare and restore versions of data/.")
commands.add_typer(versions, name="data")


@commands.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create; it may exist if it is empty.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your rows: a .npz, .csv, .csv.gz or .parquet file, or a folder of images. Without it the "
            "project uses the digits of scikit-learn.",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column to predict; by default chosen by its name.")
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="The column that names the silo of each row; by default chosen by its name."
        ),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, max=param_limits.CLIENTS, help="Deal the rows at random (IID) to this many silos."),
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None,
        typer.Option(help="What to train; by default chosen by the values of the label."),
    ] = None,
    decimal: Annotated[
        Literal[".", ","] | None, typer.Option(help="The decimal mark of the file; by default detected.")
    ] = None,
    censored: Annotated[
        Literal["limit", "half"] | None,
        typer.Option(help="How to read limits: <0.5 as 0.5 (limit) or 0.25 (half), >90 as 90."),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The patient, plant or machine of a row; guessed if it repeats."),
    ] = None,
    missing: Annotated[
        Literal["drop_rows", "mean", "zero"] | None,
        typer.Option(help="What is done about missing values of a table; by default chosen by their number."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Repeat it in a project: write its params.yaml again, and keep the old one.")
    ] = False,
    ops: Annotated[
        bool, typer.Option("--ops", help="Also write dvc.yaml, and files for containers, CI, systemd and pre-commit.")
    ] = False,
    json: Json = False,
) -> None:
    """Create a project folder with a params.yaml that fits your data.

    Example: siloflow init study --data visits.csv --label outcome --client hospital
    """
    with Session(json) as session:
        from flows.init_project.create_project import create_project
        from flows.init_project.infer_schema import DataOptions

        options = DataOptions(label, client, clients, task, decimal, censored, unit, missing)
        # a script cannot answer, so columns are asked for in a terminal only
        terminal = sys.stdin.isatty() and sys.stdout.isatty() and not json
        made = create_project(folder, data, options, ops, force, _ask_for_column if terminal else None)
        session.print_result(made, print_init)


def _ask_for_column(role: str, columns: "Sequence[str]", guess: str | None) -> str:
    """Ask the user for the column of a role until one of these columns is named."""
    from flows.core.console.safe_text import PlainConsole

    console = PlainConsole()
    console.print(f"It is unclear which column is the {_ROLES[role]}. The columns are {', '.join(columns)}.")
    while True:
        console.print(f"--{role}{f' [{guess}]' if guess else ''}", end="")
        name = str(typer.prompt("", default="", show_default=False)).strip() or guess or ""
        if name in columns:
            return name
        console.print(f"got {name or 'nothing'}, expected one of these columns.")


_ROLES = {
    "label": "label, which is to be predicted",
    "client": "client, the silo of each row (Ctrl-C, then --clients: none)",
}


_INDENT = 9  # columns of the labels of `init`


def print_init(made: "CreatedProject", console: "PlainConsole") -> None:
    """Print what was made, what was guessed, and the next command."""
    operations = ["dvc.yaml", "ops/", ".github/workflows/", ".pre-commit-config.yaml"] if made.get("ops") else []
    files = [
        "params.yaml",
        "prefect.yaml",
        *operations,
        ".gitignore",
        *(f"a {name} repository" for name in made["repositories"]),
    ]
    files += ["a first commit"] if made["committed"] else []
    copied = f"; {made['copied']} is copied there and ignored by git" if made["copied"] else ""
    guessed = [", ".join(made["guessed"]), _rows_read(made["read"]), _network(made["network"])]
    console.print_labelled("made", f"{made['folder']}: {', '.join(files)}{copied}", _INDENT)
    console.print_labelled("guessed", "; ".join(filter(None, guessed)), _INDENT)
    for reason in made["left_out"][:_MAX_LEFT_OUT]:
        console.print_labelled("left out", reason, _INDENT)
    if len(made["left_out"]) > _MAX_LEFT_OUT:
        console.print_labelled(
            "left out", f"{len(made['left_out']) - _MAX_LEFT_OUT} more columns; --json lists them all", _INDENT
        )
    if made["left_out"]:
        console.print_labelled(
            "",
            "repeat `siloflow init` with the option that a line names, or after correcting the column, and with `--force`",
            _INDENT,
        )
    for choice in made["missing"]:
        console.print_labelled("missing", choice, _INDENT)
    if made.get("own_copy"):
        console.print_labelled(
            "read", f"the project's own {made['own_copy']}, which differs from the data that --data names", _INDENT
        )
    if made["replaced"]:
        console.print_labelled("kept", f"the earlier params.yaml, as {made['replaced']}", _INDENT)
    enter = "" if made["folder"] == "." else f"cd {shlex.quote(made['folder'])} && "
    # commands to copy are not wrapped: soft_wrap
    if not made["committed"] and "git" in made["repositories"]:
        console.print("Nothing is committed yet: git has no user.name and user.email. After you set them:")
        console.print(f"next     {enter}git add --all && git commit -m 'Start the project'", soft_wrap=True)
    console.print(f"next     {enter}siloflow partition && siloflow compare", soft_wrap=True)


def _rows_read(read: "RowsRead | None") -> str:
    """Describe the user's file, or the data that a project has without one."""
    if read is None:
        return "no file was given, so the data are 1,797 digits of scikit-learn in 9 silos"
    silos = f", {read['clients']:,} silos" if read["clients"] else ""
    classes = f", {read['classes']:,} classes" if read["classes"] else ""
    return f"{read['rows']:,} rows of {' x '.join(map(str, read['shape']))} numbers{classes}{silos}"


def _network(network: "ChosenNetwork") -> str:
    linear = " without hidden layers, since there are few rows" if network.get("hidden") == [] else ""
    return f"network {network['kind']}{linear}"


@commands.command()
def partition(overrides: Overrides = None, json: Json = False, timings: Timings = False) -> None:
    """Deal the rows of the source to silos under data/ and record their version.

    Example: siloflow partition --set data.seed=1
    """
    from flows.cli.command_lifecycle import has_prefect

    with Session(json, timings, server=has_prefect()) as session:
        project = session.open_project(overrides, _check_partition)
        if has_prefect():
            from flows.partition import partition as partition_flow  # while the server starts

            made = session.run_flow(partition_flow, project)
        else:  # the installation of a place
            from flows.project.make_partition import make

            made = make(project)
        session.print_result(made, print_partition)


def _check_partition(project: "Project") -> None:
    """Raise UserError if another command works on data/, or the source cannot be read or is read otherwise than may be."""
    from flows.core.console.progress import saying_if_long
    from flows.project.project_data import exclusive_data_access
    from silos.privacy.owned_source import check_partition
    from silos.storage.partition_store import read

    check_partition(project.root, project.params.data)  # first: what cannot be read is named in errors
    with exclusive_data_access(project.root, "`siloflow partition`"):
        pass
    source = project.params.data.source
    with saying_if_long(f"reading {getattr(source, 'path', source.kind)}"):
        read(project.params.data, project.root)


def print_partition(made: "PartitionResult", console: "PlainConsole") -> None:
    """Print the clients and rows, the version, and notes on them."""
    rows = made["rows"]
    console.print(
        f"{made['folder']}: {made['clients']} clients, {rows['train']} training, "
        f"{rows['validation']} validation and {rows['test']} test rows{_common_rows(made['common'])}"
    )
    recorded = "now recorded in data.dvc" if made["changed"] else "as recorded in data.dvc"
    console.print(f"data version {made['data_version']}, {recorded}")
    for note in made["notes"]:
        console.print(note)
    if made["params_yaml"]:
        console.print(
            "params.yaml describes other data. Give a run the same `--set`, or write these lines in params.yaml:"
        )
        for line in made["params_yaml"]:
            console.print(f"  {line}", soft_wrap=True)
    if made["uncommitted"]:
        console.print("data.dvc is not committed, and git keeps only committed versions:")
        added = " ".join(made["to_commit"])
        console.print(f"next          git add {added} && git commit -m 'Update data'", soft_wrap=True)
    console.print("next          siloflow diagnose, then siloflow compare", soft_wrap=True)


def _common_rows(rows: dict[str, int]) -> str:
    """Describe rows that belong to no client."""
    counts = " and ".join(f"{count} {split}" for split, count in sorted(rows.items()))
    return f"; {counts} rows common to all clients" if rows else ""


@versions.command("log")
def data_log(json: Json = False) -> None:
    """List the versions of data/ that git knows.

    Example: siloflow data log
    """
    with Session(json) as session:
        from flows.diagnosis import describe_data

        session.print_result(describe_data.log(session.root), print_data_log)


def print_data_log(answer: "VersionLog", console: "PlainConsole") -> None:
    """Print a row for each version; the current one has a mark."""
    table = console.table("", "version", "revision", "date", "partitions", "commit")
    for version in answer["versions"][:_MAX_LISTED]:
        mark = "*" if version["digest"] == answer["now"] else ""
        parts = ", ".join(version["partitions"]) or "-"
        table.add_row(mark, version["digest"][:10], version["revision"], version["date"], parts, version["subject"])
    if answer["versions"]:
        console.print(table)
    _print_more(len(answer["versions"]), "versions", console)
    if answer["now"] is None:
        console.print("no data.dvc yet. Run `siloflow partition` to make data and record their version.")
    elif answer["now"] not in [v["digest"] for v in answer["versions"]]:
        console.print(
            "data.dvc records a version that is not committed. Commit it: `git add data.dvc && git commit -m "
            "'Update data'`"
        )


@versions.command("diff")
def data_diff(
    revision: Annotated[str, typer.Argument(help="A git revision, or the start of a data version.")],
    to: Annotated[
        str | None, typer.Argument(help="The version to compare with; by default the one in data.dvc.")
    ] = None,
    json: Json = False,
) -> None:
    """Show which silos changed between two versions.

    A row for each changed silo has its rows and label shares before and after.

    Example: siloflow data diff HEAD~1
    """
    with Session(json) as session:
        from flows.diagnosis import describe_data

        session.print_result(describe_data.diff(session.root, revision, to), print_data_diff)


def print_data_diff(answer: "VersionDiff", console: "PlainConsole") -> None:
    """Print a row for each silo that changed."""
    if not answer["silos"]:
        console.print("no silo differs.")
        return
    table = console.table("silo", "change", "domain", "train", "valid.", "test", "labels", "mean")
    shown = answer["silos"][:_MAX_LISTED]
    for silo in shown:
        sides = zip(_side_cells(silo["before"]), _side_cells(silo["after"]), strict=True)
        cells = [before if before == after else f"{before} → {after}" for before, after in sides]
        table.add_row(f"{silo['name']}/{silo['client']}", silo["change"], *cells)
    differ = sum(each["added"] + each["removed"] + each["changed"] for each in answer["partitions"])
    is_sample = len(answer["silos"]) < differ
    if is_sample:
        console.print(f"{len(answer['silos']):,} of {differ:,} silos that differ:")
    console.print(table)
    if any("·" in cells[-2] for silo in shown for cells in map(_side_cells, (silo["before"], silo["after"]))):
        console.print(f"labels: {WITHHELD}")
    _print_more(len(answer["silos"]), "silos", console)
    if is_sample:
        for each in answer["partitions"]:
            clients = f"{each['before']['clients']:,} → {each['after']['clients']:,}"
            kinds = f"{each['added']:,} added, {each['removed']:,} removed, {each['changed']:,} changed"
            console.print(f"{each['name']} in total: {clients} silos; {kinds}")


def _print_more(count: int, what: str, console: "PlainConsole") -> None:
    """Print how many of `count` items the table above leaves out, if any."""
    if count > _MAX_LISTED:
        console.print(f"… and {count - _MAX_LISTED} more {what}; --json lists them all")


def _side_cells(side: "ClientSide | None") -> list[str]:
    if side is None:
        return ["-"] * 6
    rows = [str(side["rows"][split]) for split in SPLITS]
    mean = "-" if side["mean"] is None else f"{side['mean']:.3f}"
    return [side["domain"] or "-", *rows, share_bars(side["label_shares"]) or "-", mean]


@versions.command("use")
def data_use(
    revision: Annotated[str, typer.Argument(help="A git revision, or the start of a data version.")],
    json: Json = False,
) -> None:
    """Restore a version of data/; a run on it reproduces its metrics.

    Example: siloflow data use 3f2a91c
    """
    with Session(json) as session:
        from flows.diagnosis import describe_data

        session.print_result(describe_data.use(session.root, revision), print_data_use)


def print_data_use(answer: "RestoredVersion", console: "PlainConsole") -> None:
    """Print the version that is in data/, and what params.yaml must say for it."""
    console.print(f"data/ is now version {answer['digest']}: {', '.join(answer['partitions'])}")
    if answer["settings"]:
        console.print("params.yaml describes other data. To use these data, add:")
        console.print(" ".join(f"--set {shlex.quote(setting)}" for setting in answer["settings"]), soft_wrap=True)
    if answer["params_differ"]:
        console.print(f"before a run: {answer['params_differ']}")


@versions.command("ledger")
def data_ledger(
    new: Annotated[
        bool, typer.Option("--new", help="Start new ledgers where they are missing: what silos reported is forgotten.")
    ] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="Show the key by which each silo takes part in secure sums.")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Show what was asked, by whom, how it was answered, and what it cost.")
    ] = False,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Show what silos reported of their rows, and what they may report.

    Example: siloflow data ledger
    """
    with Session(json) as session:
        project = session.open_project(overrides, is_recorded=False)  # it must show a damaged log
        from flows.diagnosis import describe_data

        session.print_result(describe_data.ledgers(project, new, keys, log), print_data_ledger)


def print_data_ledger(answer: "LedgersResult", console: "PlainConsole") -> None:
    """Print a row for each silo, and the file that says what they may report."""
    table = console.table("silo", "exact", "noisy", "runs", "epsilon", "budget", "exact numbers", "last report (UTC)")
    for silo in answer["silos"][:_MAX_LISTED]:
        spent = f"{silo['spent']:.3g}"
        cells = ["-"] * 4 if silo["missing"] else [*(str(silo[kind]) for kind in ("exact", "noisy", "runs")), spent]
        exact = "allowed" if silo["without_noise"] else "refused"
        table.add_row(
            silo["name"], *cells, f"{silo['budget']:g}", exact, silo["last"].replace("T", " ").replace("Z", "") or "-"
        )
    console.print(table)
    if len(answer["silos"]) > _MAX_LISTED:
        console.print(f"… and {len(answer['silos']) - _MAX_LISTED} more silos; --json lists them all")
    missing = [silo["name"] for silo in answer["silos"] if silo["missing"]]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        console.print(f"{missing[0]}{more}: the ledger is missing, and nothing is reported.")
        console.print("next: bring private/ back from a copy, or run `siloflow data ledger --new`")
    for name in answer["unknown"]:
        console.print(f"{answer['policy']}: silos: got {name}, expected a silo of these data. Correct its name.")
    for silo in answer["silos"]:
        if silo["key"]:
            console.print(f"key of {silo['name']}:")
            console.print(silo["key"])  # by itself, so that no line breaks it
    shown = answer["log"][-_MAX_LOGGED:]
    if len(shown) < len(answer["log"]):
        console.print(f"… {len(answer['log']) - len(shown):,} earlier lines; --json lists them all")
    for line in shown:
        asked = f"{line['silo']}: {line['asked']}" if line["silo"] else line["asked"]
        rows = "" if line["rows"] is None else f", of {line['rows']:,} rows"
        cost = f", epsilon {line['epsilon']:.3g}" if line["rho"] else ""
        text = f"{line['when'].replace('T', ' ').replace('Z', '')}  {line['by']}  {asked}: {line['answer']}{rows}{cost}"
        console.print(text)
    console.print(f"owner's file  {answer['policy']}")


WITHHELD = "· is of no rows, or too few to be reported"
"""What the dot of `share_bars` means."""


def share_bars(shares: dict[str, float | None]) -> str:
    """Return label shares as small bars, at most 20, a dot for a share that is withheld. rich's bars take a line each."""
    levels, first = " ▁▂▃▄▅▆▇█", list(shares.values())
    most = max((share for share in first if share is not None), default=0) or 1
    return "".join("·" if share is None else levels[round(8 * share / most)] for share in first[:20])
