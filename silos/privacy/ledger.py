"""A client's ledger: all that it has reported of its rows, and the privacy cost, in a log that the client's secret seals."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from silos.errors import RefusalError, UserError
from silos.io.atomic_io import sync_folder, unfinished, write_bytes
from silos.io.locks import in_turn
from silos.privacy.differencing import Values, other_bins, renamed_as, smallest_change, smallest_difference
from silos.privacy.owner_file import DEFAULT, OPENED, Policy, folder_name, policy_file, policy_of
from silos.privacy.report_rules import (
    RHO,
    Kind,
    Unit,
    bins_refusal,
    check_budget,
    difference_refusal,
    noise_refusal,
    repetition_refusal,
    spent,
)
from silos.privacy.reported_rows import RowRegister
from silos.privacy.request_log import now, user
from silos.privacy.sealed_log import WAY_OUT, SealedLog
from silos.privacy.secret import Secret

Draw = Callable[[str], np.random.Generator]
"""Returns the generator of a part's noise, once for each part."""

Answer = dict[str, np.ndarray]

_COUNTS = Kind()


@dataclass(frozen=True)
class Entry:
    """One report: the query, the version of the rows, its cost ρ (0: no noise), its bytes, and its time (UTC).

    `earlier` is the version that prevented a report of this one. Then `answer` is the report of the earlier version, or
    empty if that version was reported for another query. `by` is the user of the process that
    asked, a worker's if it ran there.
    """

    version: str
    question: str
    rho: float
    bytes: int
    when: str
    answer: str  # hash of the file with the report
    rows: str  # hash of the file with the keyed hashes of the reported rows; empty under noise
    earlier: str = ""
    by: str = ""


@dataclass(frozen=True)
class StandInAnswer:
    """An answer, or the report of an `earlier` version that prevented it, or None; `earlier` is empty for an answer."""

    answer: Answer | None
    earlier: str


@dataclass(frozen=True)
class Ledger:
    """One client's ledger, in a folder under `folder`, where clients keep private data of all runs.

    The client must guard it: an older copy forgets later reports. The secret lies in the same folder. A damaged or
    missing file, or a secret that does not fit the ledger, raises a UserError, and nothing is reported until it is
    restored. A client that is killed at any moment has reported nothing, or returns the same answer when queried again.
    Processes that query the same client take turns. `policy` says what the client's owner allows.
    """

    folder: str
    client: str
    policy: Policy = DEFAULT
    rows: RowRegister | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, folder: str, client: str, rows: RowRegister | None = None) -> Self:
        """Return the ledger of a client in a store, with the policy there; errors as of `policy_of`.

        rows: the client's rows, which no other silo may have reported.
        """
        return cls(folder, client, policy_of(Path(folder), client), rows)

    def answer(
        self,
        version: str,
        question: str,
        compute: Callable[[Draw], Mapping[str, np.ndarray]],
        values: Values | None = None,
        rho: float = 0.0,
        budget: float | None = None,
        kind: Kind = _COUNTS,
        unit: Unit = RHO,
    ) -> Answer:
        """Return what `compute` returns, if it may be reported; a repeated query returns the recorded bits.

        Args:
            version: The version of the rows.
            question: All else that the answer depends on: features, bounds, bins, parts, and how ρ is split. At another
                `rho` it is another query, with noise of its own: one noise at two scales would reveal the truth.
            compute: Computes the answer; it gets the noise of each part from its argument, by name, once.
            values: The cells of the rows behind the answer, required without noise.
            rho: The cost, 0 without noise. Costs add up over versions, since the same people are in them. The sum
                bounds what noisy answers reveal; answers without noise have no such bound.
            budget: The maximal sum of costs; None for no limit.
            kind: The kind of the query; some kinds are answered once for a version.
            unit: The unit of amounts in errors.

        Raises:
            RefusalError: If the budget is exceeded. Without noise: if the policy allows no such report; if the
                difference to an earlier report would remove or add fewer rows, or cells of a column, than the policy's
                least (which reveals that few changed); if rows were counted in other bins before; or if `kind` is
                answered once for a version, and another query of it was answered. If another silo reported the rows.
            ValueError: If `rho` is negative or infinite, `compute` uses noise incorrectly, or, without noise, `values`
                are missing, or of a group with fewer rows than the policy's least.
        """
        # an earlier answer stands in only where the caller can say so: `answer_or_stand_in`
        answer = self._report(
            version, question, compute, values, rho, kind, or_earlier=False, budget=budget, unit=unit
        ).answer
        assert answer is not None, "only what stands in may be missing"
        return answer

    def answer_or_stand_in(
        self,
        version: str,
        question: str,
        compute: Callable[[Draw], Mapping[str, np.ndarray]],
        values: Values,
        kind: Kind,
    ) -> StandInAnswer:
        """Answer without noise as `answer` does; if that would be refused, report nothing new.

        Then the result is the recorded answer to this query for the earlier version that differs by too few rows. It is
        None if that version's report answers another query. The choice is recorded, so later queries of this version
        get the same result, whatever is reported meanwhile.
        """
        return self._report(version, question, compute, values, 0.0, kind, or_earlier=True)

    def recorded(
        self, version: str, question: str, rho: float = 0.0, kind: Kind = _COUNTS, or_earlier: bool = False
    ) -> StandInAnswer | None:
        """Return what was recorded for a query, of an earlier version only if `or_earlier`; None if it was not made before.

        It takes no lock and creates no ledger: a line is complete or ignored, and the files that it names remain.
        """
        self._check_noise(rho)
        entries = self._open()[1] if self._file.exists() else []
        return self._find(entries, version, kind.qualified(question), float(rho), or_earlier)

    def _report(
        self,
        version: str,
        question: str,
        compute: Callable[[Draw], Mapping[str, np.ndarray]],
        values: Values | None,
        rho: float,
        kind: Kind,
        or_earlier: bool,
        budget: float | None = None,
        unit: Unit = RHO,
    ) -> StandInAnswer:
        """Answer as `answer` does or, with `or_earlier`, as `answer_or_stand_in`."""
        rho, question = float(rho), kind.qualified(question)
        if not 0 <= rho < math.inf:
            raise ValueError(f"rho: got {rho}, expected a finite number of at least 0")
        self._check_noise(rho)
        with self._lock():
            log, entries = self._open()
            # before any check, so that a repeated query costs nothing and gets the recorded bits
            recorded = self._find(entries, version, question, rho, or_earlier)
            if recorded:
                return recorded
            if kind.once and any(each.version == version and kind.includes(each.question) for each in entries):
                raise repetition_refusal(self.client, kind)
            if self.rows is not None:
                self.rows.check()
            if rho and budget is not None:
                check_budget(self.client, budget, spent(entries), rho, unit)
            nearby = [] if rho else self._nearby(entries, values, kind)
            if nearby and not or_earlier:
                raise difference_refusal(self.client, nearby[0].version, version, kind, self.policy.least_rows)
            same = [entry for entry in nearby if entry.question == question]
            # the entry names the rows of the answer that stands in, since later reports are compared with what has left
            if same:
                digest, rows, earlier = same[-1].answer, same[-1].rows, same[-1].earlier or same[-1].version
            elif nearby:
                digest, rows, earlier = "", "", nearby[0].version
            else:
                # files first, the ledger that names them last: a client killed in between has reported nothing
                digest = self._save(_compute_report(compute, log.secret, (version, question, rho.hex())))
                rows, earlier = "" if rho or values is None else self._save(values.arrays()), ""
            if self.rows is not None and not earlier:
                self.rows.record(self.policy)
            answer = self._load(digest) if digest else None  # from disk, as every repetition reads it
            size = sum(array.nbytes for array in (answer or {}).values())
            self._write(log, report=asdict(Entry(version, question, rho, size, now(), digest, rows, earlier, user())))
            return StandInAnswer(answer, earlier)

    def entries(self) -> list[Entry]:
        """Return all reports, in order; a client without reports gets no ledger."""
        if not self._file.exists() and not self._mark.exists():
            return []
        with self._lock():
            return self._open()[1]

    def rows_of(self, entry: Entry) -> int | None:
        """Return how many rows are behind a report without noise; None if it names none."""
        return int(self._load(entry.rows)["sizes"][-1].sum()) if entry.rows else None

    def unit_hashes(self, units: np.ndarray) -> np.ndarray:
        """Return the hashes that the ledger records for the units of rows, by their names: (rows,) uint64."""
        with self._lock():
            return self._open()[0].secret.unit_hashes(units)

    @cached_property
    def _home(self) -> Path:
        # names of runs and data sets start with no dot, so that cleaning up after runs skips this folder
        return Path(self.folder) / ".ledgers" / folder_name(self.client)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self._home.mkdir(parents=True, exist_ok=True)
        self._home.chmod(0o700)
        with in_turn(self._home / "lock"):
            yield

    @property
    def _file(self) -> Path:
        return self._home / "ledger.log"

    @property
    def _mark(self) -> Path:
        """The file with the number of the ledger's lines, outside of its folder: it shows if they were deleted."""
        return Path(self.folder) / OPENED / self._home.name

    def is_missing(self) -> bool:
        """Return whether the ledger existed and was deleted."""
        return self._mark.exists() and not self._file.exists()

    def forget(self) -> None:
        """Allow a new ledger instead of a deleted one: the budget is then available again."""
        if self.is_missing():
            with self._lock():
                self._mark.unlink(missing_ok=True)

    def _open(self) -> tuple[SealedLog, list[Entry]]:
        """Return the log and the reports in it."""
        log = self._log()
        return log, [Entry(**record["report"]) for record in log.read() if "report" in record]

    def _log(self) -> SealedLog:
        """Return the log, with the secret that is made at the client's first query."""
        path = self._home / "secret"
        if self._file.exists() and not path.exists():
            raise UserError(f"{path}, the secret of client {self.client}, is missing. {WAY_OUT}")
        if self._mark.exists() and not self._file.exists():
            raise RefusalError(
                f"{self._file}, the record of what client {self.client} reported, is missing. Restore its folder from a "
                "copy, or let its owner start a new record: `siloflow data ledger --new`. Nothing is reported until then."
            )
        name = f"the record of what client {self.client} reported"
        return SealedLog(self._file, self._mark, Secret.open(path), name)

    def _find(
        self, entries: list[Entry], version: str, question: str, rho: float, or_earlier: bool
    ) -> StandInAnswer | None:
        for entry in entries:
            if (entry.version, entry.question, entry.rho) == (version, question, rho) and (
                or_earlier or not entry.earlier
            ):
                return StandInAnswer(self._load(entry.answer) if entry.answer else None, entry.earlier)
        return None

    def _write(self, log: SealedLog, **record: object) -> None:
        """Record what may name new files, under its kind; the caller has the lock."""
        sync_folder(self._home)  # secret, answer and rows must survive a power cut before the ledger names them
        log.append(record)
        for temporary in unfinished(self._home):  # of a killed process, since this one has the lock
            temporary.unlink()

    def _nearby(self, entries: list[Entry], values: Values | None, kind: Kind) -> list[Entry]:
        """Return the entries without noise that differ from a report by fewer rows or cells than the least, but by some.

        RefusalError if some of the values were counted in other bins.
        """
        if values is None:
            raise ValueError("an answer without noise must name the rows that it stands for")
        values.check(self.policy.least_rows)
        close, own = set[str](), _serialized(values.arrays())[0]
        for digest, question in {entry.rows: entry.question for entry in entries if entry.rows}.items():
            stored, is_part = self._load(digest), kind.is_part_of(question)
            if digest == own:  # the same rows
                continue
            before = Values.read(stored)
            after = values if is_part else renamed_as(before, values)
            bins = [] if is_part or self.policy.other_bins else other_bins(before, after)
            if bins:
                raise bins_refusal(self.client, bins)
            sizes = [smallest_difference(before, values)] if kind.sums_as(question) else []
            sizes += [] if is_part else [smallest_change(before, after)]
            if any(0 < size < self.policy.least_rows for size in sizes):
                close.add(digest)
        return [entry for entry in entries if entry.rows in close]

    def _check_noise(self, rho: float = 0.0) -> None:
        """Raise RefusalError for a query without noise if the policy allows none."""
        if not rho and not self.policy.without_noise:
            raise noise_refusal(self.client, policy_file(Path(self.folder)))

    def _save(self, arrays: Mapping[str, np.ndarray]) -> str:
        digest, data = _serialized(arrays)
        write_bytes(self._home / f"{digest}.safetensors", data, folder_too=False)
        return digest

    def _load(self, digest: str) -> Answer:
        from safetensors.numpy import load

        path = self._home / f"{digest}.safetensors"
        description = f"{path}, a part of what client {self.client} reported,"
        if not path.exists():
            raise UserError(f"{description} is missing. {WAY_OUT}")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise UserError(f"{description} is damaged. {WAY_OUT}")
        return load(data)


def _serialized(arrays: Mapping[str, np.ndarray]) -> tuple[str, bytes]:
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return hashlib.sha256(data).hexdigest(), data


def _compute_report(
    compute: Callable[[Draw], Mapping[str, np.ndarray]], secret: Secret, names: tuple[str, str, str]
) -> Mapping[str, np.ndarray]:
    """Compute the report; ValueError if a part draws its noise twice, or draws none although noise is paid for."""
    drawn: set[str] = set()

    def draw(part: str) -> np.random.Generator:
        if part in drawn:
            raise ValueError(
                f"noise of {part}: got a second draw, expected one, since equal noise cancels in a difference"
            )
        drawn.add(part)
        return secret.generator(*names, part)

    report = compute(draw)
    without_noise = sorted(report.keys() - drawn)
    if without_noise and float.fromhex(names[2]):
        raise ValueError(
            f"noise of {', '.join(without_noise)}: got none, expected a draw for each part that costs budget"
        )
    return report
