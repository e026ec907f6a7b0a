"""`siloflow schedule`: Prefect's own `serve` runs `compare` on a cron schedule."""

import contextlib
import warnings
from datetime import UTC, datetime
from typing import Any

from silos.errors import UserError


def cron_schedule(cron: str) -> Any:
    """Prefect's schedule, in UTC; UserError if the text is not one."""
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    try:
        return CronSchedule(cron=cron, timezone="UTC")
    except ValidationError:
        raise UserError(f'{cron!r} is not a cron schedule; write five fields, for example "0 6 * * 1".') from None


def serve(schedule: Any, api: str, parameters: dict[str, Any]) -> None:
    """Serves until ctrl-C; each scheduled run is a process of its own and a row on Prefect's page.

    One at a time: a comparison that is due while another works waits for it.
    """
    from flows.compare import compare

    # Prefect 3.8 forgets to await its own stop when it is terminated; it ends well all the same
    warnings.filterwarnings("ignore", "coroutine 'Runner.astop' was never awaited")
    print(f"compare runs at {schedule.cron!r} in UTC, where it is now {_now()}", flush=True)
    print(f"Prefect's page: {api.removesuffix('/api')}", flush=True)
    print("ctrl-C ends the schedule.", flush=True)
    told = compare.with_options(
        on_running=[_started], on_completion=[_done], on_failure=[_failed], on_crashed=[_failed]
    )
    with contextlib.suppress(KeyboardInterrupt):
        told.serve(
            name="siloflow-compare",
            schedules=[schedule],
            parameters=parameters,
            limit=1,
            pause_on_shutdown=True,
            print_starting_message=False,
        )


def _started(flow: Any, run: Any, state: Any) -> None:
    print(f"{_now()}  compare started, {run.name} on Prefect's page", flush=True)


def _done(flow: Any, run: Any, state: Any) -> None:
    found = state.result(raise_on_failure=False)
    print(f"{_now()}  compare done: {found['experiment']}", flush=True)
    for p in found["paired"]:
        print(f"    {p['words']}", flush=True)
    for failure in found["failed"]:
        print(f"    {failure['method']} seed {failure['seed']} failed: {failure['error']}", flush=True)


def _failed(flow: Any, run: Any, state: Any) -> None:
    print(f"{_now()}  compare failed: {state.message}", flush=True)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
