"""The server looks again at pairs that seem to differ in inputs and in rule, with what models foresee; it sees no row."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from models.shift.classify import CovariateCheck, check_covariates
from models.shift.client_summaries.client_summary import Summaries
from models.shift.client_summaries.model_predictions import apportioned
from models.shift.client_summaries.query import Query
from models.shift.pair_details import pair_details
from models.shift.pairwise_results import Findings
from tasks.diagnosis.compare_silos import Compared, reports_of
from tasks.execution.task_types import server_step
from tasks.messages.diagnosis_messages import NoisyCounts, PredictedCounts, ShiftNumbers


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
