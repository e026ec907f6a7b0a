"""A client's ledger: what it has reported of its rows in all runs, the privacy cost, and the secret that seals it.

The secret is 32 random bytes. The client's noise, the marks of its rows and the seal of the ledger follow from it.
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
from silos.privacy.differencing import LEAST_ROWS, Told, check, packed, smallest_difference, unpacked
from silos.privacy.privacy_budget import RHO, Kind, Unit, asked_once, check_budget, too_near

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


Draw = Callable[[str], np.random.Generator]
"""The generator of a part's noise, which is given out once."""

Answer = dict[str, np.ndarray]

_COUNTS = Kind()
_WAY_OUT = "bring back its folder from a copy; nothing is told until then."


@dataclass(frozen=True)
class Entry:
    """One answer: what was asked of which version of the rows, the ρ it cost (0: no noise), its bytes, and when (UTC).

    `earlier` is the version that stood in the way, where this one's rows were not told: then the answer is what was told of
    that one, or empty where that was an answer to another question.
    """

    version: str
    question: str
    rho: float
    bytes: int
    when: str
    answer: str  # the file that holds it, by its hash
    rows: str  # that of the rows it stands for; empty under noise
    earlier: str = ""


@dataclass(frozen=True)
class Standing:
    """An answer that stands in for one that is refused, or is none; `earlier`: the version in the way, else empty."""

    answer: Answer | None
    earlier: str


@dataclass(frozen=True)
class Ledger:
    """One client's ledger, under `folder`, which is where clients keep what is private to them, whatever run it is.

    It is the client's to guard: without its file all budget is there again, and what was told without noise is forgotten; an
    older copy forgets what came after. The secret lies beside it. A file that is damaged, or a secret that is not the
    ledger's, is a UserError: nothing is told until it is brought back. Killed at any moment a client has told nothing, or
    gives the same answer when it is asked again. Processes that ask the same client take turns.
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
        told: Told | None = None,
        kind: Kind = _COUNTS,
        unit: Unit = RHO,
    ) -> Answer:
        """What `compute` answers, where that may be told; bit for bit what was told if it was asked before.

        `version` names the rows. `question` says all else that the answer depends on: features, bounds, bins, parts, and
        how ρ is split. At another `rho` it is another question, with noise of its own: one noise at two sizes would give the
        truth. `compute` gets the noise from its argument, by the name of each part, once.
        `rho` is what the answer costs, 0 without noise. It adds up over versions, as the same people are in them, to
        `budget` at most (None: any), or it is a UserError, which names amounts in `unit`. What is spent bounds what noisy
        answers tell; others have none.
        Without noise `told` must name the rows that the answer stands for (`row_hashes`). RefusalError where subtracting an
        earlier such answer would give a sum over fewer than LEAST_ROWS different rows; it tells that few have changed. Also
        where the `kind` of question is answered once of a version, and another such one was.
        """
        rho, question = float(rho), kind.named(question)
        if not 0 <= rho < math.inf:
            raise ValueError(f"rho is {rho}, and must be a number from 0 on")
        with self._turn():
            secret, entries = self._open()
            for entry in entries:
                if (entry.version, entry.question, entry.rho) == (version, question, rho):
                    return self._load(entry.answer)
            if kind.once and any(entry.version == version and kind.has(entry.question) for entry in entries):
                raise asked_once(self.client, version, kind)
            if rho and budget is not None:
                check_budget(self.client, budget, math.fsum(entry.rho for entry in entries), rho, unit)
            if not rho:
                self._differs(version, entries, told or {}, kind)
            sent = _computed(compute, secret, (version, question, rho.hex()))
            answer = self._save(sent)
            rows = "" if rho else self._save(packed(told or {}))
            size = sum(array.nbytes for array in sent.values())
            new = Entry(version, question, rho, size, _now(), answer, rows)
            self._write(secret, [*entries, new])
            return self._load(answer)

    def known(self, version: str, question: str, kind: Kind) -> Standing | None:
        """What `standing` answered of this version before; None where it was never asked.

        Nobody takes turns for it, and it makes no ledger: a ledger is replaced as a whole, and what it names stays.
        """
        return self._stands(self._open()[1], version, kind.named(question)) if self._book.exists() else None

    def standing(
        self, version: str, question: str, compute: Callable[[], Mapping[str, np.ndarray]], told: Told, kind: Kind
    ) -> Standing:
        """As `answer` without noise, and without a refusal: where one is in the way the client tells nothing new.

        Then it tells what it told to this question of the version whose rows differ by fewer than LEAST_ROWS; nothing where
        what is in the way answered another question. Which it is, is remembered: asked again about this version it is the
        same, whatever was told meanwhile.
        """
        question = kind.named(question)
        with self._turn():
            secret, entries = self._open()
            known = self._stands(entries, version, question)
            if known:
                return known
            check(told)
            near = self._near(entries, told)
            same = [entry for entry in near if entry.question == question]
            if same:
                answer, rows, earlier = same[-1].answer, same[-1].rows, same[-1].earlier or same[-1].version
            elif near:
                answer, rows, earlier = "", "", near[0].version
            else:
                answer, rows, earlier = self._save(dict(compute())), self._save(packed(told)), ""
            loaded = self._load(answer) if answer else None
            size = sum(array.nbytes for array in (loaded or {}).values())
            self._write(secret, [*entries, Entry(version, question, 0.0, size, _now(), answer, rows, earlier)])
            return Standing(loaded, earlier)

    def entries(self) -> list[Entry]:
        """All that was told, in its order."""
        with self._turn():
            return self._open()[1]

    def row_hashes(self, x: np.ndarray, label: str) -> np.ndarray:
        """What the ledger remembers of a class's rows x (rows, ...): (rows,) uint64, which mean nothing without the secret.

        A class keeps its name in all versions, also where it is pooled.
        """
        with self._turn():
            return self._open()[0].row_hashes(x, label)

    @cached_property
    def _place(self) -> Path:
        # no run and no data set is called with a dot before: nobody who cleans up after runs comes here
        readable = re.sub(r"[^A-Za-z0-9_-]+", "-", self.client)[:60]
        return Path(self.folder) / ".ledgers" / f"{readable}-{hashlib.sha256(self.client.encode()).hexdigest()[:16]}"

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self._place.mkdir(parents=True, exist_ok=True)
        self._place.chmod(0o700)
        with in_turn(self._place / "lock"):
            yield

    @property
    def _book(self) -> Path:
        return self._place / "ledger.json"

    def _open(self) -> tuple[Secret, list[Entry]]:
        """The secret, made if this is the client's first question, and what was told."""
        path = self._place / "secret"
        if self._book.exists() and not path.exists():
            raise UserError(f"{path}, the secret of client {self.client}, is missing; {_WAY_OUT}")
        secret = Secret.open(path)
        if not self._book.exists():
            return secret, []
        seal, _, content = self._book.read_bytes().partition(b"\n")
        if seal != secret.seal(content).encode():
            raise UserError(
                f"{self._book}, what client {self.client} remembers of what it told, is damaged, or the secret beside it is "
                f"another; {_WAY_OUT}"
            )
        return secret, [Entry(**entry) for entry in json.loads(content)]

    def _stands(self, entries: list[Entry], version: str, question: str) -> Standing | None:
        for entry in entries:
            if (entry.version, entry.question, entry.rho) == (version, question, 0.0):
                return Standing(self._load(entry.answer) if entry.answer else None, entry.earlier)
        return None

    def _write(self, secret: Secret, entries: list[Entry]) -> None:
        sync_folder(self._place)  # secret, answer and rows have their names before the ledger that needs them
        content = json.dumps([asdict(entry) for entry in entries], indent=1).encode()
        write_bytes(self._book, secret.seal(content).encode() + b"\n" + content)
        for left in unfinished(self._place):  # a killed process's: nobody else is here
            left.unlink()

    def _differs(self, version: str, entries: list[Entry], told: Told, kind: Kind) -> None:
        check(told)
        for entry in self._near(entries, told):
            raise too_near(self.client, entry.version, version, kind)

    def _near(self, entries: list[Entry], told: Told) -> list[Entry]:
        """Those without noise from whose answers one that stands for the rows of `told` differs by too few."""
        rows = {entry.rows for entry in entries if entry.rows}
        near = {of for of in rows if 0 < smallest_difference(unpacked(self._load(of)), told) < LEAST_ROWS}
        return [entry for entry in entries if entry.rows in near]

    def _save(self, arrays: Mapping[str, np.ndarray]) -> str:
        from safetensors.numpy import save

        data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
        digest = hashlib.sha256(data).hexdigest()
        write_bytes(self._place / f"{digest}.safetensors", data, folder_too=False)
        return digest

    def _load(self, digest: str) -> Answer:
        from safetensors.numpy import load

        path = self._place / f"{digest}.safetensors"
        what = f"{path}, a part of what client {self.client} told,"
        if not path.exists():
            raise UserError(f"{what} is missing; {_WAY_OUT}")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise UserError(f"{what} is damaged; {_WAY_OUT}")
        return load(data)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _computed(
    compute: Callable[[Draw], Mapping[str, np.ndarray]], secret: Secret, names: tuple[str, str, str]
) -> Mapping[str, np.ndarray]:
    """The answer; ValueError where a part's noise is asked for twice, or noise is paid for and a part has none."""
    given: set[str] = set()

    def draw(part: str) -> np.random.Generator:
        if part in given:
            raise ValueError(f"the noise of {part} is asked for twice: the difference of what it hides would show")
        given.add(part)
        return secret.generator(*names, part)

    answer = compute(draw)
    bare = sorted(answer.keys() - given)
    if bare and float.fromhex(names[2]):
        raise ValueError(f"the answer costs budget, and asked for no noise for {', '.join(bare)}")
    return answer
