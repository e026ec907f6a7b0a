"""The words that sentences and tables of a diagnosis share."""

from collections.abc import Sequence
from typing import Any

IN_WORDS = {
    "feature": "in their inputs, P(x)",
    "label": "in how often each label occurs, P(y)",
    "concept": "in which label an input has, P(y | x)",
}
IN_A_REGRESSION = {
    "feature": "in their inputs, P(x)",
    "label": "in how large their targets are, P(y)",
    "concept": "in which target an input has, P(y | x)",
}
SHORT = {"feature": "inputs", "label": "labels", "concept": "rule"}
SHORT_IN_A_REGRESSION = {"feature": "inputs", "label": "targets", "concept": "rule"}
_ALONE, _WIDE = 3, 30  # silos, and letters of their names, that stand for their group
_LISTED = 8  # silos that a sentence lists


def in_words(report: dict[str, Any]) -> dict[str, str]:
    """Type to the words that follow "differ"."""
    return IN_A_REGRESSION if report["asked"]["targets"] else IN_WORDS


def short(report: dict[str, Any]) -> dict[str, str]:
    """Type to one word."""
    return SHORT_IN_A_REGRESSION if report["asked"]["targets"] else SHORT


def called(report: dict[str, Any], group: int) -> str:
    """A group by its silos where they are few, otherwise by its number."""
    return joined(report["groups"][group]) if _few(report) else f"group {group + 1}"


def brief(report: dict[str, Any], group: int) -> str:
    """The same for a table."""
    return ", ".join(report["groups"][group]) if _few(report) else called(report, group)


def members(report: dict[str, Any]) -> list[str]:
    """Who is in each group, where groups are called by numbers."""
    if _few(report):
        return []
    return [f"group {at} is {listed(group)}" for at, group in enumerate(report["groups"], start=1)]


def plural(report: dict[str, Any], group: int) -> bool:
    """Whether what a group is called is several."""
    return _few(report) and len(report["groups"][group]) > 1


def listed(names: Sequence[str]) -> str:
    """Those that fit into a sentence, and how many more there are."""
    if len(names) <= _LISTED:
        return joined(names)
    return f"{', '.join(names[:3])} and {len(names) - 3:,} more"


def joined(words: Sequence[str]) -> str:
    """With commas, and `and` before the last."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def counted(number: int, noun: str) -> str:
    """The noun in the plural but of one."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _few(report: dict[str, Any]) -> bool:
    return all(len(group) <= _ALONE and len(joined(group)) <= _WIDE for group in report["groups"])
