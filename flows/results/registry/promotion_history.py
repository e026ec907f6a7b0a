"""Reads and writes the history of promotions, refusals and rollbacks, and queues Prefect's events of promotions.

The history is a file with a line for each decision. Neither needs MLflow or torch. Events of promotions by `watch` are
files until the server has accepted them: after a kill, or while the server is away, the next flow emits what is queued.
An event that is sent twice has the same id, which Prefect accepts once.
"""

import json
import os
import re
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from flows.results.registry import FOLDER
from tasks.tracking.json_io import read_json, write_json
from tasks.tracking.result_types.registry_records import Challenge, Decision, NoChallenge

HISTORY = FOLDER / "history.jsonl"

PROMOTED = "siloflow.champion.promoted"
_QUEUE = FOLDER / "events"


class PromotionPayload(TypedDict):
    """What the event of a promotion says; `since` is the data version of the former champion."""

    version: str
    champion: str | None
    run: str | None
    reason: str
    against: Challenge | NoChallenge | None
    data_version: str | None
    since: str
    data: str


class PromotionEvent(TypedDict):
    """An event as Prefect's API takes it."""

    id: str
    event: str
    occurred: str
    resource: dict[str, str]
    payload: PromotionPayload


def decisions(root: Path) -> list[Decision]:
    """Return every decision, newest first, without a line that a kill cut off."""
    path = root / HISTORY
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in reversed(text[: text.rfind("\n") + 1].splitlines())]


def may_pass(decision: Decision) -> bool:
    """Return whether the reason of a refusal may pass, such as a missing run; `watch` then tries again."""
    against = decision["against"]
    return against is not None and "why_not" in against and against.get("may_pass", False)


def find_repeated(root: Path, decision: Decision) -> Decision | None:
    """Return the newest decision if this one, of a watch that tried again, is the same except for id, time and commit."""
    newest = next(iter(decisions(root)), None)
    if newest is None:
        return None
    same: Decision = {**newest, "id": decision["id"], "at": decision["at"], "git_commit": decision["git_commit"]}
    return newest if same == json.loads(json.dumps(decision)) else None


def append_decision(root: Path, decision: Decision) -> None:
    """Append the decision as a line, unless the file has it; a line that a kill cut off is completed first."""
    path = root / HISTORY
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if re.search(rf'"id": "{decision["id"]}".*}}\n', text):
        return
    whole = text[: text.rfind("\n") + 1]
    with path.open("r+" if path.is_file() else "w", encoding="utf-8") as file:
        file.truncate(len(whole.encode()))
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(decision) + "\n")
        file.flush()
        os.fsync(file.fileno())


def promotion_event(decision: Decision, data: str) -> PromotionEvent:
    """Return the event of a promotion by `watch` as Prefect's API takes it; `data` is the name of the data."""
    return {
        "id": str(uuid5(NAMESPACE_URL, f"{PROMOTED} {decision['id']}")),
        "event": PROMOTED,
        "occurred": decision["at"],
        "resource": {
            "prefect.resource.id": f"siloflow.{quote('model.' + decision['model'])}",
            "prefect.resource.name": decision["model"],
        },
        "payload": {
            "version": decision["version"],
            "champion": decision["champion"],
            "run": decision["run"],
            "reason": decision["reason"],
            "against": decision["against"],
            "data_version": decision["data_version"],
            "since": decision["watch"]["since"],
            "data": data,
        },
    }


def queue(root: Path, event: PromotionEvent) -> None:
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
