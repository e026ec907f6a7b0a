"""How often a run was right on the rows of each class: counted by the clients, added up over a stack before it leaves."""

import numpy as np
import torch

from models.metrics.task_metrics import QUANTITIES
from silos.cohort import Cohort
from tasks.messages import ClassCounts
from tasks.running.opening import enough, open_rows
from tasks.running.step import step
from tasks.scoring.evaluate import OUTCOMES
from tasks.scoring.pair import Kept


@step
def by_class(cohort: Cohort, kept: Kept) -> list[ClassCounts]:
    """One record a stack: of its clients' test rows, from the outcomes of a run that they keep; classification.

    A client of fewer different test rows than LEAST_ROWS is not counted. Common rows count once for every client.
    """
    name, classes = QUANTITIES["classification"].outcome, len(cohort.silos.manifest.classes)
    store, refs = kept
    messages = []
    for stack in cohort.stacks:
        opened = open_rows(cohort.silos, stack, "test", "cpu")
        speaks = enough(opened).tolist()
        rows, right = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
        for at, client in enumerate(stack.clients):
            if speaks[at]:
                labels = opened.y[at, : opened.counts[at]].numpy()
                outcome = store.load(OUTCOMES, refs, client)[name][: len(labels)].astype(bool)
                rows += np.bincount(labels, minlength=classes)
                right += np.bincount(labels[outcome], minlength=classes)
        messages.append(ClassCounts(stack.clients, torch.from_numpy(rows), torch.from_numpy(right)))
    return messages
