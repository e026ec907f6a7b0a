"""Finds what plugin files register that lie in a project's folder and are not listed; their text is read, and not run."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_PLACES = ("*.py", "plugins/*.py")
_MOST_FILES, _MOST_BYTES = 200, 1_000_000  # files that are read, and bytes of one; a plugin is smaller
_REGISTERS = re.compile(r"^@?(?:\w+\.)*register_(\w+)\(\s*[\"']([^\"'\n]+)[\"']", re.MULTILINE)


class UnlistedPlugin(NamedTuple):
    """A registration in a file that `plugins` of params.yaml does not name: its kind and name, and the file's path."""

    kind: str
    name: str
    file: str


def unlisted_plugins(root: Path, listed: Sequence[str]) -> Iterator[UnlistedPlugin]:
    """Yield the registrations in Python files of a project's folder, and of `plugins/` there, that are not listed.

    Args:
        root: The project's folder.
        listed: Paths of plugin files, as `plugins` of params.yaml names them.
    """
    known = {(root / file).resolve() for file in listed}
    files = [file for place in _PLACES for file in sorted(root.glob(place)) if file.resolve() not in known]
    for file in files[:_MOST_FILES]:
        try:
            if file.stat().st_size > _MOST_BYTES:
                continue
            text = file.read_text("utf-8", errors="replace")
        except OSError:  # a folder of this name, or a file that may not be read
            continue
        for kind, name in _REGISTERS.findall(text):
            yield UnlistedPlugin(kind, name, str(file.relative_to(root)))


def unlisted_hint(names: Sequence[str], root: Path, listed: Sequence[str]) -> str:
    """Return the sentence for the first of these unknown names that an unlisted plugin file registers; "" if none does."""
    found = next((each for each in unlisted_plugins(root, listed) if each.name in names), None)
    if found is None:
        return ""
    return f" {found.file} registers the {found.kind} {found.name}: name this file under plugins in params.yaml."
