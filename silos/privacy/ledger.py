"""A client's ledger: all that it has reported of its rows, the privacy cost, and the secret that seals it.

The secret is 32 random bytes, from which the client's noise, the hashes of its rows and the seal of the ledger follow.
"""

import hashlib
import hmac
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from silos.errors import UserError
from silos.io.atomic_io import sync_folder, unfinished, write_bytes, writing
from silos.io.locks import in_turn
from silos.privacy.differencing import LEAST_ROWS, ReportedGroups, check, packed, smallest_difference, unpacked
from silos.privacy.privacy_budget import RHO, Kind, Unit, check_budget, difference_refusal, repetition_refusal

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
                f"{path}, a client's secret, has {len(key)} bytes instead of {_BYTES}; bring back its folder from a copy. "
                "Nothing is told until then."
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

    def _derive(self, *names: str) -> bytes:
        return hmac.new(self._key, json.dumps(names).encode(), hashlib.sha256).digest()


def _row_bytes(x: np.ndarray) -> Iterator[bytes]:
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK].astype(np.float64) + 0.0  # turns −0 into 0
        part[np.isnan(part)] = np.nan  # NaN has many bit patterns
        for row in part:
            yield row.tobytes()


Draw = Callable[[str], np.random.Generator]
"""Returns the generator of a part's noise, once for each part."""

Answer = dict[str, np.ndarray]

_COUNTS = Kind()
_WAY_OUT = "bring back its folder from a copy; nothing is told until then."


@dataclass(frozen=True)
class Entry:
    """One report: the query, the version of the rows, its cost ρ (0: no noise), its bytes, and its time (UTC).

    `earlier` is the version that prevented a report of this one. Then `answer` is the report of the earlier version, or
    empty if that version was reported for another query.
    """

    version: str
    question: str
    rho: float
    bytes: int
    when: str
    answer: str  # hash of the file with the report
    rows: str  # hash of the file with the keyed hashes of the reported rows; empty under noise
    earlier: str = ""


@dataclass(frozen=True)
class StandInAnswer:
    """An answer, or the report of an `earlier` version that prevented it, or None; `earlier` is empty for an answer."""

    answer: Answer | None
    earlier: str


@dataclass(frozen=True)
class Ledger:
    """One client's ledger, in a folder under `folder`, where clients keep private data of all runs.

    The client must guard it: without its file, the full budget is available again, and reports without noise are
    forgotten. An older copy forgets later reports. The secret lies in the same folder. A damaged file, or a secret that
    does not fit the ledger, raises a UserError, and nothing is reported until it is restored. A client that is killed
    at any moment has reported nothing, or returns the same answer when queried again. Processes that query the same
    client take turns.
    """

    folder: str
    client: str

    def answer(
        self,
        version: str,
        question: str,
        compute: Callable[[Draw], Mapping[str, np.ndarray]],
        rho: float = 0.0,
        budget: float | None = None,
        groups: ReportedGroups | None = None,
        kind: Kind = _COUNTS,
        unit: Unit = RHO,
    ) -> Answer:
        """Return what `compute` returns, if it may be reported; a repeated query returns the recorded bits.

        Args:
            version: The version of the rows.
            question: All else that the answer depends on: features, bounds, bins, parts, and how ρ is split. At another
                `rho` it is another query, with noise of its own: one noise at two scales would reveal the truth.
            compute: Computes the answer; it gets the noise of each part from its argument, by name, once.
            rho: The cost, 0 without noise. Costs add up over versions, since the same people are in them. The sum
                bounds what noisy answers reveal; answers without noise have no such bound.
            budget: The maximal sum of costs; None for no limit.
            groups: The hashes of the reported rows (`row_hashes`), required without noise.
            kind: The kind of the query; some kinds are answered once for a version.
            unit: The unit of amounts in errors.

        Raises:
            RefusalError: If the budget is exceeded; if, without noise, the difference to an earlier report would be a
                sum over fewer than LEAST_ROWS different rows (which reveals that few changed); or if `kind` is answered
                once for a version, and another query of it was answered.
            ValueError: If `rho` is negative or infinite, `compute` uses noise incorrectly, or, without noise, `groups`
                are missing, overlap or have fewer than LEAST_ROWS rows.
        """
        rho, question = float(rho), kind.qualified(question)
        if not 0 <= rho < math.inf:
            raise ValueError(f"rho is {rho}, and must be a number from 0 on")
        with self._lock():
            secret, entries = self._open()
            for each in entries:
                if (each.version, each.question, each.rho) == (version, question, rho):
                    return self._load(each.answer)
            if kind.once and any(each.version == version and kind.includes(each.question) for each in entries):
                raise repetition_refusal(self.client, version, kind)
            if rho and budget is not None:
                check_budget(self.client, budget, math.fsum(each.rho for each in entries), rho, unit)
            if not rho:
                check(groups or {})
                nearby = next(iter(self._nearby(entries, groups or {})), None)
                if nearby is not None:
                    raise difference_refusal(self.client, nearby.version, version, kind)
            report = _compute_report(compute, secret, (version, question, rho.hex()))
            digest = self._save(report)
            rows = "" if rho else self._save(packed(groups or {}))
            size = sum(array.nbytes for array in report.values())
            new = Entry(version, question, rho, size, _now(), digest, rows)
            self._write(secret, [*entries, new])
            return self._load(digest)

    def recorded_stand_in(self, version: str, question: str, kind: Kind) -> StandInAnswer | None:
        """Return what `answer_or_stand_in` recorded for this version; None if the query was not made before.

        It takes no lock and creates no ledger: a ledger is replaced as a whole, and the files that it names remain.
        """
        return self._find_stand_in(self._open()[1], version, kind.qualified(question)) if self._file.exists() else None

    def answer_or_stand_in(
        self,
        version: str,
        question: str,
        compute: Callable[[], Mapping[str, np.ndarray]],
        groups: ReportedGroups,
        kind: Kind,
    ) -> StandInAnswer:
        """Answer without noise as `answer` does; if that would be refused, report nothing new.

        Then the result is the recorded answer to this query for the version whose rows differ by fewer than LEAST_ROWS.
        It is None if that version's report answers another query. The choice is recorded, so later queries of this
        version get the same result, whatever is reported meanwhile.
        """
        question = kind.qualified(question)
        with self._lock():
            secret, entries = self._open()
            recorded = self._find_stand_in(entries, version, question)
            if recorded:
                return recorded
            check(groups)
            nearby = self._nearby(entries, groups)
            same = [entry for entry in nearby if entry.question == question]
            if same:
                digest, rows, earlier = same[-1].answer, same[-1].rows, same[-1].earlier or same[-1].version
            elif nearby:
                digest, rows, earlier = "", "", nearby[0].version
            else:
                digest, rows, earlier = self._save(dict(compute())), self._save(packed(groups)), ""
            loaded = self._load(digest) if digest else None
            size = sum(array.nbytes for array in (loaded or {}).values())
            self._write(secret, [*entries, Entry(version, question, 0.0, size, _now(), digest, rows, earlier)])
            return StandInAnswer(loaded, earlier)

    def entries(self) -> list[Entry]:
        """Return all reports, in order."""
        with self._lock():
            return self._open()[1]

    def row_hashes(self, x: np.ndarray, label: str) -> np.ndarray:
        """Return the hashes that the ledger records for a class's rows x (rows, ...): (rows,) uint64.

        They are meaningless without the secret. A class keeps its label in all versions, also while it is pooled.
        """
        with self._lock():
            return self._open()[0].row_hashes(x, label)

    @cached_property
    def _home(self) -> Path:
        # names of runs and data sets start with no dot, so that cleaning up after runs skips this folder
        readable = re.sub(r"[^A-Za-z0-9_-]+", "-", self.client)[:60]
        return Path(self.folder) / ".ledgers" / f"{readable}-{hashlib.sha256(self.client.encode()).hexdigest()[:16]}"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._home.mkdir(parents=True, exist_ok=True)
        self._home.chmod(0o700)
        with in_turn(self._home / "lock"):
            yield

    @property
    def _file(self) -> Path:
        return self._home / "ledger.json"

    def _open(self) -> tuple[Secret, list[Entry]]:
        """Return the secret, created at the client's first query, and the entries."""
        path = self._home / "secret"
        if self._file.exists() and not path.exists():
            raise UserError(f"{path}, the secret of client {self.client}, is missing; {_WAY_OUT}")
        secret = Secret.open(path)
        if not self._file.exists():
            return secret, []
        seal, _, content = self._file.read_bytes().partition(b"\n")
        if seal != secret.seal(content).encode():
            raise UserError(
                f"{self._file}, what client {self.client} remembers of what it told, is damaged, or the secret beside it is "
                f"another; {_WAY_OUT}"
            )
        return secret, [Entry(**entry) for entry in json.loads(content)]

    def _find_stand_in(self, entries: list[Entry], version: str, question: str) -> StandInAnswer | None:
        for entry in entries:
            if (entry.version, entry.question, entry.rho) == (version, question, 0.0):
                return StandInAnswer(self._load(entry.answer) if entry.answer else None, entry.earlier)
        return None

    def _write(self, secret: Secret, entries: list[Entry]) -> None:
        sync_folder(self._home)  # secret, answer and rows must survive a power cut before the ledger names them
        content = json.dumps([asdict(entry) for entry in entries], indent=1).encode()
        write_bytes(self._file, secret.seal(content).encode() + b"\n" + content)
        for temporary in unfinished(self._home):  # of a killed process, since this one has the lock
            temporary.unlink()

    def _nearby(self, entries: list[Entry], groups: ReportedGroups) -> list[Entry]:
        """Return the entries without noise whose rows differ from `groups` by fewer than LEAST_ROWS, but by some."""
        rows = {entry.rows for entry in entries if entry.rows}
        nearby = {
            digest for digest in rows if 0 < smallest_difference(unpacked(self._load(digest)), groups) < LEAST_ROWS
        }
        return [entry for entry in entries if entry.rows in nearby]

    def _save(self, arrays: Mapping[str, np.ndarray]) -> str:
        from safetensors.numpy import save

        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        digest = hashlib.sha256(data).hexdigest()
        write_bytes(self._home / f"{digest}.safetensors", data, folder_too=False)
        return digest

    def _load(self, digest: str) -> Answer:
        from safetensors.numpy import load

        path = self._home / f"{digest}.safetensors"
        description = f"{path}, a part of what client {self.client} told,"
        if not path.exists():
            raise UserError(f"{description} is missing; {_WAY_OUT}")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise UserError(f"{description} is damaged; {_WAY_OUT}")
        return load(data)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _compute_report(
    compute: Callable[[Draw], Mapping[str, np.ndarray]], secret: Secret, names: tuple[str, str, str]
) -> Mapping[str, np.ndarray]:
    """Compute the report; ValueError if a part draws its noise twice, or draws none although noise is paid for."""
    drawn: set[str] = set()

    def draw(part: str) -> np.random.Generator:
        if part in drawn:
            raise ValueError(f"the noise of {part} is asked for twice: the difference of what it hides would show")
        drawn.add(part)
        return secret.generator(*names, part)

    report = compute(draw)
    without_noise = sorted(report.keys() - drawn)
    if without_noise and float.fromhex(names[2]):
        raise ValueError(f"the answer costs budget, and asked for no noise for {', '.join(without_noise)}")
    return report
