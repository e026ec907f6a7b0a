"""`siloflow schedule`: Prefect's own `serve` runs `compare` on a cron schedule."""

import contextlib
from typing import Any

from silos.errors import UserError


def serve(cron: str, api: str, parameters: dict[str, Any]) -> None:
    """Serves until ctrl-C; each scheduled run is a process of its own and a row on Prefect's page."""
    from prefect.client.schemas.schedules import CronSchedule
    from pydantic import ValidationError

    from flows.compare import compare

    try:
        schedule = CronSchedule(cron=cron, timezone="UTC")
    except ValidationError:
        raise UserError(f'{cron!r} is not a cron schedule; write five fields, for example "0 6 * * 1".') from None
    print(
        f"compare runs at {cron!r} (UTC); Prefect's page: {api.removesuffix('/api')}; ctrl-C ends it.",
        flush=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        compare.serve(name="siloflow-compare", schedules=[schedule], parameters=parameters, pause_on_shutdown=True)
