"""A second look at pairs that differ in inputs and in rule: reports of models and predictions, and the server's check."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from models.diagnosis.client_summaries.client_summary import Summaries
from models.diagnosis.client_summaries.model_predictions import (
    Design,
    classes_in_both_halves,
    distribute_runs,
    fit_halves,
    predict_classes,
    predicted_counts,
    products_with_a_number,
)
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.diagnose_pairs import MOST_PRODUCTS, Findings
from models.diagnosis.name_shift_types import CovariateCheck, check_covariates
from models.diagnosis.screen_clients import pair_details
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.errors import RefusalError
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.report_rules import MODELS, Kind
from tasks.diagnosis.compare_silos import Comparison, named_summaries
from tasks.diagnosis.report_summary import LocalSummary, answers_by_stack
from tasks.execution.steps import ByClient, server_step, step
from tasks.messages.statistics_messages import HalfModels, NoisyCounts, PredictedCounts, Refusal, ShiftNumbers

ONCE = (
    "repeat the silos, rows and params of the first query, leave diagnose.second_look out, or wait until ten rows or more "
    "of the client have changed"
)
"""The way out if a client has taken part in another second look with these rows."""

_MODELS_KIND = Kind(
    MODELS,
    "half of a class",
    "leave diagnose.second_look out, or wait until none or ten rows or more have changed in either half of each class "
    "(thirty of a class mostly do)",
    once=ONCE,
)


@step
def report_models(cohort: Cohort, private: ClientStore, design: Design) -> list[HalfModels | Refusal]:
    """Report models of halves of the rows: one message a stack, and one of its clients that may not answer.

    A client reports the models of one design for one version of its rows.
    """
    messages: list[HalfModels | Refusal] = []
    for answers, refusals in answers_by_stack(
        cohort, private, partial(_report_model, design=design), HalfModels.__name__
    ):
        if answers:
            weights = torch.from_numpy(np.stack([weights for (weights,) in answers.values()]))
            messages.append(HalfModels(tuple(answers), weights))
        messages += refusals
    return messages


def second_half(ledger: Ledger, local: LocalSummary, query: Query) -> np.ndarray:
    """Return the rows of the second half: (rows,) bool.

    Copies, and rows of one unit, are in one half, which follows from the client's secret.
    """
    return (local.units(ledger, query) & np.uint64(1)).astype(bool)


def _report_model(ledger: Ledger, local: LocalSummary, design: Design) -> list[np.ndarray]:
    _check_products(local.client, design)
    column, second = local.columns(design.query), second_half(ledger, local, design.query)
    included = classes_in_both_halves(column, local.row_ids, second, least_rows=local.least_rows)

    def compute(_: Draw) -> dict[str, np.ndarray]:
        matrix = design.matrix(local.inputs_of_models(design.query))
        return {"weights": fit_halves(matrix, column.index, second, included, local.weights(design.query))}

    by_halves = included if included.sum() > 1 else np.zeros_like(included)  # models need two classes
    values = local.covered(ledger, design.query, (second, by_halves))
    return [ledger.answer(local.version, design.id, compute, values, kind=_MODELS_KIND)["weights"]]


def _check_products(client: str, design: Design) -> None:
    """Raise RefusalError for inputs that may mark single rows, or many: the server leaves them out, but may be altered."""
    count, allowed = len(design.products), products_with_a_number(design.query.layout, design.products)
    if design.products != allowed or count > MOST_PRODUCTS:
        raise RefusalError(
            f"client {client}: got {count} products of features, {count - len(allowed)} of them of two categories, expected "
            f"at most {MOST_PRODUCTS}, each with a numeric feature. Leave the others out."
        )


_PREDICTIONS_KIND = Kind(
    "what models foresee",
    "a class",
    "leave diagnose.second_look out, or wait until ten rows or more of the class have changed",
    once=ONCE,
)


@step
def report_predictions(
    cohort: Cohort, private: ClientStore, design: Design, models: ByClient[Mapping[str, np.ndarray]]
) -> list[PredictedCounts | Refusal]:
    """Report predicted counts: one message a stack, and one of its clients that may not answer.

    A client refuses if there are more models than silos of the data. It also refuses if the rows of this version were
    reported for other models, or if its ledger does not allow it. models: for each client the models, (2, classes,
    columns) by their owner's name; its own rows are predicted by the model not fitted on them.
    """
    silo_names, messages = frozenset(cohort.silos.manifest.names), list[PredictedCounts | Refusal]()

    def answer(ledger: Ledger, local: LocalSummary) -> list[np.ndarray]:
        _check(local.client, models[local.client], silo_names)
        _check_products(local.client, design)
        return _report_predictions(ledger, local, design, models[local.client])

    for answers, refusals in answers_by_stack(cohort, private, answer, PredictedCounts.__name__):
        if answers:
            counts = {client: torch.from_numpy(counts) for client, (counts,) in answers.items()}
            messages.append(PredictedCounts(tuple(answers), counts))
        messages += refusals
    return messages


def _check(client: str, models: Mapping[str, np.ndarray], silo_names: frozenset[str]) -> None:
    """Raise RefusalError for models that belong to no silo: an unlimited number of them would reveal single rows."""
    unknown = sorted(models.keys() - silo_names)
    if unknown:
        raise RefusalError(
            f"client {client}: got {len(models)} models, {len(unknown)} of them of no silo of its data (first "
            f"{unknown[0]}), expected at most one model of each silo. Leave the others out."
        )


def _report_predictions(
    ledger: Ledger, local: LocalSummary, design: Design, models: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    query, layout = design.query, design.query.layout
    column, x, second = local.columns(query), local.features(query), second_half(ledger, local, query)

    def compute(draw: Draw) -> dict[str, np.ndarray]:
        # one draw for all models: the mean of ten with draws of their own would reveal what rounding hides
        thresholds = draw("rounding").random((len(layout.names), layout.cells, layout.classes))
        design_matrix, in_cells = design.matrix(local.inputs_of_models(query)), local.in_cells(query)
        counted_in = local.merged_cells(query, in_cells)
        classes = classes_in_both_halves(column, local.row_ids, second, len(models), local.least_rows)
        probabilities = [
            predict_classes(design_matrix, column.index, classes, weights, second if owner == local.client else None)
            for owner, weights in models.items()
        ]
        stacked, weights = np.stack(probabilities), local.weights(query)
        rows = in_cells, local.row_ids, second
        counts = predicted_counts(x, *rows, layout, stacked, thresholds, weights, local.least_rows, counted_in)
        return {"counts": counts}

    all_weights = b"".join(weights.tobytes() for weights in models.values())
    models_id = hashlib.sha256("\n".join(models).encode() + all_weights).hexdigest()[:16]
    query_id, values = f"{design.id} {models_id}", local.covered(ledger, query)
    return [ledger.answer(local.version, query_id, compute, values, kind=_PREDICTIONS_KIND)["counts"]]


def doubtful_pairs(comparison: Comparison) -> np.ndarray:
    """Return the indices of pairs that differ in both inputs and rule; none if groups are compared."""
    feature, _, concept = comparison.pairs.verdicts.types.T
    return np.flatnonzero(feature & concept) if not comparison.of_groups else np.zeros(0, np.int64)


@server_step
def refine_pairs(
    comparison: Comparison,
    messages: Sequence[ShiftNumbers | NoisyCounts],
    query: Query,
    owners: Mapping[str, Sequence[str]],
    predictions: Sequence[PredictedCounts],
) -> Comparison:
    """Remove a change of rule that the models of both clients predict; the server sees no rows.

    Pairs with a client that gave no predictions stay unchanged. owners: for each queried client the owners of the
    models, in the order of its predictions.
    """
    _, summaries = named_summaries(messages, query)
    counts = {client: table.numpy() for m in predictions for client, table in m.counts.items()}
    queried = [index for index, client in enumerate(comparison.clients) if client in counts]
    first, second = comparison.pairs.first, comparison.pairs.second
    pairs_in_doubt = doubtful_pairs(comparison)
    pairs_in_doubt = pairs_in_doubt[np.isin(first[pairs_in_doubt], queried) & np.isin(second[pairs_in_doubt], queried)]
    if not len(pairs_in_doubt):
        return comparison
    queried_summaries = summaries.take(queried)
    tables = _tables(queried_summaries, [comparison.clients[index] for index in queried], owners, counts)
    positions = (np.searchsorted(queried, clients[pairs_in_doubt]) for clients in (first, second))
    check = check_covariates(queried_summaries, query.layout, tables, *positions)
    pairs = _explained(comparison.pairs, pairs_in_doubt, check)
    details = pair_details(summaries, query.layout, pairs, comparison.groups)
    return replace(comparison, pairs=pairs, pair_details=details)


def _tables(
    summaries: Summaries, clients: Sequence[str], owners: Mapping[str, Sequence[str]], counts: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return what these clients' models predict for each of them, as in `check_covariates`; 0 without predictions."""
    tables = np.zeros((len(clients), len(clients), *summaries.counts.shape[1:-1], summaries.counts.shape[-1] - 1))
    for index, client in enumerate(clients):
        known = [model for model, owner in enumerate(owners[client]) if owner in clients]
        owner_indices = [clients.index(owners[client][model]) for model in known]
        tables[index, owner_indices] = distribute_runs(counts[client], summaries.counts[index])[known]
    return tables


def _explained(pairs: Findings, indices: np.ndarray, check: CovariateCheck) -> Findings:
    """Update the types of pairs at `indices`; without a change of rule, the parts are those of P(X)."""
    types, parts, rules = pairs.verdicts.types.copy(), pairs.parts.copy(), indices[check.rules]
    types[indices] = check.unexplained(types[indices])
    parts[rules] = pairs.inputs[rules]
    return replace(pairs, verdicts=replace(pairs.verdicts, types=types), parts=parts)
