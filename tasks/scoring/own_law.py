"""How right a run was on common test rows, where classes count as each client trains on them."""

import numpy as np
import torch

from models.assessment.quantities import QUANTITIES
from silos.cohort import Cohort, open_common, open_stack
from tasks.messages import LawScores
from tasks.running.step import step
from tasks.scoring.evaluate import OUTCOMES
from tasks.scoring.pair import Kept


@step
def own_law(cohort: Cohort, kept: Kept) -> list[LawScores]:
    """One record a stack, from the outcomes of a run that clients keep; classification.

    Every common row counts as its class's share of the client's training rows over the class's share of the common rows:
    so one run tells of both tests. Classes that no common row has count for nothing; NaN where no class is in both.
    """
    name, classes = QUANTITIES["classification"].outcome, len(cohort.silos.manifest.classes)
    store, refs = kept
    labels = open_common(cohort.silos, "test")[1]
    rows = np.bincount(labels, minlength=classes)
    there, messages = rows > 0, []
    for stack in cohort.stacks:
        train, accuracy = open_stack(cohort.silos, stack, "train"), np.full(len(stack.clients), np.nan)
        for at, client in enumerate(stack.clients):
            right = store.load(OUTCOMES, refs, client)[name][: len(labels)].astype(bool)
            held = np.bincount(train.y[at, : train.rows[at]], minlength=classes)
            if held[there].sum():
                of_class = np.bincount(labels[right], minlength=classes)[there] / rows[there]
                accuracy[at] = of_class @ held[there] / held[there].sum()
        messages.append(LawScores(stack.clients, torch.from_numpy(accuracy)))
    return messages
