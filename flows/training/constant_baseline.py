"""Scores the constant prediction that results are compared with: one value for all rows.

It is scored on the clients and test rows that the methods are scored on.
"""

import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from flows.core.config.params_schema import Params
from flows.core.console import progress
from flows.core.console.safe_text import shortened
from flows.project.project import Project
from flows.project.project_workers import plain_runner
from flows.training.evaluation import client_metrics
from flows.training.paired_runs import compare_pairs, smallest_that_matters
from models.metrics.client_metrics import ClientMetric
from models.metrics.paired_difference import difference_record
from models.metrics.task_metrics import TASK_METRICS, TaskMetrics
from silos.client_store import ClientStore
from silos.cohort import Silos
from silos.errors import RefusalError
from tasks.evaluate import OUTCOMES, evaluate_constant, sum_targets
from tasks.execution.task_runner import PlainRunner, map_clients
from tasks.messages.score_messages import TargetSums
from tasks.paired_outcomes import Outcomes
from tasks.tracking.result_tables import aggregates, by_client
from tasks.tracking.result_types.comparison_result import BaselineDifference, ComparedBaseline
from tasks.tracking.result_types.run_result import BaselineAnswer, ConstantBaseline, Metrics

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
    if project.params.training.privacy.epsilon is not None:  # its answer follows from exact counts of training rows
        return None
    args = project.scored.federated(), project.quantity, plain_runner(project), project.store.client_folder
    return deepcopy(_baseline_info(*args))


@lru_cache(maxsize=8)
def _baseline_info(silos: Silos, quantity: TaskMetrics, runner: PlainRunner, folder: Path) -> ConstantBaseline | None:
    """Score the baseline once for all runs of a command on these clients."""
    with _score_constant(silos, quantity, runner, folder) as baseline:
        return None if baseline is None else baseline.about


@contextmanager
def scored_baseline(project: Project) -> Iterator[Baseline | None]:
    """Score the most frequent class, or the mean target, of the training rows of the federated clients that are scored.

    Log loss and Brier score are those of the share of each class. The prediction is the same for all clients, and does
    not depend on the seed. Nothing is trained. None without test rows, or if silos do not report what the answer follows
    from, which the screen says. With training.privacy None, too: it follows from exact counts of training rows.
    """
    if project.params.training.privacy.epsilon is not None:
        yield None
        return
    args = project.scored.federated(), project.quantity, plain_runner(project), project.store.client_folder
    with _score_constant(*args) as scored:
        yield scored


@contextmanager
def _score_constant(
    silos: Silos, quantity: TaskMetrics, runner: PlainRunner, folder: Path
) -> Iterator[Baseline | None]:
    with _own_store(runner, folder) as store:
        try:
            found = _scored(silos, quantity, runner, store)
        except RefusalError as error:
            progress.current().say_once(f"no constant answer is compared with: {error}")
            found = None
        yield found


@contextmanager
def _own_store(runner: PlainRunner, folder: Path) -> Iterator[ClientStore]:
    """Open a store below that of the silos, whose policies hold in it, and let clients delete its outcomes at the end."""
    own = folder / "constant" / secrets.token_hex(8)
    try:
        yield ClientStore(str(own))
    finally:
        runner.keep(ClientStore(str(own)), OUTCOMES, ())
        shutil.rmtree(own, ignore_errors=True)


def _scored(silos: Silos, quantity: TaskMetrics, runner: PlainRunner, store: ClientStore) -> Baseline | None:
    constant = constant_prediction(silos, runner, store)
    if constant is None:
        return None
    scores = map_clients(
        runner,
        evaluate_constant,
        silos,
        constant.answer,
        stack=_STACK,
        private=store,
        shares=constant.shares,
        client_metrics=client_metrics(quantity, final=False),
    )
    table = by_client(scores, quantity)
    metrics: Metrics = {
        name: value
        for metric in (quantity, *quantity.reported)
        for name, value in aggregates(table, "test", metric).items()
    }
    if quantity.headline not in metrics:
        return None
    outcomes = {client: ref for message in scores for client, ref in message.outcomes.items()}
    return Baseline(silos, (store, outcomes), {**_named(silos, constant, quantity), "metrics": metrics})


def against_baseline(
    project: Project, scored: Baseline, runs: Mapping[str, Sequence[Outcomes]], tuned: bool
) -> ComparedBaseline:
    """Compare each method with the baseline, on all of its seeds; `sentence` is set if none is better by what matters."""
    name, quantity = scored.about["name"], project.quantity
    matters, small = smallest_that_matters(project, scored.about["metrics"][quantity.headline]), False
    paired: list[BaselineDifference] = []
    for method, outcomes in runs.items():
        same = [scored.outcomes] * len(outcomes)
        difference = compare_pairs(plain_runner(project), scored.silos, outcomes, same, quantity)
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


def constant_prediction(silos: Silos, runner: PlainRunner, store: ClientStore) -> Constant | None:
    """Return the code of the most frequent class, or the mean target, over all training rows of these clients.

    Rows are counted together, so large clients weigh more, as in one model of all clients. Of equally frequent classes,
    the first is returned. Clients report sums, and only for ten different rows or more; None if none reports any.
    """
    messages: list[TargetSums] = map_clients(runner, sum_targets, silos, stack=_STACK, private=store)
    rows: np.ndarray = np.sum([message.rows.numpy() for message in messages], axis=0)
    count = int(rows.sum())
    if not count:
        return None
    if silos.manifest.task == "regression":
        return Constant(sum(float(message.total) for message in messages) / count)
    return Constant(float(rows.argmax()), tuple((rows / count).tolist()))


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
