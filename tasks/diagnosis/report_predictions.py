"""Each client of a cohort tells how its labels follow from all features, for a second look; its ledger knows.

Each client of a cohort tells what labels models expect of its rows, in bins, for a second look; its ledger knows.

The server looks again at pairs that seem to differ in inputs and in rule, with what models foresee; it sees no row.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from models.shift.classify import CovariateCheck, check_covariates
from models.shift.client_summaries.client_summary import Summaries
from models.shift.client_summaries.model_predictions import (
    Design,
    apportioned,
    fitted_halves,
    in_both_halves,
    predicted_counts,
    predictions_on,
)
from models.shift.client_summaries.query import Query
from models.shift.pair_screening import pair_details
from models.shift.pairwise_results import Findings
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import RefusalError
from silos.privacy.differencing import EVERY, ReportedGroups
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.privacy_budget import Kind
from tasks.diagnosis.compare_silos import Compared, reports_of
from tasks.diagnosis.report_summary import LocalSummary, each_allowed
from tasks.execution.task_types import server_step, step
from tasks.messages.diagnosis_messages import HalfModels, NoisyCounts, PredictedCounts, Refusal, ShiftNumbers

ONCE = (
    "ask with the silos, rows and params that it was asked with, leave diagnose.second_look out, or wait until ten rows or "
    "more of its own have changed"
)
"""The way out where a client has taken part in another second look with these rows."""

_MODELS_KIND = Kind(
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
    for told, silence in each_allowed(cohort, private, lambda ledger, mine: _report_model(ledger, mine, design)):
        if told:
            weights = torch.from_numpy(np.stack([weights for (weights,) in told.values()]))
            messages.append(HalfModels(tuple(told), weights))
        messages += silence
    return messages


def second_half(ledger: Ledger, mine: LocalSummary, question: Query) -> np.ndarray:
    """Which rows are in the second half: (rows,) bool. Copies are in one half; which it is follows from the secret."""
    return (mine.hashes(ledger, question) & 1).astype(bool)


def _report_model(ledger: Ledger, mine: LocalSummary, design: Design) -> list[np.ndarray]:
    column, second = mine.columns(design.question), second_half(ledger, mine, design.question)
    known = in_both_halves(column, mine.same, second)

    def compute(_: Draw) -> dict[str, np.ndarray]:
        seen = design.seen(mine.features(design.question))
        return {"weights": fitted_halves(seen, column.of, second, known)}

    told = _stands_for(mine.hashes(ledger, design.question), column.of, second, known)
    return [ledger.answer(mine.version, design.id, compute, groups=told, kind=_MODELS_KIND)["weights"]]


def _stands_for(hashes: np.ndarray, of: np.ndarray, second: np.ndarray, known: np.ndarray) -> ReportedGroups:
    """The rows behind each regression, by class and half."""
    halves = {"first": ~second, "second": second}
    classes = np.flatnonzero(known).tolist() if known.sum() > 1 else []
    return {EVERY: {f"{c}, {name} half": hashes[(of == c) & half] for c in classes for name, half in halves.items()}}


_PREDICTIONS_KIND = Kind(
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
        return _report_predictions(ledger, mine, design, models[mine.client])

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


def _report_predictions(
    ledger: Ledger, mine: LocalSummary, design: Design, models: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
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
    return [ledger.answer(mine.version, f"{design.id} {asked}", compute, groups=told, kind=_PREDICTIONS_KIND)["counts"]]


def doubtful_pairs(found: Compared) -> np.ndarray:
    """Places of the pairs that are said to differ in both their inputs and their rule; none of groups."""
    feature, _, concept = found.pairs.verdicts.types.T
    return np.flatnonzero(feature & concept) if not found.of_groups else np.zeros(0, np.int64)


@server_step
def refine_pairs(
    found: Compared,
    messages: Sequence[ShiftNumbers | NoisyCounts],
    question: Query,
    owners: Mapping[str, Sequence[str]],
    foreseen: Sequence[PredictedCounts],
) -> Compared:
    """The same without a change of rule where both models foresee what seemed one.

    owners: of each client that was asked, whose models it was asked about, in the order of its answer. A pair of which one
    client took no part stays as it was.
    """
    _, told = reports_of(messages, question)
    counts = {client: table.numpy() for m in foreseen for client, table in m.counts.items()}
    places = [at for at, client in enumerate(found.clients) if client in counts]
    first, second = found.pairs.first, found.pairs.second
    asked = doubtful_pairs(found)
    asked = asked[np.isin(first[asked], places) & np.isin(second[asked], places)]
    if not len(asked):
        return found
    own = told.take(places)
    tables = _tables(own, [found.clients[at] for at in places], owners, counts)
    ends = (np.searchsorted(places, one[asked]) for one in (first, second))
    pairs = _explained(found.pairs, asked, check_covariates(own, question.layout, tables, *ends))
    return replace(found, pairs=pairs, close_ups=pair_details(told, question.layout, pairs, found.groups))


def _tables(
    told: Summaries, clients: Sequence[str], owners: Mapping[str, Sequence[str]], counts: Mapping[str, np.ndarray]
) -> np.ndarray:
    """What the models of these clients expect of each of them, zeros where it was not asked: as `explained` has it."""
    tables = np.zeros((len(clients), len(clients), *told.counts.shape[1:-1], told.counts.shape[-1] - 1))
    for at, client in enumerate(clients):
        heard = [of for of, owner in enumerate(owners[client]) if owner in clients]
        whose = [clients.index(owners[client][of]) for of in heard]
        tables[at, whose] = apportioned(counts[client], told.counts[at])[heard]
    return tables


def _explained(pairs: Findings, asked: np.ndarray, takes: CovariateCheck) -> Findings:
    """The same with what is left of the pairs at these places; what carries it is then of P(X) where no rule differs."""
    types, parts, rules = pairs.verdicts.types.copy(), pairs.parts.copy(), asked[takes.rules]
    types[asked] = takes.left(types[asked])
    parts[rules] = pairs.inputs[rules]
    return replace(pairs, verdicts=replace(pairs.verdicts, types=types), parts=parts)
