"""Compares a candidate with the champion on the present test rows."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.config.method_settings import method_of
from flows.experiment.comparison.paired_runs import compare_pairs, outcomes_of_run
from flows.experiment.evaluation import score_model, select_scored_clients
from flows.experiment.project import Project
from flows.experiment.run.load_finished_run import finished_run
from flows.experiment.run.run_folder import RunFolder
from flows.methods.context import RoundContext
from models.metrics.client_metrics import recorded_metric
from models.metrics.paired_difference import difference_record
from models.server_state import ClientStateRefs
from silos.errors import UserError
from tasks.execution.task_runner import PlainRunner
from tasks.paired_outcomes import Outcomes
from tasks.tracking.json_io import RESTORE_ADVICE, read_json


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
        `sentence`; or `why_not`.
    """
    if candidate is None or champion is None:
        return {"why_not": "one of the versions has no tag `run`, as siloflow sets it"}
    folders = [project.root / name for name in (candidate, champion)]
    names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    names = [folder.name for folder in folders] if folders[0].name != folders[1].name else names
    try:
        sides = [_outcomes(project, folder) for folder in folders]
    except UserError as error:
        return {"why_not": str(error).rstrip(".")}
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
    saved = read_json(folder / "run.json", RESTORE_ADVICE, ("params", "data_version"))
    if saved is None:
        raise UserError(f"{folder} is missing. Restore it from a copy.")
    name, now = saved["params"]["data"]["name"], project.params.data.name
    if name != now:
        raise UserError(f"{folder.name} was trained on {name}, and data.name is {now}")
    result = RunFolder(folder).finished()
    if result is None or result["task"] != project.manifest.task:
        raise UserError(f"{folder.name} is no finished {project.manifest.task}")
    metric = recorded_metric(result).name
    if metric != project.quantity.name:  # clients stored the outcomes of rows by this one only
        raise UserError(f"{folder.name} was scored by {metric}, and evaluation.metric is {project.quantity.name}")
    if project.same_rows(saved["data_version"], project.silos.version):
        return outcomes_of_run(project, folder)
    run = finished_run(project, str(folder.relative_to(project.root)), on_present_data=True)
    if isinstance(run.model.personal, ClientStateRefs):
        raise UserError(f"{folder.name} has a model for each client, which was trained on other rows")
    setup = run.project.training_setup(run.seed)
    round = RoundContext(run.round, setup, setup.silos.clients, (), PlainRunner(), run.private)
    model = select_scored_clients(run.project, method_of(run.project.params, run.method), run.model)
    scores = score_model(run.project, model, round, keep_outcomes=True)
    return run.private, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()}


def _bytes_sent(folder: Path) -> float:
    result = RunFolder(folder).finished()
    return math.inf if result is None else float(sum(result["bytes"].values()))
