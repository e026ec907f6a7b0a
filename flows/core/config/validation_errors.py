"""Explains validation errors of params: the key, its value, and the expected or nearest value."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from silos.errors import shown


def explain_error(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Describe the first three errors of pydantic, one sentence a line."""
    lines: list[str] = []
    for detail in error.errors()[:3]:
        path, keys = _walk(model, detail["loc"])
        key = ".".join([prefix, *path] if prefix else path)
        value, context = detail["input"], detail.get("ctx", {})
        if detail["type"] == "extra_forbidden":
            sentence = f"{key}: got an unknown key{_replaced(path) or nearest_hint(path[-1], keys)}"
        elif detail["type"] == "missing":
            sentence = f"{key}: got nothing, expected a value. Add the key."
        elif detail["type"] == "union_tag_invalid":
            tags = [t.strip(" '") for t in context["expected_tags"].split(",")]
            sentence = f"{key}.kind: got {context['tag']!r}{nearest_hint(context['tag'], tags)}"
        elif detail["type"] == "union_tag_not_found":
            sentence = f"{key}: got no kind, expected one of {', '.join(keys)}. Add kind."
        elif detail["type"] == "value_error":
            text = str(context["error"]).rstrip(".")
            sentence = f"{key}: {text}" + ("" if text.endswith("?") else ".")
        else:
            given = "nothing" if value is None else shown(repr(value))
            start, expected = f"{key}: got {given}, expected ", _expected(detail["type"], detail["msg"], context)
            if lines and lines[-1].startswith(f"params.yaml: {start}"):  # another member of the union
                lines[-1] = f"{lines[-1].removesuffix('.')}, or {expected}."
                continue
            sentence = f"{start}{expected}."
        lines.append(f"params.yaml: {sentence}")
    return "\n".join(lines)


def _replaced(path: Sequence[str]) -> str:
    """Return the end of the sentence for a key that was replaced by another one."""
    return (
        ", expected plugins. Name the Python file under plugins (docs/plugins.md)."
        if list(path) == ["extra_methods"]
        else ""
    )


def nearest_hint(name: str, names: Sequence[str], otherwise: str | None = None) -> str:
    """Return the end of a sentence about an unknown name: the nearest name, or `otherwise`, or all names."""
    near = get_close_matches(name, names, 1)
    if near:
        return f". Did you mean {near[0]}?"
    if otherwise is not None:
        return otherwise
    return f", expected one of {', '.join(names)}." if names else "."


def _expected(kind: str, message: str, context: Mapping[str, object]) -> str:
    """Return what a value must be, as the words after `expected`."""
    for prefix, template in _EXPECTED.items():
        if kind.startswith(prefix):
            return template.format(**{name: _plain(value) for name, value in context.items()})
    return message.removeprefix("Input should ").removeprefix("be ")


def _plain(value: object) -> object:
    """Format a bound for reading: 1,000,000 and 0.001."""
    if not isinstance(value, int | float):
        return value
    return f"{int(value):,}" if value == int(value) and abs(value) < _MAX_SPELLED_OUT else f"{value:g}"


_MAX_SPELLED_OUT = 1e20  # larger bounds are in scientific notation

_EXPECTED = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "int_": "a whole number",
    "float_": "a number",
    "finite_number": "a finite number",
    "bool_": "true or false",
    "string_type": "text",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "text that is not empty",
    "string_too_long": "at most {max_length} characters",
    "list_type": "a list",
    "tuple_type": "a list",
    "too_short": "{min_length} or more entries",
    "too_long": "at most {max_length} entries",
    "dict_type": "a section with keys",
    "model_": "a section with keys",
    "literal_error": "{expected}",
    "invalid_key": "text as its key",
}


def _walk(model: type[BaseModel], loc: Sequence[str | int]) -> tuple[list[str], list[str]]:
    """Return the keys of an error's location as the user wrote them, and the keys (or kinds) that exist there.

    pydantic adds the kind of a union's member to the location, which no user wrote.
    """
    path, models, last_models = [], _models(model), _models(model)
    is_plain_union = False  # whether the last key's value may be of several plain types, whose names pydantic puts next
    for index, part in enumerate(loc):
        if is_plain_union:
            break
        kinds = {kind: m for m in models if len(models) > 1 for kind in _kinds(m)}
        if part in kinds:
            models = last_models = [kinds[part]]
            continue
        path.append(str(part))
        if isinstance(part, str):
            last_models = models
            owners = [m for m in models if part in m.model_fields]
            annotation = owners[0].model_fields[part].annotation if owners else None
            models = _models(annotation)
            is_plain_union = not models and sum(kind is not NoneType for kind in _members(annotation)) > 1
            if index == len(loc) - 1 and len(models) > 1:
                return path, [kind for m in models for kind in _kinds(m)]
    return path, sorted({name for m in last_models for name in m.model_fields})


def _kinds(model: type[BaseModel]) -> list[str]:
    field = model.model_fields.get("kind")
    return list(get_args(field.annotation)) if field else []


def _members(annotation: object) -> tuple[object, ...]:
    """Return the types of a union; empty for any other type."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def _models(annotation: object) -> list[type[BaseModel]]:
    """Return every pydantic model inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]
