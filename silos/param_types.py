"""Types of text in params, and names that become parts of paths."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from silos.errors import UserError

MAX_NAME_LENGTH = 100  # characters; a run's folder name has up to three names, and file systems allow 255 bytes
NOT_PLAIN = f"at most {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores, with a letter or digit first"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class PlainText:
    """Marks text in params that is only compared or shown: no file is opened, run or called by it.

    Text without the mark may be code, a path or an address (flows/orchestration/open_project.py).
    """


def is_plain(name: str) -> bool:
    """Return whether the text is a plain name, which stays inside any folder that it is joined to."""
    return len(name) <= MAX_NAME_LENGTH and _PLAIN.fullmatch(name) is not None


def plain(name: str, what: str) -> str:
    """Return the name; UserError unless it is plain."""
    if not is_plain(name):
        raise UserError(f"{what}: got {name!r}, expected {NOT_PLAIN}. Choose another name.")
    return name


def checked(name: str) -> str:
    """Return the name; ValueError unless it is plain, for use in pydantic validators."""
    if not is_plain(name):
        raise ValueError(f"got {name!r}, expected {NOT_PLAIN}. Choose another name")
    return name


def file_names(clients: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return a safe, unique file name for each client, none of `taken`; unsafe names are shortened and hashed."""
    # some file systems do not distinguish A and a
    folded = Counter([*(name.casefold() for name in clients), *(Path(file).stem for file in taken)])
    return [f"{_file_stem(name, unique=folded[name.casefold()] == 1)}.safetensors" for name in clients]


def _as_text(value: object) -> object:
    """Convert integers to text: class 3 may be written as 3 or "3"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


PlainName = Annotated[str, AfterValidator(checked), PlainText()]
Name = Annotated[str, BeforeValidator(_as_text), Field(min_length=1), PlainText()]
Names = Annotated[tuple[Name, ...], Field(min_length=1)]


def _file_stem(name: str, unique: bool) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".")[:80]
    if slug == name and unique:
        return slug
    return f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
