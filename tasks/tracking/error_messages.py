"""Addresses that may hold a password: whether one does, and how it is shown then.

Whether a file system is full, and which one that is.
"""

import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

_HIDDEN = "***"
# user:password@ after a scheme; up to the last @ before a space, for a password may hold one. SQLite has no users
_LOGIN = re.compile(r"(\b(?!sqlite)[A-Za-z][\w+.-]*:/+[^\s/@:]*:)[^\s]+(?=@)")
# what stands alone before the @ of a web address is a token
_TOKEN = re.compile(r"(\bhttps?:/+)[^\s/@:]+(?=@)")
_QUERY = re.compile(r"([?&;][^\s=&;#]*(?:pass|pwd|token|secret|odbc_connect)[^\s=&;#]*=)[^\s&#]+", re.IGNORECASE)


def masked(text: str) -> str:
    """The text with *** for every password in an address."""
    text = _LOGIN.sub(rf"\1{_HIDDEN}", text)
    return _QUERY.sub(rf"\1{_HIDDEN}", _TOKEN.sub(rf"\1{_HIDDEN}", text))


def without_login(address: str) -> str:
    """Of a web address what a browser is given: no user, no password, no options."""
    parts = urlsplit(address)
    return masked(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}")


def has_password(text: str) -> bool:
    """Whether there is an address with a password in it."""
    return masked(text) != text


def is_port(number: int) -> bool:
    """Whether something may listen there."""
    return 1 <= number <= 65535


def has_wrong_port(address: str) -> bool:
    """Whether host:port, or scheme://host:port, names a port that cannot be."""
    try:
        port = urlsplit(address if "://" in address else f"//{address}").port
    except ValueError:
        return True
    return port is not None and not is_port(port)


ROOM = 2**19  # bytes; the tables of Prefect's server take as much


def full_disk(place: Path) -> str | None:
    """Return a clause that names the file system of the place if it has no room for a database; None if it has room."""
    if shutil.disk_usage(place).free >= ROOM:
        return None
    return f"the file system {file_system(place)} is full; free some space"


def file_system(place: Path) -> Path:
    """Return the folder at which the file system of the place is mounted."""
    place = place.resolve()
    return next(folder for folder in (place, *place.parents) if os.path.ismount(folder))
