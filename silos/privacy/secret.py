"""A client's secret, from which its noise, the hashes of its units and the seal of its ledger follow; that of all cells."""

import hashlib
import hmac
import json
import os
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from silos.errors import UserError
from silos.io.atomic_io import writing
from silos.io.locks import in_turn
from silos.raw_cells import MOST_TOKEN

REGISTER = ".rows"
"""The folder under private/ of what silos reported; no data set has this name."""

OPENED = ".opened"
"""The folder with a file for each silo that has a ledger, with the number of its lines: it shows if they were deleted."""

_BYTES = 32


@dataclass(frozen=True)
class Secret:
    """A client's secret. It is not printed, and values derived from it do not reveal it."""

    _key: bytes = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> "Secret":
        """Read the secret, or create it with access for its owner only; UserError if it is damaged.

        A new secret survives a power cut only after its folder is synced, which must happen before it is used.
        """
        if not path.exists():
            with writing(path, folder_too=False) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(secrets.token_bytes(_BYTES))
        key = path.read_bytes()
        if len(key) != _BYTES:
            raise UserError(
                f"{path}, a client's secret, has {len(key)} bytes instead of {_BYTES}. Restore its folder from a copy. "
                "Nothing is reported until then."
            )
        return cls(key)

    def generator(self, *names: str) -> np.random.Generator:
        """Return the generator of these names: Philox, keyed with 128 bits of the HMAC-SHA256 of the names.

        Without the secret, its output cannot be distinguished from random numbers unless Philox4x64-10 is broken
        (Salmon et al. 2011). Philox was not designed for secrecy, but no such attack is known.
        """
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self._derive("noise", *names)[:16], "little")))

    def key(self, *names: str) -> bytes:
        """Return a key of 32 bytes for these names: their HMAC-SHA256."""
        return self._derive("key", *names)

    def seal(self, data: bytes) -> str:
        """Return the HMAC of these bytes under the secret: 64 hexadecimal digits."""
        return hmac.new(self._seal_key, data, hashlib.sha256).hexdigest()

    def unit_hashes(self, units: np.ndarray) -> np.ndarray:
        """Hash the name of each row's unit, such as a patient: (rows,) uint64."""
        key = self._derive("units")
        names, index = np.unique(units.astype(str), return_inverse=True)
        hashes = [hashlib.blake2b(name.encode(), digest_size=8, key=key).digest() for name in names.tolist()]
        return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)[index.ravel()]

    def cell_hashes(self, hashes: np.ndarray) -> np.ndarray:
        """Return keyed hashes of the hashes of cells, (rows, columns) uint32 of 30 bits; an empty cell stays 0.

        Columns share a key. The hash is fast and keyed, but not cryptographic. It hides cells from a glance; the secret is
        stored under the same private/.
        """
        bits = hashes.astype(np.uint64)
        for key in np.frombuffer(self._derive("cells")[:16], "<u8"):
            bits = (bits ^ key) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            bits ^= bits >> np.uint64(31)
        keyed = np.clip(bits >> np.uint64(34), 1, MOST_TOKEN).astype(np.uint32)
        return np.where(hashes == 0, np.uint32(0), keyed)

    @cached_property
    def _seal_key(self) -> bytes:
        return self._derive("seal")

    def _derive(self, *names: str) -> bytes:
        return hmac.new(self._key, json.dumps(names).encode(), hashlib.sha256).digest()


def cell_secret(private: Path) -> Secret:
    """Open the secret of all silos under private/, which keys the hashes of cells; it is created at the first use."""
    folder = private / REGISTER
    if not (folder / "secret").exists():
        if any(private.glob(f"[!.]*/{OPENED}/*")):
            raise UserError(
                f"{folder / 'secret'}, by which cells of rows are compared with those that were reported, is missing. "
                "Restore it from a copy. Without one, let the owner move private/ away, partition and start a new record."
            )
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        with in_turn(folder / "lock"):
            return Secret.open(folder / "secret")
    return Secret.open(folder / "secret")
