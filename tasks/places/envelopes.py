"""Signed envelopes: Ed25519 over a header of few fields and the sha256 of the body.

An envelope is the signature (64 bytes), the length of the header (4 bytes), the header (JSON) and the body. The reader
checks sizes first, then the signature, each field of the header, and the body's hash; nothing is parsed before it is
known to be signed.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from silos.errors import UserError, shown
from silos.io.atomic_io import sync_folder
from silos.param_types import NOT_PLAIN, is_plain

_DOMAIN = b"siloflow envelope 1\n"
_SIGNATURE = 64
_START = _SIGNATURE + 4
_MOST_HEADER = 2048
MOST_OVERHEAD = _START + _MOST_HEADER
"""The most bytes by which an envelope is larger than its body."""

Way = Literal["ask", "answer"]

_RANDOM = re.compile(r"[0-9a-f]{32}")
_SUBJECT = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,99}")
_VERSION = re.compile(r"[0-9A-Za-z.+!_-]{1,60}")
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_NUMBER = 10**8 - 1  # eight digits in a key


class EnvelopeError(UserError):
    """An envelope is refused; nothing in it may be believed."""


class TooLargeError(EnvelopeError):
    """A body is larger than the limit; the header is authentic, so that its sender can be answered."""

    def __init__(self, message: str, header: "Header | None" = None):
        super().__init__(message)
        self.header = header


@dataclass(frozen=True)
class Header:
    """What is signed with a body.

    Attributes:
        session: the coordinator's random name of the session, 32 hexadecimal digits.
        place: the name of the place that is asked or that answers.
        number: the number of the request in its session, from 0.
        nonce: the place's random name of the session, 32 hexadecimal digits; empty until the place has sent it.
        way: whether the coordinator asks or the place answers, so that no message can be sent back.
        subject: the name of what is asked, or how the request ended.
        siloflow: the sender's version.
    """

    session: str
    place: str
    number: int
    nonce: str
    way: Way
    subject: str
    siloflow: str

    def __post_init__(self) -> None:
        _check("session", self.session, "32 hexadecimal digits", _matches(self.session, _RANDOM))
        _check("place", self.place, NOT_PLAIN, isinstance(self.place, str) and is_plain(self.place))
        whole = isinstance(self.number, int) and not isinstance(self.number, bool)
        _check("number", self.number, f"0 to {_MOST_NUMBER:,}", whole and 0 <= self.number <= _MOST_NUMBER)
        _check("nonce", self.nonce, "32 hexadecimal digits", self.nonce == "" or _matches(self.nonce, _RANDOM))
        _check("way", self.way, "ask or answer", self.way in ("ask", "answer"))
        _check("subject", self.subject, "a name of at most 100 characters", _matches(self.subject, _SUBJECT))
        _check("siloflow", self.siloflow, "a version", _matches(self.siloflow, _VERSION))


class PublicKey:
    """A key that checks signatures; it may be known to all."""

    def __init__(self, raw: bytes):
        self._key = Ed25519PublicKey.from_public_bytes(raw)
        self._raw = raw

    @classmethod
    def from_text(cls, text: str) -> "PublicKey":
        """Read the key from its base64 text; UserError if it is none."""
        try:
            return cls(base64.b64decode(text.strip(), validate=True))
        except (binascii.Error, ValueError):
            raise UserError(
                f"public key: got {shown(text)!r}, expected 44 characters of base64. Copy the whole line."
            ) from None

    @property
    def text(self) -> str:
        """The key in base64."""
        return base64.b64encode(self._raw).decode()

    @property
    def fingerprint(self) -> str:
        """Eight groups of four hexadecimal digits, which two people read to each other on the telephone."""
        digits = hashlib.sha256(b"siloflow key 1\n" + self._raw).hexdigest()[:32]
        return "-".join(digits[i : i + 4] for i in range(0, 32, 4))

    def verify(self, signature: bytes, content: bytes) -> bool:
        """Return whether the key's owner signed the content."""
        try:
            self._key.verify(signature, content)
        except InvalidSignature:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw)


class PrivateKey:
    """A key that signs; it stays in a file that its owner alone can read."""

    def __init__(self, key: Ed25519PrivateKey):
        self._key = key

    @classmethod
    def create(cls, path: Path) -> "PrivateKey":
        """Make a key and write it to a new file (PEM, mode 0600); UserError if there is a file."""
        key = Ed25519PrivateKey.generate()
        form = serialization.PrivateFormat.PKCS8
        content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        write_secret(path, content)
        return cls(key)

    @classmethod
    def read(cls, path: Path) -> "PrivateKey":
        """Read the key from its file; UserError if it is none, or if others may read it."""
        try:
            if (mode := path.stat().st_mode & 0o077) != 0:
                raise UserError(f"{path}: got mode {mode:03o} for others, expected none. Run `chmod 600 {path}`.")
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"{path}: got no key ({error}), expected Ed25519 in PEM. Make one, or restore it."
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise UserError(f"{path}: got a key of another kind, expected Ed25519. Make one, or restore it.")
        return cls(key)

    @property
    def public(self) -> PublicKey:
        """The key that checks this key's signatures."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, content: bytes) -> bytes:
        """Return the signature of the content, always the same."""
        return self._key.sign(content)


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that its owner alone can read; UserError if there is a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(temporary)  # unlike a rename, it fails if there is a file
    except FileExistsError:
        raise UserError(f"{path}: got a file, expected none. Use its key, or move it away.") from None
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def seal(key: PrivateKey, header: Header, body: bytes) -> bytes:
    """Return the signed envelope; equal arguments give equal bytes."""
    head = _encoded(header, len(body), hashlib.sha256(body).hexdigest())
    return b"".join([key.sign(_DOMAIN + head), len(head).to_bytes(4, "big"), head, body])


def unseal(public: PublicKey, envelope: bytes, limit_bytes: int) -> tuple[Header, bytes]:
    """Check an envelope, and return its header and body.

    Args:
        public: the key of the only sender that is believed.
        envelope: bytes of unknown origin; of a body above the limit, its beginning is enough.
        limit_bytes: the most bytes of a body.

    Returns:
        The header, whose fields have their types and forms, and the body.

    Raises:
        TooLargeError: If the sender signed a larger body.
        EnvelopeError: If the envelope is unsigned, altered, truncated, or has other fields; the message says which.
    """
    size = int.from_bytes(envelope[_SIGNATURE:_START], "big")
    if size > _MOST_HEADER:
        raise EnvelopeError(f"header: got {size:,} bytes, expected at most {_MOST_HEADER:,}. This is no envelope.")
    start = _START + size
    if len(envelope) < start or not size:
        raise EnvelopeError(f"envelope: got {len(envelope):,} bytes, expected a whole header. It was truncated.")
    head = envelope[_START:start]
    if not public.verify(envelope[:_SIGNATURE], _DOMAIN + head):
        raise EnvelopeError("signature: got another than the known key's. The sender is unknown, or it was altered.")
    header, length, digest = _decoded(head)
    if length > limit_bytes:
        raise TooLargeError(f"body: got {length:,} bytes, expected at most {limit_bytes:,}. Send less.", header)
    if len(envelope) - start < length:
        raise EnvelopeError(f"body: got {len(envelope) - start:,} of {length:,} bytes. It was truncated.")
    body = envelope[start:]
    if len(body) != length or hashlib.sha256(body).hexdigest() != digest:
        raise EnvelopeError("body: got other bytes than were signed. It was altered.")
    return header, body


def _encoded(header: Header, length: int, digest: str) -> bytes:
    return json.dumps({**asdict(header), "bytes": length, "sha256": digest}, separators=(",", ":")).encode()


def _decoded(head: bytes) -> tuple[Header, int, str]:
    """Return the header, and the length and hash of the body; only the form that `_encoded` writes is accepted."""
    try:
        fields = json.loads(head)
        length, digest = fields.pop("bytes"), fields.pop("sha256")
        header = Header(**fields)
        _check("bytes", length, "a count", isinstance(length, int) and not isinstance(length, bool) and length >= 0)
        _check("sha256", digest, "64 hexadecimal digits", _matches(digest, _HASH))
        same = _encoded(header, length, digest) == head  # no field twice, no spaces
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise EnvelopeError(
            f"header: got other fields ({shown(str(error))}). The sender has another siloflow."
        ) from None
    if not same:
        raise EnvelopeError("header: got another form of JSON. The sender has another siloflow.")
    return header, length, digest


def _matches(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _check(name: str, value: object, expected: str, right: bool) -> None:
    if not right:
        raise EnvelopeError(
            f"header: got {name} {shown(repr(value))}, expected {expected}. The sender has another siloflow."
        )
