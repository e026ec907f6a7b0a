"""A client's secret: 32 random bytes from which its noise, the marks of its rows and the seal of its ledger follow."""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from silos.errors import UserError
from silos.machine.files import writing

_BYTES = 32
_AT_ONCE = 1024  # rows that are copied to float64 together


@dataclass(frozen=True)
class Secret:
    """What only one client knows. It prints no byte, and what follows from it does not tell it."""

    _key: bytes = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> "Secret":
        """The secret in that file, made there, for its owner's eyes, if there is none; UserError if it is damaged.

        A new one's name is not safe from a power cut before its folder is synced, which is to be before it is of use.
        """
        if not path.exists():
            with writing(path, folder_too=False) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(secrets.token_bytes(_BYTES))
        key = path.read_bytes()
        if len(key) != _BYTES:
            raise UserError(
                f"{path}, a client's secret, has {len(key)} bytes instead of {_BYTES}; bring back its folder from a copy. "
                "Nothing is told until then."
            )
        return cls(key)

    def generator(self, *names: str) -> np.random.Generator:
        """The generator of these names, the same each time: Philox, with 128 bits of HMAC-SHA256 of the names for a key.

        Who has not the secret cannot tell its numbers from random ones as long as nobody breaks Philox4x64-10 (Salmon et
        al. 2011), which is not made for secrecy, but of which no such attack is known.
        """
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self._derived("noise", *names)[:16], "little")))

    def seal(self, data: bytes) -> str:
        """What only this secret answers of these bytes: 64 hexadecimal digits."""
        return hmac.new(self._derived("seal"), data, hashlib.sha256).hexdigest()

    def row_hashes(self, x: np.ndarray, label: str) -> np.ndarray:
        """64 bits of each of a class's rows, (rows,) uint64, for x (rows, ...): alike where numbers and label are.

        Numbers are compared as float64, whatever they are stored as; a missing one equals a missing one, and −0 equals 0.
        """
        key = self._derived("rows", label)
        hashes = [hashlib.blake2b(row, digest_size=8, key=key).digest() for row in _rows(x)]
        return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)

    def _derived(self, *names: str) -> bytes:
        return hmac.new(self._key, json.dumps(names).encode(), hashlib.sha256).digest()


def _rows(x: np.ndarray) -> Iterator[bytes]:
    for start in range(0, len(x), _AT_ONCE):
        part = x[start : start + _AT_ONCE].astype(np.float64) + 0.0  # which makes −0 a 0
        part[np.isnan(part)] = np.nan  # of which there are many
        for row in part:
            yield row.tobytes()
