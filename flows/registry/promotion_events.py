"""Queues Prefect's events of promotions by `watch` as files until the server has accepted them.

After a kill, or while the server is away, the next flow emits what is queued. An event that is sent twice has the same
id, which Prefect accepts once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from flows.registry import FOLDER
from tasks.tracking.json_io import read_json, write_json

PROMOTED = "siloflow.champion.promoted"

_QUEUE = FOLDER / "events"


def promotion_event(decision: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return the event of a promotion by `watch` as Prefect's API takes it; `data` is the name of the data."""
    keys = ("version", "champion", "run", "reason", "against", "data_version")
    return {
        "id": str(uuid5(NAMESPACE_URL, f"{PROMOTED} {decision['id']}")),
        "event": PROMOTED,
        "occurred": decision["at"],
        "resource": {
            "prefect.resource.id": f"siloflow.{quote('model.' + decision['model'])}",
            "prefect.resource.name": decision["model"],
        },
        "payload": {**{key: decision[key] for key in keys}, "since": decision["watch"]["since"], "data": data},
    }


def queue(root: Path, event: Mapping[str, Any]) -> None:
    """Write the event to the queue, once."""
    write_json(root / _QUEUE / f"{event['id']}.json", event)


def is_queued(root: Path) -> bool:
    """Return whether an event waits to be emitted."""
    return any((root / _QUEUE).glob("*.json"))


def emit_queued(root: Path) -> None:
    """Send each queued event to Prefect's server, and take it from the queue when the server has accepted it.

    Raises:
        httpx.HTTPError: If the server does not accept an event, which stays in the queue.
    """
    for path in sorted((root / _QUEUE).glob("*.json")):
        event = read_json(path)
        if event is None:  # another process has emitted it
            continue
        from prefect.client.orchestration import get_client  # late, so that `siloflow results` imports no Prefect
        from prefect.runtime import flow_run

        related = {"prefect.resource.id": f"prefect.flow-run.{flow_run.id}", "prefect.resource.role": "flow-run"}
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[{**event, "related": [related] if flow_run.id else []}])
        path.unlink(missing_ok=True)
