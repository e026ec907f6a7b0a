"""The command `siloflow`: a thin face on the flows. Nothing heavy is imported before a subcommand needs it."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli import data_commands, result_commands, training_commands
from flows.console import gc_tuning
from publications import research_commands

# in the order of `siloflow --help`
_VERBS: tuple[Callable[..., Any], ...] = (
    data_commands.init,
    data_commands.partition,
    training_commands.run,
    training_commands.compare,
    training_commands.schedule,
    training_commands.ui,
    result_commands.show,
    result_commands.diagnose,
    result_commands.methods,
    result_commands.results,
    result_commands.clean,
    result_commands.stats,
    result_commands.cost,
    result_commands.export,
    research_commands.reproduce,
    research_commands.bench,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Federated learning over silos that are not alike: partition, run, compare, schedule.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"siloflow {version('siloflow')}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version, and exit.")
    ] = False,
) -> None:
    """What stands before a command's name."""


for _verb in _VERBS:
    app.command()(_verb)
app.add_typer(data_commands.data, name="data")


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as `>&-` does
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    gc_tuning.rest()
    app()
