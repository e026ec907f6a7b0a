"""The list of all tables as lines for people; every command's printing has this, so it imports nothing."""

from collections.abc import Iterable
from typing import Any


def lines(paper: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Of the list for people: what to type or what it is called, its state at every scale, and the sentence."""
    for entry in paper["tables"]:
        states = ", ".join(f"{one['scale']} {one['state']}" for one in entry["scales"])
        said = entry["verdict"] or f"{entry['title']}. {entry['not_run'] or ''}".strip()
        yield option(entry["name"]), states, said
    for entry in paper["absent"]:
        yield entry["name"], "not here", entry["why"]


def option(table: str) -> str:
    """What names a table or figure on the command line."""
    kind, _, number = table.partition("-")
    return f"--figure {number}" if kind == "figure" and number else f"--table {table}"
