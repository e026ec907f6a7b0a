"""What a method's model is worth to every client: asked by tasks whose messages are no traffic of training.

The baseline of every result: one answer for all rows, scored on the clients and test rows that the methods have.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flows.config.params_schema import Params
from flows.console.safe_text import shortened
from flows.experiment.comparison.paired_runs import by_prior_shift, compare_pairs
from flows.experiment.project import Project
from flows.experiment.run.round_record import by_client_of, means_of, metrics_of
from flows.experiment.run.run_folder import RunFolder
from flows.methods.base import Method
from flows.methods.context import RoundContext
from models.client_model import Model
from models.metrics.paired_difference import difference_record
from models.metrics.task_metrics import TASK_METRICS
from models.server_state import ServerState
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.standardizer import NO_STANDARDIZATION
from silos.storage.partition_store import open_client
from tasks.evaluate import evaluate, evaluate_constant
from tasks.execution.round_cost import RoundCost
from tasks.execution.task_runner import PlainRunner, cohort_calls
from tasks.messages.score_messages import Scores
from tasks.paired_outcomes import Outcomes
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


_STACK = 16  # clients
_LETTERS = 20  # of a class


@dataclass(frozen=True)
class Baseline:
    """What always gives the same answer, with its metrics; `outcomes` of a row are there while `scored_baseline` is open."""

    silos: Silos
    outcomes: Outcomes
    about: dict[str, Any]


def baseline(project: Project) -> dict[str, Any] | None:
    """Return the name, the answer and the metrics of the baseline as plain JSON; None without test rows."""
    return deepcopy(_about(_scored_clients(project)))


@lru_cache(maxsize=8)
def _about(silos: Silos) -> dict[str, Any] | None:
    """Score the baseline once for all runs of a command on these clients."""
    with _scored(silos) as found:
        return None if found is None else found.about


@contextmanager
def scored_baseline(project: Project) -> Iterator[Baseline | None]:
    """Score the commonest class, or the mean target, of the training rows of the federated clients that are scored.

    It is the same answer for all clients, and does not depend on the seed. Nothing is trained.
    """
    with _scored(_scored_clients(project)) as found:
        yield found


def _scored_clients(project: Project) -> Silos:
    return replace(project.scored.federated(), scaling=NO_STANDARDIZATION)


@contextmanager
def _scored(silos: Silos) -> Iterator[Baseline | None]:
    quantity = TASK_METRICS[silos.manifest.task]
    with TemporaryDirectory(prefix="siloflow-") as folder:
        store, answer = ClientStore(folder), constant_answer(silos)
        calls = cohort_calls(silos, _STACK, 1, answer, private=store)
        answers = PlainRunner().map_cohorts(evaluate_constant, calls)
        scores: list[Scores] = [message for cohort in answers for message in cohort]
        rows = [row for row in by_client(scores, quantity).values() if row["test/rows"]]
        if not rows:
            yield None
            return
        values, counts = (np.array([row[f"test/{n}"] for row in rows], float) for n in (quantity.name, "rows"))
        kept = {client: ref for message in scores for client, ref in message.outcomes.items()}
        metrics = quantity.summary(values, counts)
        yield Baseline(silos, (store, kept), {**_named(silos, answer), "metrics": metrics})


def against_baseline(
    project: Project, found: Baseline, runs: Mapping[str, Sequence[Outcomes]], tuned: bool
) -> dict[str, Any]:
    """Compare each method with the baseline, on all of its seeds; `sentence` says so if no method is better."""
    name, quantity = found.about["name"], project.quantity
    paired = []
    for method, outcomes in runs.items():
        same = [found.outcomes] * len(outcomes)
        difference = compare_pairs(PlainRunner(), found.silos, outcomes, same, quantity)
        assert difference is not None, "there are test rows"
        paired.append({"method": method, **difference_record(method, name, difference, quantity)})
    none = bool(paired) and all(one["better"] != one["method"] for one in paired)
    sentence = _none_is_better(project, found.about, tuned) if none else None
    return {**found.about, "paired": paired, "sentence": sentence}


@lru_cache(maxsize=8)
def constant_answer(silos: Silos) -> float:
    """Return the code of the commonest class, or the mean target, over all training rows of these clients.

    Rows are counted together, so large clients weigh more, as in one model of all of them. Of classes that are equally
    common, the first is returned. Labels are read from the folder of the silos, as `siloflow show` reads them: no client
    sends them.
    """
    silos.check(silos.clients)
    manifest = silos.manifest
    total, rows = 0.0, 0
    counts = np.zeros(len(manifest.classes), np.int64)
    for client in silos.clients:
        _, y = open_client(Path(silos.folder), manifest.client(client), "train")
        if manifest.task == "classification":
            counts += np.bincount(y, minlength=len(counts))
        else:
            total, rows = total + float(y.sum(dtype=np.float64)), rows + len(y)
    return float(counts.argmax()) if manifest.task == "classification" else total / rows


def _named(silos: Silos, answer: float) -> dict[str, Any]:
    if silos.manifest.task == "regression":
        number = TASK_METRICS["regression"].number(answer)
        return {"name": f"always {number}", "answer": answer, "kind": "mean target"}
    label = silos.manifest.classes[int(answer)]
    return {"name": f'always "{shortened(label, _LETTERS)}"', "answer": label, "kind": "commonest class"}


def _none_is_better(project: Project, about: Mapping[str, Any], tuned: bool) -> str:
    quantity = project.quantity
    score = f"{quantity.name} {quantity.number(about['metrics'][quantity.headline])}"
    answer = about["name"].replace("always", "always answering", 1)
    way_out = _advice(project.params, tuned) or "the inputs may tell nothing about what is predicted"
    return f"No method is better than {answer}, the {about['kind']} of the training rows ({score}): {way_out}."


def _advice(params: Params, tuned: bool) -> str:
    """Name what may help that has not been done."""
    ways = [] if tuned else ["`--tune`"]
    if params.evaluation.report == "last":
        ways += ["fewer training.rounds", "evaluation.report=best"]
    if params.model.kind == "mlp" and params.model.hidden:
        ways.append("model.hidden=[]")
    return f"try {' or '.join([', '.join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)}" if ways else ""
