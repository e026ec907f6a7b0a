"""Identify the code that computes a record by the modules of siloflow that can change its numbers.

Imports are read in the sources, so that nothing is imported. Docstrings, comments and layout are no change.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from flows.core.config.params_schema import Params
from flows.plugins import METHODS, NETWORKS, SAMPLERS
from silos.data_params import PARTITIONERS
from silos.errors import UserError
from silos.plugin_registry import Registry
from silos.sources.source_params import SOURCES
from silos.versioning.git_commands import has_repository, run_git

CODE = Path(__file__).parents[1]
"""The checkout, with the code of siloflow."""

_TRAINERS = ("flows.training.evaluation", "flows.training.trainer", "flows.training.training_setup")
_OF_TRAINING = (
    *_TRAINERS,
    "tasks.client_optimizer_state",
    "flows.training.paired_runs",
    "flows.training.fit_standardizer",
    "flows.training.run_records.round_record",
    "flows.methods",
    "models",
    "silos.cohort",
    "silos.data_params",
    "silos.dataset",
    "silos.params_section",
    "silos.partitioners",
    "silos.sources",
    "silos.standardizer",
    "tasks",
    "tasks.execution.load_client_data",
    "tasks.tracking.result_tables",
)
_NOT_OF_TRAINING = (
    "flows.methods.common.method_figures",
    "flows.methods.figure_context",
    "models.served_model",
    "models.diagnosis",
    "tasks.diagnosis",
    "tasks.execution",
    "tasks.tracking",
)
_DRAWN_PAIRS = ("publications.synthetic_pairs.evaluate_verdicts", "publications.synthetic_pairs.families")
_OF_VERDICTS = (
    "flows.diagnose",
    "flows.diagnosis",
    "models",
    "publications.synthetic_pairs",
    "silos.data_params",
    "silos.params_section",
    "silos.partitioners",
    "silos.privacy",
    "silos.sources",
    "tasks.diagnosis",
    "tasks.messages.statistics_messages",
)
_NOT_OF_VERDICTS = ("flows.diagnosis.text",)


def modules_of_run(method: str, params: Params) -> tuple[str, ...]:
    """Return the modules that can change the numbers of a training run, sorted; without those of plugin files."""
    modules = _of_data(params) | _module(METHODS, method) | _module(NETWORKS, params.model.kind)
    modules |= _module(SAMPLERS, params.clients.sampling.kind)
    if {params.model.inputs, params.model.targets, params.clients.align.kind} != {"none"}:
        modules.add("flows.training.fit_standardizer")
    return _reached((*_TRAINERS, *sorted(modules)), _OF_TRAINING, _NOT_OF_TRAINING)


def modules_of_verdicts(params: Params | None) -> tuple[str, ...]:
    """Return the modules that can change verdicts, on silos that these params make or, without params, on drawn pairs."""
    first = ("flows.diagnose", *sorted(_of_data(params))) if params else _DRAWN_PAIRS
    return _reached(first, _OF_VERDICTS, _NOT_OF_VERDICTS)


@lru_cache(maxsize=256)
def code_hash(modules: Sequence[str]) -> str:
    """Return the hash of these modules, as they were when the process read them first."""
    return sha256("\n".join(f"{module} {_read(module)[0]}" for module in modules).encode()).hexdigest()[:12]


def changed_since(commit: str, modules: Sequence[str]) -> list[str] | None:
    """Return the modules whose files differ from a commit; None if the checkout does not have it."""
    if not has_repository(CODE):
        return None
    files = {str(_file(module).relative_to(CODE)): module for module in modules}
    try:
        changed = run_git(CODE, "diff", "--name-only", commit.partition("+")[0], "--", *files)
    except (FileNotFoundError, UserError):
        return None
    return None if changed.returncode else sorted(files[name] for name in changed.stdout.splitlines())


def _of_data(params: Params) -> set[str]:
    """Return the modules that make the clients of these params."""
    modules = {"silos.partitioners.run_scheme", *_module(SOURCES, params.data.source.kind)}
    return modules.union(*(_module(PARTITIONERS, step.kind) for step in params.data.scheme))


def _module(registry: Registry, name: str) -> set[str]:
    """Return the module of a built-in entry; no module of a plugin's."""
    return {place.partition(":")[0] for place in [registry.built_in.get(name)] if place}


@lru_cache(maxsize=256)
def _reached(first: Sequence[str], inside: Sequence[str], outside: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that are imported from the first ones, over modules `inside` these packages and not `outside`.

    A module is inside if the longest name of a package or module that it belongs to is there.
    """
    found: set[str] = set()
    waiting = list(first)
    while waiting:
        module = waiting.pop()
        if module not in found and _longest(module, inside) > _longest(module, outside):
            found.add(module)
            waiting += _read(module)[1]
    return tuple(sorted(found))


def _longest(module: str, packages: Sequence[str]) -> int:
    """Return the length of the longest of these names that is the module's or a package's of it; 0 if there is none."""
    return max((len(p) for p in packages if module == p or module.startswith(f"{p}.")), default=0)


@lru_cache(maxsize=1024)
def _read(module: str) -> tuple[str, tuple[str, ...]]:
    """Return the hash of a module, and the modules of siloflow that it imports."""
    file = _file(module)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    imported = tuple(name for name in dict.fromkeys(_imported(tree, package)) if _file(name).is_file())
    return sha256(repr(_form(tree)).encode()).hexdigest(), imported


def _file(module: str) -> Path:
    path = CODE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the names that may be modules, wherever a statement imports them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (source, *(f"{source}.{alias.name}" for alias in node.names))


def _form(node: Any) -> Any:
    """Return a syntax tree as lists, without texts that are statements, equal in all versions of Python."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return [type(node).__name__, *((name, _form(value)) for name, value in fields)]
    if isinstance(node, list):
        return [_form(part) for part in node if not _is_text(part)]
    return node


def _is_text(node: Any) -> bool:
    """Whether a statement is a text alone, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
