"""The command `siloflow`: a thin face on the flows. Nothing heavy is imported before a subcommand needs it."""

import importlib
import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli import data_commands, result_commands, training_commands
from flows.console import gc_tuning

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
)

_CHECKOUT_COMMANDS = (
    ("publications", "reproduce", "List published tables, or repeat one."),
    ("benchmarks", "bench", "Time whole rounds beside a plain loop."),
)
_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}

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


def _add_checkout_commands() -> None:
    """Add `reproduce` and `bench`, whose packages are in a checkout and not in an installed siloflow."""
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file()
    if is_checkout and str(root) not in sys.path:
        sys.path.append(str(root))  # an editable install maps the installed packages only
    for package, name, about in _CHECKOUT_COMMANDS:
        if is_checkout and (root / package).is_dir():
            _load_package(root / package)
            app.command()(getattr(importlib.import_module(f"{package}.{name}_command"), name))
        else:
            app.command(name, help=f"{about} Works in a checkout of siloflow.", context_settings=_ANY_ARGUMENTS)(
                _refuse_outside_checkout
            )


def _load_package(folder: Path) -> None:
    """Import the package in this folder under the folder's name, whatever else of that name is installed."""
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
        f"siloflow {context.info_name}: its tables and workloads are not part of an installed siloflow. Clone the "
        f"repository, and run it there: make run, then .venv/bin/siloflow {context.info_name}.",
        err=True,
    )
    raise typer.Exit(2)


for _verb in _VERBS:
    app.command()(_verb)
_add_checkout_commands()
app.add_typer(data_commands.data, name="data")


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as `>&-` does
            setattr(sys, name, Path(os.devnull).open("r+", encoding="utf-8"))  # noqa: SIM115
    gc_tuning.pause_gc()
    app()
