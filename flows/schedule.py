"""Implements `siloflow schedule`: Prefect's own runner runs `compare` on a cron schedule."""

import asyncio
import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.core.console.process_control import Stopped
from flows.core.console.safe_text import say
from flows.experiments.comparison.comparison_text import headline, sentences_after, sentences_first
from flows.orchestration.flow_decorator import IncompleteError
from silos.errors import UserError
from silos.io.locks import hold, is_locked
from tasks.tracking.result_types.comparison_result import ComparisonResult

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.client.schemas.schedules import CronSchedule

Parameters = Mapping[str, list[str] | list[int]]
"""Methods and seeds of each comparison."""

FIELDS = 5  # minute, hour, day, month, weekday
_ALIASES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_GRACE = 3.0  # seconds for a comparison to end before it is killed


def cron_schedule(cron: str) -> "CronSchedule":
    """Return Prefect's schedule in UTC; UserError if the text is not one, or matches no date."""
    from prefect._vendor.croniter import CroniterBadDateError, croniter
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    cron = cron.strip()
    try:
        if len(cron.split()) != FIELDS and cron.lower() not in _ALIASES:  # Prefect takes seconds and years, too
            raise ValueError
        schedule = CronSchedule(cron=cron, timezone="UTC")
        croniter(cron).get_next()
    except CroniterBadDateError:
        raise UserError(
            f"cron: got {cron!r}, which matches no date. Use a day that exists in one of the months."
        ) from None
    except (ValidationError, ValueError):
        raise UserError(
            f'cron: got {cron!r}, expected five fields or one of {", ".join(_ALIASES)}. Write it as in "0 6 * * 1".'
        ) from None
    return schedule


def serve(root: Path, schedule: "CronSchedule", api: str, parameters: Parameters, overrides: list[str]) -> None:
    """Run comparisons until a signal ends the schedule, which is raised as KeyboardInterrupt or Stopped.

    Comparisons run one at a time: a due comparison waits for the running one. Prefect's deployment exists only while
    the schedule runs. Without it no run is planned, and no late run gets the parameters of an earlier schedule.

    Args:
        root: The project's folder.
        schedule: As returned by `cron_schedule`.
        api: The address of Prefect's API.
        parameters: Of each comparison.
        overrides: Hold for all comparisons. They are no parameters, so no user of Prefect's API can change them.

    Raises:
        UserError: If another schedule runs in this project, or Prefect's API fails.
    """
    from flows.compare import compare
    from flows.results.run_history.abandoned_runs import SCHEDULE, close_in_prefect, delete_deployment, deployment_name
    from tasks.execution.prefect_failure import ignore_prefect_failure

    mark = root / SCHEDULE
    if is_locked(mark):
        raise UserError(
            "schedule: got a second schedule in this project, expected one. End the first, or use another folder."
        )
    flow = compare.with_options(
        on_running=[_on_start], on_completion=[_on_done], on_failure=[_on_failure], on_crashed=[_on_failure]
    )
    flow.fn = _with_overrides(overrides, compare.fn)
    with hold(mark), _explain_api_failure():
        delete_deployment(root)  # what a killed schedule planned
        say(f"`compare` runs at {schedule.cron!r} (UTC; now {_now()})")
        say(f"Prefect's page: {api.removesuffix('/api')}")
        say("Press ctrl-C to end the schedule.")
        try:
            signal_number = asyncio.run(_until_signal(flow, deployment_name(root), schedule, parameters))
        finally:
            with ignore_prefect_failure():  # if it fails, the mark stays, and the next command deletes the deployment
                delete_deployment(root)
                close_in_prefect(root)
                mark.unlink()
    raise KeyboardInterrupt if signal_number == signal.SIGINT else Stopped(signal_number)


@contextmanager
def _explain_api_failure() -> Iterator[None]:
    """Raise a UserError if Prefect's API fails."""
    from tasks.execution.prefect_failure import failure_sentence, is_prefect_failure

    try:
        yield
    except Exception as error:
        if not is_prefect_failure(error):
            raise
        raise UserError(f"{failure_sentence(error)}. Then start the schedule again.") from error


async def _until_signal(flow: "Flow", name: str, schedule: "CronSchedule", parameters: Parameters) -> int:
    """Serve the flow; return the number of the signal that ended it."""
    from prefect.runner import Runner

    class Quiet(Runner):
        """Leaves SIGTERM to the event loop: Prefect's own handler waits for 30 s."""

        def handle_sigterm(self, *args: object, **kwargs: object) -> None:
            """Do nothing."""

    loop = asyncio.get_running_loop()
    received: asyncio.Future[int] = loop.create_future()

    def on_signal(signal_number: int) -> None:
        if not received.done():
            received.set_result(signal_number)

    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signal_number) is not signal.SIG_IGN:
            loop.add_signal_handler(signal_number, on_signal, signal_number)
    runner = Quiet(name=name, limit=1, pause_on_shutdown=False)
    await runner.aadd_flow(
        flow,
        name=name,
        schedules=[schedule],
        parameters={**parameters},
        enforce_parameter_schema=False,  # the schema does not list plugin methods
    )
    serving = asyncio.create_task(runner.start())
    waiting: list[asyncio.Future[Any]] = [serving, received]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    flow.on_crashed_hooks.clear()  # the schedule ends a comparison here: it has not failed
    if runner.started:
        runner._scheduled_run_poller.stopping = True
        await _stop_comparisons()
        runner._loops_task_group.cancel_scope.cancel()
        while not serving.done():  # the poll that was under way may have started another comparison
            await asyncio.wait([serving], timeout=0.05)
            await _stop_comparisons()
    else:
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    # asyncio resets its handlers, and a second signal would end this process before the deployment is deleted
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        loop.remove_signal_handler(signal_number)
        signal.signal(signal_number, signal.SIG_IGN)
    return await received


async def _stop_comparisons() -> None:
    """Stop the running comparison: a service manager signals only this process. Counted rounds are on disk."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    loop = asyncio.get_running_loop()
    end = loop.time() + _GRACE
    while any(child.is_alive() for child in children) and loop.time() < end:
        await asyncio.sleep(0.05)
    for child in children:
        child.kill()


def _with_overrides(overrides: list[str], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the flow's function with these overrides; the wrapper is sent to the process of each run."""

    @functools.wraps(function)
    def with_overrides(*args: Any, **kwargs: Any) -> Any:
        from flows.orchestration.open_project import trusted_overrides

        threading.Thread(target=_end_with_parent, daemon=True).start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ctrl-C; the schedule ends its comparison itself
        with trusted_overrides(overrides):
            return function(*args, **kwargs)

    return with_overrides


def _end_with_parent() -> None:
    """Exit this comparison's process when the schedule is killed, since no server remains for it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _on_start(flow: "Flow", flow_run: "FlowRun", state: "State") -> None:
    say(f"{_now()}  compare started")


def _on_done(flow: "Flow", flow_run: "FlowRun", state: "State") -> None:
    comparison = state.result(raise_on_failure=False)
    assert not isinstance(comparison, Exception), "the flow run is completed"
    _say_comparison(comparison)


def _say_comparison(comparison: ComparisonResult) -> None:
    ended = "ended" if comparison["failed"] else "done"
    first = " ".join([*sentences_first(comparison), headline(comparison["paired"])])
    say(f"{_now()}  {comparison['experiment']} {ended}. {first}")
    for p in comparison["paired"]:
        say(f"  {p['sentence']}")
    for sentence in sentences_after(comparison):
        say(f"  {sentence}")
    for failure in comparison["failed"]:
        say(f"  {failure['method']} seed {failure['seed']} failed: {failure['error']}")


def _on_failure(flow: "Flow", flow_run: "FlowRun", state: "State") -> None:
    error = state.result(raise_on_failure=False)
    if isinstance(error, IncompleteError):
        _say_comparison(error.result)
    elif "aborted" not in (state.message or ""):  # else a signal ended it, which the schedule reports
        say(f"{_now()}  compare failed: {state.message}")


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
