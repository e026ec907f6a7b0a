"""What a method's model is worth to every client: asked by tasks whose messages are no traffic of training."""

import math
from dataclasses import replace
from typing import Any

from flows.experiment.comparison.paired_runs import by_prior_shift
from flows.experiment.project import Project
from flows.experiment.run.round_record import by_client_of, means_of, metrics_of
from flows.experiment.run.run_folder import RunFolder
from flows.methods.base import Method
from flows.methods.context import RoundContext, RoundCost
from models.client_model import Model
from models.server_state import ServerState
from silos.cohort import Silos
from tasks.evaluation.evaluate import evaluate
from tasks.messages.score_messages import Scores
from tasks.tracking.json_io import write_json
from tasks.tracking.result_tables import by_client
from tasks.uncertainty_check import uncertainty_check

SPLITS = ("validation", "test")


def scored_model(method: Method, silos: Silos, state: ServerState, round: RoundContext) -> Model:
    """The model of every client, of all roles, that has one; also of those that did not take part, or are not scored.

    The tasks that this may take cost seconds like those of the round; what they send is no traffic of training.
    """
    return method.scored_model(state, _of_everybody(method, silos, round))


def for_scored(project: Project, method: Method, model: Model) -> Model:
    """The part of it that is scored: all of it, unless `evaluation.clients` is a number."""
    if project.scored is project.silos:
        return model
    return model.select(method.silos_with_a_model(project.scored).clients)


def scores_of_others(project: Project, method: Method, state: ServerState, round: RoundContext) -> dict[str, float]:
    """Metrics of what else a page answers with, each under its name: `own/accuracy/mean`."""
    metrics: dict[str, float] = {}
    for name, model in method.other_models(state, _of_everybody(method, project.silos, round)).items():
        scored = by_client(scores_of(project, for_scored(project, method, model), round), project.quantity)
        metrics |= {f"{name}/{k}": v for k, v in metrics_of(scored, project.silos, project.quantity).items()}
    return metrics


def _of_everybody(method: Method, silos: Silos, round: RoundContext) -> RoundContext:
    silos = method.silos_with_a_model(silos)
    setup, tally = replace(round.setup, silos=silos), RoundCost(round.tally.seconds)
    return replace(round, setup=setup, clients=silos.clients, dropped=(), tally=tally, validation=None)


def scores_of(project: Project, model: Model, round: RoundContext, keep_outcomes: bool = False) -> list[Scores]:
    """Every client of the model is scored; one model on common rows is scored once and counts for every client."""
    silos = project.silos.select(model.clients)
    once = tuple(s for s in SPLITS if silos.common(s) and not model.is_personal)
    options: dict[str, Any] = {"training": round.setup.training, "keep_outcomes": keep_outcomes}
    if project.metrics:
        options["metrics"] = project.metrics
    scores: list[Scores] = []
    if len(once) < len(SPLITS):
        each = tuple(s for s in SPLITS if s not in once)
        scores += round.map_clients(evaluate, model, silos=silos, splits=each, **options)
    if once:
        answers = round.map_clients(evaluate, model, silos=silos.select(silos.clients[:1]), splits=once, **options)
        scores += [score.for_all(silos.clients) for score in answers]
    return scores


def doubts_of(project: Project, model: Model, round: RoundContext) -> dict[str, dict[str, float]]:
    """client to what uncertainty_check finds on its test rows; nothing of a regression, or without test rows."""
    if project.quantity.outcome != "correct":
        return {}
    silos = project.silos.select(model.clients)
    asked = silos.select(silos.clients[:1]) if silos.common("test") and not model.is_personal else silos
    setup = round.setup
    options: dict[str, Any] = {"training": setup.training, "seed": setup.seed, "round": round.number}
    options |= {"passes": project.params.evaluation.passes, "refuse": False}
    doubts: dict[str, dict[str, float]] = {}
    for message in round.map_clients(uncertainty_check, model, silos=asked, split="test", **options):
        for at, client in enumerate(message.clients):
            if message.rows[at]:
                numbers = {name: float(value[at]) for name, value in message.numbers.items()}
                doubts[client] = {name: value for name, value in numbers.items() if math.isfinite(value)}
    return doubts if asked is silos else {client: dict(doubts[asked.clients[0]]) for client in silos.clients}


def last_scores(
    project: Project, model: Model, round: RoundContext, folder: RunFolder
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """A run's metrics, and the doubts of each client; every client keeps its outcomes, whose hashes are in the folder."""
    silos, quantity = project.scored, project.quantity
    scores = scores_of(project, model, round, keep_outcomes=True)
    write_json(folder.outcomes, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()})
    table, doubts = by_client(scores, quantity), doubts_of(project, model, round)
    metrics = {**metrics_of(table, silos, quantity), **means_of(doubts, silos), **_by_own_law(project, scores, round)}
    return {**metrics, f"{quantity.name}/by_client": by_client_of(table, silos, quantity)}, doubts


def _by_own_law(project: Project, scores: list[Scores], round: RoundContext) -> dict[str, float]:
    """Of a classification on common test rows the mean over federated clients as each one's classes count; else nothing."""
    refs = {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()}
    silos = project.scored.federated()
    silos = silos.select([client for client in silos.clients if client in refs])
    if not silos.common("test") or project.quantity.outcome != "correct":
        return {}
    values = by_prior_shift(round.runner, silos, (round.private, refs)).values()
    return {"accuracy/own_law": math.fsum(values) / len(values)} if values else {}
