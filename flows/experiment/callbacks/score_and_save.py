"""Callbacks that score a round, keep the best one, and end training early.

Callbacks that bring rounds to disk: their costs, journal and checkpoint, and what earlier rounds left.

Rounds on their way to disk, where that takes long beside a round: the next one trains meanwhile.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from flows.console.run_logging import log_warnings
from flows.experiment.callbacks.callback import Callback, PlayedRound
from flows.experiment.evaluation import for_scored, scored_model, scores_of, scores_of_others
from flows.experiment.run.round_record import is_scored, round_record, with_scores
from flows.experiment.run.run_context import RunContext
from flows.experiment.run.run_folder import NO_RANK, Files, RetainedRefs, RunFolder
from flows.methods.context import RoundContext
from flows.methods.samplers.client_sampler import SampledClients
from models.server_state import ServerState
from tasks.execution.task_types import collect_garbage, resident_bytes
from tasks.messages.score_messages import Scores


class StandardizerTraffic(Callback):
    """Count the bytes of the agreement on a standardization among those of the first round."""

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        if run.number == 1:
            run.agreement.count(played.round.tally)


@dataclass
class Evaluation(Callback):
    """Fill the record of every round, and score every `every`-th round and the last one.

    `settle` waits until the round before is on disk. Scoring may take long, and the user waits to read of that round.
    """

    every: int
    settle: Callable[[], None]

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        project, round = run.project, played.round
        scores: list[Scores] = []
        is_due = bool(run.ended_by) or run.number % self.every == 0
        if is_due:
            self.settle()
            scores = _scores(run, round)
        played.record.update(round_record(round, played.report, scores, project.silos, project.quantity))
        if is_due:
            played.record["metrics"] |= scores_of_others(project, run.method, run.state, round)

    def after_training(self, run: RunContext) -> None:
        """Score the last round, if a callback ended training after a round that was not scored."""
        self.settle()
        record = run.folder.journal.read(run.number)
        if is_scored(record):
            return
        began, project = time.perf_counter(), run.project
        round = run.round(run.number, SampledClients(run.setup.silos.clients), f"round {run.number}")
        scores = _scores(run, round)
        if not scores:  # no client has a model
            return
        record = with_scores(record, scores, project.silos, project.quantity)
        record["metrics"] |= scores_of_others(project, run.method, run.state, round)
        spent = {"round": time.perf_counter() - began, **round.tally.seconds}
        seconds: dict[str, float] = record["seconds"]
        record["seconds"] = seconds | {name: seconds.get(name, 0.0) + more for name, more in spent.items()}
        run.scored_late = record


def _scores(run: RunContext, round: RoundContext) -> list[Scores]:
    project, method = run.project, run.method
    model = scored_model(method, project.silos, run.state, round)
    return scores_of(project, for_scored(project, method, model), round)


@dataclass
class BestModel(Callback):
    """Save the state of the round with the best score on validation rows, before that round is on disk."""

    rank: tuple[float, float] = field(default=NO_RANK, init=False)

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        self.rank, run.best_round = run.folder.best_round(run.number, run.project.quantity)

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        self._save_if_best(run, played.record)

    def after_training(self, run: RunContext) -> None:
        """See Callback."""
        if run.scored_late is not None:
            self._save_if_best(run, run.scored_late)

    def _save_if_best(self, run: RunContext, record: dict[str, Any]) -> None:
        rank = run.project.quantity.rank(record["metrics"], "validation/")
        if rank > self.rank:
            self.rank, run.best_round = rank, run.number
            run.folder.save_best(run.state, run.number)


@dataclass
class EarlyStopping(Callback):
    """End training after the first round whose score reaches `stop_at`."""

    stop_at: float

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        if run.number > 0:
            self._stop(run, run.folder.journal.read(run.number)["metrics"])

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        self._stop(run, played.record["metrics"])

    def _stop(self, run: RunContext, metrics: dict[str, float]) -> None:
        if run.project.quantity.reaches(metrics, self.stop_at):
            run.stop_reason = "evaluation.stop_at"


SHARE = 0.5
"""Of a round's seconds: a commit that takes more does not hold up the next round.

One that takes less is waited for: beside it a short round takes longer, since both want Python's lock.
"""


class _Begun(NamedTuple):
    written: Future[float]
    kept: RetainedRefs
    counts: Callable[[], None]


class CheckpointWriter:
    """A run's rounds, one after another: each is on disk, and counts, before the next is begun to be written.

    Of a round that does not count yet nobody is told, and nothing is deleted that an earlier one needs. What is written are
    bytes, so that a round's state, record and memory may change. An error of the disk is raised by the call that waits.
    """

    def __init__(self, folder: RunFolder, counted: RetainedRefs) -> None:
        """`counted`: of the round that a resumed run goes on after, or of its start."""
        self._folder = folder
        self._writer = ThreadPoolExecutor(1, "commit")
        self._begun: _Begun | None = None
        self._counted = counted
        self._seconds = 0.0  # of the last one

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was begun is written, whatever happened; nobody is told of it, where something did.

        A second interrupt is raised after that: who goes on with the run must not meet a round that is still being written.
        """
        again: BaseException | None = None
        while self._begun is not None and not self._begun.written.done():
            try:
                wait([self._begun.written])  # Python 3.11 takes a thread for ended whose join was interrupted
            except BaseException as interrupt:
                again = interrupt
        self._writer.shutdown(wait=True)
        late = self._begun.written.exception() if self._begun else None
        if error is not None and late not in (None, error):
            log_warnings(self._folder.name, [f"the round before could not be written: {late!r}"])
        if again is not None:
            raise again

    def put(
        self,
        record: dict[str, Any],
        state: ServerState,
        memory: Mapping[str, Any],
        best: int,
        counts: Callable[[], None],
    ) -> None:
        """The next round; `counts` is called in this thread when it counts, now or by the next `put` or `settle`.

        `best`: the number of the best round so far, 0 if no state of one is kept.
        """
        files = self._folder.files(record, state, memory)
        self.settle()
        self._begun = _Begun(self._writer.submit(self._write, files), RetainedRefs.of(state, best), counts)
        if self._seconds <= SHARE * record["seconds"]["round"]:
            self.settle()

    def settle(self) -> None:
        """Waits until the last round counts."""
        if self._begun is None:
            return
        self._seconds = self._begun.written.result()
        self._counted, counts, self._begun = self._begun.kept, self._begun.counts, None
        counts()

    @property
    def kept(self) -> list[RetainedRefs]:
        """What must stay on disk: of the last round that counts, and of the one that is being written."""
        return [self._counted, *([self._begun.kept] if self._begun else [])]

    def _write(self, files: Files) -> float:
        began = time.perf_counter()
        self._folder.commit(files)
        return time.perf_counter() - began


class MemoryUse(Callback):
    """Free what Prefect left in reference cycles, and record the memory that this process holds."""

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        collect_garbage()
        played.record["memory"] = {"resident": resident_bytes()}


@dataclass
class RoundSaver(Callback):
    """Write each round's journal and checkpoint, in that order, while the next round is played if writing takes long."""

    commits: CheckpointWriter | None = field(default=None, init=False)

    def before_training(self, run: RunContext) -> None:
        """See Callback."""
        self.commits = CheckpointWriter(run.folder, RetainedRefs.of(run.state, run.best_round))

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        seconds = time.perf_counter() - played.began
        played.record["seconds"] = {"round": seconds, **played.round.tally.seconds}
        counts = partial(played.committed, played)
        self._opened().put(played.record, run.state, run.memory, run.best_round, counts)

    def after_training(self, run: RunContext) -> None:
        """Wait until the last round is on disk; a round that was scored late is written again, with its scores."""
        commits = self._opened()
        commits.settle()
        if run.scored_late is not None:
            commits.put(run.scored_late, run.state, run.memory, run.best_round, counts=lambda: None)
            commits.settle()
        commits.__exit__(None, None, None)

    def on_error(self, run: RunContext, error: BaseException) -> None:
        """See Callback. A round that is being written becomes whole."""
        if self.commits is not None:
            self.commits.__exit__(type(error), error, error.__traceback__)

    def settle(self) -> None:
        """Wait until the last round is on disk, and report it."""
        self._opened().settle()

    def kept(self) -> list[RetainedRefs]:
        """Return what the rounds on disk, and the round that is being written, need of earlier files."""
        return self._opened().kept

    def _opened(self) -> CheckpointWriter:
        assert self.commits is not None, "before_training opens it"
        return self.commits


@dataclass
class ClientStateCleanup(Callback):
    """Delete best states and private state of clients to which no round on disk refers any more."""

    saver: RoundSaver

    def after_round(self, run: RunContext, played: PlayedRound) -> None:
        """See Callback."""
        run.folder.forget(run.private, self.saver.kept())

    def after_training(self, run: RunContext) -> None:
        """See Callback."""
        run.folder.forget(run.private, self.saver.kept())
