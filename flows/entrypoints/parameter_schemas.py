"""Types of the verbs' parameters that say to Prefect's forms what a field takes and what there is to choose from.

They check nothing: a form may be filled by other means, and what is wrong is told by the verb, in its own words.

Each is of one plain type in a form. Where null is a second one, the page shows a switch between types and no field; and it
refuses null in a field of one type. What is not given is therefore an empty list or an empty text, and None says the same.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import WithJsonSchema

from flows.methods.base import method_names as methods
from silos import param_limits

_SEED = {"type": "integer", "minimum": 0, "maximum": param_limits.SEED}


def one_of(*values: str) -> dict[str, Any]:
    """Return the JSON schema of a text that is one of these values."""
    return {"type": "string", "enum": list(values)}


def _several(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


MethodName = Annotated[str, WithJsonSchema(one_of(*methods()))]
MethodNames = Annotated[Sequence[str] | None, WithJsonSchema(_several(one_of(*methods())))]
MethodOrNone = Annotated[str | None, WithJsonSchema(one_of("", *methods()))]
Seed = Annotated[int, WithJsonSchema(_SEED)]
Seeds = Annotated[Sequence[int] | None, WithJsonSchema(_several(_SEED))]
Overrides = Annotated[Sequence[str] | Mapping[str, Any] | None, WithJsonSchema(_several({"type": "string"}))]
Text = Annotated[str | None, WithJsonSchema({"type": "string"})]
