"""Define the command `siloflow`. Its commands stand in files by group; a command imports what it needs when it runs."""

import importlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated

import typer

from flows.cli import (
    data_commands,
    diagnosis_commands,
    method_commands,
    place_commands,
    result_commands,
    service_commands,
    serving_commands,
    training_commands,
)
from flows.core.console.process_control import pause_gc

# in the order of `siloflow --help`
_GROUPS = (
    data_commands,
    training_commands,
    diagnosis_commands,
    method_commands,
    serving_commands,
    place_commands,
    service_commands,
    result_commands,
)

_OF_A_CHECKOUT = (
    ("publications", "reproduce", "List published tables, or repeat one."),
    ("benchmarks", "bench", "Time rounds against a plain training loop."),
)
"""Packages outside the wheel, with the name and the help of their command."""

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


def _checkout_commands() -> typer.Typer:
    """Return the commands that only a checkout has. An installed siloflow lacks their packages, and refuses them."""
    commands = typer.Typer()
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file()
    if is_checkout and str(root) not in sys.path:
        sys.path.append(str(root))  # an editable install maps the installed packages only
    for package, name, summary in _OF_A_CHECKOUT:
        if is_checkout and (root / package).is_dir():
            _load_package(root / package)
            commands.command()(getattr(importlib.import_module(f"{package}.{name}_command"), name))
        else:
            settings = {"allow_extra_args": True, "ignore_unknown_options": True}
            help_text = f"{summary} Needs a checkout of siloflow."
            commands.command(name, help=help_text, context_settings=settings)(_refuse_outside_checkout)
    return commands


def _load_package(folder: Path) -> None:
    """Import the package in this folder under the folder's name, also if another package of that name is installed."""
    if getattr(sys.modules.get(folder.name), "__file__", None) == str(folder / "__init__.py"):
        return
    spec = spec_from_file_location(folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules[folder.name] = package
    spec.loader.exec_module(package)


def _refuse_outside_checkout(context: typer.Context) -> None:
    typer.echo(
        f"siloflow {context.info_name}: got an installed siloflow, expected a checkout, which has its tables and "
        f"workloads. Clone the repository and run it there: make run, then .venv/bin/siloflow {context.info_name}.",
        err=True,
    )
    raise typer.Exit(2)


for _group in _GROUPS:
    app.add_typer(_group.commands)  # without a name: its commands become those of `siloflow`
app.add_typer(_checkout_commands())


def main() -> None:
    """Run the console script."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as with `>&-`
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    pause_gc()
    app()
