"""The list of what was run here: each run, comparison and sweep with its state and its first number."""

from pathlib import Path
from typing import Any

from flows.history.find_runs import FoundRuns, find_experiment
from models.metrics.task_metrics import TASK_METRICS
from silos.io.locks import is_held
from tasks.tracking.json_io import read_json


def list_runs(root: Path) -> dict[str, Any]:
    """Newest first, as plain JSON."""
    return {"results": [_line(one) for one in find_experiment(root / "runs")]}


def unfinished(one: FoundRuns) -> str:
    """What of a set is not done yet, as a state: `at work`, `3 of 9 runs`, `round 12`; empty where all is."""
    if one.kind == "reproduce":
        return "at work" if _at_work(one) else ""  # what of a table is recorded is `siloflow reproduce`'s to say
    if _answer(one) is not None:
        return ""
    done = sum((run / "result.json").is_file() for run in one.runs)
    if _at_work(one):
        return "at work"
    if one.kind == "compare":
        settings = one.about.get("tune") or 1
        of = len(one.about["methods"]) * (settings + len(one.about["seeds"]) - 1)
        return f"{done} of {of} runs" + (" or more" if settings > 1 else "")
    return f"round {max((_rounds(run) for run in one.runs), default=0)}"


def _line(one: FoundRuns) -> dict[str, Any]:
    answer, state = _answer(one), unfinished(one)
    failed = len(answer.get("failed", [])) if answer else 0
    return {
        "name": one.name,
        "kind": one.kind,
        "what": _what(one),
        "data_version": str((answer or one.about).get("data_version", ""))[:10] or None,
        "started": one.started.isoformat(timespec="seconds"),
        "headline": _headline(answer) if answer else None,
        "state": state or (f"{failed} failed" if failed else "finished"),
    }


def _answer(one: FoundRuns) -> dict[str, Any] | None:
    """What a finished set answered; None of one that is not finished, and of a sweep."""
    if one.kind == "compare":
        answer: dict[str, Any] | None = read_json(one.folder / "comparison.json")
        return answer
    results = [read_json(run / "result.json") for run in one.runs] if one.kind == "run" else []
    return results[-1] if results and results[-1] else None


def _what(one: FoundRuns) -> str:
    """`fedavg, ifca; seeds 0, 1, 2`."""
    if one.kind == "reproduce":
        return str(one.about.get("about", "")).partition(". ")[0]
    methods, seeds = one.about.get("methods", []), one.about.get("seeds", [])
    tuned = f"; tuned of {one.about['tune']}" if one.about.get("tune") else ""
    return f"{', '.join(methods)}; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}{tuned}"


def _headline(answer: dict[str, Any]) -> str | None:
    """`accuracy 0.912` of a run; of a comparison its best method's too."""
    quantity = TASK_METRICS[answer["task"]]
    if "table" not in answer:
        return quantity.said(answer["metrics"])
    rows = [row for row in answer["table"] if row.get(quantity.headline) is not None]
    best = max(rows, key=quantity.score, default=None)
    return None if best is None else f"{best['method']} {quantity.number(best[quantity.headline])}"


def _at_work(one: FoundRuns) -> bool:
    return any(is_held(run) for run in one.runs)


def _rounds(run: Path) -> int:
    """Whole rounds that are written down."""
    return len(list((run / "journal").glob("*.json")))
