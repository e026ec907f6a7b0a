"""Registers the candidates of a comparison: one run of each method whose model was logged."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flows.config.method_settings import method_of
from flows.console import progress
from flows.experiment.project import Project
from flows.experiment.run.mlflow_run_metadata import git_commit
from flows.experiment.run.run_folder import RunFolder
from flows.registry.challenge import challenge, is_better
from flows.registry.model_finder import model_name
from tasks.tracking.mlflow_logging.connection import describe_problem
from tasks.tracking.mlflow_logging.registry import (
    CHALLENGER,
    CHAMPION,
    ModelVersion,
    Registry,
    is_store_failure,
)

Result = Mapping[str, Any]


def register_candidates(project: Project, results: Iterable[Result]) -> dict[str, Any] | None:
    """Register a run of each method; return the versions with their interval against the champion as plain JSON.

    The run is the one with the best score on validation rows in its reported round, or that of the first seed: test
    rows decide on promotion, so they may not choose. A bound for other methods is no candidate. If MLflow does not
    answer, the screen says so, and None is returned.
    """
    by_method: dict[str, list[Result]] = {}
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
        progress.current().say(f"{describe_problem(project.tracking, error)}; no candidate was registered.")
        return None


def _register(project: Project, chosen: list[Result]) -> dict[str, Any]:
    registry = Registry(project.tracking, model_name(project))
    number = registry.aliases().get(CHAMPION)
    champion = registry.find(number) if number is not None else None
    candidates = []
    for result in chosen:
        version = register_run(project, registry, result)
        if version is None:
            continue
        against = None
        if champion is not None and champion.number != version.number:
            against = challenge(project, result["folder"], champion.tags.get("run"))
            registry.tag(version.number, _interval_tags(champion, against))
        candidates.append(
            {
                "method": result["method"],
                "seed": result["seed"],
                "version": version.number,
                "against": against,
                "better": against is not None and is_better(against),
                "score": project.quantity.score(result["metrics"]),
            }
        )
    best = max(candidates, key=_merit, default=None)
    if best is not None and best["version"] != number:
        registry.set_aliases({CHALLENGER: best["version"]})
    return {
        "model": registry.model,
        "champion": number,
        "challenger": registry.aliases().get(CHALLENGER),
        "candidates": [{key: value for key, value in each.items() if key != "score"} for each in candidates],
    }


def register_run(project: Project, registry: Registry, result: Result) -> ModelVersion | None:
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
        headline: project.quantity.number(result["metrics"].get(headline)),
    }
    description = f"Models of {project.params.data.name}, by siloflow. The alias champion is in use."
    return registry.register(result["mlflow_run_id"], tags, description)


def _choose(project: Project, runs: list[Result]) -> Result:
    def rank(result: Result) -> tuple[float, float]:
        record = RunFolder(project.root / result["folder"]).journal.read(result["reported_round"])
        return project.quantity.rank(record["metrics"], "validation/")

    return max(runs, key=rank)  # the first of equals


def _merit(candidate: Mapping[str, Any]) -> tuple[float, float]:
    """Order candidates by their gain over the champion, or by their score while there is none."""
    gain = (candidate["against"] or {}).get("gain")
    return (sum(gain) / 2 if gain else -math.inf, candidate["score"])


def _interval_tags(champion: ModelVersion, against: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags with the interval against the champion, or why there is none."""
    tags = {
        "champion": champion.number,
        "against_champion": against.get("sentence") or f"no interval: {against['why_not']}",
    }
    numbers = {key: f"{against[key]:.6g}" for key in ("difference", "low", "high") if key in against}
    return {**tags, **numbers}
