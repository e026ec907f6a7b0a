"""Score a model or a constant answer on clients' rows, an ensemble's uncertainty, and losses of local training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from models.client_model import Model
from models.metrics.client_metrics import ClientMetric
from models.metrics.task_metrics import TASK_METRICS
from models.metrics.uncertainty import Predictive, predictive, uncertainty_metrics
from models.networks.network_factory import Network
from models.server_state import Weights
from models.training.engine import Metric, Rows, Training, per_example_metrics
from models.training.objectives import CrossEntropy, Objective, SquaredError
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack
from tasks.execution.load_client_data import countable_rows, load_rows, load_weights, may_report
from tasks.execution.steps import step
from tasks.messages.round_messages import UncertaintyScores, Updated
from tasks.messages.score_messages import Scores, TargetSums

OUTCOMES = "outcomes"
PREDICTED = "predicted"
"""The name under which a classification's outcomes have the predicted class of each row; -1 if it is not finite."""
Measures = Mapping[str, Tensor]


@dataclass(frozen=True)
class ClientMetrics:
    """The metrics that clients compute from all of their rows.

    Attributes:
        computed: All of them.
        stored: The one whose row values are stored with outcomes; None if the default metric is shown.
    """

    computed: tuple[ClientMetric, ...] = ()
    stored: ClientMetric | None = None


NONE = ClientMetrics()


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
    client_metrics: ClientMetrics = NONE,
) -> list[Scores]:
    """Score the model on each client's rows.

    Args:
        cohort: The clients, in stacks.
        model: The model that is scored.
        training: The local training, of which the objective and the engine are used.
        private: Where clients keep private state, and store outcomes.
        splits: The splits to score.
        device: Where clients are computed, such as "cpu".
        keep_outcomes: Whether each client stores the outcome of each row, for paired comparisons.
        metrics: Further measures of a row, by name, in addition to those of the objective.
        client_metrics: Further metrics of all rows of a client.

    Returns:
        One record per stack and split, with sums over each client's rows.
    """
    scores = []
    for stack in cohort.stacks:
        weights, context = load_weights(model, stack, private, device)
        is_shared = not model.is_personal
        for split in splits:
            rows = load_rows(cohort.silos, stack, split, device)
            # logits of all rows are kept only for metrics that need them: they are as large as rows times classes
            outputs: list[Tensor] | None = [] if client_metrics.computed else None
            predicts = keep_outcomes and training.objective.task == "classification"
            each = {**(metrics or {}), PREDICTED: _predicted_class} if predicts else metrics
            per_row = per_example_metrics(
                model.network, weights, context, rows, training.objective, training.engine, is_shared, each, outputs
            )
            # a code and no measure, so it must not be summed over rows
            kept = {PREDICTED: per_row.pop(PREDICTED).int()} if predicts else {}
            measures = _in_units_of_y(per_row, cohort.silos)
            values = _client_values(client_metrics, stack, rows, torch.cat(outputs, 1), cohort.silos) if outputs else {}
            outcomes = {}
            if keep_outcomes:
                outcomes = _store_outcomes(stack, measures, cohort.silos, private, values, client_metrics, kept)
            scores.append(_scores(stack, split, rows.counts, measures, outcomes, values))
    return scores


@step
def sum_targets(cohort: Cohort, private: ClientStore) -> list[TargetSums]:
    """Count training rows by class, or add their targets; one record per stack.

    A client counts the rows of `countable_rows`.

    Args:
        cohort: The clients, in stacks.
        private: The store in which clients find their policies.
    """
    classes, messages = len(cohort.silos.manifest.classes), []
    for stack in cohort.stacks:
        rows, total = np.zeros(classes or 1, np.int64), 0.0
        # once a command, and in other stacks than training's: kept, they would be a second copy of all rows
        for _, targets, counted in countable_rows(cohort.silos, stack, "train", private, keep=False):
            if classes:
                rows += np.bincount(targets[counted], minlength=classes)
            else:
                rows, total = rows + len(targets), total + float(targets.sum(dtype=np.float64))
        totals = torch.tensor([total], dtype=torch.float64)
        messages.append(TargetSums(stack.clients, torch.from_numpy(rows), totals))
    return messages


@step
def evaluate_constant(
    cohort: Cohort,
    answer: float,
    private: ClientStore,
    shares: Sequence[float] = (),
    client_metrics: ClientMetrics = NONE,
) -> list[Scores]:
    """Score one constant answer on each client's test rows; clients store the outcomes of rows, for paired comparisons.

    Args:
        cohort: The clients, in stacks.
        answer: The code of a class, or a number in units of y.
        private: Where clients store outcomes.
        shares: The shares of the classes. From these each of `client_metrics` has an answer of its own.
        client_metrics: Further metrics of all rows of a client.

    Returns:
        One record per stack.
    """
    scores, silos = [], cohort.silos
    for stack in cohort.stacks:
        rows = load_rows(silos, stack, "test", "cpu")
        # padding has labels as well, and must not count as right or wrong
        real = torch.arange(rows.y.shape[1]) < rows.counts[:, None]
        if silos.manifest.task == "classification":
            measures = {"correct": (rows.y == int(answer)) & real}
            outputs = {metric: torch.from_numpy(metric.constant_for(shares)) for metric in client_metrics.computed}
        else:
            measures = {"squared_error": (rows.y.double() - answer) ** 2 * real}
            outputs = dict.fromkeys(client_metrics.computed, torch.tensor([answer], dtype=torch.float64))
        values: dict[str, list[np.ndarray | None]] = {}
        for metric, output in outputs.items():
            values |= _client_values(ClientMetrics((metric,)), stack, rows, output.expand(*rows.y.shape, -1), silos)
        outcomes = _store_outcomes(stack, measures, silos, private, values, client_metrics)
        scores.append(_scores(stack, "test", rows.counts, measures, outcomes, values))
    return scores


def _predicted_class(logits: Tensor, y: Tensor) -> Tensor:
    """Return the code of the class with the largest logit; -1 if a logit is not finite: (rows,)."""
    return logits.argmax(-1).masked_fill(~torch.isfinite(logits).all(-1), -1)


def _in_units_of_y(measures: Measures, silos: Silos) -> Measures:
    """Convert squared errors of scaled targets to units of the targets; the loss stays in scaled units."""
    if silos.scaling.targets is None:
        return measures
    return {**measures, "squared_error": measures["squared_error"] * silos.scaling.target_scale**2}


def _client_values(
    metrics: ClientMetrics, stack: Stack, rows: Rows, outputs: Tensor, silos: Silos
) -> dict[str, list[np.ndarray | None]]:
    """Return the row values of each metric and client; None if the client has no rows, or the metric is undefined.

    outputs: (clients, width, outputs), logits or scaled predictions.
    """
    counts = rows.counts.tolist()
    y, prediction = rows.y.cpu().numpy(), outputs.double().cpu().numpy()
    if silos.manifest.task == "regression":
        y, prediction = y.astype(np.float64), prediction[..., 0]
        if silos.scaling.targets is not None:
            mean, scale = silos.scaling.targets.mean[0], silos.scaling.target_scale
            y, prediction = mean + scale * y, mean + scale * prediction
    return {
        metric.name: [
            metric.of_client(prediction[i, : counts[i]], y[i, : counts[i]]) if counts[i] else None
            for i in range(len(stack.clients))
        ]
        for metric in metrics.computed
    }


def _store_outcomes(
    stack: Stack,
    measures: Measures,
    silos: Silos,
    private: ClientStore,
    values: Mapping[str, Sequence[np.ndarray | None]],
    client_metrics: ClientMetrics,
    kept: Measures | None = None,
) -> dict[str, str]:
    """Store the outcome of each row at the client: correct as a byte, a squared error as computed. Returns the hashes.

    The row values of the metric that is shown are stored too, unless it is undefined for the client. `kept` are further
    values of each row that are stored.
    """
    name, stored, clients = TASK_METRICS[silos.manifest.task].outcome, client_metrics.stored, slice(len(stack.clients))
    measured = measures[name][clients].cpu()
    outcomes = {name: (measured.byte() if measured.dtype == torch.bool else measured).numpy()}
    outcomes |= {key: value[clients].cpu().numpy() for key, value in (kept or {}).items()}
    if stored is None:
        return private.save(OUTCOMES, stack.clients, outcomes, "outcomes")
    of_client = values[stored.name]
    refs: dict[str, str] = {}
    for defined in (True, False):
        chosen = [i for i, rows in enumerate(of_client) if (rows is not None) == defined]
        tensors = {key: value[chosen] for key, value in outcomes.items()}
        if defined:
            tensors[stored.outcome] = np.zeros((len(chosen), measured.shape[1]))
            for place, i in enumerate(chosen):
                row_values = of_client[i]
                assert row_values is not None, "the metric is defined for this client"
                tensors[stored.outcome][place, : len(row_values)] = row_values
        refs |= private.save(OUTCOMES, [stack.clients[i] for i in chosen], tensors, "outcomes")
    return refs


def _scores(
    stack: Stack,
    split: str,
    counts: Tensor,
    measures: Measures,
    outcomes: dict[str, str],
    values: Mapping[str, Sequence[np.ndarray | None]],
) -> Scores:
    clients = slice(len(stack.clients))
    sums = {name: (t if t.dtype == torch.bool else t.double()).sum(1)[clients].cpu() for name, t in measures.items()}
    for name, of_client in values.items():
        totals = [math.nan if rows is None else float(rows.sum()) for rows in of_client]
        sums[name] = torch.tensor(totals, dtype=torch.float64)
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
    """Report uncertainty scores of the members' mean prediction (Lakshminarayanan et al. 2017). Dropout is off.

    Args:
        cohort: The clients, in stacks.
        model: The model of the round, which is not read.
        training: The local training, of which only the engine is used.
        private: The store of the round, which is not read.
        members: Each member, with the store of its clients' private state.
        split: The rows that are scored.
        device: Where clients are computed, such as "cpu".

    Returns:
        One record per stack.
    """
    messages = []
    for stack in cohort.stacks:
        rows = load_rows(cohort.silos, stack, split, device)
        predictions = []
        for member, store in members:
            weights, context = load_weights(member, stack, store, device)
            predictions.append(predictive(member.network, weights, context, rows.x, None, 0, training.engine))
        # probabilities are averaged, as in the paper, and not logits
        mean = Predictive(*(torch.stack(parts).mean(0) for parts in zip(*predictions, strict=True)))
        scores = uncertainty_metrics(mean, rows.y, rows.counts)
        clients = slice(len(stack.clients))
        messages.append(
            UncertaintyScores(
                stack.clients, split, rows.counts[clients].cpu(), {n: v[clients].cpu() for n, v in scores.items()}
            )
        )
    return messages


@dataclass(frozen=True)
class ValidationLosses:
    """Adds each client's mean validation loss before and after training to the updates of a step.

    A loss is NaN if the client has fewer rows than its policy requires. The loss is cross-entropy in nats whatever the
    objective, so that runs are comparable, or a regression's squared error in scaled units. Members of a pooled client
    are scored one by one, with the shared weights and their own contexts.

    Attributes:
        silos: The silos of the step's cohort, with their validation rows.
        network: The network that weights and contexts belong to.
        training: The local training, of which the task and the engine are used.
        private: The store of the clients, which has their policies.
        device: Where losses are computed, such as "cpu".
        wanted: Whether clients report the losses; if not, `add` returns the update as it is.
    """

    silos: Silos
    network: Network
    training: Training
    private: ClientStore
    device: str
    wanted: bool

    def add(self, update: Updated, stack: Stack, *, before: Weights, after: Weights, context: Weights) -> Updated:
        """Return the update of a stack, in which `validation` maps each client to its losses before and after training.

        Args:
            update: The update of the stack.
            stack: The clients that were trained.
            before: Weights before training, (stack size, ...).
            after: Weights after training, (stack size, ...).
            context: The network's context, (stack size, ...), or (members, ...) of a pooled client; it may be empty.
        """
        if not self.wanted:
            return update
        silos = self.silos
        if silos.pooled:
            size = len(silos.members)
            silos, stack = replace(silos, clients=silos.members, members=()), Stack(silos.members, size)
            before, after = (
                {n: w.expand(size, *w.shape[1:]) for n, w in weights.items()} for weights in (before, after)
            )
        rows, objective = load_rows(silos, stack, "validation", self.device), _OBJECTIVES[self.training.objective.task]
        counts, sums = rows.counts.tolist(), []
        for weights in (before, after):
            losses = per_example_metrics(self.network, weights, context, rows, objective, self.training.engine)["loss"]
            sums.append(losses.double().sum(1).tolist())
        reports = may_report(silos, stack, "validation", rows, self.private).tolist()
        pairs = {
            client: (sums[0][i] / counts[i], sums[1][i] / counts[i]) if reports[i] else (math.nan, math.nan)
            for i, client in enumerate(stack.clients)
        }
        return replace(update, validation=pairs)


_OBJECTIVES: dict[str, Objective] = {"classification": CrossEntropy(), "regression": SquaredError()}
