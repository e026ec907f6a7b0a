"""Opens the project of a flow run, and restricts what the run's parameters may override.

Anyone who reaches Prefect's API or page can start a run of a deployment, such as `siloflow schedule` makes, with
parameters of their own. Such parameters may set numbers, plain text and names, but no code, paths or addresses: those
belong to params.yaml, or to the command that serves the deployment. The user's own command line or script may set
anything.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from flows.core.config.load_config import ParamsFile, plugins_of
from flows.core.config.params_schema import Params
from flows.methods.method_settings import method_of
from flows.project.project import Project
from silos.errors import UserError, shown
from silos.param_types import PlainText

_command_overrides: ContextVar[tuple[str, ...]] = ContextVar("own", default=())


def is_from_outside() -> bool:
    """Return whether Prefect's API sent this flow run's parameters: it is a deployment's and no subflow."""
    from prefect.context import FlowRunContext  # here: `siloflow show` and `data` need no Prefect

    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


@contextmanager
def trusted_overrides(overrides: Sequence[str]) -> Iterator[None]:
    """Apply the overrides of a command that serves a deployment to all runs inside, before the runs' own overrides."""
    token = _command_overrides.set(tuple(overrides))
    try:
        yield
    finally:
        _command_overrides.reset(token)


def open_project(overrides: Sequence[str] | Mapping[str, Any] | None, derived: bool = False) -> Project:
    """Open the project of a flow run that got no open one.

    Args:
        overrides: A list of `section.key=value`, or a mapping of keys to values.
        derived: Take the data from the cache of partitions.

    Raises:
        UserError: If the project cannot be opened, or if parameters from outside set what they may not.
    """
    listed = _listed(overrides or [])
    if not is_from_outside():
        return Project.open(listed, derived=derived)
    file, root = ParamsFile.read(Path()), Path().resolve()
    fixed = file.with_overrides(_command_overrides.get())
    requested = fixed.with_overrides(listed)
    allowed = {name for each in (file, fixed) for name in plugins_of(each.raw)}
    if not allowed.issuperset(plugins_of(requested.raw)):  # before any of them is run
        raise _refused("plugins")
    written, trusted, project = (Project.of(each, root, derived) for each in (file, fixed, requested))
    trusted_values = [pair for each in (written, trusted) for pair in free_text_values(each.params)]
    for key, value in free_text_values(project.params):
        if (key, value) not in trusted_values:
            raise _refused(key)
    return project


def _refused(key: str) -> UserError:
    return UserError(
        f"{key}: got a value in a flow run's parameters, expected none, since these set no code, paths or "
        "addresses. Write it in params.yaml, or pass it to `siloflow schedule` with `--set`."
    )


def _listed(overrides: Any) -> list[str]:
    if isinstance(overrides, Mapping):
        return [f"{key}={_yaml(key, value)}" for key, value in overrides.items()]
    if not isinstance(overrides, list | tuple):
        instead = json.dumps([overrides] if isinstance(overrides, str) else ["training.rounds=20"], ensure_ascii=False)
        raise UserError(
            f"overrides: got {shown(repr(overrides))}, expected a list of section.key=value, or a mapping of "
            f"section.key to value. Write overrides={shown(instead)}."
        )
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(
                f"overrides: got {shown(repr(override))}, expected text. Write it as section.key=value, in quotes."
            )
    return list(overrides)


def _yaml(key: Any, value: Any) -> str:
    """Return the value as JSON, which YAML can read."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise UserError(
            f"overrides: {shown(str(key))}: got {shown(repr(value))}, a {type(value).__name__}, expected a "
            "number, a text, True, False, None, or a list or mapping of these. Convert it."
        ) from None


def free_text_values(params: Params) -> Iterator[tuple[str, Any]]:
    """List key and value of every setting that may be code, a path or an address: text except literals and `PlainText`.

    Methods are imported after the other settings were checked, which say where the methods are.
    """
    yield from _section_values(params, "")
    for name in params.method:
        yield from _section_values(method_of(params, name), f"method.{name}.")


def _section_values(section: BaseModel, prefix: str) -> Iterator[tuple[str, Any]]:
    for name in sorted(section.model_fields_set - ({"method"} if isinstance(section, Params) else set())):
        field, value = type(section).model_fields[name], getattr(section, name)
        yield from _nested_values(
            value, is_free_text(field.annotation, field.metadata) and _has_text(value), f"{prefix}{name}"
        )


def _nested_values(value: Any, is_free: bool, path: str) -> Iterator[tuple[str, Any]]:
    """List the free text of all sections inside a value, at any depth; or the value itself if it has no sections.

    Sections of plugins may have lists and mappings of sections, also inside each other.
    """
    if isinstance(value, BaseModel):
        yield from _section_values(value, f"{path}.")
    elif _has_section(value):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in parts:
            if isinstance(value, Mapping) and is_free:
                yield f"{path}.{key}", key
            yield from _nested_values(part, is_free and _has_text(part), f"{path}.{key}")
    elif is_free:
        yield path, value


def _has_section(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_section, value.values()))
    is_container = isinstance(value, Collection) and not isinstance(value, str | bytes)
    return isinstance(value, BaseModel) or (is_container and any(map(_has_section, value)))


def is_free_text(annotation: Any, marks: Sequence[Any] = ()) -> bool:
    """Return whether a field of this type may hold any text; sections inside the type are not counted."""
    if any(isinstance(mark, PlainText) for mark in marks) or get_origin(annotation) is Literal:
        return False
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return is_free_text(inner, more)
    inside = get_args(annotation)
    if inside:
        return any(is_free_text(each) for each in inside)
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return not is_section and annotation not in (bool, int, float, NoneType, ...)


def _has_text(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_text(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_text(each) for each in value)
    return value is not None and not isinstance(value, bool | int | float | BaseModel)
