"""Reads and writes a run's folder: its fingerprint, journal, checkpoints and result."""

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import NamedTuple, Self

from flows.core.config.load_config import param_differences
from models.metrics.task_metrics import TaskMetrics, metric_value
from models.server_state import ServerState
from silos import param_limits
from silos.errors import UserError, shown
from silos.io.atomic_io import unfinished, write_bytes
from silos.param_types import plain
from tasks.tracking.checkpoint import NO_MEMORY, Checkpoint, Journal, Memory, load_state, save_state, state_bytes
from tasks.tracking.json_io import RESTORE_ADVICE, read_json, write_json
from tasks.tracking.result_types.journal_record import RoundRecord, RoundSummary
from tasks.tracking.result_types.run_files import Fingerprint, Noted, RunIdentity
from tasks.tracking.result_types.run_result import RunResult


def run_name(method: str, seed: int, cell: str = "") -> str:
    """Return the name of a run's folder in its experiment; `cell` distinguishes a sweep's runs of one method and seed.

    Raises:
        UserError: If `method` or `cell` is not a plain name, or `seed` is not a seed.
    """
    if not isinstance(seed, int) or not 0 <= seed <= param_limits.SEED:  # parameters of a flow run may be anything
        raise UserError(
            f"seed: got {shown(seed)}, expected a whole number from 0 to {param_limits.SEED}. Choose another seed."
        )
    return "-".join([*([plain(cell, "cell")] if cell else []), plain(method, "method"), f"seed{seed}"])


_RUN_FILES = {
    "checkpoint.safetensors",
    "clients.csv",
    "delivered.json",
    "journal",
    "on_end.json",
    "outcomes.json",
    "result.json",
    "run.json",
    "scaling.json",
    "validation.json",
}


SameRows = Callable[[str, str], bool]

NO_RANK = (-math.inf, -math.inf)
"""The rank of a round without a finite score on validation rows."""

Files = Sequence[tuple[Path, bytes]]
"""Paths and contents, in the order of writing."""


class RetainedRefs(NamedTuple):
    """References of a round to files that earlier rounds wrote.

    private: hashes by section; best: the number of the best round so far, 0 if the state of the best round is not
    saved.
    """

    private: Mapping[str, Collection[str]]
    best: int = 0

    @classmethod
    def of(cls, state: ServerState, best: int = 0) -> Self:
        """Copy the references of the current state, since a method may change the state in place."""
        return cls({section: frozenset(refs.values()) for section, refs in state.private.items()}, best)


@dataclass(frozen=True)
class RunFolder:
    """Gives the paths of a run's files, and writes them in order."""

    path: Path

    @property
    def name(self) -> str:
        """Return the folder's name, which users see."""
        return self.path.name

    @property
    def checkpoint(self) -> Path:
        """Return the path of the state after the last complete round."""
        return self.path / "checkpoint.safetensors"

    @property
    def result(self) -> Path:
        """Return the path of the finished run's JSON."""
        return self.path / "result.json"

    @property
    def on_end(self) -> Path:
        """Return the path of the mark that `on_end` of all user callbacks was called, with the last round."""
        return self.path / "on_end.json"

    @property
    def outcomes(self) -> Path:
        """Return the path of the hashes of each client's outcomes on test rows."""
        return self.path / "outcomes.json"

    @property
    def validation(self) -> Path:
        """Return the path of the score on validation rows at the last pause, and of the hashes of clients' outcomes."""
        return self.path / "validation.json"

    @property
    def scaling(self) -> Path:
        """Return the path of the agreed mean and scale; no such file exists if rows are not standardised."""
        return self.path / "scaling.json"

    @staticmethod
    def is_own(name: str) -> bool:
        """Return whether the run itself writes a file or folder of this name."""
        return name in _RUN_FILES or name.startswith(("best-", "."))

    def finished(self) -> RunResult | None:
        """Read the finished run's JSON; None if it is not finished. UserError if it is damaged."""
        hint = "Delete it, and run the same command with --resume to write it again"
        result: RunResult | None = read_json(self.result, hint, ("rounds", "mlflow_run_id"))
        return result

    def outcome_hashes(self) -> dict[str, str]:
        """Map each client to the hash of its stored outcomes; UserError if the file is missing or damaged."""
        hint = f"Delete {self.result}, and run the same command with --resume to write both again"
        hashes: dict[str, str] | None = read_json(self.outcomes, hint)
        if hashes is None:
            raise UserError(f"{self.outcomes} is missing. {hint}.")
        return hashes

    @property
    def journal(self) -> Journal:
        """Return the journal: one record for each round."""
        return Journal(self.path / "journal")

    def identify(
        self, fingerprint: Fingerprint, resume: bool, same_rows: SameRows = eq, noted: Noted | None = None
    ) -> RunIdentity:
        """Write run.json before any other file, and return its content.

        Unfinished files that a killed process left of the run's own are deleted: only the caller writes them. A model
        that is being exported into the folder stays.

        Args:
            fingerprint: Of the run, as `fingerprint_of` returns it.
            resume: Whether the run may exist already.
            same_rows: Whether two data versions are the same to this run.
            noted: Further content of run.json, which may differ when the run is resumed.

        Raises:
            UserError: If the run to resume was started with another fingerprint.
        """
        unfinished_files = [path for path, name in unfinished(self.path).items() if self.is_own(name)]
        for path in (*unfinished_files, *unfinished(self.journal.folder)):
            path.unlink(missing_ok=True)  # a failed run's thread may still write MLflow's mark
        saved = self.check(fingerprint, same_rows) if resume else None
        begun: RunIdentity = saved or {**fingerprint, "tag": secrets.token_hex(8)}
        identity: RunIdentity = {**begun, **(noted or Noted())}
        if identity != saved:
            write_json(self.path / "run.json", identity)
        return identity

    def check(self, fingerprint: Fingerprint, same_rows: SameRows = eq) -> RunIdentity | None:
        """Return the saved run.json, None if the run was not started.

        Args:
            fingerprint: Of the run, as `fingerprint_of` returns it.
            same_rows: Whether two data versions are the same to this run.

        Raises:
            UserError: If the run was started with other settings.
        """
        saved: RunIdentity | None = read_json(self.path / "run.json", RESTORE_ADVICE, ("tag", *fingerprint))
        if saved is None:
            return None
        if "data_version" in fingerprint and same_rows(saved["data_version"], fingerprint["data_version"]):
            fingerprint = {**fingerprint, "data_version": saved["data_version"]}
        before = dict(saved)
        changed = param_differences({key: before[key] for key in fingerprint}, fingerprint)
        if changed:
            raise UserError(
                f"{self.name}: got other settings than at its start ({'; '.join(changed[:3])}), expected the "
                "same. Restore them, or start again without --resume."
            )
        return saved

    def files(self, record: RoundRecord, state: ServerState, memory: Memory = NO_MEMORY) -> Files:
        """Serialise a round: journal record, then checkpoint. `memory` is the state of the sampler of clients."""
        checkpoint = state_bytes(state, record["round"], memory)
        return [self.journal.file(record), (self.checkpoint, checkpoint)]

    def commit(self, files: Files) -> None:
        """Write the files in order; the round counts when the last one is on disk."""
        for path, content in files:
            write_bytes(path, content)

    def save_best(self, state: ServerState, round_number: int) -> None:
        """Save the state of the best round so far, before that round counts."""
        save_state(self._best(round_number), state, round_number)

    def load_best(self, last: int, quantity: TaskMetrics) -> Checkpoint | None:
        """Load the state and number of the best round up to `last`; None if there is none, or no file."""
        return load_state(self._best(self.best_round(last, quantity)[1]))

    def require_best(self, last: int, quantity: TaskMetrics) -> Checkpoint | None:
        """Load the best round like `load_best`; raises a UserError if its file is missing."""
        round_number = self.best_round(last, quantity)[1]
        best = load_state(self._best(round_number)) if round_number else None
        if round_number and best is None:
            raise UserError(f"{self._best(round_number)} is missing. {RESTORE_ADVICE}.")
        return best

    def best_round(self, last: int, quantity: TaskMetrics) -> tuple[tuple[float, float], int]:
        """Return the highest rank on validation rows up to round `last`, and its round.

        The first of equally good rounds is returned, and round 0 if none has a rank.
        """
        scored = [(quantity.rank(r["metrics"], "validation/"), r["round"]) for r in self.journal.each(last)]
        ranks = [(rank, round_number) for rank, round_number in scored if rank > NO_RANK]
        return max(ranks, key=lambda pair: (pair[0], -pair[1]), default=(NO_RANK, 0))

    def curve(self, metric: str, last: int) -> list[tuple[int, float]]:
        """List (round, value) for the rounds up to `last` that have the metric."""
        points = [(r["round"], metric_value(r["metrics"], metric)) for r in self.journal.each(last)]
        return [(round_number, value) for round_number, value in points if value is not None]

    def rounds(self, last: int) -> list[RoundSummary]:
        """List the records of rounds 1 to `last` without clients, and with the number of dropped-out clients."""
        return [
            {
                "round": r["round"],
                "time_ms": r["time_ms"],
                "metrics": r["metrics"],
                "seconds": r["seconds"],
                "dropped": len(r["dropped"]),
            }
            for r in self.journal.each(last)
        ]

    def delete_unused(self, delete: Callable[[str, Collection[str]], None], keep: Sequence[RetainedRefs]) -> None:
        """Delete superseded best states, and private client state that none of `keep` needs.

        `delete` lets clients delete their state of a section but that of some references.
        """
        best_rounds = {refs.best for refs in keep}
        for path in self.path.glob("best-*.safetensors"):
            if path not in map(self._best, best_rounds):
                path.unlink()
        sections = {section for refs in keep for section in refs.private}
        if not sections:
            return
        best_refs = [
            RetainedRefs.of(checkpoint.state)
            for checkpoint in (load_state(self._best(n)) for n in best_rounds if n)
            if checkpoint
        ]
        for section in sections:
            delete(section, {ref for refs in (*keep, *best_refs) for ref in refs.private.get(section, ())})

    def private_sections(self) -> set[str]:
        """Return the sections of private state that the last state refers to; empty without one."""
        last = load_state(self.checkpoint)
        return set() if last is None else {*last.state.private}

    def _best(self, round_number: int) -> Path:
        return self.path / f"best-{round_number:06d}.safetensors"
