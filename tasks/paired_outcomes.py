"""Compare two runs row by row at the clients; only sums leave them. Count correct rows by class, also at training priors."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from models.metrics.paired_difference import Stratum
from models.metrics.task_metrics import TASK_METRICS, prior_shift_accuracy
from silos.client_store import ClientStore
from silos.cohort import Cohort, Silos, open_common, open_stack
from tasks.evaluate import OUTCOMES
from tasks.execution.load_client_data import has_enough_rows, load_rows
from tasks.execution.task_types import step
from tasks.messages.score_messages import ClassCounts, CommonSums, PairedSums, PriorShiftScores

Kept = tuple[ClientStore, dict[str, str]]
"""Where a run's clients keep their outcomes, and each client's hash."""


@step
def pair_outcomes(
    cohort: Cohort, first: Sequence[Kept], second: Sequence[Kept], classes: Sequence[str] | None = None
) -> list[PairedSums]:
    """One record a stack: first minus second, both lists by seed and over the same rows, or over those of some classes."""
    silos, messages = cohort.silos, []
    codes = [silos.manifest.classes.index(each) for each in classes or ()]
    for stack in cohort.stacks:
        strata, opened = {}, None if classes is None else open_stack(silos, stack, "test")
        for at, (client, rows) in enumerate(silos.select(stack.clients).rows("test").items()):
            counted = np.ones(rows, bool) if opened is None else np.isin(opened.y[at, :rows], codes)
            if counted.any():
                strata[client] = Stratum.of(_difference(silos, first, second, client, rows)[:, counted])
        messages.append(_message(strata, len(first)))
    return messages


@step
def pair_common_rows(cohort: Cohort, first: Sequence[Kept], second: Sequence[Kept]) -> list[CommonSums]:
    """One record a stack: first minus second on the test rows that nobody owns, added over the stack's clients."""
    silos, messages = cohort.silos, []
    rows = silos.common("test")
    for stack in cohort.stacks:
        total = np.zeros((len(first), rows))
        for client in stack.clients:
            total += _difference(silos, first, second, client, rows)
        messages.append(CommonSums(stack.clients, torch.from_numpy(total)))
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


def _difference(silos: Silos, first: Sequence[Kept], second: Sequence[Kept], client: str, rows: int) -> np.ndarray:
    """(seeds, rows); NaN where both methods' squared errors are infinite."""
    name = TASK_METRICS[silos.manifest.task].outcome
    with np.errstate(invalid="ignore"):
        return _outcomes(first, name, client, rows) - _outcomes(second, name, client, rows)


def _outcomes(runs: Sequence[Kept], name: str, client: str, rows: int) -> np.ndarray:
    """(seeds, rows): 1 where that seed's model was right, or its squared error."""
    outcomes = [store.load(OUTCOMES, refs, client)[name][:rows] for store, refs in runs]
    return np.stack(outcomes).astype(float)


@step
def score_by_class(cohort: Cohort, kept: Kept) -> list[ClassCounts]:
    """One record a stack: of its clients' test rows, from the outcomes of a run that they keep; classification.

    A client of fewer different test rows than LEAST_ROWS is not counted. Common rows count once for every client.
    """
    name, classes = TASK_METRICS["classification"].outcome, len(cohort.silos.manifest.classes)
    store, refs = kept
    messages = []
    for stack in cohort.stacks:
        opened = load_rows(cohort.silos, stack, "test", "cpu")
        speaks = has_enough_rows(opened).tolist()
        rows, right = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
        for at, client in enumerate(stack.clients):
            if speaks[at]:
                labels = opened.y[at, : opened.counts[at]].numpy()
                outcome = store.load(OUTCOMES, refs, client)[name][: len(labels)].astype(bool)
                rows += np.bincount(labels, minlength=classes)
                right += np.bincount(labels[outcome], minlength=classes)
        messages.append(ClassCounts(stack.clients, torch.from_numpy(rows), torch.from_numpy(right)))
    return messages


@step
def score_prior_shift(cohort: Cohort, kept: Kept) -> list[PriorShiftScores]:
    """One record a stack, from the outcomes of a run that clients keep; classification.

    With what each client is right on, one run tells of both tests: on all rows, and on rows of the client's law.
    A client of fewer different training rows than LEAST_ROWS answers NaN.
    """
    name, classes = TASK_METRICS["classification"].outcome, len(cohort.silos.manifest.classes)
    store, refs = kept
    labels, messages = open_common(cohort.silos, "test")[1], []
    for stack in cohort.stacks:
        train, accuracy = load_rows(cohort.silos, stack, "train", "cpu"), []
        speaks = has_enough_rows(train).tolist()
        for at, client in enumerate(stack.clients):
            right = store.load(OUTCOMES, refs, client)[name][: len(labels)].astype(bool)
            own = train.y[at, : train.counts[at]].numpy()
            accuracy.append(prior_shift_accuracy(right, labels, own, classes) if speaks[at] else math.nan)
        messages.append(PriorShiftScores(stack.clients, torch.tensor(accuracy, dtype=torch.float64)))
    return messages
