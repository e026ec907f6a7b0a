"""Score a model, or a deep ensemble's uncertainty, on each client's own rows.

How far training brought clients on their own validation rows, which they tell with what they trained.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from models.client_model import Model
from models.metrics.task_metrics import TASK_METRICS, Task
from models.metrics.uncertainty import Predictive, doubts, predictive
from models.networks.network_factory import Network
from models.server_state import Weights
from models.training.engine import Metric, Training, per_example_metrics
from models.training.objectives import CrossEntropy, Objective, SquaredError
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from tasks.execution.load_client_data import has_enough_rows, load_rows, load_weights
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
    """One record a stack and split; `keep_outcomes` lets each client keep each row's outcome, for paired comparisons.

    `metrics` are measures of a row besides those of the objective, by name.
    """
    scores = []
    for stack in cohort.stacks:
        weights, context = load_weights(model, stack, private, device)
        same = not model.is_personal
        for split in splits:
            rows = load_rows(cohort.silos, stack, split, device)
            found = per_example_metrics(
                model.network, weights, context, rows, training.objective, training.engine, same, metrics
            )
            measures = _in_units_of_y(found, cohort.silos)
            kept = _keep(stack, measures, training.objective.task, private) if keep_outcomes else {}
            scores.append(_scores(stack, split, rows.counts, measures, kept))
    return scores


@step
def evaluate_constant(cohort: Cohort, answer: float, private: ClientStore) -> list[Scores]:
    """Score one answer, the code of a class or a number in units of y, on each client's test rows; one record a stack.

    Each client keeps the outcomes of its rows, for paired comparisons.
    """
    scores, task = [], cohort.silos.manifest.task
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, "test", "cpu")
        real = torch.arange(rows.y.shape[1]) < rows.counts[:, None]
        if task == "classification":
            measures = {"correct": (rows.y == int(answer)) & real}
        else:
            measures = {"squared_error": (rows.y.double() - answer) ** 2 * real}
        scores.append(_scores(stack, "test", rows.counts, measures, _keep(stack, measures, task, private)))
    return scores


def _in_units_of_y(measures: Measures, silos: Silos) -> Measures:
    """Squared errors of scaled targets as those of the targets themselves; the loss stays as it is trained on."""
    if silos.scaling.targets is None:
        return measures
    return {**measures, "squared_error": measures["squared_error"] * silos.scaling.target_scale**2}


def _keep(stack: Stack, measures: Measures, task: Task, private: ClientStore) -> dict[str, str]:
    """Right or wrong as a byte a row, a squared error as it was computed."""
    name = TASK_METRICS[task].outcome
    kept = measures[name][: len(stack.clients)].cpu()
    return private.save(OUTCOMES, stack.clients, {name: (kept.byte() if kept.dtype == torch.bool else kept).numpy()})


def _scores(stack: Stack, split: str, count: Tensor, measures: Measures, kept: dict[str, str]) -> Scores:
    places = slice(len(stack.clients))
    sums = {name: (t if t.dtype == torch.bool else t.double()).sum(1)[places].cpu() for name, t in measures.items()}
    return Scores(stack.clients, split, count[places].cpu(), sums, kept)


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
    """One record a stack: numbers of each client, of the mean prediction of the members (Lakshminarayanan et al. 2017).

    Every member brings the store in which its clients keep what is private to it; dropout is off.
    """
    messages = []
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, split, device)
        said = []
        for member, store in members:
            weights, context = load_weights(member, stack, store, device)
            said.append(predictive(member.network, weights, context, rows.x, None, 0, training.engine))
        mean = Predictive(*(torch.stack(parts).mean(0) for parts in zip(*said, strict=True)))
        numbers = doubts(mean, rows.y, rows.counts)
        places = slice(len(stack.clients))
        messages.append(
            UncertaintyScores(
                stack.clients, split, rows.counts[places].cpu(), {n: v[places].cpu() for n, v in numbers.items()}
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
    """client to its mean loss with the weights before and after, (stack size, ...); NaN of fewer than ten different rows.

    Cross-entropy in nats whatever the objective, so that runs can be compared, or the squared error of a regression. The
    members of a pooled client answer each for itself, with the weights that they share and the context of each.
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
    told = has_enough_rows(rows).tolist()
    return {
        client: (sums[0][at] / counts[at], sums[1][at] / counts[at]) if told[at] else (math.nan, math.nan)
        for at, client in enumerate(stack.clients)
    }


_OBJECTIVES: dict[str, Objective] = {"classification": CrossEntropy(), "regression": SquaredError()}
