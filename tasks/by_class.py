"""How often a run was right on the rows of each class: counted by the clients, added up before they leave."""

import numpy as np

from models.quantities import QUANTITIES
from silos.cohort import Silos
from tasks.evaluate import OUTCOMES
from tasks.messages import ClassCounts
from tasks.pair import Kept, own_labels
from tasks.step import step


@step
def by_class(silos: Silos, kept: Kept) -> ClassCounts:
    """The sums over all clients of their own test rows, from the outcomes that a run's clients keep; classification."""
    name, classes = QUANTITIES["classification"].outcome, len(silos.manifest.classes)
    store, refs = kept
    rows, right = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    for client in silos.clients:
        labels = own_labels(silos, client)
        outcome = store.load(OUTCOMES, refs, client)[name][: len(labels)].astype(bool)
        rows += np.bincount(labels, minlength=classes)
        right += np.bincount(labels[outcome], minlength=classes)
    return ClassCounts(tuple(rows.tolist()), tuple(right.tolist()))
