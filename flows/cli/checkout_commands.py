"""Add the commands that only a checkout has: reproduce of publications/ and bench of benchmarks/."""

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import typer

_COMMANDS = (
    ("publications", "reproduce", "List published tables, or repeat one."),
    ("benchmarks", "bench", "Time rounds against a plain training loop."),
)

commands = typer.Typer()


def _add_commands() -> None:
    """Add the commands. An installed siloflow lacks their packages, and refuses them."""
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file()
    if is_checkout and str(root) not in sys.path:
        sys.path.append(str(root))  # an editable install maps the installed packages only
    for package, name, summary in _COMMANDS:
        if is_checkout and (root / package).is_dir():
            _load_package(root / package)
            commands.command()(getattr(importlib.import_module(f"{package}.{name}_command"), name))
        else:
            settings = {"allow_extra_args": True, "ignore_unknown_options": True}
            help_text = f"{summary} Needs a checkout of siloflow."
            commands.command(name, help=help_text, context_settings=settings)(_refuse_outside_checkout)


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


_add_commands()
