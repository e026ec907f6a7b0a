"""Checks the methods that params name, builds them with the options of their sections, and describes their options.

The description has what each option takes, its default and its meaning, from the fields of the method's class.
"""

from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, TypedDict, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from flows.core import plugin_loader
from flows.core.config.params_schema import Params
from flows.core.config.validation_errors import explain_error, nearest_hint
from flows.core.plugin_loader import Plugins
from flows.core.unlisted_plugins import unlisted_hint
from flows.methods.base import Method, describe_method, find_method, method_names
from flows.plugins import METHODS
from silos.errors import UserError, shown


def check_names(params: Params, root: Path) -> None:
    """Raise a UserError if params name a method that does not exist; imports no built-in method.

    root: the project's folder, in which a plugin file may define it that params do not list.
    """
    names = method_names(params.registered)
    references = [("method", name) for name in params.method]
    references += [("comparison.methods", name) for name in params.comparison.methods]
    references += [("watch.methods", name) for name in params.watch.methods]
    for key, name in [*references, ("comparison.reference", params.comparison.reference)]:
        if name not in names:
            hint = unlisted_hint([name], root, params.plugins)
            end = f".{hint}" if hint else nearest_hint(name, names)
            raise UserError(f"params.yaml: {key}: got an unknown method {name!r}{end}")


def check_listed(name: str, params: Params, root: Path) -> None:
    """Raise a UserError if only a plugin file that params do not list defines this method."""
    if name not in method_names(params.registered) and (hint := unlisted_hint([name], root, params.plugins)):
        raise UserError(f"method: got {shown(repr(name))}, expected a known method.{hint}")


def method_of(params: Params, name: str) -> Method:
    """Return the method with the options of its section of params.yaml.

    The first method imports torch, so the options of all methods that params name are checked with it.

    Args:
        params: The section `method` holds the options.
        name: The method's name.

    Raises:
        UserError: If there is no such method, or if a method that params name does not accept its options.
    """
    named = [name, *params.method, *params.comparison.methods, params.comparison.reference]
    return {each: _with_options(params, each) for each in dict.fromkeys(named)}[name]


def _with_options(params: Params, name: str) -> Method:
    cls = find_method(name, params.registered)
    with plugin_loader.user_code_errors(cls.__module__):
        try:
            return cls.model_validate(params.method.get(name, {}))
        except ValidationError as error:
            raise UserError(explain_error(error, cls, f"method.{name}")) from None


_TYPE_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    NoneType: "null",
}
_MAX_SHOWN_BOUND = 1_000  # larger bounds only keep values finite


class MethodOption(TypedDict):
    """An option of a method."""

    name: str
    takes: str
    """The type and its bounds, in words."""
    choices: list[object]
    """The values of a Literal; empty for other types."""
    default: object
    meaning: str


class MethodDetails(TypedDict):
    """What a method does, its page in docs/ or its plugin file, and its options."""

    method: str
    model: Literal["global", "personal"]
    summary: str
    options: list[MethodOption]
    page: str


def method_details(name: str, plugins: Plugins) -> MethodDetails:
    """Return what one method does, and its options; UserError with the nearest name if there is none."""
    entry = plugins.of(METHODS).get(name)
    page = Path(entry.file).name if entry else f"docs/methods/{name}.md"
    described = describe_method(name, plugins)
    return {
        "method": name,
        "model": described["model"],
        "summary": described["summary"],
        "options": options_of(find_method(name, plugins)),
        "page": page,
    }


def options_of(method: type[Method]) -> list[MethodOption]:
    """List options with `name`, `takes` (in words), `choices` (of a Literal), `default` and `meaning`."""
    defaults = method().model_dump(mode="json")  # includes defaults that depend on other options
    return [
        {
            "name": name,
            "takes": _takes(field.annotation, field.metadata),
            "choices": _choices(field.annotation),
            "default": defaults[name],
            "meaning": field.description or "",
        }
        for name, field in method.model_fields.items()
    ]


def _takes(annotation: object, metadata: Sequence[object]) -> str:
    """Describe a type with its bounds in words: `whole number, 1 or more; or null`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marks = [part for m in inner[1:] for part in (m.metadata if isinstance(m, FieldInfo) else [m])]
        return _takes(inner[0], marks)
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        return "; or ".join(_takes(member, metadata if member is not NoneType else []) for member in inner)
    if origin in (tuple, list):
        items = _takes(inner[0], [])
        return f"list of {'sections' if items == 'section' else items}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "section"
    words = _TYPE_WORDS.get(annotation, "") if isinstance(annotation, type) else ""
    return ", ".join(filter(None, (words or str(annotation), _bounds(metadata))))


def _bounds(metadata: Sequence[object]) -> str:
    """Describe bounds: `0 or more`, `above 0`, `0 to 1`, `0 or more and below 1`."""
    limits = {
        name: getattr(part, name) for part in metadata for name in ("ge", "gt", "le", "lt") if hasattr(part, name)
    }
    minimum, maximum = limits.get("ge"), limits.get("le")
    if minimum is not None and maximum is not None and maximum <= _MAX_SHOWN_BOUND:
        return f"{minimum:g} to {maximum:g}"
    phrases = [f"{minimum:g} or more"] if minimum is not None else [f"above {limits['gt']:g}"] if "gt" in limits else []
    phrases += [f"{maximum:g} or less"] if maximum is not None and maximum <= _MAX_SHOWN_BOUND else []
    phrases += [f"below {limits['lt']:g}"] if "lt" in limits else []
    return " and ".join(phrases)


def _choices(annotation: object) -> list[object]:
    """Return the values of every Literal inside the type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for inner in get_args(annotation) for choice in _choices(inner)]
