"""Each client of a cohort tells counts and moments of its training rows, by class, on what was agreed; its ledger knows."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from models.shift.client_summaries.client_summary import Summaries, joined, summary
from models.shift.client_summaries.gaussian_mechanism import counts_sensitivity, epsilon, noisy, sigma
from models.shift.client_summaries.query import Query
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.param_limits import EPSILON
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.privacy_budget import RHO, Unit
from tasks.diagnosis.local_summary import LocalSummary, each_allowed
from tasks.execution.task_types import step
from tasks.messages.diagnosis_messages import NoisyCounts, Refusal, ShiftNumbers

_PARTS = ("rows", "labels", "counts", "moments")


@step
def report_summary(
    cohort: Cohort,
    private: ClientStore,
    question: Query,
    budget: float | None = None,
    delta: float | None = None,
) -> list[ShiftNumbers | NoisyCounts | Refusal]:
    """A record a stack, with noise of counts only, and another of the clients of which the ledger lets nothing be told.

    Asked again, a client tells what it told before, bit for bit. It is silent where its budget is spent, or where an answer
    without noise and an earlier one would differ by a few rows: the others' answers are of use without it.
    budget: of each client, in zCDP, over all that it ever told with noise. delta: at which a refusal names epsilons.
    """
    messages: list[ShiftNumbers | NoisyCounts | Refusal] = []
    unit = RHO if delta is None else Unit("epsilon", partial(epsilon, delta=delta), EPSILON, f" at delta {delta:g}")
    for told, silence in each_allowed(
        cohort, private, lambda ledger, mine: _told(ledger, mine, question, budget, unit)
    ):
        if told:
            arrays = [torch.from_numpy(np.concatenate(part)) for part in zip(*told.values(), strict=True)]
            messages.append((NoisyCounts if question.rho else ShiftNumbers)(tuple(told), *arrays))
        messages += silence
    return messages


def summaries(messages: Sequence[ShiftNumbers | NoisyCounts]) -> Summaries:
    """What clients told without noise, in the order of the messages."""
    told = [message for message in messages if isinstance(message, ShiftNumbers)]
    return joined([Summaries(*(getattr(message, part).numpy() for part in _PARTS)) for message in told])


def _told(ledger: Ledger, mine: LocalSummary, question: Query, budget: float | None, unit: Unit) -> list[np.ndarray]:
    if question.rho:
        compute = _with_noise(mine, question)
        answer = ledger.answer(mine.version, question.id, compute, question.rho, budget, unit=unit)
        return [answer["counts"]]

    def truth(_: Draw) -> dict[str, np.ndarray]:
        told = summary(mine.features(question), mine.y, mine.same, question.layout)
        counts = told.counts if question.counts else told.counts[..., :0, :]
        return {"rows": told.rows, "labels": told.labels, "counts": counts, "moments": told.moments}

    answer = ledger.answer(mine.version, question.id, truth, told=mine.stands_for(ledger, question))
    return [answer[part] for part in _PARTS]


def _with_noise(mine: LocalSummary, question: Query) -> Callable[[Draw], dict[str, np.ndarray]]:
    """Of all classes, whatever their rows: which are told may not depend on them."""

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        counts = question.layout.counts(mine.features(question), question.layout.classes_of(mine.y))
        size = sigma(counts_sensitivity(counts.shape[0]), question.rho)
        return {"counts": noisy(counts[None].astype(np.int64), size, draw("counts"))}

    return compute
