"""Each client of a cohort tells how its labels follow from all features, for a second look; its ledger knows."""

import numpy as np
import torch

from models.shift.client_summaries.model_predictions import Design, fitted_halves, in_both_halves
from models.shift.client_summaries.query import Query
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.privacy.differencing import EVERY, Told
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.privacy_budget import Kind
from tasks.diagnosis.local_summary import LocalSummary, each_allowed
from tasks.execution.task_types import step
from tasks.messages.diagnosis_messages import HalfModels, Refusal

ONCE = (
    "ask with the silos, rows and params that it was asked with, leave diagnose.second_look out, or wait until ten rows or "
    "more of its own have changed"
)
"""The way out where a client has taken part in another second look with these rows."""

_KIND = Kind(
    "models of halves",
    "half of a class",
    "leave diagnose.second_look out, or wait until none or ten rows or more have changed in either half of each class "
    "(thirty of a class mostly do)",
    once=ONCE,
)


@step
def report_models(cohort: Cohort, private: ClientStore, design: Design) -> list[HalfModels | Refusal]:
    """A record a stack, and another of the clients that tell nothing: of one version of its rows a client has one design."""
    messages: list[HalfModels | Refusal] = []
    for told, silence in each_allowed(cohort, private, lambda ledger, mine: _told(ledger, mine, design)):
        if told:
            weights = torch.from_numpy(np.stack([weights for (weights,) in told.values()]))
            messages.append(HalfModels(tuple(told), weights))
        messages += silence
    return messages


def second_half(ledger: Ledger, mine: LocalSummary, question: Query) -> np.ndarray:
    """Which rows are in the second half: (rows,) bool. Copies are in one half; which it is follows from the secret."""
    return (mine.hashes(ledger, question) & 1).astype(bool)


def _told(ledger: Ledger, mine: LocalSummary, design: Design) -> list[np.ndarray]:
    column, second = mine.columns(design.question), second_half(ledger, mine, design.question)
    known = in_both_halves(column, mine.same, second)

    def compute(_: Draw) -> dict[str, np.ndarray]:
        seen = design.seen(mine.features(design.question))
        return {"weights": fitted_halves(seen, column.of, second, known)}

    told = _stands_for(mine.hashes(ledger, design.question), column.of, second, known)
    return [ledger.answer(mine.version, design.id, compute, told=told, kind=_KIND)["weights"]]


def _stands_for(hashes: np.ndarray, of: np.ndarray, second: np.ndarray, known: np.ndarray) -> Told:
    """The rows behind each regression, by class and half."""
    halves = {"first": ~second, "second": second}
    classes = np.flatnonzero(known).tolist() if known.sum() > 1 else []
    return {EVERY: {f"{c}, {name} half": hashes[(of == c) & half] for c in classes for name, half in halves.items()}}
