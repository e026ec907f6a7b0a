"""Checks that JSON is what a TypedDict of ours says: a test may import `assert_typed`."""

import json
import types
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from tasks.tracking.json_io import replace_nonfinite


def assert_typed(content: Any, kind: Any) -> None:
    """Fail unless the content has this type: no value is converted, and at every depth no key may lack or be unknown."""
    TypeAdapter(_strict(kind)).validate_json(json.dumps(replace_nonfinite(content)), strict=True)


def _strict(kind: Any) -> Any:
    """Rebuild a type so that pydantic refuses unknown keys; before Python 3.12 it takes no TypedDict of `typing`."""
    if is_typeddict(kind):
        required = kind.__required_keys__
        hints = {key: _strict(hint) for key, hint in get_type_hints(kind).items()}
        fields = {key: hint if key in required else NotRequired[hint] for key, hint in hints.items()}
        rebuilt = TypedDict(kind.__name__, fields)  # type: ignore[operator]
        rebuilt.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
        return rebuilt
    origin, parts = get_origin(kind), tuple(map(_strict, get_args(kind)))
    if origin is None or origin is Literal:
        return kind
    return Union[parts] if origin in (types.UnionType, Union) else origin[parts]  # noqa: UP007
