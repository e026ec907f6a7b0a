"""Correlations and far values that clients report after their counts, and what the server adds to the comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from models.diagnosis.client_summaries.client_summary import MOMENTS, Summaries, leave_one_out, mixture
from models.diagnosis.client_summaries.query import Query
from models.diagnosis.client_summaries.rank_correlations import (
    Correlations,
    PairQuery,
    combine_correlations,
    concatenate_correlations,
    correlate_features,
    count_far_values,
    index_pairs,
    select_features,
)
from models.diagnosis.correlation_tests import Refinement, refine_findings
from models.diagnosis.diagnose_pairs import append_rest, group_clients
from models.diagnosis.screen_clients import combine_groups, compare_inside, pair_details
from silos.client_store import ClientStore
from silos.cohort import Cohort
from silos.missing_codes import find_missing_code
from silos.privacy.ledger import Draw, Ledger
from silos.privacy.report_rules import Kind
from tasks.diagnosis.compare_silos import Comparison, named_summaries
from tasks.diagnosis.report_summary import LocalSummary, answers_by_stack
from tasks.execution.steps import server_step, step
from tasks.messages.statistics_messages import FeatureCorrelations, NoisyCounts, Refusal, ShiftNumbers

_PAIRS_KIND = Kind("pairs of features")


@step
def report_feature_pairs(
    cohort: Cohort, private: ClientStore, question: PairQuery
) -> list[FeatureCorrelations | Refusal]:
    """Report rank correlations by class, and numbers of far values: one message a stack, and one of its refusals."""
    messages: list[FeatureCorrelations | Refusal] = []
    for answers, refusals in answers_by_stack(
        cohort, private, partial(_report, question=question), FeatureCorrelations.__name__
    ):
        if answers:
            parts = (torch.from_numpy(np.concatenate(part)) for part in zip(*answers.values(), strict=True))
            messages.append(FeatureCorrelations(tuple(answers), *parts))
        messages += refusals
    return messages


def _report(ledger: Ledger, local: LocalSummary, question: PairQuery) -> list[np.ndarray]:
    query = question.query

    def compute(_: Draw) -> dict[str, np.ndarray]:
        x, columns = local.features(query), local.columns(query)
        features = np.array(question.features, np.int64)
        found = correlate_features(
            x, columns, local.row_ids, query.layout, features, local.least_rows, local.least_cell
        )
        far = _count_far(x[columns.reported]) * query.layout.numeric[:, None]
        if query.layout.targets:
            far = np.concatenate([far, _count_far(local.y[columns.reported, None].astype(np.float64))])
        far = np.where(far < local.least_cell, 0, far)
        return {
            "values": found.values.astype(np.float32),
            "variances": found.variances.astype(np.float32),
            "far": far[None],
        }

    values = local.covered(ledger, query)  # each number is a sum over rows of a class, as the counts are
    answer = ledger.answer(local.version, question.id, compute, values, kind=_PAIRS_KIND)
    return [answer[part] for part in ("values", "variances", "far")]


def _count_far(x: np.ndarray) -> np.ndarray:
    """Count each feature's values far below and far above the others, and codes for missing values, such as -1 or -999."""
    far = count_far_values(x)
    for feature, column in enumerate(x.T):
        values, rows = np.unique(column[~np.isnan(column)], return_counts=True)
        index = find_missing_code(values, rows, sure=True)  # nobody sees the values, and silos are many
        if index is not None:
            far[feature, int(index > 0)] = max(far[feature, int(index > 0)], rows[index])
    return far


@dataclass(frozen=True, eq=False)
class FeaturePairs:
    """What correlations and far values show.

    correlations: by client, NaN of clients that did not report; far: (clients, features, 2) numbers of values far below
    and far above the others; pairs, rest: of the pairs of the comparison, and of each client against all others.
    """

    correlations: Correlations
    far: np.ndarray
    pairs: Refinement
    rest: Refinement


def pair_question(comparison: Comparison, messages: Sequence[ShiftNumbers | NoisyCounts], query: Query) -> PairQuery:
    """Build the query of the features that determine labels most, or differ most between clients."""
    summaries = named_summaries(messages, query)[1]
    differing = np.nan_to_num(comparison.pairs.parts).max(0, initial=0.0)
    return PairQuery(query, tuple(select_features(summaries, query.layout, differing).tolist()))


def target_moments(messages: Sequence[ShiftNumbers | NoisyCounts], query: Query) -> dict[str, np.ndarray]:
    """Return the moments of targets by client, from the answers to the query of moments."""
    clients, summaries = named_summaries(messages, query)
    return dict(zip(clients, mixture(summaries.moments)[:, -1], strict=True))


@server_step
def refine_by_feature_pairs(
    comparison: Comparison,
    messages: Sequence[ShiftNumbers | NoisyCounts],
    reported: Sequence[FeatureCorrelations],
    question: PairQuery,
    targets: Mapping[str, np.ndarray] | None = None,
    resolve: bool = True,
) -> tuple[Comparison, FeaturePairs]:
    """Add what pairs of features show to the comparison; the server sees no rows.

    targets: in a regression the moments of each client's targets, (5,); resolve: as in `refine_findings`.
    """
    layout, (clients, summaries) = question.query.layout, named_summaries(messages, question.query)
    correlations, far = _read(reported, clients, question)
    rows = rows_by_column(summaries)
    units, of_units = summaries, correlations
    if comparison.of_groups:
        units = combine_groups(summaries, comparison.groups)
        of_units = combine_correlations(correlations, rows, comparison.groups)
    moments = None
    if targets is not None:
        moments = np.stack([targets.get(client, np.full(len(MOMENTS), np.nan)) for client in clients])
    # silos report moments of their targets, and those of a group are not formed
    of_groups = None if comparison.of_groups else moments
    pairs, refinement = refine_findings(comparison.pairs, units, layout, of_units, of_groups, resolve)
    of_all = concatenate_correlations([correlations, combine_correlations(correlations, rows)])
    rest, of_rest = refine_findings(
        comparison.rest,
        append_rest(summaries),
        layout,
        of_all,
        None if moments is None else _with_rest(moments),
        resolve,
    )
    groups_ = comparison.groups
    if not comparison.of_groups:
        differ = pairs.verdicts.types.any(-1) | pairs.verdicts.undetermined
        groups_ = group_clients(pairs.first, pairs.second, differ, len(clients))
    # silos are grouped again, since pairs that seemed alike may differ by their correlations, and what
    # describes groups follows; groups that were formed before the comparison stay
    changed = replace(comparison, pairs=pairs, rest=rest, groups=groups_)
    if not comparison.of_groups:
        changed = replace(
            changed,
            inside=compare_inside(summaries, groups_),
            pair_details=pair_details(summaries, layout, pairs, groups_),
            by_group=combine_groups(summaries, groups_),
        )
    return changed, FeaturePairs(correlations, far, refinement, of_rest)


def _read(
    reported: Sequence[FeatureCorrelations], clients: Sequence[str], question: PairQuery
) -> tuple[Correlations, np.ndarray]:
    layout, features = question.query.layout, np.array(question.features, np.int64)
    shape = (len(clients), len(index_pairs(len(features))[0]), layout.classes + 1)
    values, variances = np.full(shape, np.nan), np.full(shape, np.nan)
    far = np.zeros((len(clients), len(layout.names) + bool(layout.targets), 2), np.int64)
    position = {client: index for index, client in enumerate(clients)}
    for message in reported:
        for index, client in enumerate(message.clients):
            if client in position:
                at = position[client]
                values[at], variances[at], far[at] = message.values[index], message.variances[index], message.far[index]
    return Correlations(features, values, variances), far


def _with_rest(moments: np.ndarray) -> np.ndarray:
    """Append to the moments of clients, for each of them, those of all others: (2 clients, 5)."""
    return np.concatenate([moments, leave_one_out(moments)])


def rows_by_column(summaries: Summaries) -> np.ndarray:
    """Return the rows of each class and of all classes: (clients, classes + 1)."""
    labels = np.nan_to_num(summaries.labels)
    return np.concatenate([labels, labels.sum(-1, keepdims=True)], -1)
