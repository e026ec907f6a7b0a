"""`siloflow schedule`: Prefect's own `serve` runs `compare` on a cron schedule."""

import contextlib
import functools
import multiprocessing
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from flows.console.printing.literal_text import say
from flows.console.printing.run_printing import headline, sentences_after
from flows.doors.verb import IncompleteError
from silos.errors import UserError

FIELDS = 5  # minute, hour, day, month, weekday


def cron_schedule(cron: str) -> Any:
    """Prefect's schedule, in UTC; UserError if the text is not one."""
    from prefect._vendor.croniter import CroniterBadDateError, croniter
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        if len(cron.split()) != FIELDS:  # Prefect takes seconds and years, too, and @daily
            raise ValueError
        schedule = CronSchedule(cron=cron, timezone="UTC")
        croniter(cron).get_next()
    except CroniterBadDateError:
        raise UserError(f"{cron!r} never comes; there is no such day.") from None
    except (ValidationError, ValueError):
        raise UserError(f'{cron!r} is not a cron schedule; write five fields, for example "0 6 * * 1".') from None
    return schedule


def serve(schedule: Any, api: str, parameters: dict[str, Any], overrides: list[str]) -> None:
    """Serves until ctrl-C; each scheduled run is a process of its own and a row on Prefect's page.

    One at a time: a comparison that is due while another works waits for it. `overrides` hold for all, and are no
    parameters: nobody who reaches Prefect's API can change them.
    """
    from prefect.runner import Runner

    from flows.compare import compare

    # Prefect 3.8's own answer to SIGTERM ends its server before the comparison that is running
    Runner.handle_sigterm = _as_ctrl_c  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    say(f"compare runs at {schedule.cron!r} in UTC, where it is now {_now()}")
    say(f"Prefect's page: {api.removesuffix('/api')}")
    say("ctrl-C ends the schedule.")
    flow = compare.with_options(
        on_running=[_started], on_completion=[_done], on_failure=[_failed], on_crashed=[_failed]
    )
    flow.fn = _with(overrides, compare.fn)
    with contextlib.suppress(KeyboardInterrupt):
        flow.serve(
            name="siloflow-compare",
            schedules=[schedule],
            parameters=parameters,
            limit=1,
            pause_on_shutdown=True,
            enforce_parameter_schema=False,  # methods of the user's own are on no list
            print_starting_message=False,
        )


def _with(overrides: list[str], work: Callable[..., Any]) -> Callable[..., Any]:
    """The flow's function with these overrides; it goes as it is to the process that a run is."""

    @functools.wraps(work)
    def with_own(*args: Any, **kwargs: Any) -> Any:
        from flows.experiment.flow_parameters import own

        with own(overrides):
            return work(*args, **kwargs)

    return with_own


def _as_ctrl_c(runner: Any, *signal_and_frame: Any) -> None:
    """A terminal's ctrl-C reaches the running comparison too, a service manager's signal may not: it is ended soon."""
    ending = threading.Timer(5.0, _kill_children)
    ending.daemon = True
    ending.start()
    signal.raise_signal(signal.SIGINT)


def _kill_children() -> None:
    """What counts is on disk at any moment; a gentler signal inside a task Prefect takes for the task's failure."""
    for child in multiprocessing.active_children():
        child.kill()


def _started(flow: Any, flow_run: Any, state: Any) -> None:
    say(f"{_now()}  compare started")


def _done(flow: Any, flow_run: Any, state: Any) -> None:
    _say_comparison(state.result(raise_on_failure=False))


def _say_comparison(comparison: dict[str, Any]) -> None:
    ended = "ended" if comparison["failed"] else "done"
    say(f"{_now()}  {comparison['experiment']} {ended}. {headline(comparison['paired'])}")
    for p in comparison["paired"]:
        say(f"  {p['sentence']}")
    for sentence in sentences_after(comparison):
        say(f"  {sentence}")
    for failure in comparison["failed"]:
        say(f"  {failure['method']} seed {failure['seed']} failed: {failure['error']}")


def _failed(flow: Any, flow_run: Any, state: Any) -> None:
    error = state.result(raise_on_failure=False)
    if isinstance(error, IncompleteError):
        _say_comparison(error.answer)
    elif "aborted" in state.message:  # Prefect's name for both signals, with either hook
        say(f"{_now()}  compare stopped; `siloflow compare --resume` with the same methods and seeds goes on")
    else:
        say(f"{_now()}  compare failed: {state.message}")


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
