"""Each client of a cohort tells what labels models expect of its rows, in bins, for a second look; its ledger knows."""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch

from models.shift.client_summaries.model_predictions import Design, in_both_halves, predicted_counts, predictions_on
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import RefusalError
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.privacy_budget import Kind
from tasks.diagnosis.local_summary import LocalSummary, each_allowed
from tasks.diagnosis.report_models import ONCE, second_half
from tasks.execution.task_types import step
from tasks.messages.diagnosis_messages import PredictedCounts, Refusal

_KIND = Kind(
    "what models foresee",
    "a class",
    "leave diagnose.second_look out, or wait until ten rows or more of the class have changed",
    once=ONCE,
)


@step
def report_predictions(
    cohort: Cohort, private: ClientStore, design: Design, models: Mapping[str, Mapping[str, np.ndarray]]
) -> list[PredictedCounts | Refusal]:
    """A record a stack, and another of the clients that tell nothing.

    models: of each client by name, whose models it is asked about, (2, classes, columns) each; of its own rows it asks the
    one that was not fitted on them. It is silent where they are more than a model of each silo of the data, where the rows
    of this version were asked about others, and where the ledger lets nothing be told.
    """
    names, messages = frozenset(cohort.silos.manifest.names), list[PredictedCounts | Refusal]()

    def answer(ledger: Ledger, mine: LocalSummary) -> list[np.ndarray]:
        _check(mine.client, models[mine.client], names)
        return _told(ledger, mine, design, models[mine.client])

    for told, silence in each_allowed(cohort, private, answer):
        if told:
            counts = {client: torch.from_numpy(counts) for client, (counts,) in told.items()}
            messages.append(PredictedCounts(tuple(told), counts))
        messages += silence
    return messages


def _check(client: str, models: Mapping[str, np.ndarray], silos: frozenset[str]) -> None:
    """RefusalError for models of nobody: whoever may send any number of them learns more of a row with each."""
    strange = sorted(models.keys() - silos)
    if strange:
        raise RefusalError(
            f"client {client} was asked about {len(models)} models, of which {len(strange)} are of no silo of its data "
            f"(the first is called {strange[0]}), and it answers of a model of each silo at most; ask about those alone."
        )


def _told(ledger: Ledger, mine: LocalSummary, design: Design, models: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    question, layout = design.question, design.question.layout
    column, x, second = mine.columns(question), mine.features(question), second_half(ledger, mine, question)

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        # one draw for all models: of ten, each with its own, the mean would tell what is rounded away
        ends = draw("rounding").random((len(layout.names), layout.cells, layout.classes))
        seen, classes = design.seen(x), in_both_halves(column, mine.same, second, len(models))
        chances = [
            predictions_on(seen, column.of, classes, weights, second if owner == mine.client else None)
            for owner, weights in models.items()
        ]
        return {"counts": predicted_counts(x, column, mine.same, second, layout, np.stack(chances), ends)}

    weights = b"".join(own.tobytes() for own in models.values())
    asked = hashlib.sha256("\n".join(models).encode() + weights).hexdigest()[:16]
    told = mine.stands_for(ledger, question)
    return [ledger.answer(mine.version, f"{design.id} {asked}", compute, told=told, kind=_KIND)["counts"]]
