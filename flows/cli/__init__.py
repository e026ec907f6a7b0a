"""Define the command `siloflow`. Its commands stand in files by group; a command imports what it needs when it runs."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli import (
    checkout_commands,
    data_commands,
    diagnosis_commands,
    method_commands,
    result_commands,
    service_commands,
    serving_commands,
    training_commands,
)
from flows.console.process_control import pause_gc

# in the order of `siloflow --help`
_GROUPS = (
    data_commands,
    training_commands,
    diagnosis_commands,
    method_commands,
    serving_commands,
    service_commands,
    result_commands,
    checkout_commands,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train and compare federated learning methods on silos whose data differ, and find out how they differ.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        typer.echo(f"siloflow {version('siloflow')}")
        raise typer.Exit


@app.callback()
def siloflow(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command's name. `--help` prints the text of `app` instead of this one."""


for _group in _GROUPS:
    app.add_typer(_group.commands)  # without a name: its commands become those of `siloflow`


def main() -> None:
    """Run the console script."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as with `>&-`
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    pause_gc()
    app()
