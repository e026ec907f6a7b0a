"""Make names legible in terminals, figures and Markdown, and valid as MLflow's names of metrics and parameters.

MLflow refuses all numbers of a batch if one name is invalid.
"""

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable

# categories that a terminal or figure interprets or cannot show: ESC, a line break, right to left, half a surrogate pair
_CONTROL = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_MARKS = re.compile(r"[\\`*_{}\[\]<>#|~$&]")
_JOINERS = "\u200c\u200d"  # parts of letters and emoji


def legible(text: str, can_show: Callable[[str], bool]) -> str:
    r"""Return the text on one line, with control characters and those that cannot be shown as `\x1b`, `\n` or `\u65e5`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_harmless(c) and can_show(c) else _escaped(c) for c in text)


def as_markdown(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped."""
    return _MARKS.sub(r"\\\g<0>", legible(text, lambda _: True))


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character) not in _CONTROL


def _escaped(character: str) -> str:
    return _SIGNS.get(character) or character.encode("unicode_escape").decode("ascii")


# replacements of siloflow's own signs for a terminal or font without them
_SIGNS = {
    "−": "-",
    "–": "-",
    "±": "+-",
    "×": "x",
    "→": "->",
    "…": "...",
    "µ": "u",
    "μ": "u",
    **{bar: str(level) for level, bar in enumerate("▁▂▃▄▅▆▇█", start=1)},
}


MOST = 250
"""The most characters of a name."""

_PART = 100  # the most characters of one part of a name


def metric_name_fault(name: str) -> str | None:
    """Return why MLflow rejects a metric of this name; None if it accepts the name."""
    invalid = re.sub(r"[/\w.\- :]", "", name)
    if invalid:
        return f"got {invalid[0]!r}, expected letters, digits, spaces and _ - . : /"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        return "got an empty part between slashes, or one of dots alone, expected a name"
    return f"got {len(name)} characters, expected at most {MOST}" if len(name) > MOST else None


def metric_name_parts(names: Iterable[str]) -> dict[str, str]:
    """Turn each name into a valid, unique part of a metric's name: `_` for invalid characters, and numbers for duplicates.

    A valid name is unchanged, whatever the other names are.
    """
    by_name: dict[str, str] = {}
    used: set[str] = set()
    for name in sorted(names, key=lambda name: (_plain(name) != name, name)):
        part, count = _plain(name), 1
        while part in used:
            count += 1
            part = f"{_plain(name)}-{count}"
        by_name[name] = part
        used.add(part)
    return by_name


def _plain(name: str) -> str:
    replaced = re.sub(r"[^\w.\- ]", "_", name)[:_PART]
    return replaced if replaced.strip(".") else "_" * max(len(replaced), 1)
