"""Sessions: a coordinator asks a place one request after another, and each is answered once.

The coordinator opens a session under a random name, and the place answers with a random name of its own, which all later
headers carry. Requests have rising numbers. The place stores the number and the request's hash before it begins, and the
answer before it sends it, so that a request that arrives again is never another one. No clock decides anything.
"""

import contextlib
import hashlib
import json
import logging
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import metadata
from math import inf
from pathlib import Path
from typing import IO, NoReturn, Self

from silos.errors import ClientsAwayError, UserError, shown
from silos.io.atomic_io import sync_folder, write_bytes
from silos.io.locks import exclusive_lock, hold, is_copy, is_locked
from tasks.places.envelopes import (
    MOST_OVERHEAD,
    EnvelopeError,
    Header,
    PrivateKey,
    PublicKey,
    TooLargeError,
    Way,
    seal,
    unseal,
)
from tasks.places.planes import LONG_POLL, MOST_BYTES, Plane, PlaneAwayError, PlaneRefusalError

_log = logging.getLogger(__name__)

OPEN, CLOSE = "open", "close"
"""Subjects of the session itself; a handler never gets them."""

MOST_BODY = MOST_BYTES - MOST_OVERHEAD
"""The default limit of a body: a folder reads no longer envelope than `MOST_BYTES`, and would never answer one."""

_ANSWERED, _REFUSED, _FAILED = "answered", "refused", "failed"
_MOST_SESSIONS = 64
_SESSION = re.compile(r"[0-9a-f]{32}")
_BAD_ANSWER_PAUSE = 0.25  # seconds: a plane may give bad answers as fast as they are read


class PlaceAwayError(ClientsAwayError):
    """A place did not answer in time; it may later."""


class PlaceRefusedError(UserError):
    """A place refuses a request; the same one would be refused again."""


class PlaceFailedError(RuntimeError):
    """A request ended in an error that the place did not expect."""


class CoordinatorSession:
    """The coordinator's end of a session with one place; threads take turns.

    Args:
        plane: carries the messages.
        key: the coordinator's key.
        place: the name of the place.
        place_public: the only key that answers are believed of.
        siloflow_version: this side's version; a place refuses another than its own.
        names: the folder with the names of sessions that the place may know, each held by its process.
        limit_bytes: the most bytes of a request and of an answer.
    """

    _first_resend, _most_resend = 5.0, 60.0  # seconds after which a request is put again

    def __init__(
        self,
        plane: Plane,
        key: PrivateKey,
        place: str,
        place_public: PublicKey,
        siloflow_version: str,
        names: Path,
        limit_bytes: int = MOST_BODY,
    ):
        self._plane, self._key, self._place, self._public = plane, key, place, place_public
        self._version, self._names, self._limit = siloflow_version, names, limit_bytes
        self._turn = threading.Lock()
        self._session, self._nonce, self._number = "", "", 0
        self._pending: tuple[str, bytes] | None = None
        self._held: IO[str] | None = None
        self._begin()

    def ask(self, subject: str, body: bytes, wait: float | None = None) -> bytes:
        """Send a request, and return the body of the answer.

        After PlaceAwayError, the same request again goes on waiting for the same answer. Another one starts a new session.

        Args:
            subject: the name of what is asked.
            body: what the place's handler gets.
            wait: seconds to wait for the answer, and for the plane; None waits as long as it takes.

        Raises:
            PlaceAwayError: If there is no answer in time.
            PlaceRefusedError: If the place refuses the request, with its sentence.
            PlaceFailedError: If the place's handler failed.
            TooLargeError: If the request or the answer is larger than the limit.
            PlaneRefusalError: If the plane refuses the request.
        """
        if subject in (OPEN, CLOSE):
            raise ValueError(f"{subject} is a subject of the session itself")
        if len(body) > self._limit:
            raise TooLargeError(f"request: got {len(body):,} bytes, expected at most {self._limit:,}. Send less.")
        with self._turn:
            request = (subject, hashlib.sha256(body).digest())
            if self._pending not in (None, request):
                self._withdraw()
                self._begin()
            try:
                if not self._nonce:
                    self._open(wait)
                self._pending = request
                _, answer = self._exchange(subject, body, wait)
            except (PlaceRefusedError, TooLargeError):
                self._begin()  # the place may not have counted it
                raise
            except PlaceFailedError:
                self._pending, self._number = None, self._number + 1
                raise
            self._pending, self._number = None, self._number + 1
            return answer

    def close(self) -> None:
        """Let the place forget the session, without waiting for it; the next request starts a new one."""
        with self._turn, contextlib.suppress(PlaneAwayError, PlaneRefusalError):
            self._withdraw()
            if self._nonce:
                request = self._header(CLOSE, self._number + 1)
                self._plane.put(_key(request), seal(self._key, request, b""))
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Start a new session. The file of the one before it stays until the place has forgotten that session."""
        if self._held is not None:
            self._held.close()
        self._session, self._nonce, self._number, self._pending = secrets.token_hex(16), "", 0, None
        self._held, self._ended = None, list[str]()

    def _open(self, wait: float | None) -> None:
        """Open the session. The place then forgets those that have ended, of killed commands too.

        So no late request of theirs is carried out: it might delete private state that later requests have made.
        """
        if self._held is None:  # the same request is sent again after PlaceAwayError
            self._held = hold(self._names / self._session)
            names = (path for path in sorted(self._names.iterdir()) if _SESSION.fullmatch(path.name))
            # the original of a copied folder may still work
            self._ended = [path.name for path in names if not is_locked(path) and not is_copy(path)]
        opened, _ = self._exchange(OPEN, " ".join(self._ended).encode(), wait)
        self._nonce, self._number = opened.nonce, 1
        for name in self._ended:
            (self._names / name).unlink(missing_ok=True)

    def _withdraw(self) -> None:
        """Delete a request that waits for its answer, so that a place that comes back does not work in vain."""
        if self._pending is not None:
            request = self._header("withdrawn", self._number)
            with contextlib.suppress(PlaneAwayError):
                self._plane.drop(_key(request))

    def _header(self, subject: str, number: int) -> Header:
        return Header(self._session, self._place, number, self._nonce, "ask", subject, self._version)

    def _exchange(self, subject: str, body: bytes, wait: float | None) -> tuple[Header, bytes]:
        """Put a request until its answer is there; PlaceAwayError `wait` seconds after it was first put."""
        request = self._header(subject, self._number)
        envelope = seal(self._key, request, body)
        patience = inf if wait is None else wait
        put_at, resend, was_put, ends = time.monotonic(), self._first_resend, False, time.monotonic() + patience
        while True:
            try:
                if time.monotonic() >= put_at:
                    self._plane.put(_key(request), envelope)  # the plane may have lost it
                    put_at, resend = time.monotonic() + resend, min(2 * resend, self._most_resend)
                    if not was_put:  # it may take long to send
                        was_put, ends = True, time.monotonic() + patience
                left = min(put_at, ends) - time.monotonic()
                if found := self._plane.take(_key(request, "answer"), max(left, 0)):
                    if answer := self._read(request, *found):
                        return answer
                    put_at = time.monotonic()  # the place sends its answer again
                    time.sleep(_BAD_ANSWER_PAUSE)
            except PlaneAwayError as error:
                _log.warning("%s: waiting for the plane: %s", self._place, error)
                time.sleep(min(1.0, max(ends - time.monotonic(), 0)))
            if time.monotonic() >= ends:
                raise PlaceAwayError(self._place, patience)

    def _read(self, request: Header, key: str, envelope: bytes) -> tuple[Header, bytes] | None:
        """Return an answer to the request, or None for what is not; raise what it reports."""
        too_large = None
        try:
            header, body = unseal(self._public, envelope, self._limit)
        except TooLargeError as error:
            if error.header is None:
                raise
            header, body, too_large = error.header, b"", error
        except EnvelopeError as error:
            self._ignore(key, str(error))
            return None
        expected = replace(
            request, way="answer", subject=header.subject, siloflow=header.siloflow, nonce=self._nonce or header.nonce
        )
        if key != _key(header) or header != expected or (not header.nonce and header.subject != _REFUSED):
            self._ignore(key, "got the answer to another request. It was replayed.")
            return None
        with contextlib.suppress(PlaneAwayError):
            self._plane.drop(key)
        if too_large:
            raise too_large
        if header.subject == _ANSWERED:
            return header, body
        sentence = f"{self._place}: {shown(body.decode(errors='replace'), 700)}"
        raise PlaceFailedError(sentence) if header.subject == _FAILED else PlaceRefusedError(sentence)

    def _ignore(self, key: str, reason: str) -> None:
        _log.warning("%s: ignored an answer, %s: %s", self._place, key, reason)
        with contextlib.suppress(PlaneAwayError):
            self._plane.drop(key)


@dataclass(frozen=True)
class _Session:
    """What a place stores of a session.

    Attributes:
        used: rises from request to request, so that the session that was used longest ago is forgotten first.
        nonce: the place's random name of it.
        number: the request that is or was carried out last.
        digest: the sha256 of that request.
    """

    used: int
    nonce: str
    number: int
    digest: str


class PlaceSessions:
    """The place's end of all sessions with its coordinator.

    Args:
        plane: carries the messages.
        key: the key of the place.
        place: its name.
        coordinator_public: the only key that requests are believed of.
        folder: where the place keeps sessions; one process uses it at a time.
        handler: returns the body of the answer to a header and body. It may be called again with the same request after a
            kill.
        siloflow_version: this side's version, by default the installed one; requests of another are refused.
        limit_bytes: the most bytes of a request and of an answer.
    """

    _first_pause, _most_pause = 0.25, 30.0  # seconds after an error of the plane or the disk

    def __init__(
        self,
        plane: Plane,
        key: PrivateKey,
        place: str,
        coordinator_public: PublicKey,
        folder: Path,
        handler: Callable[[Header, bytes], bytes],
        siloflow_version: str = "",
        limit_bytes: int = MOST_BODY,
    ):
        self._plane, self._key, self._place, self._public = plane, key, place, coordinator_public
        self._folder, self._handler, self._limit = folder, handler, limit_bytes
        self._version = siloflow_version or metadata.version("siloflow")
        self._resent: set[str] = set()

    def serve_forever(self) -> NoReturn:
        """Answer requests until the process ends; a plane that is away or a full disk is waited for."""
        with exclusive_lock(self._folder):
            pause = self._first_pause
            while True:
                try:
                    self.serve_once(LONG_POLL)
                    pause = self._first_pause
                except (PlaneAwayError, PlaneRefusalError, OSError) as error:
                    _log.warning("%s: trying again in %.0f seconds: %s", self._place, pause, shown(str(error), 300))
                    time.sleep(pause)
                    pause = min(2 * pause, self._most_pause)

    def serve_once(self, wait: float) -> bool:
        """Take a message, answer it and drop it; return False if there was none in `wait` seconds.

        Raises:
            PlaneAwayError: If the plane is; the message is answered when it is back.
            OSError: If the place's own disk is full; the message stays on the plane.
        """
        found = self._plane.take(f"to/{self._place}/", wait)
        if found is None:
            return False
        key, envelope = found
        try:
            header, body = unseal(self._public, envelope, self._limit)
        except TooLargeError as error:
            if error.header is not None:
                self._refuse(key, error.header, str(error))
        except EnvelopeError as error:
            _log.warning("%s: ignored %s: %s", self._place, key, error)
        else:
            digest = hashlib.sha256(envelope).hexdigest()
            del envelope, found  # a request may be large
            if fault := self._fault(key, header, digest):
                self._refuse(key, header, fault)
            elif header.subject == CLOSE:
                self._forget(header.session)
            else:
                self._send(header, self._answer(header, digest, body))
        self._plane.drop(key)
        return True

    @cached_property
    def _sessions(self) -> dict[str, _Session]:
        self._folder.mkdir(parents=True, exist_ok=True)
        return {path.name: found for path in self._folder.iterdir() if (found := _load(path)) is not None}

    def _fault(self, key: str, header: Header, digest: str) -> str:
        """Return why an authentic request is refused; nothing if it is carried out."""
        session = self._sessions.get(header.session)
        if header.place != self._place or header.way != "ask" or key != _key(header):
            return f"place: got a message for {header.place}, expected one for {self._place} under its own key."
        if header.siloflow != self._version:
            return f"siloflow: got {header.siloflow}, expected {self._version}. Install the same version at both ends."
        if (header.number == 0) != (header.subject == OPEN):
            return f"number: got {header.number} for {header.subject}, expected 0 to open a session. Start again."
        if session is None:
            if header.subject in (OPEN, CLOSE):
                return ""
            return f"session: got {header.session}, which this place does not know or has forgotten. Start again."
        if header.number != 0 and header.nonce != session.nonce:
            return "nonce: got another session's. Start again."
        if header.subject == CLOSE and header.number > session.number:
            return ""
        if header.number == session.number and digest == session.digest:
            return ""
        if header.number != session.number + 1:
            return (
                f"number: got {header.number}, expected {session.number + 1}. It came twice or too early; start again."
            )
        return ""

    def _answer(self, header: Header, digest: str, body: bytes) -> bytes:
        """Carry out a request, or return the stored answer if it was carried out before."""
        session = self._sessions.get(header.session)
        path = self._answer_path(header)
        if session is not None and session.number == header.number:
            if path.exists():
                self._resent.add(header.session)
                return path.read_bytes()
        else:
            session = self._store(header, digest, session)
        answer = self._seal(header, session.nonce, *self._carry_out(header, body))
        write_bytes(path, answer)
        return answer

    def _store(self, header: Header, digest: str, session: _Session | None) -> _Session:
        """Write down the request before it is carried out, and delete the answer before it."""
        used = max((s.used for s in self._sessions.values()), default=0) + 1
        if session is None:
            while len(self._sessions) >= _MOST_SESSIONS:  # first those without a request: they may be replayed openings
                self._forget(min(self._sessions, key=lambda n: (self._sessions[n].number > 0, self._sessions[n].used)))
            session = _Session(used, secrets.token_hex(16), header.number, digest)
        else:
            session = replace(session, used=used, number=header.number, digest=digest)
        folder = self._folder / header.session
        write_bytes(folder / "state.json", json.dumps(asdict(session)).encode())
        sync_folder(self._folder)
        self._sessions[header.session] = session
        if header.number:
            last = replace(header, number=header.number - 1)
            self._answer_path(last).unlink(missing_ok=True)
            if header.session in self._resent:  # the coordinator may have taken the one before
                self._resent.discard(header.session)
                self._plane.drop(_key(last, "answer"))
        return session

    def _carry_out(self, header: Header, body: bytes) -> tuple[str, bytes]:
        """Return how a request ended, and the body of the answer."""
        if header.number == 0:
            for name in body.decode("ascii", "replace").split():
                if name != header.session:
                    self._forget(name)
            return _ANSWERED, b""
        try:
            content = self._handler(header, body)
        except Exception as error:  # its text may quote a row
            _log.exception("%s: %s failed", self._place, header.subject)
            return _FAILED, f"{type(error).__name__}; the place's own screen says more".encode()
        if len(content) > self._limit:
            return _REFUSED, f"answer: got {len(content):,} bytes, expected at most {self._limit:,}.".encode()
        return _ANSWERED, content

    def _send(self, header: Header, answer: bytes) -> None:
        try:
            self._plane.put(_key(header, "answer"), answer)
        except PlaneRefusalError as error:
            self._refuse(_key(header), header, str(error))

    def _refuse(self, key: str, header: Header, sentence: str) -> None:
        """Log why a request is refused, and tell its authentic sender."""
        _log.warning("%s: refused %s: %s", self._place, key, sentence)
        answer = self._seal(header, header.nonce, _REFUSED, sentence.encode())
        with contextlib.suppress(PlaneRefusalError):  # there is an answer already
            self._plane.put(_key(replace(header, place=self._place), "answer"), answer)

    def _seal(self, header: Header, nonce: str, subject: str, content: bytes) -> bytes:
        answer = Header(header.session, self._place, header.number, nonce, "answer", subject, self._version)
        return seal(self._key, answer, content)

    def _forget(self, name: str) -> None:
        """Delete a session, and its last answer if the coordinator did not take it."""
        if (session := self._sessions.get(name)) is not None:
            last = Header(name, self._place, session.number, "", "answer", _ANSWERED, self._version)
            self._plane.drop(_key(last))
            shutil.rmtree(self._folder / name)
            del self._sessions[name]

    def _answer_path(self, header: Header) -> Path:
        return self._folder / header.session / f"answer-{header.number:08d}"


def _key(header: Header, way: Way | None = None) -> str:
    """Return the key of a message on the plane; names sort as numbers do."""
    box = "to" if (way or header.way) == "ask" else "from"
    return f"{box}/{header.place}/{header.session}-{header.number:08d}"


def _load(folder: Path) -> _Session | None:
    """Read a session from its folder; delete what a kill left of one, and what is older than its last request."""
    if not folder.is_dir() or _SESSION.fullmatch(folder.name) is None:
        return None
    try:
        session = _Session(**json.loads((folder / "state.json").read_bytes()))
    except FileNotFoundError:
        shutil.rmtree(folder)
        return None
    for path in folder.iterdir():
        if path.name not in ("state.json", f"answer-{session.number:08d}"):
            path.unlink()
    return session
