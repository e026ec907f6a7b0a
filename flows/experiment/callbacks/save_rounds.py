"""Callbacks that bring rounds to disk: their costs, journal and checkpoint, and what earlier rounds left."""

import time
from dataclasses import dataclass, field
from functools import partial

from flows.experiment.callbacks.callback import Callback, PlayedRound
from flows.experiment.run.checkpoint_writer import CheckpointWriter
from flows.experiment.run.run_context import RunContext
from flows.experiment.run.run_folder import RetainedRefs
from tasks.execution.task_types import collect_garbage, resident_bytes


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
        """See Callback."""
        commits = self._opened()
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
