"""Worker threads and processes, through Prefect's own task runners.

A worker process holds the read end of a pipe whose other end is here. When that closes, by `kill` or because this
process died, the worker ends at once: Python's pool alone would leave it waiting for ever after a kill -9.
"""

import inspect
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from prefect import Task
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from silos.errors import UserError

Say = Callable[[str], None]
Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a step: those by place, and those by name."""

NEW_POOLS = 2  # for one step, before its death is taken for lasting


class Workers:
    """Threads of this process."""

    far = False  # whether tasks run in other processes

    def __init__(self, count: int, say: Say) -> None:
        self.count = count
        self._say = say
        self._runner: TaskRunner | None = None

    def run(self, task: Task, calls: Sequence[Call]) -> list[Any]:
        """The task on each of these arguments, side by side; answers in order."""
        with _without_interrupts():
            futures = [self._started().submit(task, _named(task, *call)) for call in calls]
        return [future.result() for future in futures]

    def next_run(self) -> None:
        """Another flow run uses these workers now."""

    def close(self) -> None:
        """Ends the workers when they have nothing to do."""
        if self._runner is not None:
            self._runner.__exit__(None, None, None)
            self._runner = None

    def kill(self) -> None:
        """Ends the workers now."""
        self.close()

    def _started(self) -> TaskRunner:
        if self._runner is None:
            self._runner = self._make()
            self._runner.__enter__()
        return self._runner

    def _make(self) -> TaskRunner:
        return ThreadPoolTaskRunner(max_workers=self.count)


class Processes(Workers):
    """A pool of processes of this machine; where one dies, the step is run again in a new pool."""

    far = True

    def __init__(self, count: int, say: Say) -> None:
        super().__init__(count, say)
        self._lifeline: Connection | None = None

    def run(self, task: Task, calls: Sequence[Call]) -> list[Any]:
        """See Workers; UserError if workers die again and again."""
        for left in reversed(range(NEW_POOLS + 1)):
            try:
                return super().run(task, calls)
            except BrokenProcessPool:
                self.kill()
                if left:
                    self._say(f"a worker process died in {task.name}; the step is run again in a new one.")
        raise UserError(
            f"worker processes died {NEW_POOLS + 1} times in {task.name}, most likely because memory ran out; "
            "lower runner.workers, and --resume goes on after the last whole round."
        )

    def next_run(self) -> None:
        """Prefect keeps the context of the flow run that submitted first, and would put later tasks down to it."""
        if self._runner is not None:
            self._runner._cached_context = None  # type: ignore[attr-defined]

    def close(self) -> None:
        """See Workers."""
        super().close()
        self._cut()

    def kill(self) -> None:
        """See Workers."""
        self._cut()
        # a worker that died while it wrote holds the queue's lock for ever, and this process would wait for it at its end
        queue = getattr(self._runner, "_subprocess_message_queue", None)
        if queue is not None:
            queue.cancel_join_thread()
        super().close()

    def _cut(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

    def _make(self) -> TaskRunner:
        watched, self._lifeline = multiprocessing.get_context("spawn").Pipe(duplex=False)
        return ProcessPoolTaskRunner(max_workers=self.count, initializer=watch, initargs=(watched,))


def watch(lifeline: Connection) -> None:
    """Ends this process when the other end of the pipe closes."""

    def wait() -> None:
        try:
            lifeline.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are born here never see a ctrl-C, which a terminal sends to all of them; this one hears it after."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _named(task: Task, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    return dict(inspect.signature(task.fn).bind(*args, **options).arguments)
