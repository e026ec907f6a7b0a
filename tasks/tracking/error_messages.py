"""Mask passwords in addresses, and check ports and free disk space for error messages."""

import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

_HIDDEN = "***"
# user:password@ after a scheme; up to the last @ before a space, as a password may contain one. SQLite has no users
_LOGIN = re.compile(r"(\b(?!sqlite)[A-Za-z][\w+.-]*:/+[^\s/@:]*:)[^\s]+(?=@)")
# text without a colon before the @ of a web address is a token
_TOKEN = re.compile(r"(\bhttps?:/+)[^\s/@:]+(?=@)")
_QUERY = re.compile(r"([?&;][^\s=&;#]*(?:pass|pwd|token|secret|odbc_connect)[^\s=&;#]*=)[^\s&#]+", re.IGNORECASE)


def mask_passwords(text: str) -> str:
    """Replace every password in an address by ***."""
    text = _LOGIN.sub(rf"\1{_HIDDEN}", text)
    return _QUERY.sub(rf"\1{_HIDDEN}", _TOKEN.sub(rf"\1{_HIDDEN}", text))


def without_login(address: str) -> str:
    """Return a web address without user, password and options."""
    parts = urlsplit(address)
    return mask_passwords(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}")


def has_password(text: str) -> bool:
    """Return whether the text has an address with a password."""
    return mask_passwords(text) != text


def is_port(number: int) -> bool:
    """Return whether the number is a valid port."""
    return 1 <= number <= 65535


def has_wrong_port(address: str) -> bool:
    """Return whether host:port, or scheme://host:port, names an invalid port."""
    try:
        port = urlsplit(address if "://" in address else f"//{address}").port
    except ValueError:
        return True
    return port is not None and not is_port(port)


NEEDED_BYTES = 2**19  # bytes; the tables of Prefect's server take about as much


def full_disk(path: Path) -> str | None:
    """Return a clause that names the path's file system if it has no room for a database; None if it has room."""
    if shutil.disk_usage(path).free >= NEEDED_BYTES:
        return None
    return f"the file system {file_system(path)} is full. Free some space"


def file_system(path: Path) -> Path:
    """Return the folder at which the path's file system is mounted."""
    path = path.resolve()
    return next(folder for folder in (path, *path.parents) if os.path.ismount(folder))
