"""A run's folder: who the run is, its journal and checkpoints, its result."""

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple, Self

from flows.config.load_config import param_differences
from models.metrics.task_metrics import TaskMetrics
from models.server_state import ServerState
from silos import param_types
from silos.client_store import ClientStore
from silos.errors import UserError, shown
from silos.io.atomic_io import unfinished, write_bytes
from silos.param_types import plain
from tasks.tracking.checkpoint import NO_MEMORY, Checkpoint, Journal, load_state, save_state, state_bytes
from tasks.tracking.json_io import RESTORE_ADVICE, read_json, write_json


def run_name(method: str, seed: int, cell: str = "") -> str:
    """The folder of a run inside its experiment; `cell` tells runs of one method and seed apart in a sweep.

    UserError if one of them is not a plain name, or no seed.
    """
    if not isinstance(seed, int) or not 0 <= seed <= param_types.SEED:  # parameters of a flow run may be anything
        raise UserError(f"a seed is {shown(seed)}; it is a whole number from 0 to {param_types.SEED}.")
    return "-".join([*([plain(cell, "the cell")] if cell else []), plain(method, "the method"), f"seed{seed}"])


_OWN = {
    "checkpoint.safetensors",
    "clients.csv",
    "delivered.json",
    "journal",
    "on_end.json",
    "outcomes.json",
    "result.json",
    "run.json",
    "scaling.json",
}


SameRows = Callable[[str, str], bool]

NO_RANK = (-math.inf, -math.inf)
"""Of a round without a finite score on validation rows."""

Files = Sequence[tuple[Path, bytes]]
"""What is written, in this order."""


class RetainedRefs(NamedTuple):
    """What a round needs of the files that rounds before it left.

    private: references by section; best: the number of the best round so far, 0 if no state of one is kept.
    """

    private: Mapping[str, Collection[str]]
    best: int = 0

    @classmethod
    def of(cls, state: ServerState, best: int = 0) -> Self:
        """As the state is now: a method may change it in place."""
        return cls({section: frozenset(refs.values()) for section, refs in state.private.items()}, best)


@dataclass(frozen=True)
class RunFolder:
    """Paths, and the order in which they are written."""

    path: Path

    @property
    def name(self) -> str:
        """As a person sees it."""
        return self.path.name

    @property
    def checkpoint(self) -> Path:
        """The state after the last whole round."""
        return self.path / "checkpoint.safetensors"

    @property
    def result(self) -> Path:
        """The finished run's JSON."""
        return self.path / "result.json"

    @property
    def on_end(self) -> Path:
        """The last round when `on_end` of all of the user's callbacks was called; not there before."""
        return self.path / "on_end.json"

    @property
    def outcomes(self) -> Path:
        """Hashes of what each client keeps of its test rows."""
        return self.path / "outcomes.json"

    @property
    def scaling(self) -> Path:
        """The mean and scale that the run's clients agreed on; not there where rows are taken as they are."""
        return self.path / "scaling.json"

    @staticmethod
    def is_own(name: str) -> bool:
        """Whether the run itself writes a file, or a folder, of this name there."""
        return name in _OWN or name.startswith(("best-", "."))

    def finished(self) -> dict[str, Any] | None:
        """The finished run's JSON, None if it is not finished; UserError if it is damaged."""
        way_out = "delete it, and the same command with --resume writes it again"
        result: dict[str, Any] | None = read_json(self.result, way_out, ("rounds", "mlflow_run_id"))
        return result

    def kept(self) -> dict[str, str]:
        """client to hash of the outcomes that it keeps; UserError if the file is not there whole."""
        way_out = f"delete {self.result}, and the same command with --resume writes both again"
        hashes: dict[str, str] | None = read_json(self.outcomes, way_out)
        if hashes is None:
            raise UserError(f"{self.outcomes} is missing; {way_out}.")
        return hashes

    @property
    def journal(self) -> Journal:
        """One record a round."""
        return Journal(self.path / "journal")

    def identify(
        self, asked: dict[str, Any], resume: bool, same_rows: SameRows = eq, noted: Mapping[str, Any] = NO_MEMORY
    ) -> dict[str, Any]:
        """Write run.json before any other file, and return its content.

        Of the run's own files, those that a killed process had begun to write are deleted: only the caller writes them. A
        model that is being exported into the folder stays.

        Args:
            asked: The fingerprint of the run.
            resume: Whether the run may be there already.
            same_rows: Whether two data versions are the same to this run.
            noted: What run.json also holds, and what may be another when the run is resumed.

        Raises:
            UserError: If the run to resume was started with another fingerprint.
        """
        own = [path for path, name in unfinished(self.path).items() if self.is_own(name)]
        for left in (*own, *unfinished(self.journal.folder)):
            left.unlink(missing_ok=True)  # MLflow's mark may be written by the thread of a run that has failed
        known = self.check(asked, same_rows) if resume else None
        identity = {**(known or {**asked, "tag": secrets.token_hex(8)}), **noted}
        if identity != known:
            write_json(self.path / "run.json", identity)
        return identity

    def check(self, asked: dict[str, Any], same_rows: SameRows = eq) -> dict[str, Any] | None:
        """Who this run is, None if it was not started; UserError if it was started with other settings.

        `same_rows` says whether two data versions are the same to this run.
        """
        known: dict[str, Any] | None = read_json(self.path / "run.json", RESTORE_ADVICE, ("tag", *asked))
        version = "data_version"
        if known and version in asked and same_rows(known[version], asked[version]):
            asked = {**asked, version: known[version]}
        changed = param_differences({k: known[k] for k in asked}, asked) if known else []
        if changed:
            raise UserError(
                f"{self.name} was started with other settings ({'; '.join(changed[:3])}); "
                "put them back, or start anew without --resume."
            )
        return known

    def files(self, record: dict[str, Any], state: ServerState, memory: Mapping[str, Any] = NO_MEMORY) -> Files:
        """What a round leaves: journal, then checkpoint. `memory`: what the sampler of clients remembers."""
        checkpoint = state_bytes(state, record["round"], memory)
        return [self.journal.file(record), (self.checkpoint, checkpoint)]

    def commit(self, files: Files) -> None:
        """Writes them in their order; when the last is there the round counts."""
        for path, content in files:
            write_bytes(path, content)

    def save_best(self, state: ServerState, number: int) -> None:
        """The state of the best round so far, before that round counts."""
        save_state(self._best(number), state, number)

    def load_best(self, last: int, quantity: TaskMetrics) -> Checkpoint | None:
        """The state of the best of the rounds up to `last`, and its number."""
        return load_state(self._best(self.best_round(last, quantity)[1]))

    def the_best(self, last: int, quantity: TaskMetrics) -> Checkpoint | None:
        """The same, None only where no round was the best; UserError if the file is not there."""
        number = self.best_round(last, quantity)[1]
        best = load_state(self._best(number)) if number else None
        if number and best is None:
            raise UserError(f"{self._best(number)} is missing; {RESTORE_ADVICE}.")
        return best

    def best_round(self, last: int, quantity: TaskMetrics) -> tuple[tuple[float, float], int]:
        """Return the best rank on validation rows up to round `last` and its number, the first of equals; 0 if none."""
        scored = [(quantity.rank(r["metrics"], "validation/"), r["round"]) for r in self.journal.each(last)]
        ranks = [(rank, number) for rank, number in scored if rank > NO_RANK]
        return max(ranks, key=lambda pair: (pair[0], -pair[1]), default=(NO_RANK, 0))

    def curve(self, metric: str, last: int) -> list[tuple[int, float]]:
        """(round, value) of the rounds up to `last` that have the metric."""
        points = [(r["round"], r["metrics"].get(metric)) for r in self.journal.each(last)]
        return [(number, value) for number, value in points if value is not None]

    def rounds(self, last: int) -> list[dict[str, Any]]:
        """What the journal has of rounds 1 to `last` as wholes: without clients, those that dropped out counted."""
        return [
            {**{key: r[key] for key in ("round", "time_ms", "metrics", "seconds")}, "dropped": len(r["dropped"])}
            for r in self.journal.each(last)
        ]

    def forget(self, private: ClientStore, keep: Sequence[RetainedRefs]) -> None:
        """Deletes best states that were beaten, and private state, of which none of these has need any more."""
        numbers = {each.best for each in keep}
        for old in self.path.glob("best-*.safetensors"):
            if old not in map(self._best, numbers):
                old.unlink()
        sections = {section for each in keep for section in each.private}
        if not sections:
            return
        bests = [RetainedRefs.of(found.state) for found in (load_state(self._best(n)) for n in numbers if n) if found]
        for section in sections:
            private.keep(section, {ref for each in (*keep, *bests) for ref in each.private.get(section, ())})

    def _best(self, number: int) -> Path:
        return self.path / f"best-{number:06d}.safetensors"
