"""The methods that params name: whether they exist, and each with the options of its own section.

A method's options for people: what each takes, its default and what it means, as the page's fields say.
"""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from flows.config.params_schema import Params
from flows.config.validation_errors import explain_error, nearest_hint
from flows.experiment import plugin_loader
from flows.experiment.plugin_loader import Plugins
from flows.methods.base import Method, describe_method, find_method, method_names
from flows.plugins import METHODS
from silos.errors import UserError


def check_names(params: Params) -> None:
    """Raise a UserError if params name a method that does not exist; imports no built-in method."""
    known = method_names(params.loaded)
    named = [("method", name) for name in params.method]
    named += [("comparison.methods", name) for name in params.comparison.methods]
    for key, name in [*named, ("comparison.reference", params.comparison.reference)]:
        if name not in known:
            raise UserError(f"params.yaml: {key}: there is no method {name!r}{nearest_hint(name, known)}")


def method_of(params: Params, name: str) -> Method:
    """Return the method with the options of its section of params.yaml.

    The first method costs the import of torch, so the options of all methods that params name are checked with it.

    Args:
        params: The section `method` holds the options.
        name: The method's name.

    Raises:
        UserError: If there is no such method, or a method that params name does not take its options.
    """
    named = [name, *params.method, *params.comparison.methods, params.comparison.reference]
    return {each: _with_options(params, each) for each in dict.fromkeys(named)}[name]


def _with_options(params: Params, name: str) -> Method:
    cls = find_method(name, params.loaded)
    with plugin_loader.user_code_errors(cls.__module__):
        try:
            return cls.model_validate(params.method.get(name, {}))
        except ValidationError as error:
            raise UserError(explain_error(error, cls, f"method.{name}")) from None


_PLAIN = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null"}
_TOLD = 1_000  # a larger bound only keeps numbers finite


def in_full(name: str, plugins: Plugins) -> dict[str, Any]:
    """One method: what it does, and its options; UserError with the nearest name if there is none."""
    described, method = describe_method(name, plugins), find_method(name, plugins)
    own = plugins.of(METHODS).get(name)
    page = Path(own.file).name if own else f"docs/methods/{name}.md"
    return {**described, "page": page, "options": options_of(method)}


def options_of(method: type[Method]) -> list[dict[str, Any]]:
    """Each as `name`, `takes` (in words), `choices` (if it is one of some words), `default` and `meaning`."""
    defaults = method().model_dump(mode="json")  # what another option's default sets is in it
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


def _takes(annotation: Any, metadata: list[Any]) -> str:
    """A type with its bounds, in words: `whole number, 1 or more; or null`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _takes(inner[0], [part for given in inner[1:] for part in _parts(given)])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, UnionType):
        return "; or ".join(_takes(one, metadata if one is not NoneType else []) for one in inner)
    if origin in (tuple, list):
        of = _takes(inner[0], [])
        return f"list of {'sections' if of == 'section' else of}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "section"
    return ", ".join(filter(None, (_PLAIN.get(annotation, str(annotation)), _bounds(metadata))))


def _parts(given: Any) -> list[Any]:
    return given.metadata if isinstance(given, FieldInfo) else [given]


def _bounds(metadata: list[Any]) -> str:
    """`0 or more`, `above 0`, `0 to 1`, `0 or more and below 1`."""
    found = {name: getattr(part, name) for part in metadata for name in ("ge", "gt", "le", "lt") if hasattr(part, name)}
    least, most = found.get("ge"), found.get("le")
    if least is not None and most is not None and most <= _TOLD:
        return f"{least:g} to {most:g}"
    words = [f"{least:g} or more"] if least is not None else [f"above {found['gt']:g}"] if "gt" in found else []
    words += [f"{most:g} or less"] if most is not None and most <= _TOLD else []
    words += [f"below {found['lt']:g}"] if "lt" in found else []
    return " and ".join(words)


def _choices(annotation: Any) -> list[Any]:
    """The words of a Literal, wherever it stands in the type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for inner in get_args(annotation) for word in _choices(inner)]
