"""Evaluates the model of a method at every client, and the constant baseline that results are compared with.

Evaluation tasks add no bytes to the traffic of training. The baseline predicts the same value for all rows; it is
scored on the clients and test rows that the methods are scored on.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flows.core.config.params_schema import Params
from flows.core.console.safe_text import shortened
from flows.methods.base import Method
from flows.methods.round_context import RoundContext
from flows.project.project import Project
from flows.training.paired_runs import compare_pairs, prior_shift_by_client, smallest_that_matters
from flows.training.round_record import mean_uncertainty, metric_by_client, metrics_of
from flows.training.run_folder import RunFolder
from models.client_model import Model
from models.metrics.client_metrics import CLIENT_METRICS, ClientMetric
from models.metrics.paired_difference import difference_record
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from models.server_state import ServerState
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.plugin_registry import bind_options
from silos.standardizer import NO_STANDARDIZATION
from silos.storage.partition_store import open_client
from tasks.evaluate import NONE, ClientMetrics, evaluate, evaluate_constant
from tasks.execution.task_runner import PlainRunner, RoundCost, map_clients
from tasks.messages.score_messages import Scores
from tasks.paired_outcomes import Outcomes
from tasks.tracking.json_io import write_json
from tasks.tracking.result_tables import aggregates, by_client
from tasks.tracking.result_types.comparison_result import BaselineDifference, ComparedBaseline
from tasks.tracking.result_types.run_files import ValidationRecord
from tasks.tracking.result_types.run_result import BaselineAnswer, ConstantBaseline, Metrics, RunMetrics
from tasks.uncertainty_check import uncertainty_check

SPLITS = ("validation", "test")


def scored_model(method: Method, silos: Silos, state: ServerState, round: RoundContext) -> Model:
    """Return the model of every client, of any role, that has one: also of clients that took no part or are not scored.

    The tasks that this may run cost seconds like the tasks of the round. Their messages are no traffic of training.
    """
    return method.scored_model(state, _for_all_clients(method, silos, round))


def select_scored_clients(project: Project, method: Method, model: Model) -> Model:
    """Select the clients that are scored: all clients of the model, unless `evaluation.clients` is a number."""
    if project.scored is project.silos:
        return model
    return model.select(method.silos_with_a_model(project.scored).clients)


def score_other_models(project: Project, method: Method, state: ServerState, round: RoundContext) -> dict[str, float]:
    """Return the metrics of the method's other models, with the model's name as prefix: `own/accuracy/mean`."""
    metrics: dict[str, float] = {}
    for name, model in method.other_models(state, _for_all_clients(method, project.silos, round)).items():
        scored = by_client(score_model(project, select_scored_clients(project, method, model), round), project.quantity)
        metrics |= {f"{name}/{k}": v for k, v in metrics_of(scored, project.silos, project.quantity).items()}
    return metrics


def _for_all_clients(method: Method, silos: Silos, round: RoundContext) -> RoundContext:
    silos = method.silos_with_a_model(silos)
    setup, tally = replace(round.setup, silos=silos), RoundCost(round.tally.seconds)
    return replace(round, setup=setup, clients=silos.clients, dropped=(), tally=tally, validation=None)


def score_model(
    project: Project,
    model: Model,
    round: RoundContext,
    keep_outcomes: bool = False,
    final: bool = False,
    splits: tuple[str, ...] = SPLITS,
) -> list[Scores]:
    """Score every client of the model; a shared model on common rows is scored once for all clients.

    The `final` scores have all metrics of the task.
    """
    silos = project.silos.select(model.clients)
    shared_splits = tuple(s for s in splits if silos.common(s) and not model.is_personal)
    options: dict[str, Any] = {"training": round.setup.training, "keep_outcomes": keep_outcomes}
    if row_metrics := row_metrics_of(project.params):
        options["metrics"] = row_metrics
    client_metrics = _client_metrics(project.quantity, final)
    if client_metrics != NONE:
        options["client_metrics"] = client_metrics
    scores: list[Scores] = []
    if len(shared_splits) < len(splits):
        other_splits = tuple(s for s in splits if s not in shared_splits)
        scores += round.map_clients(evaluate, model, silos=silos, splits=other_splits, **options)
    if shared_splits:
        first = silos.select(silos.clients[:1])
        messages = round.map_clients(evaluate, model, silos=first, splits=shared_splits, **options)
        scores += [score.for_all(silos.clients) for score in messages]
    return scores


def row_metrics_of(params: Params) -> dict[str, Callable[..., Any]]:
    """Return the plugin metrics of rows that params name: each maps logits and y to a value for each row."""
    sections = params.evaluation.metrics
    return {s.kind: bind_options(s) for s in sections if not isinstance(s.entry.target, type)}


def _client_metrics(quantity: TaskMetrics, final: bool) -> ClientMetrics:
    others = other_metrics(quantity) if final else ()
    every = (metric for metric in (quantity, *quantity.reported, *others) if isinstance(metric, ClientMetric))
    return ClientMetrics(tuple(every), quantity if isinstance(quantity, ClientMetric) else None)


def other_metrics(quantity: TaskMetrics) -> tuple[ClientMetric, ...]:
    """Return the metrics of the task that only the final model is scored by."""
    known = {quantity.name, *(metric.name for metric in quantity.reported)}
    return tuple(m for m in CLIENT_METRICS.values() if m.task == quantity.task and m.name not in known)


def _uncertainty_of(project: Project, model: Model, round: RoundContext) -> dict[str, dict[str, float]]:
    """Map each client to its `uncertainty_check` metrics on test rows; empty for a regression, or without test rows."""
    if project.quantity.task != "classification":
        return {}
    silos = project.silos.select(model.clients)
    checked = silos.select(silos.clients[:1]) if silos.common("test") and not model.is_personal else silos
    setup = round.setup
    options: dict[str, Any] = {"training": setup.training, "seed": setup.seed, "round": round.number}
    options |= {"passes": project.params.evaluation.passes, "refuse": False}
    uncertainty: dict[str, dict[str, float]] = {}
    for message in round.map_clients(uncertainty_check, model, silos=checked, split="test", **options):
        for index, client in enumerate(message.clients):
            if message.rows[index]:
                values = {name: float(value[index]) for name, value in message.numbers.items()}
                uncertainty[client] = {name: value for name, value in values.items() if math.isfinite(value)}
    if checked is silos:
        return uncertainty
    return {client: dict(uncertainty[checked.clients[0]]) for client in silos.clients}


def final_scores(
    project: Project, model: Model, round: RoundContext, folder: RunFolder
) -> tuple[RunMetrics, dict[str, dict[str, float]]]:
    """Return a run's metrics and the uncertainty of each client.

    Every client stores its outcomes; their hashes are written to the run's folder.
    """
    silos, quantity = project.scored, project.quantity
    scores = score_model(project, model, round, keep_outcomes=True, final=True)
    others = other_metrics(quantity)
    write_json(folder.outcomes, {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()})
    table, uncertainty = by_client(scores, quantity.with_metrics((), others)), _uncertainty_of(project, model, round)
    metrics: RunMetrics = {
        **metrics_of(table, silos, quantity, others),
        **mean_uncertainty(uncertainty, silos),
        **_prior_shift_mean(project, scores, round),
    }
    metrics[f"{quantity.name}/by_client"] = metric_by_client(table, silos, quantity)
    return metrics, uncertainty


def write_validation(project: Project, model: Model, round: RoundContext, folder: RunFolder, number: int) -> None:
    """Score the validation rows; every client stores its outcomes, and their hashes and the score are written.

    Args:
        project: The project of the run.
        model: The model of the clients that are scored.
        round: The context that tasks run in.
        folder: The run's folder.
        number: The rounds that were played.
    """
    scores = score_model(project, model, round, keep_outcomes=True, splits=("validation",))
    metrics = metrics_of(by_client(scores, project.quantity), project.scored, project.quantity)
    record: ValidationRecord = {
        "round": number,
        "metrics": {**metrics},
        "outcomes": {client: ref for s in scores for client, ref in s.outcomes.items()},
    }
    write_json(folder.validation, record)


def _prior_shift_mean(project: Project, scores: list[Scores], round: RoundContext) -> dict[str, float]:
    """Average the accuracy on common test rows over federated clients, each weighted by its class shares.

    Empty unless the task is a classification with common test rows.
    """
    refs = {c: ref for s in scores if s.split == "test" for c, ref in s.outcomes.items()}
    silos = project.scored.federated()
    silos = silos.select([client for client in silos.clients if client in refs])
    if not silos.common("test") or project.quantity.task != "classification":
        return {}
    values = prior_shift_by_client(round.runner, silos, (round.private, refs)).values()
    return {"accuracy/own_law": math.fsum(values) / len(values)} if values else {}


_STACK = 16  # clients


_LETTERS = 20  # of a class's name


@dataclass(frozen=True)
class Baseline:
    """A constant prediction with its metrics; the `outcomes` of rows exist while `scored_baseline` is open."""

    silos: Silos
    outcomes: Outcomes
    about: ConstantBaseline


def baseline(project: Project) -> ConstantBaseline | None:
    """Return name, prediction and metrics of the baseline as plain JSON; None without test rows."""
    return deepcopy(_baseline_info(_scored_clients(project), project.quantity))


@lru_cache(maxsize=8)
def _baseline_info(silos: Silos, quantity: TaskMetrics) -> ConstantBaseline | None:
    """Score the baseline once for all runs of a command on these clients."""
    with _score_constant(silos, quantity) as baseline:
        return None if baseline is None else baseline.about


@contextmanager
def scored_baseline(project: Project) -> Iterator[Baseline | None]:
    """Score the most frequent class, or the mean target, of the training rows of the federated clients that are scored.

    Log loss and Brier score are those of the share of each class. The prediction is the same for all clients, and does
    not depend on the seed. Nothing is trained.
    """
    with _score_constant(_scored_clients(project), project.quantity) as scored:
        yield scored


def _scored_clients(project: Project) -> Silos:
    return replace(project.scored.federated(), scaling=NO_STANDARDIZATION)


@contextmanager
def _score_constant(silos: Silos, quantity: TaskMetrics) -> Iterator[Baseline | None]:
    with TemporaryDirectory(prefix="siloflow-") as folder:
        store, constant = ClientStore(folder), constant_prediction(silos)
        scores = map_clients(
            PlainRunner(),
            evaluate_constant,
            silos,
            constant.answer,
            stack=_STACK,
            private=store,
            shares=constant.shares,
            client_metrics=_client_metrics(quantity, final=False),
        )
        table = by_client(scores, quantity)
        metrics: Metrics = {
            name: value
            for metric in (quantity, *quantity.reported)
            for name, value in aggregates(table, "test", metric).items()
        }
        if quantity.headline not in metrics:
            yield None
            return
        outcomes = {client: ref for message in scores for client, ref in message.outcomes.items()}
        yield Baseline(silos, (store, outcomes), {**_named(silos, constant, quantity), "metrics": metrics})


def against_baseline(
    project: Project, scored: Baseline, runs: Mapping[str, Sequence[Outcomes]], tuned: bool
) -> ComparedBaseline:
    """Compare each method with the baseline, on all of its seeds; `sentence` is set if none is better by what matters."""
    name, quantity = scored.about["name"], project.quantity
    matters, small = smallest_that_matters(project, scored.about["metrics"][quantity.headline]), False
    paired: list[BaselineDifference] = []
    for method, outcomes in runs.items():
        same = [scored.outcomes] * len(outcomes)
        difference = compare_pairs(PlainRunner(), scored.silos, outcomes, same, quantity)
        if difference is None:  # no client has two rows of each of its classes, for a metric that needs them
            continue
        paired.append({"method": method, **difference_record(method, name, difference, quantity, matters)})
        is_gain = difference.distinguishable and quantity.gain(difference.mean) > 0
        small |= is_gain and paired[-1]["better"] is None
    none_better = bool(paired) and all(record["better"] != record["method"] for record in paired)
    least = f" by what matters ({quantity.amount(matters)})" if small else ""
    sentence = _none_is_better(project, scored.about, tuned, least) if none_better else None
    return {**scored.about, "paired": paired, "sentence": sentence}


@dataclass(frozen=True)
class Constant:
    """The same answer for every row: the code of a class, or a number; `shares` are those of the classes."""

    answer: float
    shares: tuple[float, ...] = ()


@lru_cache(maxsize=8)
def constant_prediction(silos: Silos) -> Constant:
    """Return the code of the most frequent class, or the mean target, over all training rows of these clients.

    Rows are counted together, so large clients weigh more, as in one model of all clients. Of equally frequent classes,
    the first is returned. Labels are read from the folder of the silos, as `siloflow show` reads them: no client sends
    labels.
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
    if manifest.task == "regression":
        return Constant(total / rows)
    return Constant(float(counts.argmax()), tuple((counts / max(counts.sum(), 1)).tolist()))


def _named(silos: Silos, constant: Constant, quantity: TaskMetrics) -> BaselineAnswer:
    if silos.manifest.task == "regression":
        text = TASK_METRICS["regression"].number(constant.answer)
        return {"name": f"always {text}", "answer": constant.answer, "kind": "mean target"}
    code, commonest = int(constant.answer), int(constant.answer)
    if isinstance(quantity, ClientMetric):
        code = int(quantity.constant_for(constant.shares).argmax())
    label, is_usual = silos.manifest.classes[code], code == commonest
    if isinstance(quantity, ClientMetric) and quantity.of_probabilities:
        kind = "share of each class" if is_usual else f"constant answer for {quantity.label}"
        return {"name": "always the same probabilities", "answer": label, "kind": kind}
    kind = "commonest class" if is_usual else f"constant answer for {quantity.label}, from the shares of the classes"
    return {"name": f'always "{shortened(label, _LETTERS)}"', "answer": label, "kind": kind}


def _none_is_better(project: Project, baseline: ConstantBaseline, tuned: bool, least: str) -> str:
    quantity = project.quantity
    score = f"{quantity.label} {quantity.number(baseline['metrics'][quantity.headline])}"
    prediction = baseline["name"].replace("always", "always predicting", 1)
    advice = _advice(project.params, tuned) or "the inputs may not predict the target"
    constant = f"{prediction}, the {baseline['kind']} of the training rows ({score})"
    return f"No method is certainly better{least} than {constant}: {advice}."


def _advice(params: Params, tuned: bool) -> str:
    """Name settings that may help and have not been tried."""
    ways = [] if tuned else ["`--tune`"]
    if params.evaluation.report == "last":
        ways += ["fewer training.rounds", "`--set evaluation.report=best`"]
    if params.model.kind == "mlp" and params.model.hidden:
        ways.append("`--set 'model.hidden=[]'`")
    return f"try {' or '.join([', '.join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)}" if ways else ""
