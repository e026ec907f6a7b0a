"""The largest numbers that params take: beyond them nothing ends or fits, and nobody means them.

Names that become a part of a path, and text that never does.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from silos.errors import UserError

SEED = 2**63 - 1  # what databases and JSON's readers hold
TIMES = 10**9  # rounds, epochs, rows of one client: loops end, products stay below 2^63
CLIENTS = 10**7
SIDE = 10_000  # pixels
WIDTH = 10**7  # numbers that a layer gives
CHANNELS = 10**5
LAYERS = 100
COPIES = 1_000  # networks beside each other
PASSES = 10**5
MAX_REAL = 1e9  # rates, weights, deviations: their squares and products stay numbers in float32
VALUE = 3.4e38  # of a row: float32 holds it
EPSILON = 0.01  # of differential privacy, the least: with less, noise is many times the rows that anybody has
SMALLEST = 1e-9  # of what is divided by
TURN = 3600.0  # degrees


MOST = 100  # characters; a run's folder is called by up to three names, and a file system takes 255 bytes
NOT_PLAIN = (
    f"is not a plain name; use at most {MOST} letters, digits, dots, dashes and underscores, "
    "with a letter or digit first"
)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class PlainText:
    """Marks text in a section of params that is compared or shown: nothing is opened, run or called by it.

    Text without the mark may be code, a path or an address (flows/config/override_policy.py).
    """


def is_plain(name: str) -> bool:
    """Whether it is a name only, whatever folder it is put into."""
    return len(name) <= MOST and _PLAIN.fullmatch(name) is not None


def plain(name: str, what: str) -> str:
    """The name as it is; UserError unless it is a name only."""
    if not is_plain(name):
        raise UserError(f"{what} {name!r} {NOT_PLAIN}.")
    return name


def checked(name: str) -> str:
    """The same inside of a record that pydantic checks: a ValueError."""
    if not is_plain(name):
        raise ValueError(f"{name!r} {NOT_PLAIN}")
    return name


def file_names(clients: Sequence[str], taken: Sequence[str]) -> list[str]:
    """A safe file name for each client: its own if that is safe, else a readable form with a short hash; none of `taken`."""
    # some file systems hold A and a for one name
    folded = Counter([*(name.casefold() for name in clients), *(Path(file).stem for file in taken)])
    return [f"{_slug(name, alone=folded[name.casefold()] == 1)}.safetensors" for name in clients]


def _as_text(value: Any) -> Any:
    """Whole numbers as text: class 3 is written 3 or "3"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


PlainName = Annotated[str, AfterValidator(checked), PlainText()]
Name = Annotated[str, BeforeValidator(_as_text), Field(min_length=1), PlainText()]
Names = Annotated[tuple[Name, ...], Field(min_length=1)]


def _slug(name: str, alone: bool) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".")[:80]
    if slug == name and alone:
        return slug
    return f"{slug}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
