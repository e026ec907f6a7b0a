"""Verbs that make a project and its data, and go back to data that were: init, partition, data."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flows.cli.options import Json, Overrides, Timings, open_session
from silos import param_types


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your rows: .npz, .csv, .csv.gz, .parquet or a folder of pictures; digits if not given.",
        ),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="What is predicted; guessed by its name.")] = None,
    client: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The silo of a row; guessed by its name.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, max=param_types.CLIENTS, help="Deal the rows to so many silos that are alike.")
    ] = None,
    task: Annotated[
        Literal["classification", "regression"] | None, typer.Option(help="Guessed by the label's values.")
    ] = None,
    decimal: Annotated[
        Literal[".", ","] | None, typer.Option(help="The decimal mark of the file; found there if not given.")
    ] = None,
    censored: Annotated[
        Literal["limit", "half"] | None, typer.Option(help="Read <0.5 as 0.5 or 0.25, and >90 as 90.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a project's folder with a params.yaml that fits your data.

    Example: siloflow init study --data visits.csv --label outcome --client hospital
    """
    with open_session(json, timings=False, server=False) as session:
        from flows.scaffold.create_project import create_project as made
        from flows.scaffold.infer_schema import DataOptions

        session.answer(made(folder, data, DataOptions(label, client, clients, task, decimal, censored)), "init")


def partition(overrides: Overrides = None, json: Json = False, timings: Timings = False) -> None:
    """Make silos under data/ from a source and record their version.

    Example: siloflow partition --set data.seed=1
    """
    with open_session(json, timings) as session:
        project = session.project(overrides, _can_partition)
        made = session.flow("flows.partition", "partition", project)
        session.answer(made, "partition")


data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Versions of data/: list, compare, go back.")


@data.command("log")
def data_log(json: Json = False) -> None:
    """List the versions of data/ that git knows.

    Example: siloflow data log
    """
    with open_session(json, timings=False, server=False) as session:
        from flows.cli import describe_data

        session.answer(describe_data.log(session.root), "data_log")


@data.command("diff")
def data_diff(
    revision: Annotated[str, typer.Argument(help="A git revision, or the start of a data version.")],
    to: Annotated[str | None, typer.Argument(help="The other one; what data.dvc records now if not given.")] = None,
    json: Json = False,
) -> None:
    """Show which silos changed between two versions, with rows and label shares before and after.

    Example: siloflow data diff HEAD~1
    """
    with open_session(json, timings=False, server=False) as session:
        from flows.cli import describe_data

        session.answer(describe_data.diff(session.root, revision, to), "data_diff")


@data.command("use")
def data_use(
    revision: Annotated[str, typer.Argument(help="A git revision, or the start of a data version.")],
    json: Json = False,
) -> None:
    """Bring a version of data/ back; a run on it gives the metrics that it gave then.

    Example: siloflow data use 3f2a91c
    """
    with open_session(json, timings=False, server=False) as session:
        from flows.cli import describe_data

        session.answer(describe_data.use(session.root, revision), "data_use")


def _can_partition(project: Any) -> None:
    """Who works on data/, and what is wrong with the source, is told before Prefect is started."""
    from flows.experiment.project import exclusive_data_access
    from silos.storage.partition_store import read

    with exclusive_data_access(project.root, "`siloflow partition`"):
        pass
    read(project.params.data, project.root)
