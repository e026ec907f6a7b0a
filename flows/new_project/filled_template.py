"""A params.yaml with other values in it, and the comments that it had."""

from collections.abc import Mapping


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text of a params.yaml with these values, each at its `section.key`, as YAML.

    A value of one line keeps the comment of its line; one of several lines takes the place of the key's whole block, with
    what is written there. KeyError for a key that the text has not.
    """
    lines = text.splitlines()
    for key, value in values.items():
        at = _line_of(lines, key.split("."))
        end = _end_of(lines, at)
        if "\n" in value:
            lines[at:end] = value.strip("\n").split("\n")
            continue
        inside = [line for line in lines[at + 1 : end] if line.lstrip().startswith("#")]  # more of the key's comment
        lines[at:end] = [_with(lines[at], value), *inside]
    return "\n".join(lines) + "\n"


def _line_of(lines: list[str], keys: list[str]) -> int:
    """Of the last of these keys, each of which is inside the one before."""
    at, depth = -1, 0
    for key in keys:
        inside = range(at + 1, len(lines))
        at = next((i for i in inside if _depth(lines[i]) == depth and lines[i].strip().startswith(f"{key}:")), -1)
        if at < 0:
            raise KeyError(".".join(keys))
        depth += 2
    return at


def _end_of(lines: list[str], at: int) -> int:
    """Of the block that begins in this line: the next line that is not deeper."""
    depth = _depth(lines[at])
    return next((i for i in range(at + 1, len(lines)) if _depth(lines[i]) <= depth), len(lines))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _with(line: str, value: str) -> str:
    """The line with another value; its comment stays where it was, if there is room."""
    key, _, rest = line.partition(":")
    comment = rest.find(" #")
    said = f"{key}: {value}"
    return said if comment < 0 else f"{said:<{len(key) + 1 + comment}} {rest[comment + 1 :]}"
