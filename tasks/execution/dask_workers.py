"""Run tasks on a Dask cluster: a running one, or processes of this machine."""

import logging
import os
import urllib.request
from collections.abc import Awaitable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress

import torch
from prefect import Task
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL
from prefect.task_runners import TaskRunner

from silos.errors import UserError
from tasks.execution.steps import Call, Returned
from tasks.execution.worker_backends import Say, Workers

PATIENCE = 10.0  # seconds for a scheduler to respond, and then for its workers to connect

_QUIET = {
    "DASK_LOGGING__DISTRIBUTED": "critical",
    "DASK_DISTRIBUTED__ADMIN__LARGE_GRAPH_WARNING_THRESHOLD": "1TB",  # weights travel with a task, and may be large
}
os.environ.update({k: v for k, v in _QUIET.items() if k not in os.environ})

from distributed import Client, Worker, WorkerPlugin  # noqa: E402
from distributed.scheduler import KilledWorker  # noqa: E402
from prefect_dask import DaskTaskRunner  # noqa: E402


class DaskWorkers(Workers):
    """Workers of a Dask cluster, which runs the tasks of a dead worker again by itself."""

    is_remote = is_pickled = True

    def __init__(self, count: int, say: Say, address: str | None) -> None:
        super().__init__(count, say)
        self._address = address

    def run(self, task: Task[..., Returned], calls: Sequence[Call]) -> list[Returned]:
        """Run the task as `Workers.run` does; UserError if the cluster is gone, or its workers die repeatedly."""
        try:
            return super().run(task, calls)
        except KilledWorker:
            raise UserError(
                f"Dask's workers ended repeatedly in {task.name}, most likely because memory ran out. Lower "
                "runner.workers; --resume continues after the last complete round."
            ) from None
        except (CancelledError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of a file, from inside the task
            raise UserError(
                f"the Dask cluster{self._where()} has ended. Start it again; --resume continues after the last "
                "complete round."
            ) from None

    def close(self) -> None:
        """End the workers after they have sent their last task events to Prefect."""
        if self._runner is not None:
            with suppress(Exception):
                self._runner.client.run(_drain_events)  # type: ignore[attr-defined]
        self.kill()

    def kill(self) -> None:
        """End the workers now; workers of a running cluster stay."""
        with suppress(TimeoutError):
            super().close()

    def _make(self) -> TaskRunner:
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        options = {"timeout": PATIENCE, "name": "siloflow"}
        if self._address is not None:
            return DaskTaskRunner(address=self._address, client_kwargs=options)
        cluster = {
            "n_workers": self.count,
            "threads_per_worker": 1,
            "host": "127.0.0.1",
            "dashboard_address": None,
            "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},  # it serves its health also without a dashboard
            "silence_logs": logging.CRITICAL,
            "memory_limit": 0,  # a worker that pauses when memory is short would wait for ever
        }
        return DaskTaskRunner(cluster_class="distributed.LocalCluster", cluster_kwargs=cluster, client_kwargs=options)

    def _start(self) -> TaskRunner:
        if self._runner is None:
            api = PREFECT_API_URL.value()
            client = self._connect(super()._start())
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
                client.register_plugin(_PrepareWorker(api))
            except TimeoutError:
                raise UserError(
                    f"the Dask cluster{self._where()} has no workers. {self._advise('dask worker')}"
                ) from None
            except ConnectionRefusedError:
                raise UserError(
                    f"the Dask workers{self._where()} cannot reach Prefect's API at {api}. Start a Prefect server "
                    "that all machines reach, and set PREFECT_API_URL."
                ) from None
            except Exception as error:
                raise UserError(
                    f"the Dask workers{self._where()} cannot run siloflow ({error}). Start them in its environment."
                ) from None
        assert self._runner is not None
        return self._runner

    def _connect(self, runner: TaskRunner) -> Client:
        """Return Dask's client, which starts the local cluster if no address is given."""
        try:
            return runner.client  # type: ignore[attr-defined]
        except OSError:
            self.kill()
            raise UserError(f"no Dask scheduler responds{self._where()}. {self._advise('dask scheduler')}") from None

    def _where(self) -> str:
        return "" if self._address is None else f" at runner.address {self._address}"

    def _advise(self, command: str) -> str:
        return f"Start one with `{command}`, or set runner.address to null for a cluster on this machine."


async def _drain_events() -> None:
    result = EventsWorker.drain_all(timeout=PATIENCE)
    if isinstance(result, Awaitable):
        await result


class _PrepareWorker(WorkerPlugin):
    """Prepares a worker for steps, including one that starts later."""

    def __init__(self, api: str | None) -> None:
        self.name = "siloflow"
        self._api = api

    def setup(self, worker: Worker) -> None:
        """Use one torch thread, and send events to this command's Prefect server instead of an earlier command's."""
        torch.set_num_threads(1)
        try:
            urllib.request.urlopen(f"{self._api}/health", timeout=PATIENCE).close()
        except OSError:
            raise ConnectionRefusedError(self._api) from None
        EventsWorker.set_client_override(PrefectEventsClient, api_url=self._api)
