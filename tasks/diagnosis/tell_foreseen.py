"""Each client of a cohort tells what labels models expect of its rows, in bins, for a second look; its ledger knows."""

import hashlib

import numpy as np
import torch

from models.shift.told.foreseen import Design, foreseen, foreseen_counts
from silos.cohort import Cohort
from silos.ledgers.ledger import Draw, Ledger
from silos.private import PrivateStore
from tasks.diagnosis.own_rows import Mine, each_allowed
from tasks.diagnosis.tell_models import second_half
from tasks.messages import ForeseenCounts, Silence
from tasks.running.step import step


@step
def tell_foreseen(
    cohort: Cohort, private: PrivateStore, design: Design, owners: tuple[str, ...], weights: np.ndarray
) -> list[ForeseenCounts | Silence]:
    """A record a stack, and another of the clients of which the ledger lets nothing be told.

    weights: (owners, 2, classes, columns), the models of these clients; of its own rows a client asks the one that was not
    fitted on them.
    """
    messages: list[ForeseenCounts | Silence] = []
    for told, silence in each_allowed(
        cohort, private, lambda ledger, mine: _told(ledger, mine, design, owners, weights)
    ):
        if told:
            counts = torch.from_numpy(np.stack([counts for (counts,) in told.values()]))
            messages.append(ForeseenCounts(tuple(told), counts))
        messages += silence
    return messages


def _told(ledger: Ledger, mine: Mine, design: Design, owners: tuple[str, ...], weights: np.ndarray) -> list[np.ndarray]:
    question, layout = design.question, design.question.layout
    column, x, second = mine.columns(question), mine.features(question), second_half(ledger, mine, question)

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        # one draw for all models: of ten, each with its own, the mean would tell what is rounded away
        ends = draw("rounding").random((len(layout.names), layout.cells, layout.classes))
        seen, counts = design.seen(x), []
        for owner, models in zip(owners, weights, strict=True):
            chances = foreseen(seen, column.of, models, second if owner == mine.client else None)
            counts.append(foreseen_counts(x, column, mine.same, layout, chances, ends))
        return {"counts": np.stack(counts)}

    models = hashlib.sha256("\n".join(owners).encode() + weights.tobytes()).hexdigest()[:16]
    told = mine.stands_for(ledger, question)
    return [ledger.answer(mine.version, f"foreseen {design.id} {models}", compute, told=told)["counts"]]
