"""Run tasks in worker threads and processes, through Prefect's own task runners.

A worker process holds the read end of a pipe whose other end this process holds. When the pipe closes, by `kill` or
because this process died, the worker ends at once. Python's pool alone would leave it waiting forever after a kill -9.
"""

import copyreg
import importlib
import inspect
import multiprocessing
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from prefect import Task
from prefect.client import orchestration
from prefect.context import SettingsContext, get_settings_context
from prefect.futures import PrefectFuture
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from silos.client_store import ClientStore
from silos.errors import UserError
from tasks.execution.steps import Call, Returned

Say = Callable[[str], None]
NEW_POOLS = 2  # for one step, before the run fails


class _SharedCertificates:
    """Stands for the module `ssl` in Prefect's clients, so that a process reads the certificates of servers once.

    A worker makes two clients for each step, and each would read them for 20 ms, also for a server without TLS.
    """

    create_default_context = staticmethod(lru_cache(ssl.create_default_context))

    def __getattr__(self, name: str) -> Any:
        return getattr(ssl, name)


vars(orchestration)["ssl"] = _SharedCertificates()


class Workers:
    """Worker threads of this process."""

    is_remote = False  # whether tasks run in other processes
    is_pickled = False  # whether Prefect sends tasks and their arguments there

    def __init__(self, count: int, say: Say) -> None:
        self.count = count
        self.say = say
        self._runner: TaskRunner | None = None

    def run(self, task: Task[..., Returned], calls: Sequence[Call]) -> list[Returned]:
        """Run the task on each of these arguments in parallel; return the results in order."""
        if self.is_pickled:
            pickle_modules_by_name()
        with _without_interrupts(), _WholeSettings.now() if self.is_pickled else nullcontext():
            futures = [self._start().submit(task, _by_name(task, *call)) for call in calls]
        return self._gather(futures)

    def absent(self) -> frozenset[str]:
        """Return the places that stopped answering and still do not; always none where clients are on this machine."""
        return frozenset()

    def keep(self, private: ClientStore, section: str, refs: Collection[str]) -> None:
        """Delete clients' private state of a section but that of these references."""
        private.keep(section, refs)

    def next_run(self) -> None:
        """Prepare the workers for another flow run."""

    def close(self) -> None:
        """End the workers when they have no more tasks."""
        if self._runner is not None:
            self._runner.__exit__(None, None, None)
            self._runner = None

    def kill(self) -> None:
        """End the workers now."""
        self.close()

    def _gather(self, futures: Sequence[PrefectFuture[Returned]]) -> list[Returned]:
        """Return the results of submitted tasks in order, or raise the error of the first that failed."""
        return [future.result() for future in futures]

    def _start(self) -> TaskRunner:
        if self._runner is None:
            self._runner = self._make()
            self._runner.__enter__()
        return self._runner

    def _make(self) -> TaskRunner:
        return ThreadPoolTaskRunner(max_workers=self.count)


class Processes(Workers):
    """A pool of processes of this machine; if one dies, the step is run again in a new pool."""

    is_remote = is_pickled = True

    def __init__(self, count: int, say: Say) -> None:
        super().__init__(count, say)
        self._lifeline: Connection | None = None

    def run(self, task: Task[..., Returned], calls: Sequence[Call]) -> list[Returned]:
        """Run the task as `Workers.run` does; UserError if workers die repeatedly."""
        for left in reversed(range(NEW_POOLS + 1)):
            try:
                return super().run(task, calls)
            except BrokenProcessPool:
                self.kill()
                if left:
                    self.say(f"a worker process ended in {task.name}; the step runs again in a new one.")
        raise UserError(
            f"worker processes ended {NEW_POOLS + 1} times in {task.name}, most likely because memory ran out. "
            "Lower runner.workers; --resume continues after the last complete round."
        )

    def next_run(self) -> None:
        """Drop the context of the flow run that submitted first, which Prefect would record for later tasks."""
        if self._runner is not None:
            self._runner._cached_context = None  # type: ignore[attr-defined]

    def close(self) -> None:
        super().close()
        self._cut()

    def kill(self) -> None:
        self._cut()
        # a worker that died while writing holds the queue's lock forever, and this process would wait for it at exit
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


class _WholeSettings(SettingsContext):
    """Sends Prefect's settings to a worker as they are.

    Prefect itself sends their values, and a worker makes the settings of them for every task. It reads its environment
    and files for each of some forty groups, which takes longer than a short step.
    """

    @classmethod
    def now(cls) -> "_WholeSettings":
        """Return the present settings, as a context to submit tasks in."""
        present = get_settings_context()
        return cls(profile=present.profile, settings=present.settings)

    def serialize(self, include_secrets: bool = True) -> dict[str, Any]:
        if not include_secrets:
            return super().serialize(include_secrets=False)
        return {"profile": self.profile, "settings": self.settings}


def pickle_modules_by_name() -> None:
    """Let every kind of module be pickled by its name, as plain modules are.

    cloudpickle packs a step by value, with each loaded submodule whose name occurs in its code. `torch.classes` is of a
    class of its own, which pickle would take apart: a step that uses `torch` and any attribute `classes` could not be sent.
    """
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and type(module) is not ModuleType:
            copyreg.pickle(type(module), _by_name_of_module)


def _by_name_of_module(module: ModuleType) -> tuple[Callable[[str], ModuleType], tuple[str]]:
    return importlib.import_module, (module.__name__,)


def watch(lifeline: Connection) -> None:
    """End this process when the other end of the pipe closes."""

    def wait() -> None:
        try:
            lifeline.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block ctrl-C, which a terminal sends to all processes: new ones ignore it, and this one receives it later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _by_name(task: Task[..., Returned], args: tuple[object, ...], options: dict[str, object]) -> dict[str, object]:
    return dict(inspect.signature(task.fn).bind(*args, **options).arguments)
