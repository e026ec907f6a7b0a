"""Score a model on each client's rows, an ensemble's uncertainty, and validation losses before and after training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from models.client_model import Model
from models.metrics.task_metrics import TASK_METRICS, Task
from models.metrics.uncertainty import Predictive, predictive, uncertainty_metrics
from models.networks.network_factory import Network
from models.server_state import Weights
from models.training.engine import Metric, Training, per_example_metrics
from models.training.objectives import CrossEntropy, Objective, SquaredError
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from tasks.execution.load_client_data import load_rows, load_weights, may_report
from tasks.execution.task_types import step
from tasks.messages.codebook_messages import UncertaintyScores
from tasks.messages.score_messages import Scores

OUTCOMES = "outcomes"
Measures = Mapping[str, Tensor]


@step
def evaluate(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    splits: tuple[str, ...] = ("validation", "test"),
    device: str = "cpu",
    keep_outcomes: bool = False,
    metrics: Mapping[str, Metric] | None = None,
) -> list[Scores]:
    """Score the model on each client's rows; one record per stack and split.

    Args:
        splits: The splits to score.
        keep_outcomes: Whether each client stores the outcome of each row, for paired comparisons.
        metrics: Further measures of a row, by name, in addition to those of the objective.
    """
    scores = []
    for stack in cohort.stacks:
        weights, context = load_weights(model, stack, private, device)
        is_shared = not model.is_personal
        for split in splits:
            rows = load_rows(cohort.silos, stack, split, device)
            per_row = per_example_metrics(
                model.network, weights, context, rows, training.objective, training.engine, is_shared, metrics
            )
            measures = _in_units_of_y(per_row, cohort.silos)
            outcomes = _store_outcomes(stack, measures, training.objective.task, private) if keep_outcomes else {}
            scores.append(_scores(stack, split, rows.counts, measures, outcomes))
    return scores


@step
def evaluate_constant(cohort: Cohort, answer: float, private: ClientStore) -> list[Scores]:
    """Score one constant answer on each client's test rows; one record per stack.

    `answer` is the code of a class, or a number in units of y. Clients store the outcomes of rows, for paired comparisons.
    """
    scores, task = [], cohort.silos.manifest.task
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, "test", "cpu")
        real = torch.arange(rows.y.shape[1]) < rows.counts[:, None]
        if task == "classification":
            measures = {"correct": (rows.y == int(answer)) & real}
        else:
            measures = {"squared_error": (rows.y.double() - answer) ** 2 * real}
        scores.append(_scores(stack, "test", rows.counts, measures, _store_outcomes(stack, measures, task, private)))
    return scores


def _in_units_of_y(measures: Measures, silos: Silos) -> Measures:
    """Convert squared errors of scaled targets to units of the targets; the loss stays in scaled units."""
    if silos.scaling.targets is None:
        return measures
    return {**measures, "squared_error": measures["squared_error"] * silos.scaling.target_scale**2}


def _store_outcomes(stack: Stack, measures: Measures, task: Task, private: ClientStore) -> dict[str, str]:
    """Store the outcome of each row at the client: correct as a byte, a squared error as computed. Returns the hashes."""
    name = TASK_METRICS[task].outcome
    outcomes = measures[name][: len(stack.clients)].cpu()
    outcomes = outcomes.byte() if outcomes.dtype == torch.bool else outcomes
    return private.save(OUTCOMES, stack.clients, {name: outcomes.numpy()})


def _scores(stack: Stack, split: str, counts: Tensor, measures: Measures, outcomes: dict[str, str]) -> Scores:
    clients = slice(len(stack.clients))
    sums = {name: (t if t.dtype == torch.bool else t.double()).sum(1)[clients].cpu() for name, t in measures.items()}
    return Scores(stack.clients, split, counts[clients].cpu(), sums, outcomes)


@step
def ensemble_check(
    cohort: Cohort,
    model: Model,
    training: Training,
    private: ClientStore,
    members: Sequence[tuple[Model, ClientStore]],
    split: str = "test",
    device: str = "cpu",
) -> list[UncertaintyScores]:
    """Report uncertainty scores of the members' mean prediction (Lakshminarayanan et al. 2017); one record per stack.

    Each member comes with the store of its clients' private state. Dropout is off.
    """
    messages = []
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, split, device)
        predictions = []
        for member, store in members:
            weights, context = load_weights(member, stack, store, device)
            predictions.append(predictive(member.network, weights, context, rows.x, None, 0, training.engine))
        mean = Predictive(*(torch.stack(parts).mean(0) for parts in zip(*predictions, strict=True)))
        scores = uncertainty_metrics(mean, rows.y, rows.counts)
        clients = slice(len(stack.clients))
        messages.append(
            UncertaintyScores(
                stack.clients, split, rows.counts[clients].cpu(), {n: v[clients].cpu() for n, v in scores.items()}
            )
        )
    return messages


def validation_losses(
    silos: Silos,
    stack: Stack,
    network: Network,
    before: Weights,
    after: Weights,
    context: Weights,
    training: Training,
    device: str,
) -> dict[str, tuple[float, float]]:
    """Return each client's mean validation loss before and after training; NaN if it has fewer than ten different rows.

    The loss is cross-entropy in nats whatever the objective, so that runs are comparable, or a regression's squared error.
    Members of a pooled client are scored one by one, with the shared weights and their own contexts.

    Args:
        before: Weights before training, (stack size, ...).
        after: Weights after training, (stack size, ...).
    """
    if silos.pooled:
        size = len(silos.members)
        silos, stack = replace(silos, clients=silos.members, members=()), Stack(silos.members, size)
        before, after = ({n: w.expand(size, *w.shape[1:]) for n, w in weights.items()} for weights in (before, after))
    rows, objective = load_rows(silos, stack, "validation", device), _OBJECTIVES[training.objective.task]
    counts, sums = rows.counts.tolist(), []
    for weights in (before, after):
        losses = per_example_metrics(network, weights, context, rows, objective, training.engine)["loss"]
        sums.append(losses.double().sum(1).tolist())
    reports = may_report(silos, stack, "validation", rows).tolist()
    return {
        client: (sums[0][i] / counts[i], sums[1][i] / counts[i]) if reports[i] else (math.nan, math.nan)
        for i, client in enumerate(stack.clients)
    }


_OBJECTIVES: dict[str, Objective] = {"classification": CrossEntropy(), "regression": SquaredError()}
