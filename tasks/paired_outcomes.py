"""Compare two runs row by row at the clients, and count correct rows by class or at training priors; only sums leave."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.metrics.paired_difference import Stratum
from models.metrics.task_metrics import TASK_METRICS, prior_shift_accuracy
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, Stack, open_common, open_stack
from silos.storage.partition_store import open_common_units, open_units
from tasks.evaluate import OUTCOMES, PREDICTED
from tasks.execution.load_client_data import countable_rows, load_rows, may_report
from tasks.execution.steps import ByClient, step
from tasks.messages.score_messages import (
    ClassCounts,
    CommonSums,
    OutcomeMeans,
    PairedSums,
    PredictionCounts,
    PriorShiftScores,
)

Outcomes = tuple[ClientStore, ByClient[str]]
"""The store in which a run's clients keep their outcomes, and each client's hash."""


@step
def pair_outcomes(
    cohort: Cohort,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    classes: Sequence[str] | None = None,
    outcome: str | None = None,
    split: str = "test",
    least_of_class: int = 1,
    scales: ByClient[Sequence[float]] | None = None,
) -> list[PairedSums]:
    """Sum the differences of two runs' outcomes, first minus second; only sums leave the clients.

    A client is left out if it does not store the outcome, since its rows do not define the metric.

    Args:
        cohort: The clients, in stacks.
        first: The stored outcomes of the first method, by seed.
        second: Those of the second method, on the same rows and seeds.
        classes: Restricts the client's own rows to some classes.
        outcome: The stored value of a row; by default that of the task.
        split: The client's own rows of this split are paired, or the common ones if the data have such.
        least_of_class: The least number of own rows of each class that a client has; with fewer it is left out.
        scales: Each client's factors of its differences, by seed.

    Returns:
        One record per stack. Rows of a unit are one draw, and the record counts units.
    """
    silos, messages = cohort.silos, []
    codes = [silos.manifest.classes.index(name) for name in classes or ()]
    common = silos.common(split) if classes is None else 0
    common_units = open_common_units(Path(silos.folder), silos.manifest, split) if common else None
    for stack in cohort.stacks:
        # stored outcomes suffice for most comparisons; rows are opened only where labels decide
        needs_labels = classes is not None or (least_of_class > 1 and not common)
        strata, rows_of_stack = {}, open_stack(silos, stack, split) if needs_labels else None
        for i, (client, own) in enumerate(silos.select(stack.clients).rows(split).items()):
            rows = common or own
            labels = None if rows_of_stack is None else rows_of_stack.y[i, :rows]
            included = np.ones(rows, bool) if classes is None or labels is None else np.isin(labels, codes)
            if labels is not None and min(np.unique(labels, return_counts=True)[1], default=0) < least_of_class:
                continue
            d = _difference(silos, first, second, client, rows, outcome) if included.any() else None
            if d is not None:
                d = d if scales is None else _scaled(d, scales[client])
                unit = common_units if common else open_units(Path(silos.folder), silos.entries(client), split)
                strata[client] = Stratum.from_differences(
                    d[:, included],
                    None if unit is None else unit[included],
                )
        messages.append(_message(strata, len(first)))
    return messages


@step
def pair_common_rows(
    cohort: Cohort,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    outcome: str | None = None,
    split: str = "test",
    scales: ByClient[Sequence[float]] | None = None,
) -> list[CommonSums]:
    """Sum the differences, first minus second, on the common rows over the stack's clients; one record per stack.

    If these rows do not define the metric of `outcome`, the record has no rows. `scales` are as in `pair_outcomes`.

    Args:
        cohort: The clients, in stacks.
        first: The stored outcomes of the first method, by seed.
        second: Those of the second method.
        outcome: The stored value of a row; by default that of the task.
        split: The split of the common rows.
        scales: Each client's factors of its differences, by seed.
    """
    silos, messages = cohort.silos, []
    rows = silos.common(split)
    for stack in cohort.stacks:
        total = np.zeros((len(first), rows))
        for client in stack.clients:
            d = _difference(silos, first, second, client, rows, outcome)
            if d is not None and scales is not None:
                d = _scaled(d, scales[client])
            total = total[:, :0] if d is None else total + d
        messages.append(CommonSums(stack.clients, torch.from_numpy(total)))
    return messages


@step
def mean_outcomes(
    cohort: Cohort,
    first: Sequence[Outcomes],
    second: Sequence[Outcomes],
    outcome: str | None = None,
    split: str = "test",
) -> list[OutcomeMeans]:
    """Average two methods' outcomes over the rows that `pair_outcomes` pairs, by client and seed; one record per stack.

    Args:
        cohort: The clients, in stacks.
        first: The stored outcomes of the first method, by seed.
        second: Those of the second method.
        outcome: The stored value of a row; by default that of the task.
        split: The split of the rows.
    """
    silos, messages, common = cohort.silos, [], cohort.silos.common(split)
    for stack in cohort.stacks:
        means = {}
        for client, own in silos.select(stack.clients).rows(split).items():
            sides = _sides(silos, first, second, client, common or own, outcome) if common or own else None
            if sides is not None:
                means[client] = np.stack(sides).mean(2)
        values = np.array(list(means.values())).reshape(len(means), 2, len(first))
        messages.append(OutcomeMeans(tuple(means), torch.from_numpy(values)))
    return messages


def _message(strata: dict[str, Stratum], seeds: int) -> PairedSums:
    sums = [s.by_seed for s in strata.values()]
    return PairedSums(
        tuple(strata),
        torch.tensor([s.rows for s in strata.values()], dtype=torch.int64),
        torch.tensor(sums, dtype=torch.float64).view(len(sums), seeds),
        torch.tensor([s.mean_squares for s in strata.values()], dtype=torch.float64),
        torch.tensor([s.squares for s in strata.values()], dtype=torch.float64),
    )


def _difference(
    silos: Silos, first: Sequence[Outcomes], second: Sequence[Outcomes], client: str, rows: int, outcome: str | None
) -> np.ndarray | None:
    """Return the differences (seeds, rows); NaN if both outcomes are infinite, None if a run has no such outcomes."""
    sides = _sides(silos, first, second, client, rows, outcome)
    if sides is None:
        return None
    with np.errstate(invalid="ignore"):
        return np.asarray(sides[0] - sides[1])


def _sides(
    silos: Silos, first: Sequence[Outcomes], second: Sequence[Outcomes], client: str, rows: int, outcome: str | None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the outcomes of both methods, each (seeds, rows); None if a run has no such outcomes."""
    name = outcome or TASK_METRICS[silos.manifest.task].outcome
    sides = [
        [store.load(OUTCOMES, refs, client, "outcomes").get(name) for store, refs in runs] for runs in (first, second)
    ]
    if any(of_run is None for side in sides for of_run in side):
        return None
    a, b = (np.stack([np.asarray(of_run)[:rows] for of_run in side]).astype(float) for side in sides)
    return a, b


def _scaled(d: np.ndarray, by_seed: Sequence[float]) -> np.ndarray:
    """Return the differences (seeds, rows) times a factor for each seed; NaN where a run diverged."""
    with np.errstate(invalid="ignore"):
        return np.asarray(d * np.array(by_seed)[:, None])


@step
def score_by_class(cohort: Cohort, kept: Outcomes) -> list[ClassCounts]:
    """Count test rows and correct ones of each class, from stored outcomes of a classification; one record per stack.

    A client counts the rows of `countable_rows`. Common rows count once for every client.
    """
    name, classes = TASK_METRICS["classification"].outcome, len(cohort.silos.manifest.classes)
    store, refs = kept
    messages = []
    for stack in cohort.stacks:
        rows, correct = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
        for client, labels, counted in countable_rows(cohort.silos, stack, "test", store):
            outcome = store.load(OUTCOMES, refs, client, "outcomes")[name][: len(labels)].astype(bool)
            rows += np.bincount(labels[counted], minlength=classes)
            correct += np.bincount(labels[counted & outcome], minlength=classes)
        messages.append(ClassCounts(stack.clients, torch.from_numpy(rows), torch.from_numpy(correct)))
    return messages


@step
def count_predictions(cohort: Cohort, runs: Sequence[Sequence[Outcomes]]) -> list[PredictionCounts]:
    """Count test rows by class and predicted class, for each method over its runs; one record per stack.

    A client counts the rows of `countable_rows`. Common rows count once for every client. Runs of earlier versions
    stored no predictions, and count nothing.
    """
    classes, messages = len(cohort.silos.manifest.classes), []
    private = next(store for method_runs in runs for store, _ in method_runs)
    for stack in cohort.stacks:
        counts = np.zeros((len(runs), classes, classes + 1), np.int64)
        for client, labels, counted in countable_rows(cohort.silos, stack, "test", private):
            for of_method, method_runs in zip(counts, runs, strict=True):
                for store, refs in method_runs:
                    predicted = store.load(OUTCOMES, refs, client, "outcomes").get(PREDICTED)
                    if predicted is not None:  # -1 is the last column
                        np.add.at(of_method, (labels[counted], predicted[: len(labels)][counted]), 1)
        messages.append(PredictionCounts(stack.clients, torch.from_numpy(counts)))
    return messages


@step
def score_prior_shift(cohort: Cohort, kept: Outcomes) -> list[PriorShiftScores]:
    """Compute each client's accuracy at its training priors on the common test rows; one record per stack.

    It reads the outcomes that a classification's clients store, so one run gives both this score and that on all rows.
    A client with fewer different training rows than its policy requires reports NaN.
    """
    name = TASK_METRICS["classification"].outcome
    store, refs = kept
    labels, messages = open_common(cohort.silos, "test")[1], []
    for stack in cohort.stacks:
        outcomes = [
            store.load(OUTCOMES, refs, client, "outcomes")[name][: len(labels)].astype(bool) for client in stack.clients
        ]
        messages.append(
            PriorShiftScores(stack.clients, prior_shift_accuracies(cohort.silos, stack, outcomes, labels, store))
        )
    return messages


def prior_shift_accuracies(
    silos: Silos, stack: Stack, correct: Sequence[np.ndarray], labels: np.ndarray, private: ClientStore
) -> Tensor:
    """Compute each client's accuracy at its training priors from its correct rows; NaN if it has too few training rows.

    Args:
        silos: The data of the stack's clients.
        stack: The clients, (clients,).
        correct: For each client, whether its model is correct on each row (rows,).
        labels: The labels of these rows, (rows,).
        private: The clients' store, with the policy that says how many rows are too few.
    """
    train, classes = load_rows(silos, stack, "train", "cpu"), len(silos.manifest.classes)
    reports = may_report(silos, stack, "train", train, private).tolist()
    accuracy = [
        prior_shift_accuracy(rows, labels, train.y[i, : train.counts[i]].numpy(), classes) if reports[i] else math.nan
        for i, rows in enumerate(correct)
    ]
    return torch.tensor(accuracy, dtype=torch.float64)
