"""Strict reading of YAML that users write: text, numbers, lists and sections.

Content that only a mistake or an attack produces is refused with its line: duplicate keys, keys that are not text,
tags, multiplying aliases, thousands of nested lists, and unreadable numbers. Dates and all keys are read as text, and
so are the numbers of YAML 1.1 alone. 010 is text and not 8 (where a number is expected, it is 10), and 1:30 is not 90.
True and false are not numbers, though pydantic accepts true for 1.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails

from silos.errors import shown

MAX_VALUES = 100_000  # values, counting repetitions by aliases; published tables have some thousands
MAX_DEPTH = 50  # nested lists and sections
MAX_NUMBER_LENGTH = 100  # characters of a number, so that every integer also fits a float

_TAG = "tag:yaml.org,2002:"
_KINDS = {"null": "nothing", "bool": "true or false", "int": "a whole number", "float": "a number"}
_READ = {_TAG + name for name in (*_KINDS, "str", "seq", "map")}
_YAML_1_1_NUMBER = re.compile("[-+]?0[0-7_]+|.*:.*")  # octal and sexagesimal numbers of YAML 1.1
_ONLY_STRICT = re.compile("[\t!]")  # libyaml reads some tabs that PyYAML refuses, and `!` as empty text
_NUMBERS = (_TAG + "int", _TAG + "float")
_MERGE = _TAG + "merge"
_RESOLVERS = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _READ or tag == _MERGE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class NotYamlError(ValueError):
    """The text is not valid: line, column and the problem there, as the end of a sentence."""


def load(text: str | bytes) -> Any:
    """Read null, bools, numbers, text, lists, and dicts with text keys; NotYamlError for anything else."""
    if yaml.__with_libyaml__ and not _ONLY_STRICT.search(text if isinstance(text, str) else text.decode("latin-1")):
        with suppress(yaml.YAMLError):  # the parser in Python has the words and the positions of a message
            return yaml.load(text, _Fast)
    try:
        return yaml.load(text, _Strict)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        assert mark is not None
        raise NotYamlError(
            f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
        ) from None
    except yaml.reader.ReaderError as error:
        raise NotYamlError(f"{_position_text(text, error.position)}: {error.reason}") from None


def _position_text(text: str | bytes, position: int) -> str:
    before = text[:position] if isinstance(text, str) else text[:position].decode("utf-8", "replace")
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"


class _Strict(yaml.SafeLoader):
    """Check every node as it is composed, before aliases and merged sections are expanded."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self.yaml_implicit_resolvers = _RESOLVERS
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}  # values in each node, with everything inside it

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        start, alias = event.start_mark, isinstance(event, yaml.AliasEvent)
        before, self._depth = self._values, self._depth + 1
        if self._depth > MAX_DEPTH:
            raise _problem(f"got more than {MAX_DEPTH} nested lists and sections, expected fewer", start)
        node = super().compose_node(parent, index)
        assert node is not None
        if alias and id(node) not in self._sizes:
            raise _problem(
                f"got the alias {shown(event.anchor)} inside the value that it names, expected it outside", start
            )
        self._values += self._sizes[id(node)] if alias else 1
        self._sizes.setdefault(id(node), self._values - before)
        self._depth -= 1
        if self._values > MAX_VALUES:
            raise _problem(f"got more than {MAX_VALUES:,} values, counting what aliases repeat, expected fewer", start)
        if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and _YAML_1_1_NUMBER.fullmatch(node.value):
            node.tag = _TAG + "str"
        if node.tag not in _READ and node.tag != _MERGE:
            tag = node.tag.replace(_TAG, "!!")
            raise _problem(f"got the tag {shown(tag)}, expected text, numbers, lists and sections", start)
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for index, (key, value) in enumerate(node.value):
            if not isinstance(key, yaml.ScalarNode):
                raise _problem("got a list or a section as a key, expected text", key.start_mark)
            # YAML takes the last of two equal keys, which the user did not intend
            if key.value in seen:
                raise _problem(f"got the key {shown(key.value)} twice, expected it once", key.start_mark)
            seen.add(key.value)
            if key.tag != _MERGE:
                node.value[index] = (yaml.ScalarNode(_TAG + "str", key.value, key.start_mark, key.end_mark), value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_NUMBER_LENGTH:
                raise OverflowError
            return super().construct_object(node, deep)
        except (ValueError, LookupError, ArithmeticError):
            kind = _KINDS[node.tag.removeprefix(_TAG)]
            raise _problem(f"got {shown(node.value)}, expected {kind}", node.start_mark) from None


class _Fast(_Strict):
    """Take the events of libyaml, a parser several times as fast; checks are the same."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__("")
        events = yaml.CSafeLoader(stream)
        for name in ("check_event", "peek_event", "get_event"):
            setattr(self, name, getattr(events, name))


def _problem(message: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=mark)


Location = tuple[str | int, ...]


def refuse_booleans(cls: type[BaseModel], raw: object) -> object:
    """Refuse true and false in number fields; use it as a `model_validator` with mode `before`."""
    errors: list[InitErrorDetails] = []
    if not isinstance(raw, dict):
        return raw
    for name, field in cls.model_fields.items():
        kinds = set(_nested_types(field.annotation))
        if kinds & {int, float} and not kinds & {bool, Any}:
            kind = "int_type" if int in kinds else "float_type"
            values = _leaves(raw.get(name), (name,))
            errors += [
                InitErrorDetails(type=kind, loc=location, input=value)
                for location, value in values
                if isinstance(value, bool)
            ]
    if errors:
        raise ValidationError.from_exception_data(cls.__name__, errors)
    return raw


def _nested_types(annotation: object) -> Iterator[object]:
    """Yield a type and every type inside it."""
    yield annotation
    for part in get_args(annotation):
        yield from _nested_types(part)


def _leaves(value: object, location: Location) -> Iterator[tuple[Location, object]]:
    """Yield every value in a list or a section, with its location."""
    if isinstance(value, dict | list | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(part, (*location, key))
    else:
        yield location, value
