"""Rounds on their way to disk, where that takes long beside a round: the next one trains meanwhile."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, NamedTuple, Self

from flows.console.run_logging import log_warnings
from flows.experiment.run.run_folder import Files, RetainedRefs, RunFolder
from models.server_state import ServerState

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
