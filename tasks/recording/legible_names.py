"""Names as people can read them: what a name holds is shown, and nothing in it is obeyed."""

import re
import unicodedata
from collections.abc import Callable

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
