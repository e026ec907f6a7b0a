"""A client's secret, from which its noise, the hashes of its rows and the seal of its ledger follow."""

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
from silos.io.atomic_io import writing
from silos.io.locks import in_turn
from silos.privacy.differencing import MOST_TOKEN

REGISTER = ".rows"
"""The folder under private/ of what silos reported; no data set has this name."""

OPENED = ".opened"
"""The folder with an empty file for each silo that has a ledger, which shows that a ledger was deleted."""

_BYTES = 32
_CHUNK = 1024  # rows that are converted to float64 together


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

    def seal(self, data: bytes) -> str:
        """Return the HMAC of these bytes under the secret: 64 hexadecimal digits."""
        return hmac.new(self._derive("seal"), data, hashlib.sha256).hexdigest()

    def row_hashes(self, x: np.ndarray, label: str) -> np.ndarray:
        """Hash each row x (rows, ...) of a class to 64 bits, (rows,) uint64: equal if values and label are equal.

        Values are compared as float64, however they are stored. Missing values are equal, and −0 equals 0.
        """
        key = self._derive("rows", label)
        hashes = [hashlib.blake2b(row, digest_size=8, key=key).digest() for row in _row_bytes(x)]
        return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)

    def unit_hashes(self, units: np.ndarray) -> np.ndarray:
        """Hash the name of each row's unit, such as a patient: (rows,) uint64."""
        key = self._derive("units")
        names, index = np.unique(units.astype(str), return_inverse=True)
        hashes = [hashlib.blake2b(name.encode(), digest_size=8, key=key).digest() for name in names.tolist()]
        return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)[index.ravel()]

    def value_hashes(self, x: np.ndarray) -> np.ndarray:
        """Hash each value of x (rows, columns) to 30 bits, (rows, columns) uint32: equal for equal values.

        Columns share a key, so that a renamed column is found. The hash is fast and keyed, but not cryptographic. It
        hides values from a glance; the secret is stored with it.
        """
        values = np.ascontiguousarray(x, np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        bits = values.view(np.uint64)
        for key in np.frombuffer(self._derive("values")[:16], "<u8"):
            bits = (bits ^ key) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            bits ^= bits >> np.uint64(31)
        return np.minimum(bits >> np.uint64(34), MOST_TOKEN).astype(np.uint32)

    def cell_hashes(self, hashes: np.ndarray) -> np.ndarray:
        """Return keyed hashes of the hashes of cells, (rows, columns) uint32 of 30 bits; an empty cell stays 0."""
        keyed = self.value_hashes(hashes)
        return np.where(hashes == 0, 0, np.maximum(keyed, 1)).astype(np.uint32)

    def _derive(self, *names: str) -> bytes:
        return hmac.new(self._key, json.dumps(names).encode(), hashlib.sha256).digest()


def cell_secret(root: Path) -> Secret:
    """Open the secret of a project's cells, and of the register of reported rows; it is created at the first use."""
    folder = Path(root) / "private" / REGISTER
    if not (folder / "secret").exists() and any(folder.parent.glob(f"[!.]*/{OPENED}/*")):
        raise UserError(
            f"{folder / 'secret'}, by which cells of rows are compared with those that were reported, is missing. Restore "
            "it from a copy. Without one, let the owner move private/ away, partition and start a new record."
        )
    return register_secret(folder)


def register_secret(folder: Path) -> Secret:
    """Open the secret of a register; see `cell_secret`."""
    if not (folder / "secret").exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        with in_turn(folder / "lock"):
            Secret.open(folder / "secret")
    return Secret.open(folder / "secret")


def _row_bytes(x: np.ndarray) -> Iterator[bytes]:
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK].astype(np.float64) + 0.0  # turns −0 into 0
        part[np.isnan(part)] = np.nan  # NaN has many bit patterns
        for row in part:
            yield row.tobytes()
