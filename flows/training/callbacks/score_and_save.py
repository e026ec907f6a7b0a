"""Holds the callbacks that score rounds, end training early, and write rounds to disk.

Scoring keeps the best round. Saving writes journal and checkpoint, in a thread while the next round trains if writing
is slow, and deletes files that no later round needs.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from flows.core.console import progress
from flows.training.absent_places import named
from flows.training.callbacks.callback import Callback, PlayedRound, log_warnings
from flows.training.run_context import RunContext
from flows.training.run_records.round_record import is_scored, round_record, with_scores
from flows.training.run_records.run_folder import NO_RANK, Files, RetainedRefs, RunFolder
from models.server_state import ServerState
from silos.errors import ClientsAwayError
from tasks.execution.process_memory import collect_garbage, resident_bytes
from tasks.messages.score_messages import Scores
from tasks.tracking.checkpoint import Memory
from tasks.tracking.result_types.journal_record import RoundRecord
from tasks.tracking.result_types.run_result import Metrics


class StandardizerTraffic(Callback):
    """Count the bytes of fitting the standardizer in the traffic of the first round."""

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        if run.number == 1:
            run.clients.agreement.count(played.round.tally)


@dataclass
class Evaluation(Callback):
    """Fill the record of every round, and score every `every`-th round and the last one.

    A round is not scored while a place is absent: means over fewer clients cannot be compared with those of other rounds.
    `flush` waits until the previous round is on disk and reported, since scoring may be slow.
    """

    every: int
    flush: Callable[[], None]

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        scorer, round = run.scorer, played.round
        scores: list[Scores] = []
        others = dict[str, float]()
        if run.ended_by or run.number % self.every == 0:
            self.flush()
            try:
                scores = scorer.score(scorer.model(run.state, round), round)
                others = scorer.score_other_models(run.state, round)
            except ClientsAwayError as error:
                scores, others = [], {}
                progress.say(f"round {run.number} is not scored: {named({error.place})} does not answer")
        played.record.update(round_record(round, played.report, scores, scorer.silos, scorer.quantity))
        played.record["metrics"] |= others

    def after_training(self, run: RunContext) -> None:
        """Score the last round, if a callback ended training after a round that was not scored."""
        self.flush()
        record = run.folder.journal.read(run.number)
        if is_scored(record):
            return
        began, scorer = time.perf_counter(), run.scorer
        round = run.clients.round(run.number, f"round {run.number}")
        scores = scorer.score(scorer.model(run.state, round), round)
        if not scores:  # no client has a model
            return
        record = with_scores(record, scores, scorer.silos, scorer.quantity)
        record["metrics"] |= scorer.score_other_models(run.state, round)
        spent = {"round": time.perf_counter() - began, **round.tally.seconds}
        seconds = record["seconds"]
        record["seconds"] = seconds | {name: seconds.get(name, 0.0) + more for name, more in spent.items()}
        run.report.scored_late = record


@dataclass
class BestModel(Callback):
    """Save the state of the round with the best score on validation rows, before that round is on disk."""

    rank: tuple[float, float] = field(default=NO_RANK, init=False)

    def before_training(self, run: RunContext) -> None:
        self.rank, run.report.best_round = run.folder.best_round(run.number, run.scorer.quantity)

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        self._save_if_best(run, played.record)

    def after_training(self, run: RunContext) -> None:
        if run.report.scored_late is not None:
            self._save_if_best(run, run.report.scored_late)

    def _save_if_best(self, run: RunContext, record: RoundRecord) -> None:
        rank = run.scorer.quantity.rank(record["metrics"], "validation/")
        if rank > self.rank:
            self.rank, run.report.best_round = rank, run.number
            run.folder.save_best(run.state, run.number)


@dataclass
class EarlyStopping(Callback):
    """End training after the first round whose headline metric on test rows reaches `stop_at`.

    It counts rounds to a target, as published tables do; it does not choose a model.
    """

    stop_at: float

    def before_training(self, run: RunContext) -> None:
        if run.number > 0:
            self._stop(run, run.folder.journal.read(run.number)["metrics"])

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        self._stop(run, played.record["metrics"])

    def _stop(self, run: RunContext, metrics: Metrics) -> None:
        if run.scorer.quantity.reaches(metrics, self.stop_at):
            run.stop_reason = "evaluation.stop_at"


SHARE = 0.5
"""Share of a round's seconds: a commit that takes more runs while the next round trains.

A shorter commit is waited for, since a short round slows down if both compete for Python's lock.
"""


class _PendingRound(NamedTuple):
    written: Future[float]
    retained: RetainedRefs
    counts: Callable[[], None]


class CheckpointWriter:
    """Writes a run's rounds one at a time: each round is on disk, and counts, before the next one is written.

    A round that does not count yet is not reported, and no file that an earlier round needs is deleted. The content is
    serialised to bytes first, so the round's state, record and memory may change. The next call that waits raises an
    error of the disk.
    """

    def __init__(self, folder: RunFolder, counted: RetainedRefs) -> None:
        """Start the writer; `counted`: references of the round that a resumed run continues from, or of its start."""
        self._folder = folder
        self._writer = ThreadPoolExecutor(1, "commit")
        self._pending: _PendingRound | None = None
        self._counted = counted
        self._seconds = 0.0  # of the last commit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the round that is being written, whatever happened; `after_commit` is not called for it.

        A second interrupt is raised afterwards: a resumed run must not meet a round that is still being written.
        """
        second_interrupt: BaseException | None = None
        while self._pending is not None and not self._pending.written.done():
            try:
                wait([self._pending.written])  # in Python 3.11 a thread counts as ended if its join was interrupted
            except BaseException as interrupt:
                second_interrupt = interrupt
        self._writer.shutdown(wait=True)
        write_error = self._pending.written.exception() if self._pending else None
        if error is not None and write_error not in (None, error):
            log_warnings(self._folder.name, [f"the previous round could not be written: {write_error!r}"])
        if second_interrupt is not None:
            raise second_interrupt

    def submit(
        self,
        record: RoundRecord,
        state: ServerState,
        memory: Memory,
        best: int,
        counts: Callable[[], None],
    ) -> None:
        """Write the next round; `counts` is called in this thread when the round counts.

        That is now, or in the next `submit` or `flush`. `best` is the number of the best round so far, 0 if the state
        of the best round is not saved.
        """
        files = self._folder.files(record, state, memory)
        self.flush()
        self._pending = _PendingRound(self._writer.submit(self._write, files), RetainedRefs.of(state, best), counts)
        if self._seconds <= SHARE * record["seconds"]["round"]:
            self.flush()

    def flush(self) -> None:
        """Wait until the last round counts."""
        if self._pending is None:
            return
        self._seconds = self._pending.written.result()
        self._counted, counts, self._pending = self._pending.retained, self._pending.counts, None
        counts()

    @property
    def retained(self) -> list[RetainedRefs]:
        """Return what must stay on disk: for the last round that counts, and for the round that is being written."""
        return [self._counted, *([self._pending.retained] if self._pending else [])]

    def _write(self, files: Files) -> float:
        began = time.perf_counter()
        self._folder.commit(files)
        return time.perf_counter() - began


class MemoryUse(Callback):
    """Free what Prefect left in reference cycles, and record the memory that this process holds."""

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        collect_garbage()
        played.record["memory"] = {"resident": resident_bytes()}


@dataclass
class RoundSaver(Callback):
    """Write each round's journal and checkpoint, in that order; slow writes overlap with the next round."""

    commits: CheckpointWriter | None = field(default=None, init=False)

    def before_training(self, run: RunContext) -> None:
        self.commits = CheckpointWriter(run.folder, RetainedRefs.of(run.state, run.report.best_round))

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        seconds = time.perf_counter() - played.began
        played.record["seconds"] = {"round": seconds, **played.round.tally.seconds}
        counts = partial(played.committed, played)
        self._opened().submit(played.record, run.state, run.last.memory, run.report.best_round, counts)

    def after_training(self, run: RunContext) -> None:
        """Wait until the last round is on disk; a round that was scored late is written again with its scores."""
        commits = self._opened()
        commits.flush()
        if run.report.scored_late is not None:
            commits.submit(
                run.report.scored_late, run.state, run.last.memory, run.report.best_round, counts=lambda: None
            )
            commits.flush()
        commits.__exit__(None, None, None)

    def on_pause(self, run: RunContext) -> None:
        """Wait until the last round is on disk, and report it."""
        commits = self._opened()
        commits.flush()
        commits.__exit__(None, None, None)

    def on_error(self, run: RunContext, error: BaseException) -> None:
        """Finish the round that is being written."""
        if self.commits is not None:
            self.commits.__exit__(type(error), error, error.__traceback__)

    def flush(self) -> None:
        """Wait until the last round is on disk, and report it."""
        self._opened().flush()

    def retained(self) -> list[RetainedRefs]:
        """Return the references to earlier files that rounds on disk, and the round being written, need."""
        return self._opened().retained

    def _opened(self) -> CheckpointWriter:
        assert self.commits is not None, "before_training opens it"
        return self.commits


@dataclass
class ClientStateCleanup(Callback):
    """Delete best states and private client state that no round on disk refers to."""

    saver: RoundSaver

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        run.folder.delete_unused(run.clients.keep, self.saver.retained())

    def after_training(self, run: RunContext) -> None:
        run.folder.delete_unused(run.clients.keep, self.saver.retained())

    def on_pause(self, run: RunContext) -> None:
        run.folder.delete_unused(run.clients.keep, self.saver.retained())
