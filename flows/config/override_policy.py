"""What a flow run may be told from outside.

Whoever reaches Prefect's API or page can start a run of a deployment, such as `siloflow schedule` makes, with parameters of
their own. Such parameters set numbers, plain text and names, but no code, paths or addresses: those are params.yaml's, or
the command's that serves the deployment. What a command line or a script says to a flow is its user's own, and may be
anything.

The settings by which params.yaml describes data that were made with another recipe.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from prefect.context import FlowRunContext
from pydantic import BaseModel, ValidationError

from flows.config.load_config import ParamsFile, plugins_of
from flows.config.method_settings import method_of
from flows.config.params_schema import Params
from flows.experiment.comparison.search_space import as_yaml
from flows.experiment.project import Project
from silos.data_params import DataParams
from silos.errors import UserError, shown
from silos.param_types import PlainText

_own: ContextVar[tuple[str, ...]] = ContextVar("own", default=())


def is_from_outside() -> bool:
    """Whether this flow run's parameters came over Prefect's API: it is a deployment's, and no subflow of another run."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


@contextmanager
def trusted_overrides(overrides: Sequence[str]) -> Iterator[None]:
    """Overrides of the command that serves a deployment: they hold for the runs inside, before those of their parameters."""
    token = _own.set(tuple(overrides))
    try:
        yield
    finally:
        _own.reset(token)


def open_project(overrides: Sequence[str] | Mapping[str, Any] | None, derived: bool = False) -> Project:
    """Return the project of a flow run: the one that the enclosing command has opened, if it has these overrides.

    Args:
        overrides: A list of `section.key=value`, or a mapping of keys to values.
        derived: Take the data from the cache of partitions.

    Raises:
        UserError: If the project cannot be opened, or if parameters from outside set what they may not.
    """
    listed = _listed(overrides or [])
    if not is_from_outside():
        return Project.open_shared(listed, derived=derived)
    file, root = ParamsFile.read(Path()), Path().resolve()
    fixed = file.with_overrides(_own.get())
    asked = fixed.with_overrides(listed)
    allowed = {name for one in (file, fixed) for name in plugins_of(one.raw)}
    if not allowed.issuperset(plugins_of(asked.raw)):  # before any of them is run
        raise _refused("plugins")
    written, trusted, project = (Project.of(one, root, derived) for one in (file, fixed, asked))
    known = [place for one in (written, trusted) for place in free_text_values(one.params)]
    for key, value in free_text_values(project.params):
        if (key, value) not in known:
            raise _refused(key)
    return project


def _refused(key: str) -> UserError:
    return UserError(
        f"{key} is not for a flow run's parameters, which set no code, paths or addresses; "
        "write it in params.yaml, or give it to `siloflow schedule` with --set."
    )


def _listed(overrides: Any) -> list[str]:
    if isinstance(overrides, Mapping):
        return [f"{key}={_yaml(key, value)}" for key, value in overrides.items()]
    if not isinstance(overrides, list | tuple):
        instead = json.dumps([overrides] if isinstance(overrides, str) else ["training.rounds=20"], ensure_ascii=False)
        raise UserError(
            f"overrides is {shown(repr(overrides))}, and is a list of section.key=value, or a mapping of section.key to "
            f"value: write overrides={shown(instead)}."
        )
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(f"overrides has {shown(repr(override))} in it; write it as section.key=value, in quotes.")
    return list(overrides)


def _yaml(key: Any, value: Any) -> str:
    """JSON, which YAML can read."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise UserError(
            f"overrides: {shown(str(key))} is {shown(repr(value))}, a {type(value).__name__}; give a number, a text, True, "
            "False, None, or a list or mapping of these."
        ) from None


def free_text_values(params: Params) -> Iterator[tuple[str, Any]]:
    """List key and value of all that is set and may be code, a path or an address: text, but literals and `PlainText`.

    Methods are imported after the rest was checked: the rest says where they are.
    """
    yield from _of(params, "")
    for name in params.method:
        yield from _of(method_of(params, name), f"method.{name}.")


def _of(section: BaseModel, before: str) -> Iterator[tuple[str, Any]]:
    for name in sorted(section.model_fields_set - ({"method"} if isinstance(section, Params) else set())):
        field, value = type(section).model_fields[name], getattr(section, name)
        yield from _within(
            value, is_free_text(field.annotation, field.metadata) and _has_text(value), f"{before}{name}"
        )


def _within(value: Any, is_free: bool, path: str) -> Iterator[tuple[str, Any]]:
    """List the free text of all sections inside a value, at any depth; the value itself if it has none and is free text.

    Sections of plugins may have lists and mappings of sections, also inside each other.
    """
    if isinstance(value, BaseModel):
        yield from _of(value, f"{path}.")
    elif _has_section(value):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in parts:
            if isinstance(value, Mapping) and is_free:
                yield f"{path}.{key}", key
            yield from _within(part, is_free and _has_text(part), f"{path}.{key}")
    elif is_free:
        yield path, value


def _has_section(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_section, value.values()))
    is_container = isinstance(value, Collection) and not isinstance(value, str | bytes)
    return isinstance(value, BaseModel) or (is_container and any(map(_has_section, value)))


def is_free_text(annotation: Any, marks: Sequence[Any] = ()) -> bool:
    """Whether a field of this type may hold text of any kind; sections inside are looked at by themselves."""
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


def settings_between(now: DataParams, then: Mapping[str, Any]) -> dict[str, Any] | None:
    """Key to value of what must change in params.yaml to describe the data that the recipe `then` made.

    Returns:
        Nothing if params.yaml describes them already, None if this siloflow does not know a key of the recipe.
    """
    try:
        params = type(now).model_validate(then)
    except (ValidationError, UserError):
        return None
    return dict(_changed("data", now.in_full(), params.in_full(), params.recipe()))


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """What follows `--set`, an item a setting."""
    return [f"{key}={as_yaml(value)}" for key, value in settings.items()]


def as_lines(settings: Mapping[str, Any]) -> list[str]:
    """As params.yaml has them: a section for each part of a key, and each value on one line."""
    lines: list[str] = []
    before: list[str] = []
    for key, value in settings.items():
        *sections, last = key.split(".")
        same = next((at for at, pair in enumerate(zip(sections, before, strict=False)) if pair[0] != pair[1]), None)
        for depth in range(min(len(sections), len(before)) if same is None else same, len(sections)):
            lines.append(f"{'  ' * depth}{sections[depth]}:")
        lines.append(f"{'  ' * len(sections)}{last}: {as_yaml(value)}")
        before = sections
    return lines


def _changed(key: str, now: Any, then: Any, recipe: Any) -> Iterator[tuple[str, Any]]:
    """The deepest keys that differ; a section of another form is given whole, as the recipe has it."""
    if now == then:
        return
    if isinstance(now, dict) and isinstance(then, dict) and now.keys() == then.keys():
        for name in then:
            inside = recipe.get(name, then[name]) if isinstance(recipe, dict) else then[name]
            yield from _changed(f"{key}.{name}", now[name], then[name], inside)
    else:
        yield key, recipe
