"""The broker: keeps messages of a coordinator and its places on disk until they are taken, and serves them by HTTPS.

It knows each side by a token, and each side reaches only its own boxes. It cannot read what is encrypted nor forge what
is signed. A message is acknowledged after it is on disk under its name.
"""

import asyncio
import hashlib
import hmac
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from silos.errors import shown
from silos.io.atomic_io import sync_folder
from silos.io.locks import exclusive_lock
from tasks.places.broker_access import COORDINATOR, TokenFile, hash_token
from tasks.places.planes import CHUNK, LONG_POLL, MOST_BYTES

_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,149}"
_KEY = re.compile(rf"(to|from)/({_NAME})/({_NAME})")
_PREFIX = re.compile(rf"(to|from)/({_NAME})/({_NAME})?")
_HASH = re.compile(r"[0-9a-f]{64}")
_LEAST_BYTES = 4096  # that a file counts, however small: a disk has room for a bounded number of them
_MOST_FILES = 1024  # of a place; its boxes are listed at each request
_MOST_CONNECTIONS = 1024


class _RefusedError(Exception):
    """A request is refused, with a status and a sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


@dataclass
class _Message:
    """A whole message: its size, and its sha256 if it is known since the start."""

    size: int
    digest: str = ""


class _Store:
    """Messages in folders `messages/` and, until they are whole, `incoming/`; a box is a folder `to/PLACE` or `from/PLACE`.

    The names of whole messages are also in memory. Bytes of both folders count against the limit of a place.
    """

    def __init__(self, folder: Path, limit_bytes: int, place_bytes: int):
        self._folder, self._limit, self._place_limit = folder, limit_bytes, place_bytes
        self._boxes: dict[str, dict[str, _Message]] = {}
        self._used: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._news: dict[str, asyncio.Event] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for path in sorted(folder.glob("*/*/*/*")):
            kind, *parts = path.relative_to(folder).parts
            if kind == "messages":
                self._boxes.setdefault("/".join(parts[:2]), {})[parts[2]] = _Message(path.stat().st_size)
            self._count("/".join(parts), None, path.stat().st_size)

    async def add(self, key: str, size: int, digest: str, offset: int, chunk: bytes) -> tuple[int, int]:
        """Append a chunk to a message; return the status, and how many bytes of the message there are."""
        if size > self._limit:
            raise _RefusedError(413, f"message: got {size:,} bytes, expected at most {self._limit:,}. Send less.")
        async with self._locks.setdefault(key, asyncio.Lock()):
            have = await self.have(key, size, digest)
            if self._find(key) is not None:
                return 201, have
            if offset != have or have + len(chunk) > size:
                return 409, have
            part = self._part(key, digest)
            self._reserve(key.split("/")[1], len(chunk), part)
            part.parent.mkdir(parents=True, exist_ok=True)
            before = _size_of(part)
            try:
                with part.open("ab") as file:
                    file.write(chunk)
            finally:
                self._count(key, before, _size_of(part))
            if have + len(chunk) < size:
                return 200, have + len(chunk)
            if not await asyncio.to_thread(_finish, part, self._path(key), digest):  # as after a power cut
                self._remove(key, part)
                return 409, 0
            self._show(key, _Message(size, digest))
            return 201, size

    async def have(self, key: str, size: int, digest: str) -> int:
        """Return how many bytes of a message there are; refuse it if the key is written with others."""
        if (message := self._find(key)) is None:
            return _size_of(self._part(key, digest)) or 0
        if message.size == size and not message.digest:
            with suppress(FileNotFoundError):
                message.digest = await asyncio.to_thread(_digest, self._path(key))
        if (message.size, message.digest) != (size, digest):
            raise _RefusedError(412, f"{key}: got other bytes, expected a key to be written once.")
        return size

    async def first(self, prefix: str, wait: float) -> tuple[str, int] | None:
        """Return the first key that begins with a prefix, and its size; wait for one."""
        box, _, start = prefix.rpartition("/")
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait
        while True:
            name = min((n for n in self._boxes.get(box, ()) if n.startswith(start)), default=None)
            if name is not None:
                return f"{box}/{name}", self._boxes[box][name].size
            try:
                await asyncio.wait_for(self._news.setdefault(box, asyncio.Event()).wait(), ends - loop.time())
            except TimeoutError:
                return None

    def read(self, key: str, offset: int) -> bytes:
        """Return a chunk of a whole message."""
        with self._path(key).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK)

    def drop(self, key: str) -> None:
        """Delete a message, and what came of it."""
        box, _, name = key.rpartition("/")
        if self._boxes.get(box, {}).pop(name, None):
            self._remove(key, self._path(key))
        for part in self._parts(box, name):
            self._remove(key, part)

    def _show(self, key: str, message: _Message) -> None:
        """Let who waits for a message have it; delete other bytes that were sent under its key."""
        box, _, name = key.rpartition("/")
        self._boxes.setdefault(box, {})[name] = message
        for other in self._parts(box, name):
            self._remove(key, other)
        if (event := self._news.pop(box, None)) is not None:
            event.set()

    def _reserve(self, place: str, more: int, kept: Path) -> None:
        """Refuse bytes above the limit of a place; first, delete other messages of it that are not whole."""
        needed = self._place_limit - _counted(more)

        def is_full() -> bool:
            return self._used[place] > needed or (self._files[place] >= _MOST_FILES and not kept.exists())

        if is_full():
            for way in ("to", "from"):
                for part in self._parts(f"{way}/{place}", ""):
                    if part != kept:
                        self._remove(f"{way}/{place}/", part)
        if is_full():
            raise _RefusedError(
                507,
                f"{place}: got a full box, expected at most {self._place_limit:,} bytes in {_MOST_FILES:,} messages. Take "
                "messages, or raise it.",
            )

    def _find(self, key: str) -> _Message | None:
        box, _, name = key.rpartition("/")
        return self._boxes.get(box, {}).get(name)

    def _path(self, key: str) -> Path:
        return self._folder / "messages" / key

    def _part(self, key: str, digest: str) -> Path:
        return self._folder / "incoming" / f"{key}~{digest}"  # no key has a tilde

    def _parts(self, box: str, name: str) -> Iterator[Path]:
        return (self._folder / "incoming" / box).glob(f"{name or '*'}~*")

    def _remove(self, key: str, path: Path) -> None:
        size = _size_of(path)
        path.unlink(missing_ok=True)
        self._count(key, size, None)

    def _count(self, key: str, before: int | None, after: int | None) -> None:
        place = key.split("/")[1]
        self._used[place] += _counted(after) - _counted(before)
        self._files[place] += (after is not None) - (before is not None)


def broker_app(
    folder: Path, tokens: Mapping[str, str], limit_bytes: int = MOST_BYTES, place_bytes: int = 16 * 2**30
) -> FastAPI:
    """Return the broker as an application.

    A place puts under `from/PLACE/` and takes under `to/PLACE/`; the coordinator does the reverse for every place. Both
    may drop what they put and what they took.

    Args:
        folder: where messages lie; one process uses it at a time.
        tokens: the `hash_token` of the coordinator and of each place by name; looked up at each request.
        limit_bytes: the most bytes of a message.
        place_bytes: the most bytes on disk of a place's messages in both directions.
    """
    store = _Store(folder, limit_bytes, place_bytes)

    async def know(key: str, request: Request) -> None:
        """Refuse an unknown sender, and keys that the sender may not use, before the body is read."""
        _check_right(_who(request.headers.get("authorization", ""), tokens), request.method, key)

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, dependencies=[Depends(know)])

    @app.exception_handler(_RefusedError)
    async def refuse(request: Request, error: _RefusedError) -> Response:
        return JSONResponse({"refused": str(error)}, error.status)

    @app.exception_handler(OSError)
    async def fail(request: Request, error: OSError) -> Response:
        """Let the sender try again: as a rule, the disk is full."""
        return JSONResponse({"refused": f"broker: got {error.strerror or 'an error'}. Check its disk."}, 503)

    @app.put("/messages/{key:path}")
    async def put(key: str, size: int, sha256: str, offset: int, request: Request) -> Response:
        chunk = bytearray()
        async for part in request.stream():
            chunk += part
            # counted while it arrives, since a sender may send more than it announces
            if len(chunk) > CHUNK:
                raise _RefusedError(413, f"chunk: got over {CHUNK:,} bytes. Send it in several.")
        _check_sent(size, sha256, offset)
        status, have = await store.add(key, size, sha256, offset, bytes(chunk))
        return Response(status_code=status, headers={"x-have": str(have)})

    @app.get("/messages/{key:path}")
    async def get(key: str, offset: int = 0, wait: float = 0) -> Response:
        if not 0 <= offset <= limit_bytes or not 0 <= wait <= LONG_POLL:
            most = f"0 to {limit_bytes}, 0 to {LONG_POLL}"
            raise _RefusedError(400, f"query: got offset {shown(str(offset))}, wait {wait}, expected {most}.")
        found = await store.first(key, wait)
        if found is None:
            return Response(status_code=204)
        headers = {"x-key": found[0], "x-size": str(found[1])}
        return Response(store.read(found[0], offset), headers=headers, media_type="application/octet-stream")

    @app.delete("/messages/{key:path}")
    async def drop(key: str) -> Response:
        store.drop(key)
        return Response(status_code=204)

    return app


def broker_server(
    folder: Path, host: str, port: int, certificate: Path, key: Path, limit_bytes: int = MOST_BYTES
) -> uvicorn.Server:
    """Return the server of a folder's broker, which `run` starts and `should_exit` ends; it reads tokens from the folder."""
    config = uvicorn.Config(
        broker_app(folder, TokenFile(folder), limit_bytes),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=str(key),
        log_level="warning",
        server_header=False,
        timeout_keep_alive=3 * LONG_POLL,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,  # long polls would hold it
    )
    return uvicorn.Server(config)


def serve_broker(
    folder: Path, host: str, port: int, certificate: Path, key: Path, limit_bytes: int = MOST_BYTES
) -> None:
    """Serve the broker of a folder by HTTPS until the process is stopped; `add_token` lets sides in meanwhile."""
    with exclusive_lock(folder):
        broker_server(folder, host, port, certificate, key, limit_bytes).run()


def _who(authorization: str, tokens: Mapping[str, str]) -> str:
    digest = hash_token(authorization.removeprefix("Bearer "))
    for name, known in tokens.items():
        if hmac.compare_digest(known, digest):
            return name
    raise _RefusedError(401, "token: got an unknown one, expected that of a place or the coordinator. Join again.")


def _check_right(who: str, method: str, key: str) -> None:
    """Refuse a key that is no plain name, or that the sender may not use in this way."""
    if (parts := (_PREFIX if method == "GET" else _KEY).fullmatch(key)) is None:
        raise _RefusedError(400, f"key: got {shown(key)!r}, expected to/PLACE/NAME or from/PLACE/NAME.")
    way, place, _ = parts.groups()
    own = who in (COORDINATOR, place)
    sends = way == ("to" if who == COORDINATOR else "from")
    if not own or (method != "DELETE" and sends != (method == "PUT")):
        raise _RefusedError(403, f"{method} {shown(key)}: got the token of {who}, expected another. Use your own box.")


def _check_sent(size: int, digest: str, offset: int) -> None:
    if not 0 <= offset <= size or _HASH.fullmatch(digest) is None:
        numbers = f"offset {shown(str(offset))}, size {shown(str(size))}"
        raise _RefusedError(400, f"query: got {numbers}, sha256 {shown(digest)}. Send all three.")


def _finish(part: Path, path: Path, digest: str) -> bool:
    """Flush a file to disk, and give it its name; return False if it has another sha256."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    if _digest(part) != digest:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part.replace(path)
    for folder in (path.parent, path.parent.parent):
        sync_folder(folder)
    return True


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _counted(size: int | None) -> int:
    return 0 if size is None else max(size, _LEAST_BYTES)
