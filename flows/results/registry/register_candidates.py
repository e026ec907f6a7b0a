"""Registers the candidates of a comparison, and compares a candidate with the champion on the present test rows.

A candidate is one run of a method whose model was logged.
"""

import math
from collections.abc import Iterable
from pathlib import Path

from flows.core.console import progress
from flows.methods.method_settings import method_of
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.results.registry.model_finder import model_name
from flows.training.load_finished_run import check_same_data, score_on_present_rows
from flows.training.paired_runs import compare_pairs, outcomes_of_run, smallest_that_matters
from flows.training.run_records.mlflow_run_metadata import git_commit
from flows.training.run_records.run_folder import RunFolder
from models.metrics.client_metrics import recorded_metric
from models.metrics.paired_difference import difference_record
from models.metrics.task_metrics import metric_value
from silos.errors import UserError
from tasks.paired_outcomes import Outcomes
from tasks.tracking.mlflow_logging.connection import describe_problem
from tasks.tracking.mlflow_logging.model_registry import (
    CHALLENGER,
    CHAMPION,
    ModelVersion,
    Registry,
    is_store_failure,
)
from tasks.tracking.result_types.registry_records import (
    Candidate,
    Challenge,
    NoChallenge,
    RegisteredCandidates,
)
from tasks.tracking.result_types.run_result import RunResult


def register_candidates(project: Project, results: Iterable[RunResult]) -> RegisteredCandidates | None:
    """Register a run of each method; return the versions with their interval against the champion.

    The run is the one with the best score on validation rows in its reported round, or that of the first seed: test
    rows decide on promotion, so they may not choose. A bound for other methods is no candidate. If MLflow does not
    answer, the screen says so, and None is returned.
    """
    by_method: dict[str, list[RunResult]] = {}
    for result in results:
        if result["mlflow_run_id"] is not None:
            by_method.setdefault(result["method"], []).append(result)
    if not by_method:  # MLflow did not receive the runs either, and the screen shows it
        return None
    chosen = [
        _choose(project, runs) for name, runs in by_method.items() if not method_of(project.params, name).is_bound
    ]
    try:
        return _register(project, chosen)
    except Exception as error:
        if not is_store_failure(error):
            raise
        progress.say(f"{describe_problem(project.store.tracking, error)}; no candidate was registered.")
        return None


def _register(project: Project, chosen: list[RunResult]) -> RegisteredCandidates:
    registry = Registry(project.store.tracking, model_name(project))
    number = registry.aliases().get(CHAMPION)
    champion = registry.find(number) if number is not None else None
    candidates: list[Candidate] = []
    scores: dict[str, float] = {}
    for result in chosen:
        version = register_run(project, registry, result)
        if version is None:
            continue
        against: Challenge | NoChallenge | None = None
        if champion is not None and champion.number != version.number:
            against = challenge(project, result["folder"], champion.tags.get("run"))
            registry.tag(version.number, _interval_tags(champion, against))
        candidates.append(
            {
                "method": result["method"],
                "seed": result["seed"],
                "run": Path(result["folder"]).name,
                "version": version.number,
                "against": against,
                "better": against is not None and is_better(against),
            }
        )
        scores[version.number] = project.quantity.score(result["metrics"])
    # only the best becomes the challenger; the others stay registered, and a user may promote them by number
    best = max(candidates, key=lambda each: _merit(each, scores[each["version"]]), default=None)
    if (
        best is not None
        and best["version"] != number
        and not (champion is None and _is_outscored(project, registry, scores[best["version"]]))
    ):
        registry.set_aliases({CHALLENGER: best["version"]})
    return {
        "model": registry.model,
        "champion": number,
        "challenger": registry.aliases().get(CHALLENGER),
        "candidates": candidates,
    }


def register_run(project: Project, registry: Registry, result: RunResult) -> ModelVersion | None:
    """Register the model of a finished run with tags that say where it comes from; None if none was logged."""
    if result["mlflow_run_id"] is None:  # MLflow did not answer when the run ended
        return None
    headline = project.quantity.headline
    tags = {
        "method": result["method"],
        "seed": str(result["seed"]),
        "run": result["folder"],
        "data_version": result["data_version"],
        "data": project.params.data.name,
        "git_commit": git_commit(project.root),
        "weights_sha256": result["weights_sha256"],
        headline: project.quantity.number(metric_value(result["metrics"], headline)),
    }
    description = f"Models of {project.params.data.name}, by siloflow. The alias champion is in use."
    return registry.register(result["mlflow_run_id"], tags, description)


def _choose(project: Project, runs: list[RunResult]) -> RunResult:
    def rank(result: RunResult) -> tuple[float, float]:
        record = RunFolder(project.root / result["folder"]).journal.read(result["reported_round"])
        return project.quantity.rank(record["metrics"], "validation/")

    return max(runs, key=rank)  # the first of equals


def _merit(candidate: Candidate, score: float) -> tuple[float, float]:
    """Order candidates by their gain over the champion, or by their score while there is none."""
    gain = None if candidate["against"] is None else _gain(candidate["against"])
    return (sum(gain) / 2 if gain else -math.inf, score)


def _is_outscored(project: Project, registry: Registry, best: float) -> bool:
    """Return whether the present challenger, of another comparison on the same rows, has a better score.

    While there is no champion to compare with, the challenger is the best of all candidates by its score.
    """
    quantity, present = project.quantity, registry.find(registry.aliases().get(CHALLENGER, ""))
    score = "-" if present is None else present.tags.get(quantity.headline, "-")
    if (
        present is None
        or score == "-"
        or not project.data.same_rows(present.tags["data_version"], project.silos.version)
    ):
        return False
    own = quantity.number(quantity.gain(best))  # rounded, as the tag is
    return own == "-" or quantity.gain(float(score)) > quantity.gain(float(own))


def _interval_tags(champion: ModelVersion, against: Challenge | NoChallenge) -> dict[str, str]:
    """Return the tags with the interval against the champion, or why there is none."""
    if "why_not" in against:
        return {"champion": champion.number, "against_champion": f"no interval: {against['why_not']}"}
    return {
        "champion": champion.number,
        "against_champion": against["sentence"],
        "difference": f"{against['difference']:.6g}",
        "low": f"{against['low']:.6g}",
        "high": f"{against['high']:.6g}",
    }


def challenge(project: Project, candidate: str | None, champion: str | None) -> Challenge | NoChallenge:
    """Return the paired difference of two models on the present test rows, candidate minus champion.

    The interval is over rows: it is about these two models, not about other seeds. A model that was trained on other
    data is scored on the present rows first.

    Args:
        project: The project.
        candidate: The folder of the candidate's run, relative to the project; None if its version does not name it.
        champion: The folder of the champion's run.

    Returns:
        The difference, or why there is none.
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
    measured = compare_pairs(plain_runner(project), clients, sides[:1], sides[1:], quantity) if shared else None
    if measured is None:
        return {"why_not": "they share no test rows"}
    gains = sorted(quantity.gain(value) for value in (measured.low, measured.high))
    sent, champions = [_bytes_sent(folder) for folder in folders], RunFolder(folders[1]).finished()
    headline = metric_value(champions["metrics"], quantity.headline) if champions is not None else None
    matters = smallest_that_matters(project, headline)
    return {
        **difference_record(names[0], names[1], measured, quantity, matters),
        "matters": matters,
        "gain": gains if all(map(math.isfinite, gains)) else None,
        "cheaper": sent[0] < sent[1],
        "clients": len(clients.clients),
        "older": [name for name, folder in zip(names, folders, strict=True) if _is_older(project, folder)],
    }


def older_sentence(record: Challenge) -> str:
    """Return which models may have been trained on present test rows; empty if none may. Earlier decisions name none."""
    older = record.get("older")
    if not older:
        return ""
    them = "it was" if len(older) == 1 else "they were"
    names = " and ".join(older)
    return f"{names}: {them} trained on other data, and unless the source marks test rows, perhaps on some of these"


def _is_older(project: Project, folder: Path) -> bool:
    """Return whether a run was trained on another data version with other rows."""
    return not project.data.same_rows(check_same_data(project, folder)["data_version"], project.silos.version)


def _gain(record: Challenge | NoChallenge) -> list[float] | None:
    return None if "why_not" in record else record["gain"]


def is_better(record: Challenge | NoChallenge) -> bool:
    """Return whether the whole interval is above zero, and the gain is one that matters."""
    return "why_not" not in record and is_certain(record) and record["better"] is not None


def is_certain(record: Challenge | NoChallenge) -> bool:
    """Return whether the whole interval is above zero, however small the gain is."""
    gain = _gain(record)
    return gain is not None and gain[0] > 0


def is_cheaper(record: Challenge, margin: float) -> bool:
    """Return whether the candidate sent fewer bytes, and its whole interval is above -margin."""
    return record["gain"] is not None and record["gain"][0] > -margin and record["cheaper"]


def _outcomes(project: Project, folder: Path) -> Outcomes:
    """Return the outcomes of a run's model on the present test rows; UserError if it has none."""
    saved = check_same_data(project, folder)
    result = RunFolder(folder).finished()
    if result is None or result["task"] != project.silos.manifest.task:
        raise UserError(f"{folder.name} is no finished {project.silos.manifest.task}")
    metric = recorded_metric(result).name
    if metric != project.quantity.name:  # clients stored the outcomes of rows by this one only
        raise UserError(f"{folder.name} was scored by {metric}, and evaluation.metric is {project.quantity.name}")
    if project.data.same_rows(saved["data_version"], project.silos.version):
        return outcomes_of_run(project, folder)
    run, scores = score_on_present_rows(project, folder)
    return run.round.private, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()}


def _bytes_sent(folder: Path) -> float:
    result = RunFolder(folder).finished()
    return math.inf if result is None else float(result["bytes"]["up"] + result["bytes"]["down"])
