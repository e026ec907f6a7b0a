"""How right a run was on common test rows, where classes count as each client trains on them."""

import math

import torch

from models.metrics.prior_shift_accuracy import accuracy_by_law
from models.metrics.task_metrics import QUANTITIES
from silos.cohort import Cohort, open_common
from tasks.messages import LawScores
from tasks.running.opening import enough, open_rows
from tasks.running.step import step
from tasks.scoring.evaluate import OUTCOMES
from tasks.scoring.pair import Kept


@step
def own_law(cohort: Cohort, kept: Kept) -> list[LawScores]:
    """One record a stack, from the outcomes of a run that clients keep; classification.

    With what each client is right on, one run tells of both tests: on all rows, and on rows of the client's law.
    A client of fewer different training rows than LEAST_ROWS answers NaN.
    """
    name, classes = QUANTITIES["classification"].outcome, len(cohort.silos.manifest.classes)
    store, refs = kept
    labels, messages = open_common(cohort.silos, "test")[1], []
    for stack in cohort.stacks:
        train, accuracy = open_rows(cohort.silos, stack, "train", "cpu"), []
        speaks = enough(train).tolist()
        for at, client in enumerate(stack.clients):
            right = store.load(OUTCOMES, refs, client)[name][: len(labels)].astype(bool)
            own = train.y[at, : train.counts[at]].numpy()
            accuracy.append(accuracy_by_law(right, labels, own, classes) if speaks[at] else math.nan)
        messages.append(LawScores(stack.clients, torch.tensor(accuracy, dtype=torch.float64)))
    return messages
