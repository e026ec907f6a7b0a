"""True and false are no numbers, though pydantic takes true for 1."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails

Place = tuple[str | int, ...]


def true_is_no_number(cls: type[BaseModel], raw: Any) -> Any:
    """For a record's `model_validator`, before it: what was written, if no field of numbers holds true or false."""
    wrong = []
    for name, field in cls.model_fields.items() if isinstance(raw, dict) else ():
        kinds = set(_kinds(field.annotation))
        if kinds & {int, float} and not kinds & {bool, Any}:
            kind = "int_type" if int in kinds else "float_type"
            values = _held(raw.get(name), (name,))
            wrong += [
                InitErrorDetails(type=kind, loc=at, input=value) for at, value in values if isinstance(value, bool)
            ]
    if wrong:
        raise ValidationError.from_exception_data(cls.__name__, wrong)
    return raw


def _kinds(annotation: Any) -> Iterator[Any]:
    """Every type that a type is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)


def _held(value: Any, at: Place) -> Iterator[tuple[Place, Any]]:
    """Every value that a list or a section holds, with its place."""
    if isinstance(value, dict | list | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _held(part, (*at, key))
    else:
        yield at, value
