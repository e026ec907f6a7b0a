"""Planes: where messages of bytes lie until the other side takes them, in a folder, a bucket or a broker.

A plane is untrusted: it may lose, delay, repeat or alter messages. Sessions notice it, and envelopes are signed.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import fsspec
import httpx

from silos.errors import UserError, shown
from silos.io.addresses import loopback_direct, must_be_reachable
from silos.io.atomic_io import sync_folder

_log = logging.getLogger(__name__)

CHUNK = 4 * 2**20
"""The most bytes of one request to a broker: a longer message is sent in several, and resumed where it was cut."""

LONG_POLL = 25
"""Seconds that a broker keeps a request open: proxies cut longer ones."""

MOST_BYTES = 2**30
"""The default limit of one message."""

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,149}"
_KEY = re.compile(rf"{_PART}(/{_PART}){{0,7}}")


class PlaneRefusalError(UserError):
    """The plane refuses a message or a key; the same request would be refused again."""


class PlaneAwayError(UserError):
    """The plane cannot be reached; the same request may succeed later."""


class Plane(Protocol):
    """What a coordinator and its places exchange messages through."""

    def put(self, key: str, content: bytes) -> None:
        """Write a key once: the same bytes again are no error, PlaneRefusalError for others."""

    def take(self, prefix: str, wait: float) -> tuple[str, bytes] | None:
        """Return the first key in sorted order that begins with `prefix`, and its bytes; it stays on the plane.

        Args:
            prefix: a folder and a slash, and maybe how a name in it begins; other folders are not searched.
            wait: seconds to wait for such a key.

        Returns:
            None if there was no such key; of a message above the plane's limit, only the beginning.
        """

    def drop(self, key: str) -> None:
        """Delete a key, if it is there."""


def open_plane(
    address: str, certificate: Path | None = None, token: str = "", limit_bytes: int = MOST_BYTES
) -> "FolderPlane | HttpsPlane":
    """Open the plane at an address: `https://HOST:PORT` of a broker, a folder, or any address that fsspec opens.

    Args:
        address: where the plane is.
        certificate: the file of a broker's only accepted certificate.
        token: what a broker knows the sender by.
        limit_bytes: the most bytes of a message that are read.
    """
    scheme = address.partition("://")[0].lower() if "://" in address else ""
    if scheme == "http":
        raise UserError(f"{address}: got http, expected https. A token must not travel in the clear.")
    if scheme != "https":
        return FolderPlane(address, limit_bytes)
    if certificate is None or re.fullmatch(r"[A-Za-z0-9._~+/=-]+", token) is None:
        raise UserError(f"{address}: got no certificate or no token, expected both. The coordinator has them.")
    return HttpsPlane(address, certificate, token, limit_bytes)


def check_key(key: str, prefix: bool = False) -> str:
    """Return the key; PlaneRefusalError unless it is a plain relative name, or a prefix that may end with a slash."""
    if _KEY.fullmatch(key[:-1] if prefix and key.endswith("/") else key) is None:
        raise PlaneRefusalError(f"key: got {shown(key)!r}, expected plain names with slashes between. Use no path.")
    return key


class FolderPlane:
    """Messages as files of a folder or a bucket that both sides reach; it is polled.

    Args:
        address: a folder, or an address that fsspec opens, such as `s3://bucket/folder`.
        limit_bytes: the most bytes of a message that are read.
    """

    _first_pause, _pause, _long_pause = 0.005, 0.25, 2.0  # seconds
    _idle_after = 60.0  # seconds without a message after which the pause grows further

    def __init__(self, address: str, limit_bytes: int = MOST_BYTES):
        try:
            self._files, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise UserError(f"{address}: got no file system ({error}). Install its package, or use a folder.") from None
        self._root, self._limit = root.rstrip("/"), limit_bytes
        self._is_local = "file" in self._files.protocol
        self._last = time.monotonic()

    def put(self, key: str, content: bytes) -> None:
        path = self._path(check_key(key))
        with self._reached():
            try:
                self._write_new(path, content)
            except OSError:
                there = self._read(path, len(content) + 1)
                if there is None:
                    raise
                if there != content:
                    raise PlaneRefusalError(f"{key}: got other bytes, expected a key to be written once.") from None

    def take(self, prefix: str, wait: float) -> tuple[str, bytes] | None:
        check_key(prefix, prefix=True)
        ends, pause = time.monotonic() + wait, self._first_pause
        while True:
            with self._reached():
                found = self._first(prefix)
            now = time.monotonic()
            if found:
                self._last = now
            if found or now >= ends:
                return found
            time.sleep(min(pause, ends - now))
            pause = min(1.5 * pause, self._long_pause if now - self._last > self._idle_after else self._pause)

    def drop(self, key: str) -> None:
        path = self._path(check_key(key))
        with self._reached(), contextlib.suppress(FileNotFoundError):
            if not (self._is_local and self._leads_away(path)):
                self._files.rm_file(path)

    def _leads_away(self, path: str) -> bool:
        """Return whether a link leads out of the folder: another user of it would have files read and deleted."""
        return Path(path).resolve() != Path(self._root).resolve() / Path(path).relative_to(self._root)

    def _first(self, prefix: str) -> tuple[str, bytes] | None:
        folder, _, start = prefix.rpartition("/")
        if start and (content := self._read(self._path(prefix), self._most)) is not None:
            return prefix, content  # a listing may be late
        self._files.invalidate_cache()
        try:
            listed = self._files.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return None
        for name in sorted(path.rstrip("/").rpartition("/")[2] for path in listed):
            key = f"{folder}/{name}"
            if name.startswith(start) and _KEY.fullmatch(key) is not None:
                content = self._read(self._path(key), self._most)
                if content is not None:  # else a listing was late
                    return key, content
        return None

    @property
    def _most(self) -> int:
        return self._limit + 1  # enough to notice a larger one

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _read(self, path: str, most: int) -> bytes | None:
        if self._is_local and (not Path(path).is_file() or self._leads_away(path)):  # to open a pipe would wait
            return None
        try:
            with self._files.open(path, "rb") as file:
                return file.read(most)
        except (FileNotFoundError, IsADirectoryError):
            return None

    def _write_new(self, path: str, content: bytes) -> None:
        """Write a file at once; OSError if it is there."""
        if not self._is_local:
            self._files.pipe_file(path, content, mode="create")
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._leads_away(path):
            raise PlaneRefusalError(
                f"{target.parent.name}: got a link out of the folder, expected a folder. Delete it."
            )
        if target.exists():
            raise FileExistsError(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                target.hardlink_to(temporary)  # unlike a rename, it fails if there is a file
            except PermissionError:  # a mounted file system without hard links
                temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        if self._is_local and not Path(self._root).is_dir():  # a folder that is not mounted is not made
            raise PlaneAwayError(f"{self._root}: got no folder, expected one that both sides reach. Make or mount it.")
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # of a store, errors of its own client
            raise PlaneAwayError(
                f"{self._root}: got {shown(str(error), 200)}. Check the folder and its disk."
            ) from error


class HttpsPlane:
    """Messages at a broker, which keeps a request open until there is one.

    HTTPS_PROXY and NO_PROXY are honoured. A request that fails is repeated, after pauses that grow.

    Args:
        address: `https://HOST:PORT`.
        certificate: a file with the only certificate that is accepted.
        token: what the broker knows the sender by.
        limit_bytes: the most bytes of a message that are read.
        patience: seconds after which `put` and `drop` raise PlaneAwayError.
    """

    _first_pause, _most_pause = 0.1, 10.0  # seconds

    def __init__(
        self, address: str, certificate: Path, token: str, limit_bytes: int = MOST_BYTES, patience: float = 30
    ):
        try:
            context = ssl.create_default_context(cafile=certificate)  # and no other authority
        except OSError as error:
            raise UserError(f"{certificate}: got no certificate ({error}). The coordinator has it.") from None
        self._address, self._limit, self._patience, self._is_away = address, limit_bytes, patience, False
        with loopback_direct():
            must_be_reachable(address)
            self._http = httpx.Client(
                base_url=address,
                headers={"authorization": f"Bearer {token}"},
                verify=context,
                timeout=httpx.Timeout(60, connect=10, read=LONG_POLL + 15),
            )

    def put(self, key: str, content: bytes) -> None:
        check_key(key)
        query: dict[str, Any] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        have = (
            0 if len(content) <= CHUNK else len(content)
        )  # at its end nothing is sent, and the broker says what it has
        for _ in range(len(content) // CHUNK + 20):
            chunk = content[have : have + CHUNK]
            status, headers, _ = self._request("PUT", key, {**query, "offset": have}, chunk)
            have = _count(headers.get("x-have"))
            if status == httpx.codes.CREATED:
                return
        raise PlaneAwayError(f"{self._address}: got no progress in sending {key}. Check the broker.")

    def take(self, prefix: str, wait: float) -> tuple[str, bytes] | None:
        check_key(prefix, prefix=True)
        ends = time.monotonic() + wait
        while True:
            left = max(ends - time.monotonic(), 0.0)
            first = self._chunk(prefix, 0, min(left, LONG_POLL), until=ends)
            if first is not None and self._add_rest(*first):
                return first[0], bytes(first[2])
            if time.monotonic() >= ends:
                return None

    def drop(self, key: str) -> None:
        self._request("DELETE", check_key(key))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _chunk(
        self, prefix: str, offset: int, wait: float = 0, until: float | None = None
    ) -> tuple[str, int, bytearray] | None:
        """Return the key, the message's size and a chunk of the first key that begins with `prefix`."""
        status, headers, body = self._request("GET", prefix, {"offset": offset, "wait": f"{wait:.3f}"}, until=until)
        if status == httpx.codes.NO_CONTENT:
            return None
        key, size = check_key(headers.get("x-key", "")), _count(headers.get("x-size"))
        if not key.startswith(prefix):
            raise PlaneRefusalError(f"{self._address}: got {shown(key)}, expected {prefix}. Check the broker.")
        return key, size, body

    def _add_rest(self, key: str, size: int, content: bytearray) -> bool:
        """Add the chunks that follow; return whether the message was there to its end."""
        while len(content) < min(size, self._limit + 1):
            more = self._chunk(key, len(content))
            if more is None or more[:2] != (key, size) or not more[2]:
                return False
            content += more[2]
        return True

    def _request(
        self, method: str, key: str, query: dict[str, Any] | None = None, body: bytes = b"", until: float | None = None
    ) -> tuple[int, httpx.Headers, bytearray]:
        """Send a request until it is answered, at most until a moment of the monotonic clock.

        Raises:
            PlaneRefusalError: If the broker refuses it, with its sentence.
            PlaneAwayError: If there was no answer in time.
        """
        ends, pause = until if until is not None else time.monotonic() + self._patience, self._first_pause
        while True:
            try:
                status, headers, content = self._try_request(method, key, query, body)
                if status < 500 or status == httpx.codes.INSUFFICIENT_STORAGE:
                    break
                reason = f"status {status}"
            except httpx.TransportError as error:
                reason = str(error) or type(error).__name__
            if not self._is_away:
                _log.warning("%s: no answer (%s); trying again", self._address, shown(reason, 200))
            self._is_away = True
            if (left := ends - time.monotonic()) <= 0:
                raise PlaneAwayError(
                    f"{self._address}: got no answer ({shown(reason, 200)}). Check it and the network."
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, self._most_pause)
        self._is_away = False
        if status >= 300 and status != httpx.codes.CONFLICT:
            raise PlaneRefusalError(f"{self._address}: {_sentence(content) or f'got status {status}'}")
        return status, headers, content

    def _try_request(
        self, method: str, key: str, query: dict[str, Any] | None, body: bytes
    ) -> tuple[int, httpx.Headers, bytearray]:
        content = bytearray()
        with self._http.stream(method, f"/messages/{key}", params=query, content=body) as response:
            for part in response.iter_raw():  # as sent: what is packed may unpack to any size
                content += part
                if len(content) > CHUNK:
                    raise httpx.RemoteProtocolError(f"more than {CHUNK:,} bytes at once")
        return response.status_code, response.headers, content


def _count(text: str | None) -> int:
    if text is None or re.fullmatch(r"[0-9]{1,15}", text) is None:
        raise PlaneRefusalError(f"broker: got {shown(repr(text))}, expected a count. Check the address.")
    return int(text)


def _sentence(content: bytearray) -> str:
    """Return what a broker says, without what a terminal could take for a command."""
    try:
        text = str(json.loads(content)["refused"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return shown("".join(c if c.isprintable() else "?" for c in text), 300)
