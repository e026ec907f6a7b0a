"""Compares a candidate with the champion on the present test rows."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.experiment.comparison.paired_runs import compare_pairs, outcomes_of_run
from flows.experiment.project import Project
from flows.experiment.run.run_folder import RunFolder
from flows.experiment.run.score_finished_run import check_same_data, score_on_present_rows
from models.metrics.client_metrics import recorded_metric
from models.metrics.paired_difference import difference_record
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner
from tasks.paired_outcomes import Outcomes


def challenge(project: Project, candidate: str | None, champion: str | None) -> dict[str, Any]:
    """Return the paired difference of two models on the present test rows, candidate minus champion.

    The interval is over rows: it is about these two models, not about other seeds. A model that was trained on other
    data is scored on the present rows first.

    Args:
        project: The project.
        candidate: The folder of the candidate's run, relative to the project; None if its version does not name it.
        champion: The folder of the champion's run.

    Returns:
        `difference`, `low`, `high`, `gain` (the interval with a sign such that more is better), `cheaper` and a
        `sentence`; or `why_not`, with `may_pass` if a later call may find an interval.
    """
    if candidate is None or champion is None:
        return {"why_not": "one of the versions has no tag `run`, as siloflow sets it"}
    folders = [project.root / name for name in (candidate, champion)]
    names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    names = [folder.name for folder in folders] if folders[0].name != folders[1].name else names
    try:
        sides = [_outcomes(project, folder) for folder in folders]
    except UserError as error:
        why_not = str(error).replace(f"{project.root}/", "").rstrip(".")  # MLflow gets it, as a tag
        return {"why_not": why_not, "may_pass": True}
    silos = project.silos.federated()
    shared = set.intersection(*(set(hashes) for _, hashes in sides)).intersection(silos.clients)
    clients = silos.select(sorted(shared, key=silos.index))
    quantity = project.quantity
    measured = compare_pairs(PlainRunner(), clients, sides[:1], sides[1:], quantity) if shared else None
    if measured is None:
        return {"why_not": "they share no test rows"}
    gains = sorted(quantity.gain(value) for value in (measured.low, measured.high))
    sent = [_bytes_sent(folder) for folder in folders]
    return {
        **difference_record(names[0], names[1], measured, quantity),
        "gain": gains if all(map(math.isfinite, gains)) else None,
        "cheaper": sent[0] < sent[1],
        "clients": len(clients.clients),
    }


def is_better(record: Mapping[str, Any]) -> bool:
    """Return whether the whole interval is above zero."""
    return bool(record.get("gain")) and record["gain"][0] > 0


def is_cheaper(record: Mapping[str, Any], margin: float) -> bool:
    """Return whether the candidate sent fewer bytes, and its whole interval is above -margin."""
    return bool(record.get("gain")) and record["gain"][0] > -margin and bool(record["cheaper"])


def _outcomes(project: Project, folder: Path) -> Outcomes:
    """Return the outcomes of a run's model on the present test rows; UserError if it has none."""
    saved = check_same_data(project, folder)
    result = RunFolder(folder).finished()
    if result is None or result["task"] != project.manifest.task:
        raise UserError(f"{folder.name} is no finished {project.manifest.task}")
    metric = recorded_metric(result).name
    if metric != project.quantity.name:  # clients stored the outcomes of rows by this one only
        raise UserError(f"{folder.name} was scored by {metric}, and evaluation.metric is {project.quantity.name}")
    if project.same_rows(saved["data_version"], project.silos.version):
        return outcomes_of_run(project, folder)
    run, scores = score_on_present_rows(project, folder)
    return run.private, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()}


def _bytes_sent(folder: Path) -> float:
    result = RunFolder(folder).finished()
    return math.inf if result is None else float(sum(result["bytes"].values()))
