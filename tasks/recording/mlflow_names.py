"""Names as MLflow takes them, of metrics and of parameters: it refuses all numbers of a batch for one name."""

import posixpath
import re
from collections.abc import Iterable

MOST = 250
"""Characters of a name."""

_PART = 100  # of which a part may have so many: there is text around it


def fault(name: str) -> str | None:
    """What keeps MLflow from taking a number of this name; None if nothing does."""
    strange = re.sub(r"[/\w.\- :]", "", name)
    if strange:
        return f"has {strange[0]!r}; letters, digits, spaces and _ - . : / are taken"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        return "has an empty part, or one of dots alone, between slashes; give each a name"
    return f"has {len(name)} characters; {MOST} are taken" if len(name) > MOST else None


def parts(names: Iterable[str]) -> dict[str, str]:
    """Each name as a part of a metric's name: `_` for what is not taken, and a number where two would be one.

    A name that is taken as it is keeps to it, whatever the others are.
    """
    by_name: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names, key=lambda name: (_plain(name) != name, name)):
        part, count = _plain(name), 1
        while part in taken:
            count += 1
            part = f"{_plain(name)}-{count}"
        by_name[name] = part
        taken.add(part)
    return by_name


def _plain(name: str) -> str:
    plain = re.sub(r"[^\w.\- ]", "_", name)[:_PART]
    return plain if plain.strip(".") else "_" * max(len(plain), 1)
