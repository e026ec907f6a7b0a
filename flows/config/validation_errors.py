"""What is said of wrong params: the key, its value, and what it must be or is nearest to."""

from collections.abc import Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from silos.errors import shown


def explain_error(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """pydantic's findings as sentences for people, the first three."""
    lines: list[str] = []
    for finding in error.errors()[:3]:
        path, keys = _walk(model, finding["loc"])
        where = ".".join([prefix, *path] if prefix else path)
        value, context = finding["input"], finding.get("ctx", {})
        if finding["type"] == "extra_forbidden":
            sentence = f"{where}: there is no such key{_replaced(path) or nearest_hint(path[-1], keys)}"
        elif finding["type"] == "missing":
            sentence = f"{where} is missing."
        elif finding["type"] == "union_tag_invalid":
            tags = [t.strip(" '") for t in context["expected_tags"].split(",")]
            sentence = f"{where}.kind: there is no {context['tag']!r}{nearest_hint(context['tag'], tags)}"
        elif finding["type"] == "union_tag_not_found":
            sentence = f"{where} needs a kind; there are {', '.join(keys)}."
        elif finding["type"] == "value_error":
            said = str(context["error"]).rstrip(".")
            sentence = f"{where}: {said}" + ("" if said.endswith("?") else ".")
        else:
            is_now = "is empty" if value is None else f"is {shown(repr(value))}"
            begun, wish = f"{where} {is_now}; it must ", _wish(finding["type"], finding["msg"], context)
            if lines and lines[-1].startswith(f"params.yaml: {begun}"):  # another type that it may be
                lines[-1] = f"{lines[-1].removesuffix('.')}, or {wish}."
                continue
            sentence = f"{begun}{wish}."
        lines.append(f"params.yaml: {sentence}")
    return "\n".join(lines)


def _replaced(path: Sequence[str]) -> str:
    """The end of the sentence for the one key that had another name and another form."""
    return "; name the Python file under plugins (docs/plugins.md)." if list(path) == ["extra_methods"] else ""


def nearest_hint(wrong: str, right: Sequence[str], otherwise: str | None = None) -> str:
    """The end of a sentence about a name that is none of the right ones; where none is near, all, or `otherwise`."""
    near = get_close_matches(wrong, right, 1)
    if near:
        return f"; did you mean {near[0]}?"
    if otherwise is not None:
        return otherwise
    return f"; there are {', '.join(right)}." if right else "."


def _wish(kind: str, message: str, context: dict[str, Any]) -> str:
    """What a value must be, after `it must`."""
    for start, wish in _WISHES.items():
        if kind.startswith(start):
            return wish.format(**{name: _plain(value) for name, value in context.items()})
    return message.removeprefix("Input should ")


def _plain(value: Any) -> Any:
    """A bound as people write it: 1,000,000 and 0.001."""
    if not isinstance(value, int | float):
        return value
    return f"{int(value):,}" if value == int(value) and abs(value) < _LEGIBLE else f"{value:g}"


_LEGIBLE = 1e20  # with all its digits

_WISHES = {
    "greater_than_equal": "be at least {ge}",
    "greater_than": "be greater than {gt}",
    "less_than_equal": "be at most {le}",
    "less_than": "be less than {lt}",
    "int_": "be a whole number",
    "float_": "be a number",
    "finite_number": "be a finite number",
    "bool_": "be true or false",
    "string_type": "be text",
    "string_pattern_mismatch": "match {pattern}",
    "string_too_short": "not be empty",
    "string_too_long": "have at most {max_length} characters",
    "list_type": "be a list",
    "tuple_type": "be a list",
    "too_short": "have at least {min_length} in it",
    "too_long": "have at most {max_length} in it",
    "dict_type": "be a section with keys of its own",
    "model_": "be a section with keys of its own",
    "literal_error": "be {expected}",
    "invalid_key": "have text for its key",
}


def _walk(model: Any, loc: Sequence[str | int]) -> tuple[list[str], list[str]]:
    """The keys of an error's place as the user wrote them, and the keys (or kinds) that there are at that place.

    pydantic puts the kind of a union's member into the place; nobody wrote it there.
    """
    path, here, within = [], _models(model), _models(model)
    several = False  # whether the last key's value may be of several plain types, whose names pydantic puts next
    for at, part in enumerate(loc):
        if several:
            break
        kinds = {kind: m for m in here if len(here) > 1 for kind in _kinds(m)}
        if part in kinds:
            here = within = [kinds[part]]
            continue
        path.append(str(part))
        if isinstance(part, str):
            within = here
            owner = [m for m in here if part in m.model_fields]
            annotation = owner[0].model_fields[part].annotation if owner else None
            here = _models(annotation)
            several = not here and sum(kind is not NoneType for kind in _members(annotation)) > 1
            if at == len(loc) - 1 and len(here) > 1:
                return path, [kind for m in here for kind in _kinds(m)]
    return path, sorted({name for m in within for name in m.model_fields})


def _kinds(model: type[BaseModel]) -> list[str]:
    field = model.model_fields.get("kind")
    return list(get_args(field.annotation)) if field else []


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union; none of anything else."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every pydantic model inside a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]
