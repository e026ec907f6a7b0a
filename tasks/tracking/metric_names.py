"""Names as people can read them: what a name holds is shown, and nothing in it is obeyed.

Names as MLflow takes them, of metrics and of parameters: it refuses all numbers of a batch for one name.
"""

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable

# what a terminal or a picture would obey instead of showing it, or cannot show: ESC, a new line, right to left, half a pair
_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_MARKS = re.compile(r"[\\`*_{}\[\]<>#|~$&]")
_JOINERS = "\u200c\u200d"  # letters and pictures are written with them


def legible(text: str, can_show: Callable[[str], bool]) -> str:
    r"""The text on one line, with `\x1b`, `\n` or `\u65e5` for each character that does something or cannot be shown."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_harmless(c) and can_show(c) else _escaped(c) for c in text)


def as_markdown(text: str) -> str:
    """The text on one line, so that Markdown shows each of its characters, and reads none as its own."""
    return _MARKS.sub(r"\\\g<0>", legible(text, lambda _: True))


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character) not in _OBEYED


def _escaped(character: str) -> str:
    return _SIGNS.get(character) or character.encode("unicode_escape").decode("ascii")


# our own signs, where a terminal or a font has none of them
_SIGNS = {
    "−": "-",
    "–": "-",
    "±": "+-",
    "×": "x",
    "→": "->",
    "…": "...",
    "µ": "u",
    "μ": "u",
    **{bar: str(at) for at, bar in enumerate("▁▂▃▄▅▆▇█", start=1)},
}


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
