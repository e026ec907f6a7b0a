"""YAML as people write it, for every file and value of theirs that is read: text, numbers, lists and sections.

What only a mistake or a joke holds is refused with its line: a key that is there twice or is no text, tags, aliases that
multiply, thousands of lists inside each other, numbers that no machine reads. Dates are text, and so are all keys, and
what YAML 1.1 alone reads as a number: 010 is no 8 (where a number is asked for, it is 10), and 1:30 no 90.

True and false are no numbers, though pydantic takes true for 1.
"""

import re
from collections.abc import Iterator
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails

from silos.errors import shown

MOST = 100_000  # values, counting what aliases repeat: published tables have some thousands
DEEPEST = 50  # lists and sections inside each other
LONGEST = 100  # characters of a number, so that every whole one also fits a float

_TAG = "tag:yaml.org,2002:"
_KINDS = {"null": "nothing", "bool": "true or false", "int": "a whole number", "float": "a number"}
_READ = {_TAG + name for name in (*_KINDS, "str", "seq", "map")}
_OLD = re.compile("[-+]?0[0-7_]+|.*:.*")  # octal, and in powers of sixty
_NUMBERS = (_TAG + "int", _TAG + "float")
_MERGE = _TAG + "merge"
_RESOLVERS = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _READ or tag == _MERGE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class NotYamlError(ValueError):
    """Line, column and what was found there, as the end of a sentence."""


def load(text: str | bytes) -> Any:
    """Null, bools, numbers, text, lists, and dicts with text for keys; NotYamlError for anything else."""
    try:
        return yaml.load(text, _Strict)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        assert mark is not None
        raise NotYamlError(
            f"line {mark.line + 1}, column {mark.column + 1}: {error.problem or error.context}"
        ) from None
    except yaml.reader.ReaderError as error:
        raise NotYamlError(f"{_place(text, error.position)}: {error.reason}") from None


def _place(text: str | bytes, position: int) -> str:
    before = text[:position] if isinstance(text, str) else text[:position].decode("utf-8", "replace")
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"


class _Strict(yaml.SafeLoader):
    """Looks at every node as it is composed, before aliases and merged sections are laid out."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self.yaml_implicit_resolvers = _RESOLVERS
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}  # of nodes, with all that they hold

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        start, alias = event.start_mark, isinstance(event, yaml.AliasEvent)
        before, self._depth = self._values, self._depth + 1
        if self._depth > DEEPEST:
            raise _problem(f"more than {DEEPEST} lists and sections inside each other", start)
        node = super().compose_node(parent, index)
        assert node is not None
        if alias and id(node) not in self._sizes:
            raise _problem(f"the alias {shown(event.anchor)} stands inside of what it names", start)
        self._values += self._sizes[id(node)] if alias else 1
        self._sizes.setdefault(id(node), self._values - before)
        self._depth -= 1
        if self._values > MOST:
            raise _problem(f"more than {MOST:,} values, counting what aliases repeat", start)
        if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and _OLD.fullmatch(node.value):
            node.tag = _TAG + "str"
        if node.tag not in _READ and node.tag != _MERGE:
            tag = node.tag.replace(_TAG, "!!")
            raise _problem(f"the tag {shown(tag)} is not read here; write text, numbers, lists and sections", start)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for at, (key, value) in enumerate(node.value):
            if not isinstance(key, yaml.ScalarNode):
                raise _problem("a key must be text, and not a list or a section", key.start_mark)
            # YAML lets the last of two equal keys win; a person who wrote a key twice did not mean that
            if key.value in seen:
                raise _problem(f"{shown(key.value)} is there twice", key.start_mark)
            seen.add(key.value)
            if key.tag != _MERGE:
                node.value[at] = (yaml.ScalarNode(_TAG + "str", key.value, key.start_mark, key.end_mark), value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            if node.tag in _NUMBERS and isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST:
                raise OverflowError
            return super().construct_object(node, deep)
        except (ValueError, LookupError, ArithmeticError):
            kind = _KINDS[node.tag.removeprefix(_TAG)]
            raise _problem(f"{shown(node.value)} cannot be read as {kind}", node.start_mark) from None


def _problem(message: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=mark)


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
