"""Addresses of servers: keep those of this machine out of proxies, mask passwords, check and take ports.

Proxies are those of the environment, for this process and its children.
"""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import urlsplit

from silos.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PROXIES = ("all_proxy", "http_proxy", "https_proxy")
_PORT = re.compile(r"^\[(.*)\](:\d+)?$")  # httpx does not parse an IPv6 address in brackets, nor a network of them

_removed: dict[str, str] = {}


def keep_loopback_direct() -> dict[str, str]:
    """Add loopback to NO_PROXY; remove and return proxies that would fail every connection, also the direct ones.

    httpx, and so Prefect, opens a transport for each proxy in the environment before it looks at NO_PROXY. It raises an
    error for SOCKS without the package `socksio`, for any scheme that it does not know, and for an address or a host
    that it cannot parse.
    """
    value = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in value.split(",")]
    if "*" in hosts:
        hosts = ["*"]  # urllib and requests accept it only alone
    else:
        hosts = [_PORT.sub(r"\1", host) for host in hosts if host]
        hosts = [host for host in hosts if host.isascii() and (host.count(":") < 2 or _is_address(host))]
        hosts += [host for host in LOOPBACK if host not in hosts]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)
    names = [name for name in os.environ if name.lower() in _PROXIES and not _is_usable(os.environ[name])]
    removed = {name: os.environ.pop(name) for name in names}
    _removed.update(removed)
    return removed


@contextmanager
def loopback_direct() -> Iterator[None]:
    """Call `keep_loopback_direct`, and restore the removed proxies on exit: other code shares the process."""
    removed = keep_loopback_direct()
    try:
        yield
    finally:
        os.environ.update(removed)
        for name in removed:
            del _removed[name]


def must_be_reachable(address: str) -> None:
    """Raise UserError if the address is to be reached through a proxy that was removed."""
    from urllib.request import getproxies_environment, proxy_bypass  # loads http.client and ssl: only for proxies

    parts = urlsplit(address)
    if parts.scheme in getproxies_environment() or proxy_bypass(parts.hostname or ""):
        return
    for name, proxy in _removed.items():
        if name.lower() in (f"{parts.scheme}_proxy", "all_proxy"):
            if not _is_url(proxy):
                raise UserError(
                    f"{name}: got text that is no address, expected http://HOST:PORT. Correct it, or add "
                    f"{parts.hostname} to NO_PROXY."
                )
            raise UserError(
                f"{name}: got a proxy with the scheme {_scheme(proxy)} for {parts.hostname}, expected a supported "
                "scheme. For SOCKS version 5 run `pip install socksio pysocks`, or use an HTTP proxy, or add the "
                "host to NO_PROXY."
            )


def _is_usable(proxy: str) -> bool:
    if not proxy:  # no proxy, although another variable names one
        return True
    if not _is_url(proxy):
        return False
    scheme = _scheme(proxy)
    return scheme in ("http", "https", "") or (scheme in ("socks5", "socks5h") and find_spec("socksio") is not None)


def _scheme(proxy: str) -> str:
    return proxy.partition("://")[0].lower() if "://" in proxy else ""


def _is_url(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


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


def listen(port: int, option: str, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that listens at this port, by default of loopback; UserError if the port is invalid or taken."""
    if not is_port(port):
        raise UserError(f"{option}: got {port}, expected a port from 1 to 65535. Choose another.")
    try:
        return listening_socket(port, host)
    except OSError as error:
        raise UserError(
            f"{option}: got {port}, which cannot be used ({error.strerror}), expected a free port. Choose another."
        ) from None


def listening_socket(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that listens at this port, or for 0 at a free one; OSError if the port is taken."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def has_wrong_port(address: str) -> bool:
    """Return whether host:port, or scheme://host:port, names an invalid port."""
    try:
        port = urlsplit(address if "://" in address else f"//{address}").port
    except ValueError:
        return True
    return port is not None and not is_port(port)


def health_answers(url: str, patience: float) -> bool:
    """Return whether Prefect's API at this address answers within `patience` seconds."""
    import urllib.request  # loads http.client and ssl

    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=patience).close()
    except (OSError, ValueError):  # includes URLError; ValueError for no address
        return False
    return True
