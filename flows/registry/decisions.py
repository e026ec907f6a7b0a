"""Reads and writes the history of promotions, refusals and rollbacks, a line each, without MLflow and torch."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.registry import FOLDER

HISTORY = FOLDER / "history.jsonl"


def decisions(root: Path) -> list[dict[str, Any]]:
    """Return every decision, newest first, without a line that a kill cut off."""
    path = root / HISTORY
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in reversed(text[: text.rfind("\n") + 1].splitlines())]


def may_pass(decision: Mapping[str, Any]) -> bool:
    """Return whether the reason of a refusal may pass, such as a missing run; `watch` then tries again."""
    return bool((decision["against"] or {}).get("may_pass"))


def find_repeated(root: Path, decision: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the newest decision if this one, of a watch that tried again, is the same except for id, time and commit."""
    newest = next(iter(decisions(root)), None)
    changes = {key: decision[key] for key in ("id", "at", "git_commit")}
    return newest if newest is not None and {**newest, **changes} == json.loads(json.dumps(decision)) else None


def append_decision(root: Path, decision: Mapping[str, Any]) -> None:
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
